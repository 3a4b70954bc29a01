"""Where an operator reads and writes what a spec names, with its own rights.

Whoever runs it names places, each with all below it; without any, all are allowed that no namespace has.
Files below the operator's own folder are those of the namespace that is the first part of their path.

- `{namespace}` in a place stands for the namespace of the resource.
- A URL is in a place where scheme, host, port, bucket and endpoint are the same and its path is that of the
  place or below it, segment by segment. A SQLite file is where its folder is.
- What could be read in two ways is in no place: `..` in a key, options of a Postgres URL, which may name
  another host.
- A file is where it really is: links are followed, and `..` too, which asks the file system.
- No file below the operator's folder is another namespace's, unless a place has it.
"""

import os.path
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

PORTS: Final = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432}
"""Where services are whose URL names no port."""


_LOCAL: Final = "file://"
_NAMESPACE: Final = "{namespace}"
_FILES: Final = frozenset({"file", "sqlite"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the resources of a namespace may be: in `places`, and in its part of `volume`."""

    namespace: str
    volume: Path | None = None
    """The operator's own folder; None where it has none."""
    places: tuple[str, ...] = ()
    follow: bool = True
    """Whether links are followed; what may not wait for a file system asks only for names."""

    def refusal(self, url: str, *, source: bool = False) -> str:
        """Why a URL may not be opened, and what to do, as it follows its field; empty where it may.

        Of files outside of the volume a `source`, of which messages may show a part, needs a place.
        """
        path = _file(url)
        if path is not None and "\0" in path:
            return "has a NUL in its path; correct it"
        own = (place.replace(_NAMESPACE, self.namespace) for place in self.places)
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
    """The place as it was given; `ValueError` where nothing could be in it."""
    if _split(place) is None:
        raise ValueError(f"{place!r} is no place for catalogs: expected a file:, s3: or postgresql: URL")
    return place


def _is_in(url: str, place: str, real: Callable[[str], str]) -> bool:
    found, bounds = _split(url), _split(place)
    if found is None or bounds is None:
        return False
    (where, path), (there, below) = found, bounds
    if where == there == _LOCAL:
        return Path(real("/" + "/".join(path))).is_relative_to(real("/" + "/".join(below)))
    return where == there and path[: len(below)] == below


def _file(url: str) -> str | None:
    """The path of a file's URL; None for other URLs."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return "/" + unquote(parts.path).strip("/") if parts.scheme in _FILES else None


def _split(url: str) -> tuple[str, tuple[str, ...]] | None:
    """What must be the same, and the segments of the path; None for what could be read in two ways."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        endpoint = urlsplit(dict(options).get("endpoint", ""))
        hosts = [(each.hostname or "", each.port or PORTS.get(each.scheme)) for each in (parts, endpoint)]
    except ValueError:
        return None
    path = unquote(parts.path).split("/")
    names = [name for name, _ in options]
    if ".." in path or parts.fragment or len(set(names)) < len(names):
        return None
    segments = tuple(each for each in path if each not in {"", "."})
    match parts.scheme:
        case "file" | "sqlite" if not names:
            return f"file://{parts.netloc}", segments
        case "s3":
            return f"s3://{parts.netloc} {endpoint.scheme} {hosts[1]}", segments
        case "postgresql" | "postgres" if set(names) <= {"schema"}:
            return f"postgresql {hosts[0]}", segments
        case _:
            return None
