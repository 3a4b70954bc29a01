"""The locations that the operator may read and write for a namespace.

The operator uses its own rights there. The administrator allows places (`--allow-location`), each with
everything below it. Without places, every location is allowed except the folders of other namespaces. Files
below the operator's own folder belong to the namespace that is the first part of their path.

- `{namespace}` in a place stands for the namespace of the resource. In a schema, each `-` in it becomes `_`.
- A URL is in a place if scheme, host, port, bucket and endpoint are equal, and its path is the path of the
  place or below it, compared by segments. A SQLite file is in the place of its folder. A place with a schema
  contains only URLs with that schema, and a place without a schema contains all.
- An ambiguous URL is in no place: `..` in a key, options of a Postgres URL, which may name another host, or
  an endpoint with more than a host and a port.
- A file is at its real path. Links and `..` are resolved in the file system.
- No namespace can use another namespace's files below the operator's folder, unless a place contains them.
"""

import os.path
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.persist.stores.s3_place import is_endpoint

PORTS: Final = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432}
"""Default ports by scheme."""


_LOCAL: Final = "file://"
_NAMESPACE: Final = "{namespace}"
FILES: Final = frozenset({"file", "sqlite"})
"""Schemes of URLs in a file system."""
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OPTIONS: Final = {"s3": "endpoint", "postgresql": "schema", "postgres": "schema"}
"""By scheme: the only option that is part of a location."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The locations of a namespace: `places`, and its folder in `volume`."""

    namespace: str
    volume: Path | None = None
    """The operator's own folder, if it has one."""
    places: tuple[str, ...] = ()
    follow: bool = True
    """Whether to resolve links. False for callers that must not wait for a file system."""

    def refusal(self, url: str, *, source: bool = False) -> str:
        """Returns why a URL may not be opened, as text after its field's name, or empty if it may.

        A `source` that is a file outside of the volume must be in a place, because messages may show a part
        of it.
        """
        path = _file(url)
        if path is not None and "\0" in path:
            return "has a NUL in its path; remove it"
        own = (_of_namespace(place, self.namespace) for place in self.places)
        if any(_is_in(url, place, self._real) for place in own):
            return ""
        if path is not None and self.volume is not None:
            file, volume = Path(self._real(path)), Path(self._real(self.volume))
            if file.is_relative_to(volume / self.namespace):
                return ""
            if file.is_relative_to(volume) or volume.is_relative_to(file):
                return (
                    f"overlaps the operator's folder {self.volume}, where this namespace has only what is "
                    f"below {self.volume / self.namespace}; move it there, or ask who runs the operator for "
                    "--allow-location"
                )
        if source and path is not None and not self.places:
            own_folder = "" if self.volume is None else f"below {self.volume / self.namespace}, or "
            return f"is a file that this operator doesn't read: it has to be {own_folder}in s3://"
        if self.places:
            return (
                "is outside of where this operator may keep and read data (--allow-location, "
                "storage.allowedLocations of the chart); ask who runs it"
            )
        return ""

    def _real(self, path: str | Path) -> str:
        return os.path.realpath(path) if self.follow else os.path.normpath(Path(path).absolute())


def check_place(place: str) -> str:
    """Returns the place. Raises `ValueError` if no URL could be in it, or a part of it is invalid."""
    before, _, query = place.partition("?")
    known = _OPTIONS.get(before.partition(":")[0], "")
    if other := next((name for name, _ in parse_qsl(query, keep_blank_values=True) if name != known), ""):
        raise ValueError(f"{place!r} has the option {other!r}, which doesn't limit a location: leave it out")
    found = _split(_of_namespace(place, "namespace"))
    if found is None:
        raise ValueError(f"{place!r} can't be an allowed location: expected a file:, s3: or postgresql: URL")
    if found.schema is not None and not _SCHEMA.fullmatch(found.schema):
        raise ValueError(
            f"{place!r} names an invalid schema: expected lower-case letters, digits and underscores"
        )
    if not {"{", "}"}.isdisjoint(place.replace(_NAMESPACE, "")):
        raise ValueError(
            f"{place!r} contains braces; the only placeholder is {_NAMESPACE}, so write other braces as %7B "
            "and %7D"
        )
    return place


def shared_beside(places: Sequence[str]) -> tuple[str, ...]:
    """Returns the shared places of one kind, blobs or databases, if places of the other kind aren't shared.

    A location needs both kinds. So namespaces aren't isolated if only one kind contains `{namespace}`.
    """
    databases = [place for place in places if _is_database(place)]
    blobs = [place for place in places if not _is_database(place)]
    for shared, own in ((databases, blobs), (blobs, databases)):
        found = tuple(place for place in shared if _NAMESPACE not in place)
        if found and any(_NAMESPACE in place for place in own):
            return found
    return ()


def _is_database(place: str) -> bool:
    return urlsplit(place).scheme in {"postgresql", "postgres", "sqlite"}


def _of_namespace(place: str, namespace: str) -> str:
    before, mark, options = place.partition("?")
    # Names of namespaces contain no "_". So no two namespaces have the same schema.
    schema = namespace.replace("-", "_")
    return before.replace(_NAMESPACE, namespace) + mark + options.replace(_NAMESPACE, schema)


def _is_in(url: str, place: str, real: Callable[[str], str]) -> bool:
    found, bounds = _split(url), _split(place)
    if found is None or bounds is None:
        return False
    if found.server == bounds.server == _LOCAL:
        below = real("/" + "/".join(bounds.path))
        return Path(real("/" + "/".join(found.path))).is_relative_to(below)
    return (
        found.server == bounds.server
        and found.path[: len(bounds.path)] == bounds.path
        and bounds.schema in (None, found.schema)
    )


def _file(url: str) -> str | None:
    """Returns the path of a URL in a file system, or None for other URLs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return "/" + unquote(parts.path).strip("/") if parts.scheme in FILES else None


@dataclass(frozen=True, slots=True)
class _Split:
    """The parts of a URL: what must be equal, the segments of its path, and its schema, if any."""

    server: str
    path: tuple[str, ...]
    schema: str | None = None


def _split(url: str) -> _Split | None:
    """Returns the parts of a URL, or None if it is ambiguous."""
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        options = dict(given)
        endpoint = urlsplit(options.get("endpoint", ""))
        hosts = [(each.hostname or "", each.port or PORTS.get(each.scheme)) for each in (parts, endpoint)]
    except ValueError:
        return None
    path = unquote(parts.path).split("/")
    if ".." in path or parts.fragment or len(options) < len(given):
        return None
    segments = tuple(each for each in path if each not in {"", "."})
    match parts.scheme:
        case "file" | "sqlite" if not options:
            return _Split(f"file://{parts.netloc}", segments)
        case "s3" if "endpoint" not in options or is_endpoint(options["endpoint"]):
            return _Split(f"s3://{parts.netloc} {endpoint.scheme} {hosts[1]}", segments)
        case "postgresql" | "postgres" if options.keys() <= {"schema"}:
            return _Split(f"postgresql {hosts[0]}", segments, options.get("schema"))
        case _:
            return None
