"""Finds quotes of a CSV file that are not closed, before its rows are read.

Arrow takes everything behind such a quote, up to the next quote or the end of the file, as one value. Like
Arrow, this takes a quote as one that opens a text only if it begins a value, and a doubled quote in a text as
one quote. A text that goes on behind its closing quote is refused too: that is what the rest of a file looks
like if a quote was not closed and a later value has quotes.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from holdfast.errors import BadInput

_BLOCK_BYTES: Final = 1024 * 1024
# Arrow refuses a longer line.
_LINE_BYTES: Final = 4 * _BLOCK_BYTES
_MARK: Final = b"\xef\xbb\xbf"
_QUOTE: Final = ord('"')
_BREAK: Final = ord("\n")
_ENDS_VALUE: Final = np.isin(np.arange(256), list(b",\r\n"))
_ENDS_TEXT: Final = np.isin(np.arange(256), list(b',\r\n"'))
_HINT: Final = 'close the quote, or write each quote inside of a quoted text twice ("")'


def check_quotes(again: Callable[[], BinaryIO]) -> None:
    """Raise `BadInput`, which names a line, unless each quote of a CSV file closes where its value ends.

    `again` opens the file at its beginning.
    """
    opened: int | None = None
    with again() as stream:
        for start, lines in _lines(stream):
            opened, wrong = _after(lines, start, opened)
            if wrong is not None:
                assert opened is not None
                raise BadInput(
                    f"the quote in line {_line(again, opened)} closes in line {_line(again, wrong)},"
                    " and text follows it",
                    hint=_HINT,
                )
    if opened is not None:
        raise BadInput(f"the quote in line {_line(again, opened)} is not closed", hint=_HINT)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Whole lines in pieces, each with the place where it starts. Ends early at a line that is too long."""
    start = len(_MARK) if stream.read(len(_MARK)) == _MARK else 0
    stream.seek(start)
    rest = b""
    while block := stream.read(_BLOCK_BYTES):
        rest += block
        if end := rest.rfind(b"\n") + 1:
            yield start, rest[:end]
            start, rest = start + end, rest[end:]
        elif len(rest) > _LINE_BYTES:
            return
    if rest:
        yield start, rest


def _after(lines: bytes, start: int, opened: int | None) -> tuple[int | None, int | None]:
    """The place of the quote that is open after these lines, and that of a quote that closes inside a value.

    `opened` is the place of the quote that is open before them. With the second place, the first one is that
    of the quote which it closes.
    """
    given = np.frombuffer(lines, np.uint8)
    quotes = np.flatnonzero(given == _QUOTE)
    if not len(quotes):
        return opened, None
    padded = np.full(len(given) + 2, _BREAK, np.uint8)
    padded[1:-1] = given
    before, behind = padded[quotes], padded[quotes + 2]
    # In most files, quotes open and close in turn. A doubled quote closes a text, and opens it again.
    first = 0 if opened is None else 1
    if not (_ENDS_TEXT[before[first::2]].all() and _ENDS_TEXT[behind[1 - first :: 2]].all()):
        return _one_by_one(quotes, before, behind, start, opened)
    if (len(quotes) - first) % 2 == 0:
        return None, None
    new = quotes[first::2][_ENDS_VALUE[before[first::2]]]
    return start + int(new[-1]) if len(new) else opened, None


def _one_by_one(
    quotes: npt.NDArray[np.int64],
    before: npt.NDArray[np.uint8],
    behind: npt.NDArray[np.uint8],
    start: int,
    opened: int | None,
) -> tuple[int | None, int | None]:
    """Like `_after`, also if values that have no quotes around them have some inside."""
    begins, ends = _ENDS_VALUE[before].tolist(), _ENDS_TEXT[behind].tolist()
    doubled = (behind == _QUOTE).tolist()
    is_second = False
    for index, place in enumerate(quotes.tolist()):
        if opened is None:
            opened = start + place if begins[index] else None
        elif is_second or doubled[index]:
            is_second = not is_second
        elif ends[index]:
            opened = None
        else:
            return opened, start + place
    return opened, None


def _line(again: Callable[[], BinaryIO], place: int) -> int:
    """The number of the line with this place."""
    breaks = 0
    with again() as stream:
        while place and (block := stream.read(min(place, _BLOCK_BYTES))):
            breaks += block.count(b"\n")
            place -= len(block)
    return breaks + 1
