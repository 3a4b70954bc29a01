"""The rows of a collection for people: a page of them as of a time, and the difference of two times.

- Nothing is written or sealed. A time that is not complete is refused, and the refusal has the nearest time
  that can be read.
- Everything is bounded: the rows of a page, the characters of a cell, the bytes of a page, and the seconds of
  a read.
- A client that writes nothing holds nothing. If a compaction passes the time during the read, the time is
  refused like any other that is too early.
"""

import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections import CollectionReader, StorageController
from holdfast.collections.complete_times import LEAST_MS, check_unit
from holdfast.collections.rendition_copy import at_time
from holdfast.collections.row_pages import RowPlace, parse_place, place_text
from holdfast.errors import CLOSED, AsOfTooEarly, BadInput, HoldfastError
from holdfast.persist import Schema
from holdfast.persist.checks import check_columns
from holdfast.persist.rows.canonical import python_values
from holdfast.persist.rows.consolidate import consolidate_updates
from holdfast.persist.rows.evolution import fitted
from holdfast.persist.rows.row_filter import ConditionFailed, RowFilter, chosen
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.persist.rows.stored import logical_rows
from holdfast.tables.cells import cells_of
from holdfast.tables.filters import filter_of
from holdfast.tables.moments import milliseconds
from holdfast.tables.where import parse_where
from holdfast.text import shown_time

PURPOSE: Final = "holdfast console"
_LEAST_ROWS: Final = 2

