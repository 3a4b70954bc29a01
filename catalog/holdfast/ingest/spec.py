"""What to ingest: the `source` block of a resource, or of a file for `holdfast ingest`.

Everything is checked here, and an error names the field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.errors import BadInput
from holdfast.ingest.envelope import Envelope
from holdfast.persist.stores.s3_place import FORM, S3Place

FORMATS: Final[tuple[str, ...]] = ("json", "csv", "parquet", "raw")
INCLUDES: Final[tuple[str, ...]] = ("partition", "position", "timestamp", "key", "record")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE: Final = re.compile(r"(\d+)(Ki|Mi|Gi|)")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS_BYTES: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """Files in a folder or S3 bucket whose paths match a pattern. `on_changed` is "error" or "ignore"."""

    path: Path | S3Place
    pattern: str = "*"
    on_changed: str = "error"


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """Generated rows: `rows` in all (0: no end), `rows_per_second` since `since_ms`, ids below `keys`."""

    rows: int = 0
    rows_per_second: float = 0
    since_ms: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class IngestSpec:
    """A source, how its records are decoded, and how often and how much a step commits.

    `include` maps what a record has besides its fields to columns. `error_limit` is the greatest number of
    bad records that the collection keeps.
    """

    source: FilesSpec | GeneratorSpec
    format: str
    envelope: Envelope = Envelope.NONE
    include: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 5
    progress_interval_s: float = 60
    max_rows: int = 1_000_000
    max_bytes: int = 256 << 20
    error_limit: int = 1000


def parse(block: object, where: str = "source") -> IngestSpec:
    """Return the spec that a `source` block describes. Raises `BadInput`, which names the field."""
    given = _Block(block, where)
    kinds = [each for each in ("files", "generator") if each in given.names]
    if len(kinds) != 1:
        found = ", ".join(given.names) or "nothing"
        raise BadInput(f"{where} must have one of files, generator (it has {found})")
    source = _files(given.block("files")) if kinds == ["files"] else _generator(given.block("generator"))
    format_ = _only(given, "format", FORMATS)
    envelope = given.choice("envelope", [each.value for each in Envelope], Envelope.NONE.value)
    include_block = given.block("include")
    include = {each: include_block.text(each) for each in INCLUDES if each in include_block.names}
    include_block.done()
    run, batch = given.block("run"), given.block("batch")
    collect = given.block("onError").block("collect")
    spec = IngestSpec(
        source,
        format_,
        Envelope(envelope),
        include,
        run.duration("interval", 5),
        run.duration("progressInterval", 60),
        batch.number("maxRows", 1_000_000, least=1),
        batch.size("maxBytes", 256 << 20),
        collect.number("limit", 1000, least=0),
    )
    for each in (run, batch, collect, given):
        each.done()
    return spec


def _files(given: "_Block") -> FilesSpec:
    spec = FilesSpec(
        _place(given.text("path"), f"{given.where}.path"),
        given.text("pattern", "*"),
        given.choice("onChanged", ["error", "ignore"], "error"),
    )
    given.done()
    return spec


def _place(text: str, where: str) -> Path | S3Place:
    """The folder of a path, or the place of an s3:// URL."""
    if "://" not in text:
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme != "s3":
        raise BadInput(f"{where} must be the path of a folder, or {FORM}")
    return S3Place.of(parts)


def _generator(given: "_Block") -> GeneratorSpec:
    spec = GeneratorSpec(
        given.number("rows", 0, least=0),
        given.number("rowsPerSecond", 0, least=0),
        given.number("since", 0, least=0),
        given.number("keys", 0, least=0),
    )
    given.done()
    if not spec.rows and not spec.rows_per_second:
        raise BadInput(f"{given.where} needs rows, rowsPerSecond or both")
    return spec


def _only(given: "_Block", name: str, known: tuple[str, ...]) -> str:
    """The one name in a block such as `format: {json: {}}`."""
    block = given.block(name)
    found = [each for each in block.names if each in known]
    if len(found) != 1 or len(block.names) != 1:
        raise BadInput(f"{block.where} must be one of {', '.join(known)}, such as {{{known[0]}: {{}}}}")
    block.block(found[0]).done()
    return found[0]


class _Block:
    """Fields of a block, which are taken one after the other. What is left at the end is unknown."""

    def __init__(self, given: object, where: str) -> None:
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise BadInput(f"{where} must be a block of fields, not {given!r}")
        self.where = where
        self._fields = given
        self._known: set[object] = set()

    @property
    def names(self) -> list[str]:
        return [str(each) for each in self._fields]

    def done(self) -> None:
        if unknown := [each for each in self._fields if each not in self._known]:
            known = ", ".join(sorted(str(each) for each in self._known)) or "nothing"
            raise BadInput(f"{self.where} has an unknown field '{unknown[0]}'", hint=f"it may have {known}")

    def _take(self, name: str, default: Any) -> Any:
        self._known.add(name)
        return self._fields.get(name, default)

    def block(self, name: str) -> "_Block":
        return _Block(self._take(name, None), f"{self.where}.{name}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or not value:
            raise BadInput(
                f"{self.where}.{name} must be text" + ("" if value is None else f", not {value!r}")
            )
        return value

    def choice(self, name: str, choices: list[str], default: str) -> str:
        value = self._take(name, default)
        if value not in choices:
            raise BadInput(f"{self.where}.{name} is {value!r}, expected one of {', '.join(choices)}")
        return str(value)

    def number(self, name: str, default: int, *, least: int) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(f"{self.where}.{name} is {value!r}, expected a number from {least}")
        return value

    def duration(self, name: str, default: float) -> float:
        value = self._take(name, None)
        if value is None:
            return default
        match = _DURATION.fullmatch(str(value))
        if match is None:
            raise BadInput(f"{self.where}.{name} is {value!r}, expected a duration such as 5s, 500ms or 2m")
        return float(match[1]) * _UNITS_S[match[2]]

    def size(self, name: str, default: int) -> int:
        value = self._take(name, None)
        if value is None:
            return default
        match = _SIZE.fullmatch(str(value))
        if match is None or not int(match[1]):
            raise BadInput(f"{self.where}.{name} is {value!r}, expected a size such as 256Mi")
        return int(match[1]) * _UNITS_BYTES[match[2]]
