"""Opens the stores that URLs name.

Messages repeat only the scheme and path of a URL. The rest may contain secrets.
"""

import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import BadInput, LocationMismatch, StoreUnreachable
from holdfast.extras import needs
from holdfast.folders import check_usable
from holdfast.forks import ForkLock, fork_count
from holdfast.persist.stores.file import FileBlob
from holdfast.persist.stores.memory import MemoryBlob, MemoryConsensus
from holdfast.persist.stores.s3_place import FORM as S3_FORM
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.sqlite import SqliteConsensus
from holdfast.persist.stores.traits import UNKNOWN_ARGUMENTS, Blob, Consensus

BLOB_FOLDER = "blob"
LOG_FOLDER = "consensus"
CONSENSUS_FILE = "consensus.sqlite"

_LOCATION_FORMS: Final = ("file:///dir", S3_FORM, "memory://name")
_BLOB_FORMS: Final = ("file:///dir", S3_FORM, "memory://name")
_CONSENSUS_FORMS: Final = (
    "sqlite:///path",
    "postgresql://user@host:port/database",
    S3_FORM,
    "memory://name",
)
_POSTGRES: Final = frozenset({"postgresql", "postgres"})
_SHOWN_OPTIONS: Final = frozenset({"schema", "sslmode", "target_session_attrs"})

Credentials = Mapping[str, str] | None

_memory_lock: Final = ForkLock()
# A forked child has its own stores: a copy of the parent's would be a second history with the same name.
_memory_blobs: Final[dict[tuple[int, str], MemoryBlob]] = {}
_memory_consensus: Final[dict[tuple[int, str], MemoryConsensus]] = {}


def open_stores(
    url: str | None,
    *,
    blob: str | None,
    consensus: str | None,
    create: bool,
    read_only: bool,
    credentials: Credentials = None,
) -> tuple[Blob, Consensus]:
    """Open both stores of a location. Raises `BadInput` unless you give either `url` or both others.

    `credentials` have the names of the environment variables of AWS and libpq (default: the environment).
    """
    for given in (url, blob, consensus):
        if given is not None and not isinstance(given, str):
            raise BadInput(
                f"a URL is a string, not of type {type(given).__name__}",
                hint=f"known forms: {', '.join(_LOCATION_FORMS)}",
            )
    if url is not None:
        if blob is not None or consensus is not None:
            raise BadInput("give either the URL of a location, or the URLs of its blob and its consensus")
        parts = _split(url, "location", _LOCATION_FORMS)
        if parts.scheme == "memory":
            return _memory_blob(parts), _memory_log(parts)
        if parts.scheme == "s3":
            place = S3Place.of(parts)
            arguments = arguments_of(url, blob=None, consensus=None)
            return _at_once(
                partial(_s3_blob, place.below(BLOB_FOLDER), read_only=read_only, credentials=credentials),
                partial(
                    _s3_log,
                    place.below(LOG_FOLDER),
                    create=create,
                    read_only=read_only,
                    arguments=arguments,
                    credentials=credentials,
                ),
            )
        folder = _path(parts, "location")
        if create and not read_only:
            arguments = arguments_of(url, blob=None, consensus=None)
            _check_creatable(folder / BLOB_FOLDER, folder / CONSENSUS_FILE, arguments)
        log: Consensus = SqliteConsensus(folder / CONSENSUS_FILE, create=create, read_only=read_only)
        return _with_blob(lambda: FileBlob(folder / BLOB_FOLDER, create=create, read_only=read_only), log)
    if blob is None or consensus is None:
        raise BadInput("a location needs a URL, or the URLs of both its blob and its consensus")
    blob_parts = _split(blob, "blob", _BLOB_FORMS)
    open_blob = _blob_opener(blob_parts, create=create, read_only=read_only, credentials=credentials)
    if blob_parts.scheme == "file" and create and not read_only and consensus.startswith("sqlite://"):
        log_path = _path(_split(consensus, "consensus", _CONSENSUS_FORMS), "consensus")
        arguments = arguments_of(None, blob=blob, consensus=consensus)
        _check_creatable(_path(blob_parts, "blob"), log_path, arguments)
    if blob_parts.scheme == "s3" and consensus.startswith("s3://"):
        _check_apart(S3Place.of(blob_parts), S3Place.of(_split(consensus, "consensus", _CONSENSUS_FORMS)))
    open_log = partial(
        open_consensus, consensus, create=create, read_only=read_only, blob=blob, credentials=credentials
    )
    return _at_once(open_blob, open_log) if blob_parts.scheme == "s3" else _with_blob(open_blob, open_log())


