"""Finds the folder of a snapshot by its path or URL."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.collections.snapshots.folder import LocalFolder, SnapshotFolder
from holdfast.errors import BadInput
from holdfast.extras import needs
from holdfast.persist.stores.s3_place import S3Place


def folder_at(location: str | Path, credentials: Mapping[str, str] | None = None) -> SnapshotFolder:
    """The folder at an absolute path, a `file://` or an `s3://` URL. Raises `BadInput` for anything else,
    or if the package for S3 is not installed.

    `credentials` are for S3, and have the names of AWS's environment variables (default: the environment).
    """
    if isinstance(location, Path) or not location.startswith("s3://"):
        return LocalFolder(local_folder(str(location)))
    with needs("s3", "an s3:// URL"):
        from holdfast.collections.snapshots.s3_folder import S3Folder
    return S3Folder(S3Place.of(urlsplit(location)), credentials)


def local_folder(location: str) -> Path:
    """The folder at a path or a `file://` URL. Raises `BadInput` for another scheme or a relative path."""
    parts = urlsplit(location)
    if parts.scheme not in {"", "file"} or (parts.scheme and parts.netloc not in {"", "localhost"}):
        # A URL of another scheme may contain a secret.
        named = location if parts.scheme == "file" else f"a {parts.scheme}:// URL"
        raise BadInput(f"{named} is not a folder: give an absolute path, a file:// or an s3:// URL")
    folder = Path(unquote(parts.path)) if parts.scheme else Path(location)
    if not folder.is_absolute():
        raise BadInput(f"{location!r} is a relative path; give an absolute one")
    return folder
