"""Checks and makes the folders of stores that consist of files."""

import errno
import os
from pathlib import Path
from typing import Final

from holdfast.errors import StoreUnreachable, UnusablePath

# The system refuses the path itself. Other errors are failures of the disk below it.
_PATH_REFUSED: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
_LONGEST_NAME: Final = 255
_GIVE_FOLDER: Final = "give the path of a folder"


def check_usable(folder: Path) -> None:
    """Raise `UnusablePath` unless `folder` can be written, or can be made with its missing parents.

    Nothing is made to find out, so a refused path leaves nothing behind.
    """
    nearest = folder
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        if len(os.fsencode(nearest.name)) > _LONGEST_NAME:
            raise UnusablePath(f"can't make folder {folder}: {os.strerror(errno.ENAMETOOLONG)}")
        nearest = nearest.parent
    verb = "write to" if nearest == folder else "make"
    if not nearest.is_dir():
        raise UnusablePath(f"can't {verb} folder {folder}: {nearest} is not a folder", hint=_GIVE_FOLDER)
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        raise UnusablePath(f"can't {verb} folder {folder}: {nearest} is not writable for this process")


def open_error(message: str, error: OSError, *, missing_is_bad: bool) -> StoreUnreachable:
    """Return the error for a store that the file system refuses to open. It blames the path or the disk.

    A missing folder means that there is no store, unless making the folder was tried and refused.
    """
    shown = f"{message}: {reason(error)}"
    if error.errno in _PATH_REFUSED or (error.errno == errno.ENOENT and missing_is_bad):
        return UnusablePath(shown, hint=_GIVE_FOLDER if error.errno == errno.ENOTDIR else "")
    return StoreUnreachable(shown, hint="check the disk and try again")


def make_folder(folder: Path) -> None:
    """Make `folder` and its missing parents durably. Raises `OSError` if that fails."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: OSError) -> str:
    """Return the system's message in a few words."""
    return os.strerror(error.errno) if error.errno else str(error)