def open_for_recovery(
    url: str | None, *, blob: str | None, consensus: str | None, write: bool, proof: str
) -> tuple[Blob, Consensus, str]:
    """Open the stores of a location whose consensus store may be lost. With `write`, make a lost one again.

    Without `write`, an empty store stands for one that can't be opened, and the third value is the reason. A
    log of objects with a gap is opened up to the gap (`Consensus.lost`). Nothing is made if the blob store
    does not have the key `proof`.
    """
    open_log: Callable[[], Consensus]
    if url is not None:
        parts = _split(url, "location", _LOCATION_FORMS)
        if parts.scheme == "s3":
            place = S3Place.of(parts).below(LOG_FOLDER)
            open_log = partial(_s3_log, place, create=write, read_only=not write, for_recovery=True)
        elif parts.scheme == "file":
            path = _path(parts, "location") / CONSENSUS_FILE
            open_log = partial(SqliteConsensus, path, create=write, read_only=not write)
        else:
            return *open_stores(url, blob=None, consensus=None, create=False, read_only=not write), ""
    elif blob is None or consensus is None:
        raise BadInput("a location needs a URL, or the URLs of both its blob and its consensus")
    else:
        open_log = partial(
            open_consensus, consensus, create=write, read_only=not write, for_recovery=True, blob=blob
        )
    blobs = open_blob(url, blob, read_only=not write)
    try:
        if blobs.get(proof) is None:
            raise BadInput(
                f"{blobs.description} has no {proof}: it is not the blob store of a location",
                hint=f"check the URL, or restore {proof} from a backup",
            )
        return blobs, open_log(), ""
    except StoreUnreachable as error:
        if not write:
            return blobs, MemoryConsensus("nothing"), str(error)
        blobs.close()
        raise
    except BaseException:
        blobs.close()
        raise


def open_blob(url: str | None, blob: str | None, *, read_only: bool, credentials: Credentials = None) -> Blob:
    """Open the blob store of a location, or the one at `blob`. It must exist: nothing is made.

    Raises `NoLocation` if there is none, and the errors of `open_stores`.
    """
    if url is None:
        assert blob is not None
        parts = _split(blob, "blob", _BLOB_FORMS)
        return _blob_opener(parts, create=False, read_only=read_only, credentials=credentials)()
    parts = _split(url, "location", _LOCATION_FORMS)
    match parts.scheme:
        case "memory":
            return _memory_blob(parts)
        case "s3":
            below = S3Place.of(parts).below(BLOB_FOLDER)
            return _s3_blob(below, read_only=read_only, credentials=credentials)
        case _:
            return FileBlob(_path(parts, "location") / BLOB_FOLDER, create=False, read_only=read_only)


def arguments_of(url: str | None, *, blob: str | None, consensus: str | None) -> str:
    """Return how a `holdfast persist` command names a location whose URLs are valid, quoted for a shell.

    User names and passwords are shown as USER and PASSWORD.
    """
    if url is not None:
        return shlex.quote(_public(url))
    assert blob is not None
    assert consensus is not None
    return f"{shlex.quote(_public(blob))} --consensus {shlex.quote(_public(consensus))}"


