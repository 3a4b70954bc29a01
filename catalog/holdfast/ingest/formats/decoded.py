"""What a format returns, and how it finds the records that can't be decoded.

Arrow decodes many records at once, and fails as a whole if one of them is bad. `decode_good` halves such a
batch until only bad records are left, so a few of them cost little.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ingest.formats.reasons import plain_reason

MOST_BAD: Final = 1000
"""How many bad records a format finds in a batch, unless it is told another number."""
ANY_NUMBER: Final = 1 << 62
"""More than there are records."""
UNCLEAR: Final = "unclear"
"""The kind of bad records that may have changed rows which no later message of their key settles."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that can't be decoded: the index of its message, its position, and why."""

    index: int
    position: int
    kind: str
    reason: str


def _none() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of the collection's columns, the index of the message of each row, and the bad records."""

    rows: pa.Table
    index: np.ndarray
    bad: list[BadRecord] = field(default_factory=list)
    numbers: np.ndarray | None = None
    """The number of each row's record in its message, from 1, if a message is a file of records."""
    removed: pa.Table | None = None
    """Keys that messages delete, of the messages in `removed_index`."""
    removed_index: np.ndarray = field(default_factory=_none)
    unkeyed: np.ndarray = field(default_factory=_none)
    """Messages that delete the key that they have as messages."""
    cleared: np.ndarray = field(default_factory=_none)
    """Messages that delete all rows."""
    gone: pa.Table | None = None
    """Keys that bad messages certainly have moved away from, of the messages in `gone_index`."""
    gone_index: np.ndarray = field(default_factory=_none)
    hidden: pa.Table | None = None
    """Keys of rows that bad messages may have changed, of the messages in `hidden_index`."""
    hidden_index: np.ndarray = field(default_factory=_none)

    def without(self, rows: np.ndarray, bad: Sequence[BadRecord]) -> Self:
        """Without these rows (a mask), and with these bad records."""
        kept = ~rows
        return replace(
            self,
            rows=self.rows.filter(pa.array(kept)),
            index=self.index[kept],
            numbers=None if self.numbers is None else self.numbers[kept],
            bad=[*self.bad, *bad],
        )


class Format(Protocol):
    """Decodes messages."""

    whole: bool
    """Whether a file is one message. Otherwise each line of a file is a message."""

    def check(self) -> None:
        """Raise `BadInput` if the format can't fill the columns."""

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode messages."""


class TooManyBad(Exception):
    """More records are bad than a collection keeps. Has the index of one, and why it is bad."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index, self.reason = index, reason


def decode_good(
    count: int, decode: Callable[[int, int], pa.Table], errors: tuple[type[Exception], ...], most_bad: int
) -> tuple[list[tuple[int, pa.Table]], list[tuple[int, str]]]:
    """Decode `count` records in as few calls of `decode(begin, end)` as possible.

    Returns the tables with their first record, and the bad records with the reason. A call that returns
    another number of rows than records is a failure too. Raises `TooManyBad` if more than `most_bad` are bad:
    to find each of a million would take minutes.
    """
    good: list[tuple[int, pa.Table]] = []
    bad: list[tuple[int, str]] = []
    open_ = [(0, count)] if count else []
    while open_:
        begin, end = open_.pop()
        try:
            table = decode(begin, end)
            if table.num_rows == end - begin:
                good.append((begin, table))
                continue
            why = f"{table.num_rows} records instead of one"
        except errors as error:
            why = plain_reason(error)
        if end - begin == 1:
            bad.append((begin, why))
            if len(bad) > most_bad:
                raise TooManyBad(*bad[0])
        else:
            middle = (begin + end) // 2
            open_ += [(middle, end), (begin, middle)]
    return good, bad


def joined(good: list[tuple[int, pa.Table]], columns: pa.Schema) -> tuple[pa.Table, np.ndarray]:
    """One table of what `decode_good` decoded, and the number of the record of each row."""
    if not good:
        return columns.empty_table(), np.empty(0, np.int64)
    numbers = [np.arange(begin, begin + table.num_rows) for begin, table in good]
    return pa.concat_tables([table for _, table in good]), np.concatenate(numbers)


def full_rows(rows: pa.Table) -> np.ndarray:
    """Whether no column of a row is null, for each row."""
    full = np.ones(rows.num_rows, bool)
    for column in rows.columns:
        full &= column.is_valid().to_numpy()
    return full


def stripped(values: pa.Array) -> pa.Array:
    """Bytes without white space at both ends, which includes the end of a line."""
    try:
        return pc.ascii_trim_whitespace(values.cast(pa.string())).cast(pa.binary())
    except pa.ArrowInvalid:
        return pa.array([each if each is None else each.strip() for each in values.to_pylist()], pa.binary())
