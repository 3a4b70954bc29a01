"""Files named in arguments: output files that are written completely or not at all, and text to read.

Invariants
- A file gets its name when all of it is durable. A target that a rename would destroy (a device) is refused,
  and a symlink is followed.
"""

import os
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.errors import BadInput

_STANDARD_OUTPUT: Final = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}
_INSTEAD: Final = "give the path of a file, or - for standard output"


def regular_target(file: Path) -> Path | None:
    """The regular file to create or replace. None for standard output.

    Raises `BadInput` if the target is not a regular file, or if its folder doesn't exist.
    """
    if str(file) in _STANDARD_OUTPUT:
        return None
    try:
        # A symlink stays; the file that it points to is replaced.
        if not stat.S_ISREG(file.stat().st_mode):
            raise BadInput(f"can't write {file}: it is not a regular file", hint=_INSTEAD)
        return file.resolve()
    except FileNotFoundError:
        if file.is_symlink():
            raise BadInput(f"can't write {file}: it is a symlink to a missing file", hint=_INSTEAD) from None
    except OSError as error:
        raise BadInput(f"can't write {file}: {error.strerror or error}") from error
    if not file.parent.is_dir():
        raise BadInput(f"can't write {file}: {file.parent} is not a folder")
    return file


@contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """A stream to a new file that takes the name of `file` when all of it is durable."""
    # In the same folder, so that the last step is a rename. Hidden, so that readers of the folder skip it.
    making = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with making.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        making.replace(file)
    finally:
        making.unlink(missing_ok=True)


def text_argument(given: str, what: str) -> str:
    """The text of an argument: `@FILE` reads a file, `-` standard input, anything else is the text itself.

    Raises `BadInput` for a file that can't be read or isn't UTF-8 text. `what` names the argument in errors.
    """
    if given != "-" and not given.startswith("@"):
        return given
    try:
        data = sys.stdin.buffer.read() if given == "-" else Path(given[1:]).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"can't read {what} from {given[1:]}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        where = "standard input" if given == "-" else given[1:]
        raise BadInput(f"can't read {what} from {where}: it is not UTF-8 text") from None
