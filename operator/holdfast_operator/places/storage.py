"""Resolves the locations in a Catalog's spec to URLs: where its data is, and where it comes from."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from holdfast.errors import BadInput
from holdfast.persist.stores.url import BLOB_FOLDER, CONSENSUS_FILE, LOG_FOLDER
from holdfast.pg_session import DEFAULT_SCHEMA
from holdfast.store_keys import AUTH, KEY, PASSWORD, SECRET_KEY, TOKEN, USER, s3_keys
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.catalog_source import CatalogStorage
from holdfast_operator.api.names import Reason
from holdfast_operator.places import own_password
from holdfast_operator.places.bounds import FILES, PORTS, Bounds

_WITH: Final = " with "
_DATABASES: Final = frozenset({"postgres", "postgresql"})


@dataclass(frozen=True, slots=True)
class Storage:
    """A resolved location: `url`, or `blob` and `consensus`."""

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None
    secret: str | None = field(default=None, compare=False)
    """The name of the Secret with its credentials. If there is none, the operator uses its own."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All its URLs."""
        return tuple(url for url in (self.url, self.blob, self.consensus) if url is not None)

    @property
    def place(self) -> dict[str, str]:
        """The location in the form that the spec of a job uses."""
        named = {"url": self.url, "blob": self.blob, "consensus": self.consensus}
        return {name: url for name, url in named.items() if url is not None}

    @property
    def stores(self) -> tuple[str, str]:
        """Its blob store and its consensus store in a normal form: equal if two URLs name the same place.

        Links in a file system and aliases of a host aren't resolved.
        """
        if self.url is None:
            return normal_form(self.blob or ""), normal_form(self.consensus or "")
        below = normal_form(self.url)
        match _scheme(self.url):
            case "file":
                return f"{below}/{BLOB_FOLDER}", f"sqlite{below.removeprefix('file')}/{CONSENSUS_FILE}"
            case "s3":
                place, _, endpoint = below.partition("?")
                return f"{place}/{BLOB_FOLDER}?{endpoint}", f"{place}/{LOG_FOLDER}?{endpoint}"
            case _:
                return below, ""

    @property
    def on_one_machine(self) -> bool:
        """Whether only processes with the same file system can open it."""
        return any(_scheme(url) in FILES for url in self.urls)

    def beside(self, stash: "StashLocation | None") -> str:
        """Returns one name for this location and a stash."""
        return str(self) if stash is None else f"{self}{_WITH}{stash.url}"

    def __str__(self) -> str:
        return _WITH.join(self.urls)


@dataclass(frozen=True, slots=True)
class RefusedLocation:
    """A location that can't be used. `message` says why, and what to do."""

    message: str
    reason: Reason = Reason.UNSUPPORTED_STORAGE


@dataclass(frozen=True, slots=True)
class DumpSource:
    """A dump to restore from."""

    url: str

    def __str__(self) -> str:
        return f"dump {self.url}"


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """Another catalog to restore from, at a version, or at the latest one if `as_of` is None."""

    storage: Storage
    organization_id: str
    as_of: int | None

    def __str__(self) -> str:
        then = "" if self.as_of is None else f" as of {self.as_of}"
        return f"catalog of {self.organization_id} in {self.storage}{then}"


RestoreSource = DumpSource | CatalogSource


@dataclass(frozen=True, slots=True)
class StashLocation:
    """The location of a stash, and the Secret with its credentials."""

    url: str
    schema: str | None = None
    secret: str | None = None


def stash_of(spec: CatalogSpec) -> StashLocation | None:
    """Returns the stash of a Catalog, or None."""
    if spec.stash is None:
        return None
    reference = spec.stash.credentials_secret_ref
    return StashLocation(spec.stash.url, spec.stash.schema_name, reference.name if reference else None)


def url_with(place: StashLocation, credentials: Mapping[str, str]) -> str:
    """Returns the URL that opens a stash, with its schema and, if given, `user` and `password`.

    In a Secret of type kubernetes.io/basic-auth, the key of the user is `username`.
    """
    parts = urlsplit(place.url)
    if parts.scheme == "sqlite":
        return place.url
    user = credentials.get("user") or credentials.get("username", "")
    password = credentials.get("password", "")
    options = [parts.query]
    if user or password:
        secret = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        parts = parts._replace(netloc=f"{secret}@{parts.netloc}")
    if password and (methods := own_password.methods_of_others()):
        options.append(f"require_auth={methods}")
    if place.schema is not None:
        options.append(f"schema={place.schema}")
    return parts._replace(query="&".join(filter(None, options))).geturl()


def keys_to_open(credentials: Mapping[str, str]) -> Mapping[str, str] | None:
    """Returns what opens a location with its own credentials, or None if the operator uses its own."""
    if PASSWORD in credentials and (methods := own_password.methods_of_others()):
        return {**credentials, AUTH: methods}
    return credentials or None


def of_s3(credentials: Mapping[str, str]) -> Mapping[str, str] | None:
    """Returns those of a location's credentials that are for S3, or None if there are none."""
    return s3_keys(credentials) or None


def of_storage(storage: Storage, values: Mapping[str, str]) -> dict[str, str]:
    """Returns those values of a Secret with which a location is opened.

    Their keys have the names of the environment variables of libpq and AWS. For a store that the Secret has
    none for, the operator uses its own. Raises `BadInput` for half of a pair: the other half would be the
    operator's own.
    """
    found: dict[str, str] = {}
    for pair, further in _pairs_of(storage):
        there = [name for name in (*pair, *further) if values.get(name)]
        if not there:
            continue
        if lacking := [name for name in pair if name not in there]:
            raise BadInput(
                f"Secret '{storage.secret}' has {' and '.join(there)}, but not {' and '.join(lacking)}",
                hint=f"add {' and '.join(lacking)} to it",
            )
        found |= {name: values[name] for name in there}
    return found


