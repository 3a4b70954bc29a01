"""Named locations: `@prod` stands for the URLs that the user's configuration file has under `prod`.

The file is `$HOLDFAST_CONFIG`, or `holdfast/config.toml` in `$XDG_CONFIG_HOME` (`~/.config`):

    [locations.prod]
    url = "s3://bucket/prefix"                        # the location, or its blob store
    consensus = "postgresql://holdfast@db/holdfast"   # if the consensus store is apart

    [locations]
    dev = "~/holdfast"                                # short for url alone

Invariants
- The file has no secrets: a URL with a password is refused. libpq and the clients of S3 have other places.
- An error names the file and the line.
- This module imports nothing heavy, because shells complete the names.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import parse_qsl, urlsplit

from holdfast.errors import BadInput
from holdfast.text import SECRET_OPTION

VARIABLE: Final = "HOLDFAST_CONFIG"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FIELDS: Final = ("url", "consensus")
_AT: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


@dataclass(frozen=True, slots=True)
class NamedLocation:
    """What the configuration file has for a name: the URL or path of a location, or those of its stores."""

    url: str
    consensus: str | None = None


def is_name(given: object) -> bool:
    """Return whether this is the name of a location, such as `@prod`, and not its URL."""
    return isinstance(given, str) and given.startswith("@")


def config_file() -> Path:
    """The path of the configuration file, which may not exist. Raises `BadInput` if there is no home."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    if given := os.environ.get("XDG_CONFIG_HOME"):
        return Path(given) / "holdfast" / "config.toml"
    try:
        return Path.home() / ".config" / "holdfast" / "config.toml"
    except RuntimeError as error:
        raise BadInput(
            f"there is no home folder with a configuration file: {error}", hint=f"set {VARIABLE}"
        ) from None


def location_url(given: str | os.PathLike[str]) -> str:
    """The URL of a location: a path becomes the URL of that folder, anything else stays as it is."""
    if isinstance(given, os.PathLike):
        return Path(given).absolute().as_uri()
    # Text with one of these may be a URL that lacks only its scheme, with a password in it.
    if not isinstance(given, str) or not given or any(each in given for each in ":@?#"):
        return given
    return Path(given).expanduser().absolute().as_uri()


def named_location(given: str) -> NamedLocation:
    """The location with a name such as `@prod`. Raises `BadInput` if there is none, or the file is wrong."""
    known = named_locations()
    found = known.get(given[1:])
    if found is None:
        file = config_file()
        there = f"it has: {', '.join(f'@{each}' for each in known)}" if known else "it names no location"
        hint = there if file.exists() else f'write it: [locations.{given[1:] or "NAME"}] with url = "URL"'
        raise BadInput(f"there is no location {given} in {file}", hint=hint)
    return found


def named_locations() -> Mapping[str, NamedLocation]:
    """All named locations. Raises `BadInput` with the file and the line if the file is wrong."""
    file = config_file()
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise BadInput(f"{VARIABLE} names {file}, which does not exist") from None
        return {}
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}, line {_line(error.object, error.start)}: not UTF-8 text") from None
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT.search(str(error))
        line = found[1] if found and found[1] else text.rstrip().count("\n") + 1
        raise BadInput(f"{file}, line {line}: not TOML: {_AT.sub('', str(error))}") from None
    return _Config(file, text, given).locations()


def _line(raw: bytes, at: int) -> int:
    return raw.count(b"\n", 0, at) + 1


class _Config:
    """The contents of a configuration file, and where they stand in it."""

    def __init__(self, file: Path, text: str, given: dict[str, Any]) -> None:
        self._file = file
        self._text = text
        self._given = given

    def locations(self) -> dict[str, NamedLocation]:
        """The locations of the file."""
        for each in self._given:
            if each != "locations":
                self._refuse((each,), f"unknown setting '{each}'", "the file has locations: [locations.NAME]")
        given = self._given.get("locations", {})
        if not isinstance(given, dict):
            self._refuse(("locations",), "locations must be a table", "write [locations.NAME]")
        return {name: self._location(name, each) for name, each in given.items()}

    def _location(self, name: str, given: Any) -> NamedLocation:
        path = ("locations", name)
        if not _NAME.fullmatch(name):
            self._refuse(
                path, f"'{name}' can't name a location", "use letters, digits and . _ -, such as prod"
            )
        if isinstance(given, str):
            return NamedLocation(self._url(path, given))
        if not isinstance(given, dict):
            self._refuse(path, f"location {name} must be a table or a URL", f'write {name} = "URL"')
        for each, value in given.items():
            if each not in _FIELDS:
                self._refuse(
                    (*path, each), f"location {name} has an unknown '{each}'", "it has url, consensus"
                )
            if not isinstance(value, str):
                self._refuse((*path, each), f"{each} of location {name} must be a text in quotes")
        if "url" not in given:
            self._refuse(path, f"location {name} has no url", 'write url = "URL"')
        consensus = given.get("consensus")
        if consensus is not None:
            consensus = self._url((*path, "consensus"), consensus)
        return NamedLocation(self._url((*path, "url"), given["url"]), consensus)

    def _url(self, path: tuple[str, ...], url: str) -> str:
        name = path[1]
        if _has_secret(url):
            self._refuse(
                path,
                f"the URL of location {name} has a password",
                "leave it out; PGPASSWORD or ~/.pgpass can have it",
            )
        if "://" not in url and not (url.startswith("~") or Path(url).is_absolute()):
            self._refuse(path, f"location {name} must have a URL or an absolute path", "write /data/holdfast")
        return url

    def _refuse(self, path: tuple[str, ...], what: str, hint: str = "") -> NoReturn:
        """Raise `BadInput` about what stands at a path of keys."""
        raise BadInput(f"{self._file}, line {self._line_of(path)}: {what}", hint=hint)

    def _line_of(self, path: tuple[str, ...]) -> int:
        """The first line with which the file has something at a path of keys."""
        lines = self._text.splitlines(keepends=True)
        for number in range(1, len(lines)):
            try:
                found: Any = tomllib.loads("".join(lines[:number]))
            except tomllib.TOMLDecodeError:
                # This line is within a value.
                continue
            for key in path:
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None:
                return number
        return max(len(lines), 1)


def _has_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.password is not None or any(
            SECRET_OPTION.fullmatch(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)
        )
    except ValueError:
        # What is no URL is refused where it is opened, without its text.
        return ":" in url and "@" in url
