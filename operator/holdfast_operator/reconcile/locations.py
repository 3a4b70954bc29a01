"""Where an operator may keep catalogs: the places that whoever runs it names, each with all below it. Pure.

- A URL is in a place where scheme, host, port, bucket and endpoint are the same and its path is that of the
  place or below it, segment by segment. A SQLite file is where its folder is.
- What could be read in two ways is in no place: `..` in a key, options of a Postgres URL, which may name
  another host. Links in a file system aren't followed.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

PORTS: Final = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432}
"""Where services are whose URL names no port."""


def is_allowed(url: str, places: Sequence[str]) -> bool:
    """Whether a URL is in one of the places; without any, all are."""
    return not places or any(_is_in(url, place) for place in places)


def check_place(place: str) -> str:
    """The place as it was given; `ValueError` where nothing could be in it."""
    if _split(place) is None:
        raise ValueError(f"{place!r} is no place for catalogs: expected a file:, s3: or postgresql: URL")
    return place


def _is_in(url: str, place: str) -> bool:
    found, bounds = _split(url), _split(place)
    if found is None or bounds is None:
        return False
    (where, path), (there, below) = found, bounds
    return where == there and path[: len(below)] == below


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
