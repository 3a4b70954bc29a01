"""From URLs to open stores.

Messages repeat the scheme and path of a URL and nothing else: the rest may hold secrets.
"""

import threading
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import BadInput
from holdfast.persist.storage.file import FileBlob
from holdfast.persist.storage.memory import MemoryBlob, MemoryConsensus
from holdfast.persist.storage.sqlite import SqliteConsensus
from holdfast.persist.storage.traits import Blob, Consensus

BLOB_FOLDER = "blob"
CONSENSUS_FILE = "consensus.sqlite"

_LOCATION_FORMS: Final = ("file:///dir", "memory://name")
_BLOB_FORMS: Final = ("file:///dir", "memory://name")
_CONSENSUS_FORMS: Final = ("sqlite:///path", "postgresql://user@host:port/database", "memory://name")
_LATER: Final = frozenset({"s3"})
_POSTGRES: Final = frozenset({"postgresql", "postgres"})

_memory_lock: Final = threading.Lock()
_memory_blobs: Final[dict[str, MemoryBlob]] = {}
_memory_consensus: Final[dict[str, MemoryConsensus]] = {}


def open_stores(
    url: str | None, *, blob: str | None, consensus: str | None, create: bool, read_only: bool
) -> tuple[Blob, Consensus]:
    """Open both stores of a location; `BadInput` unless either `url` or both others are given."""
    if url is not None:
        if blob is not None or consensus is not None:
            raise BadInput("give either the URL of a location or those of its blob and consensus, not both")
        parts = _split(url, "location", _LOCATION_FORMS)
        if parts.scheme == "memory":
            return _memory_blob(parts), _memory_log(parts)
        folder = _path(parts, "location")
        log: Consensus = SqliteConsensus(folder / CONSENSUS_FILE, create=create, read_only=read_only)
        return _with_blob(folder / BLOB_FOLDER, log, create=create, read_only=read_only)
    if blob is None or consensus is None:
        raise BadInput("a location needs a URL, or the URLs of both its blob and its consensus")
    blob_parts = _split(blob, "blob", _BLOB_FORMS)
    if blob_parts.scheme == "memory":
        return _memory_blob(blob_parts), _open_consensus(consensus, create=create, read_only=read_only)
    folder = _path(blob_parts, "blob")
    log = _open_consensus(consensus, create=create, read_only=read_only)
    return _with_blob(folder, log, create=create, read_only=read_only)


def _open_consensus(url: str, *, create: bool, read_only: bool) -> Consensus:
    if url.partition("://")[0] in _POSTGRES:
        return _open_postgres(url, create=create, read_only=read_only)
    parts = _split(url, "consensus", _CONSENSUS_FORMS)
    if parts.scheme == "memory":
        return _memory_log(parts)
    return SqliteConsensus(_path(parts, "consensus"), create=create, read_only=read_only)


def _open_postgres(url: str, *, create: bool, read_only: bool) -> Consensus:
    try:
        from holdfast.persist.storage.postgres import PostgresConsensus
    except ImportError as error:
        raise BadInput(
            f"a postgresql:// URL needs packages that are not installed: {error}",
            hint="install holdfast[postgres]",
        ) from error
    return PostgresConsensus(url, create=create, read_only=read_only)


def _with_blob(folder: Path, log: Consensus, *, create: bool, read_only: bool) -> tuple[Blob, Consensus]:
    try:
        return FileBlob(folder, create=create, read_only=read_only), log
    except BaseException:
        log.close()
        raise


def _memory_blob(parts: SplitResult) -> MemoryBlob:
    name = _name(parts)
    with _memory_lock:
        return _memory_blobs.setdefault(name, MemoryBlob(name))


def _memory_log(parts: SplitResult) -> MemoryConsensus:
    name = _name(parts)
    with _memory_lock:
        return _memory_consensus.setdefault(name, MemoryConsensus(name))


def _split(url: str, what: str, forms: tuple[str, ...]) -> SplitResult:
    known = ", ".join(forms)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInput(f"the {what} URL can't be parsed", hint=f"known forms: {known}") from error
    if not parts.scheme or "://" not in url:
        raise BadInput(
            f"the {what} URL has no scheme", hint=f"known forms: {known}; a folder is file:///absolute/path"
        )
    if parts.scheme in _POSTGRES:
        raise BadInput(
            f"a {parts.scheme}:// URL names a consensus store, not a {what}",
            hint="give the URLs of blob and consensus apart",
        )
    if parts.scheme not in {form.partition("://")[0] for form in forms}:
        why = "is not available in this version" if parts.scheme in _LATER else "is unknown"
        raise BadInput(f"the scheme {parts.scheme}:// of the {what} URL {why}", hint=f"known forms: {known}")
    if "@" in parts.netloc:
        raise BadInput(f"a {parts.scheme}:// URL takes no user name or password")
    if parts.query or parts.fragment:
        raise BadInput(f"a {parts.scheme}:// URL takes no options after '?' or '#'")
    return parts


def _name(parts: SplitResult) -> str:
    name = (parts.netloc + parts.path).strip("/")
    if not name:
        raise BadInput("a memory:// URL needs a name", hint="write memory://name")
    return name


def _path(parts: SplitResult, what: str) -> Path:
    path = unquote(parts.path)
    scheme = parts.scheme
    if parts.netloc:
        raise BadInput(
            f"the {what} URL {scheme}://{parts.netloc}{path} is not absolute",
            hint=f"write {scheme}:/// and the absolute path",
        )
    trimmed = path.strip("/")
    if not trimmed or "\0" in path:
        raise BadInput(
            f"the {what} URL {scheme}://{path!r} names no path", hint=f"write {scheme}:/// and a path"
        )
    return Path("/" + trimmed)