CellKind = Literal["null", "empty", "number", "text", "binary", "bool", "time", "nested"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on a page. Sizes are characters of text, and `seconds` is the time that a read may take."""

    rows: int = 100
    changed_rows: int = 500
    changed_bytes: int = 64 << 20
    """The most bytes of the rows of a difference, in memory. Two rows are shown even if they have more."""
    columns: int = 200
    short: int = 80
    """A longer cell is cut, and its text is behind a fold."""
    long: int = 2000
    """A still longer cell is cut for good. The page of its row shows more of it."""
    whole: int = 1_000_000
    """The most characters of a cell on the page of one row."""
    page: int = 1_000_000
    """If a page has more characters, folds have nothing more."""
    seconds: float = 10.0


class TimeRefused(HoldfastError):
    """A time can't be read. `nearest` is the nearest one that can, or None if there is none."""

    def __init__(self, message: str, nearest: int | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.nearest = nearest


class OutOfTime(HoldfastError):
    """A read took longer than its bound."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as text of at most `Bounds.short` characters.

    `whole` is its text up to `Bounds.long` characters if that is more, and `left` is the number of characters
    after that.
    """

    kind: CellKind
    text: str
    whole: str = ""
    left: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether `text` is not all of the value."""
        return bool(self.whole or self.left)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column: its name and type, whether it is part of the key, and whether its cells are numbers."""

    name: str
    type: str
    is_key: bool
    is_number: bool
    nullable: bool
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page of rows shows: columns (empty: all), a condition as in `--where`, and where it begins."""

    columns: tuple[str, ...] = ()
    where: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """A row. `place` finds it again, and `copies` is how often it occurs."""

    cells: tuple[Cell, ...]
    copies: int
    place: str | None


@dataclass(frozen=True, slots=True)
class RowsPage:
    """Rows as of a time. `all_columns` are all that there are. `after` begins the next page, if there is one.

    `more` without `after` means that there are more rows, but a key is too long for an address.
    """

    as_of: int
    all_columns: tuple[ColumnFacts, ...]
    columns: tuple[ColumnFacts, ...]
    rows: tuple[RowFacts, ...]
    more: bool
    after: str | None
    took_s: float

    @property
    def has_copies(self) -> bool:
        """Whether a row doesn't occur exactly once."""
        return any(row.copies != 1 for row in self.rows)


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row that is in one of two times only. `added` is the number of its copies, negative if removed.

    `changed` are the indexes of the cells that differ from the row with the same key on the other side. It is
    None if there is no such row.
    """

    cells: tuple[Cell, ...]
    added: int
    changed: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class RowsDifference:
    """The difference of two times. `is_whole` if all of its rows are here and counted.

    `changed` counts keys with one row before and another one after. Their rows are in `added` and `removed`
    too.
    """

    start: int
    end: int
    all_columns: tuple[ColumnFacts, ...]
    columns: tuple[ColumnFacts, ...]
    rows: tuple[ChangedRow, ...]
    added: int
    removed: int
    changed: int
    is_whole: bool
    is_counted: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class Reach:
    """The times that can be read: from `since` up to, and without, `upper`."""

    name: str
    since: int
    upper: int

    @property
    def latest(self) -> int | None:
        """The latest time that can be read. None if there is none."""
        return self.upper - 1 if self.upper > self.since else None

    def time(self, given: str) -> int:
        """The time that a text means: milliseconds or an ISO date, or the latest time if it is empty.

        Raises `TimeRefused` with the nearest time that can be read.
        """
        what = f"collection {self.name}"
        latest = self.latest
        if not given.strip():
            if latest is None:
                raise TimeRefused(f"nothing has been written to {what} yet", None)
            return latest
        try:
            asked = milliseconds(given.strip())
            check_unit(asked, self.upper, what)
        except BadInput as error:
            raise TimeRefused(str(error), latest, error.hint) from None
        if latest is None:
            raise TimeRefused(f"nothing has been written to {what} yet", None)
        if asked < self.since:
            raise _compacted(asked, self.since, what)
        if asked >= self.upper:
            complete = f"its latest complete time is {moment(latest)}"
            raise TimeRefused(f"{what} is not complete at {moment(asked)}: {complete}", latest)
        return asked


@contextmanager
def reading(controller: StorageController, name: str) -> Iterator[tuple[CollectionReader, Reach]]:
    """A reader of a collection, and the times that can be read now.

    Errors of the block about times become `TimeRefused`: compaction may pass a time while it is read. Raises
    `CollectionNotFound` too.
    """
    with controller.reader(name, purpose=PURPOSE) as reader:
        reach = Reach(reader.info.name, reader.since(), reader.upper())
        try:
            yield reader, reach
        except AsOfTooEarly as error:
            raise _compacted(error.as_of, error.since, f"collection {reach.name}") from None


def _compacted(asked: int, since: int, what: str) -> TimeRefused:
    message = f"{what} can't be read at {moment(asked)}: versions before {moment(since)} were compacted"
    return TimeRefused(message, since)


def moment(time_: int) -> str:
    """A time for people: in UTC, or a number if the collection counts something."""
    if not LEAST_MS < time_ < CLOSED:
        return str(time_)
    return shown_time(time_).replace("T", " ").replace("+00:00", " UTC").replace(".000 ", " ")


def rows_at(reader: CollectionReader, as_of: int, asked: Asked, bounds: Bounds = Bounds()) -> RowsPage:
    """A page of rows as of a time that can be read.

    Raises `BadInput` for a column that there isn't, a condition that doesn't fit, and a place that can't be
    read; `OutOfTime`; and `TimeRefused` inside of `reading`.
    """
    began_s = time.monotonic()
    snapshot = reader.snapshot(as_of)
    schema = snapshot.schema
    columns = _columns(schema, reader.info.comments)
    picked = _picked(columns, asked.columns, schema)
    start = RowPlace()
    if asked.after:
        last = parse_place(asked.after, snapshot.stored)
        start = replace(last, skip=last.skip + 1)
    wanted = snapshot if not asked.where.strip() else snapshot.filtered(condition_of(asked.where, schema))
    page = wanted.page(bounds.rows, start, between=_until(began_s + bounds.seconds))
    places = [place_text(place, snapshot.stored) for place in page.places]
    shown = logical_rows(page.rows, schema)
    rows = _cells(shown, picked, bounds)
    copies = shown.column(DIFF).to_pylist()
    return RowsPage(
        as_of,
        columns,
        picked,
        tuple(RowFacts(*each) for each in zip(rows, copies, places, strict=True)),
        page.more,
        places[-1] if page.more and places else None,
        time.monotonic() - began_s,
    )


def row_at(
    reader: CollectionReader, as_of: int, place: str, where: str = "", bounds: Bounds = Bounds()
) -> RowsPage | None:
    """One row with as much as possible of all of its cells, as a page. None if there is no such row.

    `where` is the condition of the page that the place comes from. Raises like `rows_at`.
    """
    snapshot = reader.snapshot(as_of)
    start = parse_place(place, snapshot.stored)
    schema = snapshot.schema
    wanted = snapshot if not where.strip() else snapshot.filtered(condition_of(where, schema))
    began_s = time.monotonic()
    page = wanted.page(1, start, between=_until(began_s + bounds.seconds))
    if not page.places or page.places[0] != start:
        return None
    shown = logical_rows(page.rows, schema)
    columns = _columns(schema, reader.info.comments)
    most = replace(bounds, short=bounds.whole, long=bounds.whole, page=len(columns) * bounds.whole)
    (cells,) = _cells(shown, columns, most)
    row = RowFacts(cells, shown.column(DIFF)[0].as_py(), place)
    return RowsPage(as_of, columns, columns, (row,), page.more, None, time.monotonic() - began_s)


def difference(
    reader: CollectionReader,
    described: Callable[[], Schema],
    start: int,
    end: int,
    asked: Asked,
    bounds: Bounds = Bounds(),
) -> RowsDifference:
    """What was added and removed between two times that can be read, in the order of the key.

    `described` returns the schema of the collection as of now. It is called after the rows were read. Only
    rows that the condition chooses are compared, so a row may come and go with its values. Raises like
    `rows_at`.
    """
    began_s = time.monotonic()
    check = _until(began_s + bounds.seconds)
    found = _Changes(bounds.changed_rows, bounds.changed_bytes)
    is_counted = True
    try:
        for batch in reader.changes(start, end):
            found.add(batch, described, asked.where)
            check()
    except OutOfTime:
        # What was counted so far is true, and more is not known.
        is_counted = False
    schema = found.schema or described()
    if asked.where.strip():
        condition_of(asked.where, schema)
    columns = _columns(schema, reader.info.comments)
    picked = _picked(columns, asked.columns, schema)
    rows = _removed_first(found.rows(schema, end), schema)
    diffs = rows.column(DIFF).to_pylist()
    pairs = _pairs(rows, schema)
    shown = logical_rows(rows, schema)
    cells = _cells(shown, picked, bounds)
    differing = _differing(rows, picked, pairs)
    changed = [differing.get(index) for index in range(rows.num_rows)]
    is_whole = is_counted and not found.has_more
    added, removed = found.added, found.removed
    if is_whole:
        # Rows that moved to another shard are summed here.
        added = sum(diff for diff in diffs if diff > 0)
        removed = -sum(diff for diff in diffs if diff < 0)
    return RowsDifference(
        start,
        end,
        columns,
        picked,
        tuple(ChangedRow(*each) for each in zip(cells, diffs, changed, strict=True)),
        added,
        removed,
        len(pairs) // 2,
        is_whole,
        is_counted,
        time.monotonic() - began_s,
    )


def condition_of(where: str, schema: Schema) -> RowFilter:
    """The filter for a condition in the words of `--where`. Raises `BadInput`."""
    try:
        return filter_of(parse_where(where, schema), schema)
    except BadInput as error:
        text = str(error).removeprefix("--where: ").removeprefix("where: ")
        raise BadInput(f"filter: {text}", hint=error.hint.replace('--where "', '"')) from None


class _Changes:
    """The first rows of a difference, and the numbers of all of them."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.added = self.removed = 0
        self.has_more = False
        self.schema: Schema | None = None
        self._most = most
        self._most_bytes = most_bytes
        self._kept = self._kept_bytes = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch, described: Callable[[], Schema], where: str) -> None:
        """Count rows, and keep them if there are few."""
        if self.schema is None or not {*self.schema.names, DIFF}.issuperset(batch.schema.names):
            self.schema = described()
        schema = self.schema
        rows = fitted(batch, schema.arrow_diff)
        if where.strip():
            rows = _chosen(rows, schema, condition_of(where, schema))
        diffs = rows.column(DIFF).to_numpy()
        self.added += int(diffs[diffs > 0].sum())
        self.removed -= int(diffs[diffs < 0].sum())
        left = 0 if self.has_more else min(self._most - self._kept, self._fitting(rows))
        if rows.num_rows > left:
            self.has_more = True
            # A copy, since a slice keeps all rows in memory.
            rows = _to_whole_keys(rows, left, schema)
            rows = rows.take(pa.array(range(rows.num_rows), pa.int64()))
        if rows.num_rows:
            self._batches.append(rows)
            self._kept += rows.num_rows
            self._kept_bytes += rows.nbytes

    def _fitting(self, rows: pa.RecordBatch) -> int:
        """How many of the rows may be kept by their bytes."""
        left = self._most_bytes - self._kept_bytes
        if rows.nbytes <= left:
            return int(rows.num_rows)
        found = (
            bisect_right(range(rows.num_rows + 1), left, key=lambda count: rows.slice(0, count).nbytes) - 1
        )
        return max(found, _LEAST_ROWS - self._kept, 0)

    def rows(self, schema: Schema, at: int) -> pa.Table:
        """The kept rows, each once, in the total order."""
        batches = [fitted(each, schema.arrow_diff) for each in self._batches]
        self._batches = []
        if not batches:
            return schema.arrow_diff.empty_table()
        tables = [
            pa.Table.from_batches([each]).select(schema.arrow_updates.names) for each in at_time(batches, at)
        ]
        return consolidate_updates(schema, tables, at).drop_columns([TIME])


def _chosen(rows: pa.RecordBatch, schema: Schema, condition: RowFilter) -> pa.RecordBatch:
    try:
        return chosen(rows, schema, condition)
    except ConditionFailed as failed:
        raise failed.error from None


def _to_whole_keys(rows: pa.RecordBatch, most: int, schema: Schema) -> pa.RecordBatch:
    """At most so many of the rows, which are in the total order, and with a row all others of its key."""
    if not schema.key or most <= 0:
        return rows.slice(0, max(most, 0))
    keys = rows.select(list(schema.key_names))
    end = most
    while end and keys.slice(end, 1).equals(keys.slice(end - 1, 1)):
        end -= 1
    return rows.slice(0, end)


def _removed_first(rows: pa.Table, schema: Schema) -> pa.Table:
    """The same rows. Of two that are a pair, the removed one comes first."""
    order = list(range(rows.num_rows))
    diffs = rows.column(DIFF).to_pylist()
    for index, other in _pairs(rows, schema).items():
        if index < other and diffs[index] > 0:
            order[index], order[other] = other, index
    return rows.take(pa.array(order, pa.int64()))


def _pairs(rows: pa.Table, schema: Schema) -> dict[int, int]:
    """For each row that replaces another one of its key, and for that one, the index of the other row."""
    if not schema.key or not rows.num_rows:
        return {}
    keys = list(zip(*(rows.column(name).to_pylist() for name in schema.key_names), strict=True))
    counts = Counter(keys)
    diffs = rows.column(DIFF).to_pylist()
    found: dict[int, int] = {}
    first: dict[tuple[Any, ...], int] = {}
    for index, key in enumerate(keys):
        if counts[key] != 2:
            continue
        if key in first and diffs[index] * diffs[first[key]] == -1:
            found[index], found[first[key]] = first[key], index
        first[key] = index
    return found


def _differing(
    rows: pa.Table, columns: Sequence[ColumnFacts], pairs: Mapping[int, int]
) -> dict[int, frozenset[int]]:
    """For each row of a pair, the columns in which it differs from the other row."""
    found: dict[int, set[int]] = {index: set() for index in pairs}
    one, other = pa.array(pairs.keys(), pa.int64()), pa.array(pairs.values(), pa.int64())
    for place, column in enumerate(columns):
        values = rows.column(column.name).combine_chunks()
        for index, is_other in zip(pairs, _unequal(values.take(one), values.take(other)), strict=True):
            if is_other:
                found[index].add(place)
    return {index: frozenset(places) for index, places in found.items()}


def _unequal(ones: pa.Array, others: pa.Array) -> list[bool]:
    """Whether the values differ, one by one. Null equals null."""
    if _is_text(ones.type) or _is_bytes(ones.type):
        # They may be long, so no Python objects are made of them.
        differ = pc.fill_null(pc.not_equal(ones, others), fill_value=False)
        return list(pc.or_(differ, pc.xor(ones.is_null(), others.is_null())).to_pylist())
    both = zip(python_values(ones), python_values(others), strict=True)
    return [one != other for one, other in both]


def _until(end_s: float) -> Callable[[], None]:
    def check() -> None:
        if time.monotonic() > end_s:
            raise OutOfTime(
                "the read took too long and was given up",
                hint="choose rows by the key, such as id = 5: such a condition reads little",
            )

    return check


def _columns(schema: Schema, comments: Any) -> tuple[ColumnFacts, ...]:
    return tuple(
        ColumnFacts(
            column.name,
            column.type,
            column in schema.key,
            _is_number(column.arrow.type),
            column.nullable,
            comments.get(column.name, ""),
        )
        for column in schema.columns
    )


def _picked(
    columns: tuple[ColumnFacts, ...], names: Sequence[str], schema: Schema
) -> tuple[ColumnFacts, ...]:
    """The columns with these names, in this order. Raises `BadInput`."""
    if not names:
        return columns
    check_columns(schema, names)
    known = {each.name: each for each in columns}
    return tuple(known[name] for name in dict.fromkeys(names))


def _is_number(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_kind(type_) for is_kind in kinds)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def _cells(rows: pa.Table, columns: Sequence[ColumnFacts], bounds: Bounds) -> list[tuple[Cell, ...]]:
    """The cells of rows. Long ones are cut."""
    columns = columns[: bounds.columns]
    left = bounds.page
    found: list[list[Cell]] = [[] for _ in range(rows.num_rows)]
    for column in columns:
        values, lengths = _cut(rows.column(column.name), max(bounds.short, bounds.long))
        for row, value, length in zip(found, cells_of(values), lengths, strict=True):
            cell = cell_of(value, bounds.short, bounds.long if left > 0 else 0, length)
            left -= len(cell.text) + len(cell.whole)
            row.append(cell)
    return [tuple(row) for row in found]


def _cut(values: pa.ChunkedArray, most: int) -> tuple[pa.ChunkedArray, list[int | None]]:
    """The values with at least their first `most` characters, and the numbers of all characters if known."""
    if _is_text(values.type):
        return pc.utf8_slice_codeunits(values, 0, most), pc.utf8_length(values).to_pylist()
    if _is_bytes(values.type):
        lengths = [None if each is None else 2 * each for each in pc.binary_length(values).to_pylist()]
        return pc.binary_slice(values, 0, most), lengths
    return values, [None] * len(values)


def cell_of(value: Any, short: int, long: int, length: int | None = None) -> Cell:
    """A value as a cell: `short` characters of it, and `long` of them behind a fold.

    `length` is the number of its characters if the value was cut before.
    """
    kind, text = _text_of(value)
    size = len(text) if length is None else length
    if size <= short:
        return Cell(kind, text)
    whole = text[:long] if long > short else ""
    return Cell(kind, text[:short], whole, size - max(len(whole), short))


def _text_of(value: Any) -> tuple[CellKind, str]:
    match value:
        case None:
            return "null", "null"
        case bool():
            return "bool", "true" if value else "false"
        case int() | float() | Decimal():
            return "number", str(value)
        case bytes():
            return ("binary", value.hex()) if value else ("empty", "")
        case str():
            return ("text", value) if value else ("empty", "")
        case datetime():
            unit = (
                "microseconds"
                if value.microsecond % 1000
                else "milliseconds"
                if value.microsecond
                else "seconds"
            )
            return "time", value.isoformat(timespec=unit).replace("+00:00", "Z")
        case date() | time_of_day():
            return "time", value.isoformat()
        case _:
            return "nested", json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A nested value as JSON has it, with binary in hexadecimal."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


@dataclass(frozen=True, slots=True)
class Tick:
    """A time at which something was written. `rows` counts rows added and removed.

    With `is_exact`, `added` and `removed` are known. Otherwise several times may have been stored together,
    and this is the last one of them.
    """

    time: int
    rows: int
    added: int = 0
    removed: int = 0
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class SliderTicks:
    """The ticks of a time slider from `first` to `last`. `is_zoomed` if that is a part of all times.

    `is_thinned` if several times share a tick because there are very many.
    """

    first: int
    last: int
    ticks: tuple[Tick, ...]
    is_zoomed: bool = False
    is_thinned: bool = False

    def before(self, time_: int) -> int | None:
        """The latest tick before a time, or the first time of all."""
        found = [each.time for each in self.ticks if each.time < time_]
        return found[-1] if found else (self.first if self.first < time_ else None)

    def changed_since(self, time_: int) -> int | None:
        """The time before the last change up to a time, so that the two differ. None if nothing changed."""
        last = next((each.time for each in reversed(self.ticks) if each.time <= time_), None)
        return None if last is None else self.before(last)

    def after(self, time_: int) -> int | None:
        """The first tick after a time, or the last time of all."""
        found = next((each.time for each in self.ticks if each.time > time_), None)
        return found if found is not None else (self.last if self.last > time_ else None)


MOST_TICKS: Final = 240
_REFINED_ROWS: Final = 200_000
_ZOOMED_ROWS: Final = 2_000_000


def ticks_of(reader: CollectionReader, reach: Reach, zoom: tuple[int, int] | None = None) -> SliderTicks:
    """The ticks between two times, or of all times that can be read.

    They are the bounds of what is stored together. Of few rows, and of not too many rows when zoomed, the
    times themselves are read.
    """
    latest = reach.latest
    if latest is None:
        return SliderTicks(reach.since, reach.since, ())
    stored = [(time_, rows) for time_, rows in reader.change_counts(reach.since) if time_ > reach.since]
    first, last = _limits(stored, reach.since, latest, zoom)
    total = sum(rows for time_, rows in stored if time_ > first)
    ticks = [Tick(min(time_, latest), rows) for time_, rows in stored if first < time_ <= last]
    if first < last and total <= (_ZOOMED_ROWS if zoom else _REFINED_ROWS):
        sums = reader.sum_changes(first, last, MOST_TICKS)
        exact = [
            Tick(int(time_), int(added + removed), int(added), int(removed), is_exact=True)
            for time_, (added, removed) in zip(sums.times, sums.sums, strict=True)
        ]
        begin = exact[0].time if sums.more and exact else 0
        ticks = [*(each for each in ticks if each.time < begin), *exact]
    if zoom is None and ticks and first == reach.since:
        # Before the first change there is nothing to see. Leave a little room.
        room = max(1, (last - ticks[0].time) // 20)
        first = max(reach.since, ticks[0].time - room)
    thin = _thinned(ticks, first, last)
    return SliderTicks(first, last, tuple(thin), zoom is not None, len(thin) < len(ticks))


def _limits(
    stored: Sequence[tuple[int, int]], since: int, latest: int, zoom: tuple[int, int] | None
) -> tuple[int, int]:
    if zoom is not None:
        first, last = max(min(zoom), since), min(max(zoom), latest)
        if first < last:
            return first, last
    if stored and latest > (end := max(time_ for time_, _ in stored)) and latest >= 1 << 53:
        # The collection is complete for good.
        return since, end
    return since, latest


def _thinned(ticks: Sequence[Tick], first: int, last: int) -> list[Tick]:
    """At most `MOST_TICKS` ticks: of those that are close together, the last one, with all of their rows."""
    if len(ticks) <= MOST_TICKS:
        return list(ticks)
    found: dict[int, Tick] = {}
    for each in ticks:
        place = (each.time - first) * MOST_TICKS // max(1, last + 1 - first)
        before = found.get(place)
        found[place] = each if before is None else _together(before, each)
    return list(found.values())


def _together(one: Tick, other: Tick) -> Tick:
    return Tick(
        other.time,
        one.rows + other.rows,
        one.added + other.added,
        one.removed + other.removed,
        one.is_exact and other.is_exact,
    )


def parse_zoom(text: str) -> tuple[int, int] | None:
    """The two times of `zoom=FROM..TO`, in milliseconds. None if there are none. Raises `BadInput`."""
    if not text:
        return None
    start, _, end = text.partition("..")
    first, last = milliseconds(start), milliseconds(end)
    if first >= last:
        raise BadInput("the zoom must go forward in time", hint="give it as FROM..TO")
    return first, last
