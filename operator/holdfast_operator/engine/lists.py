"""Reads objects from JSON one at a time, whatever they contain, and keeps only what the operator uses.

A parsed object can take 40 times as many bytes as its JSON: `{"":{}}` has 8 bytes there, and 250 in Python.
Users can fill objects up to the limit of etcd, with labels, annotations or `managedFields` if not with a
spec. So a page of 500 parsed objects could exceed any limit of a pod's memory.

The API server also accepts `managedFields` with thousands of levels, at which Python's parser fails.

Invariants
- What is nested deeper than `_DEEPEST` in such an object reads as null. Nothing that the operator uses is.
- At most one object that isn't trimmed yet is in memory for each response that is read.
- Objects of a page that wait to be used are compressed. `PAGE` says how much memory a page takes at most.
"""

import codecs
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from holdfast_operator.api.names import GROUP

if TYPE_CHECKING:
    import aiohttp

Json = dict[str, Any]
T = TypeVar("T")

PAGE: Final = 50
"""The number of objects in a page of a list.

A page takes at most 142,000,000 bytes: the largest object has 1.5 MiB, which is etcd's limit. One object is
parsed and takes 40 times that. The others are compressed, and don't take more than in etcd.
"""
CHUNK: Final = 1 << 18
"""The bytes to read at once."""
_LEVEL: Final = 3
"""zlib's level. It takes a few hundredths of a millisecond for a StorageCollection."""
_ITEMS: Final = re.compile(r'"items"\s*:\s*\[')
_BRACKET: Final = re.compile(r'(?:"(?:[^"\\]++|\\.)*+"|[^][{}"])*+([][{}])')
"""The next bracket that isn't in a text."""
_DEEPEST: Final = 64
_DECODER: Final = json.JSONDecoder()
_GAP: Final = re.compile(r"[\s,]*")


def unmanaged(body: Json) -> Json:
    """Returns an object without `managedFields`. Pure."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": metadata}


def own(body: Json) -> Json:
    """Returns a Holdfast object without what the operator never reads. Pure."""
    found = unmanaged(body)
    metadata = found["metadata"]
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {k: v for k, v in annotations.items() if k.startswith(f"{GROUP}/")}
    return found


def packed(body: Json) -> bytes:
    """Returns the compressed JSON of an object. It needs a twentieth of the memory."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return zlib.compress(text.encode(), _LEVEL)


def unpacked(content: bytes) -> Json:
    """Returns the object that `packed` took."""
    return dict(json.loads(zlib.decompress(content)))


def parsed(text: str) -> Any:
    """Returns what JSON contains. Raises `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_shallow(text, 0)[0])


def _shallow(text: str, at: int) -> tuple[str, int]:
    """Returns the object or array at a position without what is nested too deep in it, and its end.

    Raises `ValueError` if it has no end.
    """
    kept, depth, begin = [], 0, at
    for found in _BRACKET.finditer(text, at):
        opens, place = found[1] in "[{", found.start(1)
        if opens:
            depth += 1
            if depth == _DEEPEST:
                kept += [text[begin:place], "null"]
        else:
            if depth == _DEEPEST:
                begin = place + 1
            depth -= 1
        if depth == 0:
            return "".join([*kept, text[begin : place + 1]]), place + 1
    raise ValueError("the text ends within an object")


async def lines(content: "aiohttp.StreamReader", size: int) -> AsyncIterator[bytes]:
    """Yields complete lines of any length. `size` is the number of bytes to read at once."""
    rest = b""
    async for chunk in content.iter_chunked(size):
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            if line:
                yield line


class ListReader(Generic[T]):
    """Takes the chunks of a response, and reads the objects of the list in it as they arrive."""

    def __init__(self, keep: Callable[[Json], T]) -> None:
        """Keeps only what `keep` returns for each object."""
        self._keep = keep
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._enough = 0
        """How long the text must be before the next attempt to parse it."""
        self._before: str | None = None
        """The text before the objects, once it is complete."""
        self._is_over = False
        """Whether all objects are read."""
        self._found: list[T] = []

    def feed(self, chunk: bytes) -> None:
        """Takes a part of the response."""
        self._text += self._decode(chunk)
        if len(self._text) >= self._enough:
            self._read()

    def close(self) -> Json:
        """Returns the response, with what was kept as `items`. Raises `ValueError` if it isn't an object."""
        self._decode(b"", True)
        self._read()
        if self._before is not None and not self._is_over:
            raise ValueError("the list breaks off")
        # Without a beginning, it isn't a list, or a list without objects that has null.
        text = self._text if self._before is None else f"{self._before}]{self._text}"
        found = parsed(text)
        if not isinstance(found, dict):
            raise ValueError("the response is no object")
        return found if self._before is None else {**found, "items": self._found}

    def _read(self) -> None:
        if self._before is None:
            begins = _ITEMS.search(self._text)
            if begins is None:
                return
            self._before, self._text = self._text[: begins.end()], self._text[begins.end() :]
        at = 0
        while not self._is_over:
            at = _at(self._text, at)
            if self._text.startswith("]", at):
                self._is_over, at = True, at + 1
                break
            try:
                body, at = _decoded(self._text, at)
            except ValueError:
                # The rest of the object didn't arrive yet. Each attempt begins at its start.
                self._enough = 2 * (len(self._text) - at)
                break
            self._found.append(self._keep(body))
            del body
        self._text = self._text[at:]


def _at(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def _decoded(text: str, at: int) -> tuple[Json, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        shallow, end = _shallow(text, at)
        return _DECODER.decode(shallow), end