def lost_hint(arguments: str) -> str:
    """Return what to do if the consensus store of a location is lost. `arguments` name the location."""
    return (
        "if files of the consensus store are lost, put them back, or restore a backup with 'holdfast persist"
        f" restore'; to see what is left without them, run: holdfast persist recover {arguments}"
    )


def _public(url: str) -> str:
    """A valid URL without secrets."""
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    if scheme == "s3":
        return S3Place.of(urlsplit(url)).url
    if scheme not in _POSTGRES:
        return base
    user, at, where = rest.rpartition("@")
    # The other options go to libpq, and one of them may be a password.
    shown = [option for option in query.split("&") if option.partition("=")[0] in _SHOWN_OPTIONS]
    who = "USER:PASSWORD@" if ":" in user else "USER@" if at else ""
    return f"{scheme}://{who}{where}{'?' if shown else ''}{'&'.join(shown)}"


def folder_of(url: str) -> Path:
    """Return the folder of a location in files. Raises `BadInput` for any other URL."""
    parts = _split(url, "location", _LOCATION_FORMS)
    if parts.scheme != "file":
        raise BadInput(f"a {parts.scheme}:// location is not in files", hint="write file:///absolute/path")
    return _path(parts, "location")


def open_consensus(
    url: str,
    *,
    create: bool,
    read_only: bool,
    for_recovery: bool = False,
    blob: str | None = None,
    credentials: Credentials = None,
) -> Consensus:
    """Open the consensus store at `url`. Raises the same errors as `open_stores`.

    With `for_recovery`, a log of objects with a gap is opened up to the gap. With `blob`, the URL of the blob
    store, hints name the location.
    """
    if url.partition("://")[0] in _POSTGRES:
        return _open_postgres(url, create=create, read_only=read_only, credentials=credentials)
    parts = _split(url, "consensus", _CONSENSUS_FORMS)
    if parts.scheme == "memory":
        return _memory_log(parts)
    if parts.scheme == "s3":
        place = S3Place.of(parts)
        return _s3_log(
            place,
            create=create,
            read_only=read_only,
            for_recovery=for_recovery,
            arguments=arguments_of(None, blob=blob, consensus=url) if blob is not None else UNKNOWN_ARGUMENTS,
            credentials=credentials,
        )
    return SqliteConsensus(_path(parts, "consensus"), create=create, read_only=read_only)


def _open_postgres(url: str, *, create: bool, read_only: bool, credentials: Credentials) -> Consensus:
    with needs("postgres", "a postgresql:// URL"):
        from holdfast.persist.stores.postgres import PostgresConsensus
    return PostgresConsensus(url, create=create, read_only=read_only, credentials=credentials)


def _check_creatable(folder: Path, log: Path, arguments: str) -> None:
    """Refuse a blob folder that can't belong to the new consensus file `log`, before anything is made.

    A location's consensus file is made before its first blob. So blobs without a consensus file don't belong
    to a location that somebody else is creating right now. Raises `UnusablePath` and `LocationMismatch`.
    """
    check_usable(folder)
    foreign = next((path.name for path in folder.glob("*") if not path.name.startswith(".")), None)
    if foreign is not None and not log.exists():
        raise LocationMismatch(
            f"blob folder {folder} has {foreign}, but consensus file {log} does not exist",
            hint=f"for a new location, choose an empty folder; {lost_hint(arguments)}",
        )


def _at_once(open_blob: Callable[[], Blob], open_log: Callable[[], Consensus]) -> tuple[Blob, Consensus]:
    """Open both stores at the same time. If both fail, the error of the log counts.

    Only for blobs on S3, because opening them writes nothing: the log decides whether there is a location.
    """
    # Two threads that import modules with a cycle may find half a module.
    with needs("s3", "an s3:// URL"):
        import holdfast.persist.stores.s3  # noqa: F401
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-open") as threads:
        blob = threads.submit(open_blob)
        try:
            log = open_log()
        except BaseException:
            if blob.exception() is None:
                blob.result().close()
            raise
        return _with_blob(blob.result, log)


