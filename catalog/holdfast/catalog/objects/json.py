"""Reads objects from the JSON of dumps, for the debug tool to edit, delete and load.

Invariants
- What `dump.dump_json` writes is read back to equal objects, for every type.
- A dump is read in pieces. At most the text of one object is in memory at a time.
- JSON that isn't exactly one object of the type (unknown field, wrong type, duplicate key, a field in both of
  its spellings, null) raises `BadInput`.
"""

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple, TextIO, TypeVar

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from holdfast.catalog.objects.registry import BY_NAME, ObjectType
from holdfast.catalog.objects.strict_json import check_strict
from holdfast.errors import BadInput

M = TypeVar("M", bound=Message)

_CHUNK = 1 << 16
_SOLID = re.compile(r"\S")
_MOST_CHARACTERS = 64 << 20
"""The most characters of one object in a dump: several times what a stash can store, escaped as JSON."""
_SHOWN = 60


class DumpEntry(NamedTuple):
    """One object of a dump as JSON."""

    key: dict[str, Any]
    value: dict[str, Any]


def collection_named(name: str) -> ObjectType[Any, Any]:
    """The object type with that name. Raises `BadInput`, naming all types, if there is none."""
    collection = BY_NAME.get(name)
    if collection is None:
        like = "".join(f"did you mean {near}? " for near in get_close_matches(name, BY_NAME, 1))
        raise BadInput(f"there is no object type {name!r}", hint=f"{like}the types are {', '.join(BY_NAME)}")
    return collection


def parse_key(collection: ObjectType[Any, Any], text: str) -> Any:
    """Parse the JSON text of a key."""
    return message_from_json(collection.key, _parse(text, f"the key of {collection}"), f"key of {collection}")


def parse_value(collection: ObjectType[Any, Any], text: str) -> Any:
    """Parse the JSON text of a value."""
    return message_from_json(
        collection.value, _parse(text, f"the value of {collection}"), f"value of {collection}"
    )


def message_from_json(message_type: type[M], fields: dict[str, Any], what: str) -> M:
    """Convert proto JSON to a message. Raises `BadInput` for unknown fields or wrong types."""
    try:
        check_strict(message_type.DESCRIPTOR, fields)
        return ParseDict(fields, message_type())
    # The parser also raises errors of its own conversions, such as for a key that isn't a string.
    except (ParseError, TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"this is not a {what}: {_one_line(error)}") from None


def read_dump(file: TextIO) -> Iterator[str | DumpEntry]:
    """The contents of a dump in order: the name of each object type, followed by its objects.

    Raises `BadInput` if the text isn't a dump.
    """
    scanner = _Scanner(file)
    scanner.take("{")
    sections: set[str] = set()
    while scanner.peek() != "}":
        if sections:
            scanner.take(",")
        section = scanner.value(str, "the name of an object type")
        if section in sections:
            raise BadInput(f"the dump contains {section!r} twice")
        sections.add(section)
        yield section
        scanner.take(":")
        scanner.take("[")
        first = True
        while scanner.peek() != "]":
            if not first:
                scanner.take(",")
            first = False
            entry = scanner.value(dict, f"an object of {section}")
            match entry:
                case {"key": dict(key), "value": dict(value)} if len(entry) == 2:
                    yield DumpEntry(key, value)
                case _:
                    raise BadInput(f"an object of {section} in the dump is not a key and a value")
        scanner.take("]")
    scanner.take("}")
    if scanner.peek():
        raise BadInput("the dump continues after its end")


def _parse(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_pairs_once)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} is not JSON: {_one_line(error)}: {_shown(text)}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{what} is not a JSON object: {_shown(text)}")
    return found


def _pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."


def _one_line(error: Exception) -> str:
    # The position in the piece that was read says nothing about the file.
    return " ".join((error.msg if isinstance(error, json.JSONDecodeError) else str(error)).split())


class _Scanner:
    """Tokens of JSON text. Only the current piece of the text is in memory."""

    _decoder = json.JSONDecoder(object_pairs_hook=_pairs_once)

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """The next character that isn't white space. Empty at the end."""
        while True:
            if found := _SOLID.search(self._text, self._at):
                self._at = found.start()
                return found[0]
            self._at = len(self._text)
            if not self._fill(_CHUNK):
                return ""

    def take(self, char: str) -> None:
        """Skip that character. Raises `BadInput` for another one."""
        found = self.peek()
        if found != char:
            raise BadInput(f"this is not a dump: expected {char!r}, found {found or 'its end'!r}")
        self._at += 1

    def value(self, wanted: type[Any], what: str) -> Any:
        """The next value, which must have that type."""
        start = self.peek()
        size = _CHUNK
        while True:
            try:
                found, self._at = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # The value may continue in the next piece. Each piece is twice as long, so the cost stays
                # linear.
                if start in ('{"' if wanted is dict else '"') and self._fill(size):
                    if len(self._text) > _MOST_CHARACTERS:
                        raise BadInput(
                            f"{what} in the dump is longer than {_MOST_CHARACTERS:,} characters"
                        ) from None
                    size *= 2
                    continue
                raise BadInput(f"{what} in the dump is not JSON: {_one_line(error)}") from None
            if not isinstance(found, wanted):
                raise BadInput(f"the dump has no {what} where one is expected")
            return found

    def _fill(self, size: int) -> bool:
        more = self._file.read(size)
        self._text = self._text[self._at :] + more
        self._at = 0
        return bool(more)