def _pairs_of(storage: Storage) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """Yields the pair of keys for each kind of store, and the keys that may go with them."""
    schemes = {_scheme(url) for url in storage.urls}
    if "s3" in schemes:
        yield (KEY, SECRET_KEY), (TOKEN,)
    if schemes & _DATABASES:
        yield (USER, PASSWORD), ()


def resolve(
    spec: CatalogSpec,
    namespace: str,
    data_dir: Path | None,
    places: Sequence[str] = (),
    *,
    follow: bool = True,
) -> Storage | RefusedLocation:
    """Returns the location of a Catalog. The default is a folder in `data_dir`, the operator's own volume.

    Any other location, and the stash, must be within the `Bounds` of the namespace.
    """
    bounds = Bounds(namespace, data_dir, tuple(places), follow)
    stash = stash_of(spec)
    if stash is not None and (why := _refusal(url_with(stash, {}), bounds)):
        return _foreign("spec.stash", why)
    return _resolve(spec.storage, spec.organization_id, bounds, "spec.storage")


def resolve_restore(
    spec: CatalogSpec, namespace: str, data_dir: Path | None, places: Sequence[str] = ()
) -> RestoreSource | RefusedLocation | None:
    """Returns the source that a new Catalog is filled from, or None."""
    if spec.restore_from is None:
        return None
    bounds = Bounds(namespace, data_dir, tuple(places))
    if (dump := spec.restore_from.dump) is not None:
        why = bounds.refusal(dump.url, source=True)
        return _foreign("spec.restoreFrom.dump", why) if why else DumpSource(dump.url)
    source = spec.restore_from.catalog
    if source is None:
        return RefusedLocation("spec.restoreFrom names neither a dump nor a catalog; remove it")
    asked, field = source.storage or spec.storage, "spec.restoreFrom.catalog.storage"
    found = _resolve(asked, source.organization_id, bounds, field)
    if isinstance(found, RefusedLocation):
        return found
    return CatalogSource(found, source.organization_id, source.as_of)


def names_files(spec: CatalogSpec) -> bool:
    """Returns whether one of a Catalog's stores is in a file system."""
    storage, stash = spec.storage, spec.stash
    urls = storage.url, storage.blob, storage.consensus, None if stash is None else stash.url
    return any(_scheme(url) in FILES for url in urls if url is not None)


def named_by(asked: CatalogStorage) -> Storage:
    """Returns the location as a spec names it. It may have no URL, and one that isn't allowed."""
    reference = asked.credentials_secret_ref
    return Storage(asked.url, asked.blob, asked.consensus, reference.name if reference else None)


def _resolve(
    asked: CatalogStorage, organization_id: str, bounds: Bounds, field: str
) -> Storage | RefusedLocation:
    storage = named_by(asked)
    if not storage.urls:
        if bounds.volume is None:
            return RefusedLocation(
                "spec.storage is empty and the operator has no volume of its own; set spec.storage.url"
            )
        folder = bounds.volume / bounds.namespace / organization_id
        return Storage(url=folder.absolute().as_uri(), secret=storage.secret)
    if any(_scheme(url) == "memory" for url in storage.urls):
        return RefusedLocation(
            "spec.storage is memory://, which loses its data when the operator stops; use file:///"
        )
    why = next(filter(None, (_refusal(url, bounds) for url in storage.urls)), "")
    return _foreign(field, why) if why else storage


def _refusal(url: str, bounds: Bounds) -> str:
    return bounds.refusal(url) or ("" if bounds.places else own_password.refusal(url))


def _foreign(field: str, why: str) -> RefusedLocation:
    return RefusedLocation(f"{field} {why}", Reason.LOCATION_NOT_ALLOWED)


def servers_of(location: str) -> tuple[str, ...]:
    """Returns the servers of a location, given as `str(Storage)`. Equal for locations on the same servers.

    A bucket without an endpoint counts as a server. So does a file system, if there is no other server.
    """
    urls = location.split(_WITH)
    remote = [url for url in urls if _scheme(url) not in FILES]
    return tuple(_server(url) for url in remote or urls)


def _server(url: str) -> str:
    place = normal_form(url)
    match _scheme(place):
        case "s3":
            bucket, _, endpoint = place.partition("?")
            return bucket.split("/")[2] if endpoint == _host("") else endpoint
        case "postgresql":
            return place.split("/")[2].rpartition("@")[2]
        case _:
            return place


def normal_form(url: str) -> str:
    """Returns the same text for all URLs that name the same place. Don't open it or show it."""
    try:
        parts = urlsplit(url)
        match parts.scheme:
            case "file" | "sqlite":
                return f"{parts.scheme}://{parts.netloc}{_path(parts.path)}"
            case "s3":
                endpoint = dict(parse_qsl(parts.query)).get("endpoint", "")
                return f"s3://{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/") + (
                    f"?{_host(endpoint)}"
                )
            case "postgres" | "postgresql":
                schema = dict(parse_qsl(parts.query)).get("schema", DEFAULT_SCHEMA)
                return f"{_host(url)}{_path(parts.path)}?schema={schema}"
            case _:
                return url
    except ValueError:
        return url


def _path(path: str) -> str:
    return posixpath.normpath("/" + unquote(path).strip("/"))


def _host(url: str) -> str:
    """Returns scheme, user, host and port."""
    parts = urlsplit(url)
    scheme = "postgresql" if parts.scheme == "postgres" else parts.scheme
    user = f"{parts.username}@" if parts.username else ""
    return f"{scheme}://{user}{parts.hostname or ''}:{parts.port or PORTS.get(scheme, '')}"


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()