def _with_blob(open_blob: Callable[[], Blob], log: Consensus) -> tuple[Blob, Consensus]:
    try:
        return open_blob(), log
    except BaseException:
        log.close()
        raise


def _blob_opener(
    parts: SplitResult, *, create: bool, read_only: bool, credentials: Credentials
) -> Callable[[], Blob]:
    """Check the URL, and return a function that opens the blob store once the consensus store is open."""
    match parts.scheme:
        case "memory":
            return lambda: _memory_blob(parts)
        case "s3":
            place = S3Place.of(parts)
            return lambda: _s3_blob(place, read_only=read_only, credentials=credentials)
        case _:
            folder = _path(parts, "blob")
            return lambda: FileBlob(folder, create=create, read_only=read_only)


def _s3_blob(place: S3Place, *, read_only: bool, credentials: Credentials) -> Blob:
    # Imported here, because it is an extra and its import takes longer than opening any other store.
    with needs("s3", "an s3:// URL"):
        from holdfast.persist.stores.s3 import S3Blob
    return S3Blob(place, read_only=read_only, credentials=credentials)


def _s3_log(
    place: S3Place,
    *,
    create: bool,
    read_only: bool,
    for_recovery: bool = False,
    arguments: str = UNKNOWN_ARGUMENTS,
    credentials: Credentials = None,
) -> Consensus:
    with needs("s3", "an s3:// URL"):
        from holdfast.persist.stores.s3_log import S3LogConsensus
        from holdfast.persist.stores.s3_objects import S3Objects
    objects = S3Objects(place, reads=read_only, credentials=credentials)
    try:
        return S3LogConsensus(
            objects, create=create, read_only=read_only, for_recovery=for_recovery, arguments=arguments
        )
    except BaseException:
        objects.close()
        raise


def _check_apart(blob: S3Place, log: S3Place) -> None:
    """Refuse a log whose objects would lie among the blobs, or blobs that would lie among those objects."""
    if (blob.bucket, blob.endpoint) != (log.bucket, log.endpoint):
        return
    one, other = (f"{place.prefix}/" if place.prefix else "" for place in (blob, log))
    if one.startswith(other) or other.startswith(one):
        raise BadInput(
            "the blob and the consensus of a location can't lie at or below the same s3:// prefix",
            hint="use a separate prefix for each, or the s3:// URL of the location alone",
        )


def _memory_blob(parts: SplitResult) -> MemoryBlob:
    name = _name(parts)
    with _memory_lock:
        return _memory_blobs.setdefault((fork_count(), name), MemoryBlob(name))


def _memory_log(parts: SplitResult) -> MemoryConsensus:
    name = _name(parts)
    with _memory_lock:
        return _memory_consensus.setdefault((fork_count(), name), MemoryConsensus(name))


def _split(url: str, what: str, forms: tuple[str, ...]) -> SplitResult:
    known = ", ".join(forms)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInput(f"the {what} URL can't be parsed", hint=f"known forms: {known}") from error
    if not parts.scheme or "://" not in url:
        # Text with one of these may be a URL that lacks only its scheme, with a password in it.
        given = f"the {what}" if any(each in url for each in "@?") else f"{what} {url!r}"
        raise BadInput(
            f"{given} is not a URL", hint=f"known forms: {known}; a folder is file:///absolute/path"
        )
    if parts.scheme in _POSTGRES:
        raise BadInput(
            f"a {parts.scheme}:// URL names a consensus store, not a {what}",
            hint="give the URLs of blob and consensus separately",
        )
    if parts.scheme not in {form.partition("://")[0] for form in forms}:
        raise BadInput(
            f"the scheme {parts.scheme}:// of the {what} URL is unknown", hint=f"known forms: {known}"
        )
    if "@" in parts.netloc:
        raise BadInput(f"a {parts.scheme}:// URL takes no user name or password")
    if (parts.query and parts.scheme != "s3") or parts.fragment:
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
