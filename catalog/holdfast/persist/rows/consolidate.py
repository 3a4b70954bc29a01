"""Consolidation: sums the updates of any number of unsorted pieces.

Invariants:

- `consolidate_at` returns the contents of a collection at a time: each (key, value) once, with the sum of its
  diffs at times <= as_of. The sum is never 0.
- `consolidate_updates` does not change the contents at or after `since`. It only moves times below `since` up
  to it.
- The input is canonical (`holdfast.persist.rows.canonical`): values are equal if their bits are equal, null
  equals null, and the empty string is not null.
- A sum beyond int64 is an error. It never wraps around.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import CLOSED, CorruptBlob
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.canonical import SMALL_ROWS, from_polars, python_values, to_polars
from holdfast.persist.rows.fold import INT64_MAX, first_beyond, fold, overflow
from holdfast.persist.rows.merge import consolidate_chunk
from holdfast.persist.rows.part import UNREADABLE, check_footer, decode_parquet
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.rows.values import R, values_of
from holdfast.polars_forks import polars_works

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """A Parquet part that the engine decodes itself, in parallel.

    `data` is the file's bytes. The caller has verified them with the checksum in the state, because the
    engine checks no page. `key` names the part in errors. Only its updates at times in `[lower, upper)`
    count.
    """

    data: bytes
    key: str
    lower: int = 0
    upper: int = CLOSED


_LAST_TIME = CLOSED - 1
# One array holds at most 2 GiB of text.
_FEW_BYTES: Final = 64 * 1024 * 1024

Source: TypeAlias = pa.Table | pa.RecordBatch | ParquetSource


def consolidate_at(
    schema: Schema, sources: Sequence[Source], as_of: int, less: Sequence[Source] = ()
) -> pa.Table:
    """Return the contents at `as_of` (columns and `_diff`, in no order) of updates in any number of pieces.

    Updates of the sources `less` are subtracted. Raises `DiffOverflow` if a sum of diffs exceeds int64, and
    `CorruptBlob` or `VersionTooNew` if a Parquet source is not a part of the schema.
    """
    if _small([*sources, *less]) is not None:
        return _small_at(schema, _small(sources) or [], as_of, _small(less) or [])
    if not less and (few := _few(sources)) is not None:
        last = pa.scalar(min(as_of, _LAST_TIME), pa.uint64())
        rows = few.filter(pc.less_equal(few.column(TIME), last))
        return pa.Table.from_batches([consolidate_chunk(schema.names, [rows.drop_columns([TIME])])])
    if not polars_works():
        return _arrow_at(schema, sources, as_of, less)
    import polars as pl

    names = list(schema.names)
    pieces = [(piece, False) for piece in _pieces(schema, sources)]
    pieces += [(piece, True) for piece in _pieces(schema, less)]
    bound = sum(piece.bound for piece, _ in pieces)
    frames = []
    for piece, taken_off in pieces:
        frame = piece.frame
        if piece.latest > as_of:
            frame = frame.filter(pl.col(TIME) <= pl.lit(as_of, pl.UInt64))
        # The least int64 can't be negated.
        diff = pl.col(DIFF).cast(pl.Int128 if less and bound > INT64_MAX else pl.Int64)
        frames.append(frame.select([*names, (0 - diff).alias(DIFF) if taken_off else diff]))
    contents = _summed(pl.concat(frames), names, bound)
    return _to_arrow(contents, schema.arrow_diff, [*sources, *less])


def negated(updates: R) -> R:
    """Return the updates with negated diffs. Raises `ArrowInvalid` if a diff can't be negated."""
    index = updates.schema.get_field_index(DIFF)
    return updates.set_column(index, updates.schema.field(index), pc.negate_checked(updates[DIFF]))


def consolidate_updates(schema: Schema, sources: Sequence[Source], since: int) -> pa.Table:
    """Return the updates sorted and summed, with times below `since` moved up to it and without zeros.

    Raises the same errors as `consolidate_at`.
    """
    since = min(since, _LAST_TIME)
    if (tables := _small(sources)) is not None:
        return _small_updates(schema, tables, since)
    if (few := _few(sources)) is not None:
        times = pc.max_element_wise(few.column(TIME), pa.scalar(since, pa.uint64()))
        rows = few.set_column(len(schema.names), schema.arrow_updates.field(TIME), times)
        return pa.Table.from_batches([consolidate_chunk([*schema.names, TIME], [rows])])
    if not polars_works():
        return _arrow_updates(schema, sources, since)
    import polars as pl

    names = [*schema.names, TIME]
    frames, bound = [], 0
    time = pl.max_horizontal(pl.col(TIME), pl.lit(since, pl.UInt64)).alias(TIME)
    for piece in _pieces(schema, sources):
        frames.append(piece.frame.select([*schema.names, time, DIFF]))
        bound += piece.bound
    updates = _summed(pl.concat(frames), names, bound).sort(names, nulls_last=False)
    return _to_arrow(updates, schema.arrow_updates, sources)


class _Piece(NamedTuple):
    frame: "pl.LazyFrame"
    latest: int  # no update is later
    bound: int  # at least the sum of all absolute diffs


def _pieces(schema: Schema, sources: Sequence[Source]) -> Iterator[_Piece]:
    """Yield the sources as few frames, because the engine's cost per frame is that of thousands of rows."""
    import polars as pl

    tables = [pa.Table.from_batches([s]) if isinstance(s, pa.RecordBatch) else s for s in _in_memory(sources)]
    if tables:
        yield _table_piece(pa.concat_tables(tables).combine_chunks())
    parts = [source for source in sources if isinstance(source, ParquetSource)]
    whole: list[tuple[ParquetSource, int, int]] = []
    for part in parts:
        earliest, latest, bound = _check_part(schema, part)
        if part.lower <= earliest and latest < part.upper:
            whole.append((part, latest, bound))
            continue
        limits = pl.lit(part.lower, pl.UInt64), pl.lit(part.upper - 1, pl.UInt64)
        frame = pl.scan_parquet(part.data).filter(pl.col(TIME).is_between(*limits))
        yield _Piece(frame, part.upper - 1, bound)
    if whole:
        uncut, latests, bounds = zip(*whole, strict=True)
        yield _Piece(pl.scan_parquet([part.data for part in uncut]), max(latests), sum(bounds))


def _table_piece(table: pa.Table) -> _Piece:

    latest = largest = 0
    for times, diffs in zip(table.column(TIME).chunks, table.column(DIFF).chunks, strict=True):
        if len(diffs):
            latest = max(latest, int(values_of(times).max()))
            largest = max(largest, -int(values_of(diffs).min()), int(values_of(diffs).max()))
    return _Piece(to_polars(table).lazy(), latest, largest * table.num_rows)


def _check_part(schema: Schema, source: ParquetSource) -> tuple[int, int, int]:
    """Return a part's earliest and latest time and a bound of its diffs, from its footer."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(source.data))
        check_footer(metadata, schema, key=source.key)
    except UNREADABLE as error:
        raise CorruptBlob(source.key, "a Parquet part", " ".join(str(error).split())) from None
    time, diff = len(schema.names), len(schema.names) + 1
    earliest, latest, bound = CLOSED, 0, 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        if row_group.num_rows == 0:
            continue
        times, diffs = row_group.column(time).statistics, row_group.column(diff).statistics
        if times is None or diffs is None or not (times.has_min_max and diffs.has_min_max):
            raise CorruptBlob(source.key, f"statistics of {TIME} and {DIFF}", "none")
        earliest, latest = min(earliest, times.min), max(latest, times.max)
        bound += row_group.num_rows * max(-diffs.min, diffs.max)
    return earliest, latest, bound


def _summed(updates: "pl.LazyFrame", by: list[str], bound: int) -> "pl.LazyFrame":
    import polars as pl

    total = pl.col(DIFF).sum()
    if bound > INT64_MAX:
        total = pl.col(DIFF).cast(pl.Int128).sum()
    return updates.group_by(by).agg(total).filter(pl.col(DIFF) != 0)


def _to_arrow(frame: "pl.LazyFrame", schema: pa.Schema, sources: Sequence[Source]) -> pa.Table:
    import polars as pl

    try:
        result = frame.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        keys = ", ".join(source.key for source in sources if isinstance(source, ParquetSource))
        raise CorruptBlob(keys or "updates", "parts that can be read", " ".join(str(error).split())) from None
    if result.schema[DIFF] == pl.Int128:
        sums = result.get_column(DIFF)
        if not (fits := sums.is_between(-INT64_MAX - 1, INT64_MAX)).all():
            by = [name for name in result.columns if name != DIFF]
            row = from_polars(result.filter(~fits)[:1].select(by), pa.schema([schema.field(n) for n in by]))
            raise overflow(by, row, 0)
        result = result.with_columns(sums.cast(pl.Int64))
    return from_polars(result, schema)


def _in_memory(sources: Sequence[Source]) -> list[pa.Table | pa.RecordBatch]:
    return [source for source in sources if not isinstance(source, ParquetSource)]


def _small(sources: Sequence[Source]) -> list[pa.Table | pa.RecordBatch] | None:
    """Return the sources if all are in memory and small: starting a query would cost more than the work."""
    tables = _in_memory(sources)
    if len(tables) < len(sources) or sum(table.num_rows for table in tables) > SMALL_ROWS:
        return None
    return [table for table in tables if table.num_rows]


def _few(sources: Sequence[Source]) -> pa.RecordBatch | None:
    """Return the sources as one batch if all are in memory, and Arrow is faster than to start Polars."""
    tables = _in_memory(sources)
    if len(tables) < len(sources) or sum(table.num_rows for table in tables) > arrow_rows.FEW_ROWS:
        return None
    if sum(table.nbytes for table in tables) > _FEW_BYTES:
        return None
    batches = [batch for table in tables for batch in _batches(table) if batch.num_rows]
    return pa.concat_batches(batches) if batches else None


def _batches(table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(table.to_batches()) if isinstance(table, pa.Table) else [table]


def _small_at(
    schema: Schema,
    tables: list[pa.Table | pa.RecordBatch],
    as_of: int,
    less: list[pa.Table | pa.RecordBatch],
) -> pa.Table:
    names = schema.names
    updates = _concat(schema, [*tables, *less])
    times = updates.column(TIME).to_pylist()
    diffs = updates.column(DIFF).to_pylist()
    first_off = len(diffs) - sum(table.num_rows for table in less)
    diffs[first_off:] = [-diff for diff in diffs[first_off:]]
    sums: dict[tuple[object, ...], int] = {}
    first: dict[tuple[object, ...], int] = {}
    for index, row in enumerate(zip(*(python_values(updates.column(name)) for name in names), strict=True)):
        if times[index] <= as_of:
            sums[row] = sums.get(row, 0) + diffs[index]
            first.setdefault(row, index)
    return _picked(updates, [*names], sums, first, schema.arrow_diff)


def _small_updates(schema: Schema, tables: list[pa.Table | pa.RecordBatch], since: int) -> pa.Table:
    updates = _concat(schema, tables)
    given = updates.column(TIME).to_pylist()
    times = [max(since, time) for time in given]
    diffs = updates.column(DIFF).to_pylist()
    sums: dict[tuple[object, ...], int] = {}
    first: dict[tuple[object, ...], int] = {}
    columns = [python_values(updates.column(name)) for name in schema.names]
    for index, row in enumerate(zip(*columns, times, strict=True)):
        sums[row] = sums.get(row, 0) + diffs[index]
        first.setdefault(row, index)
    if times != given:
        field = schema.arrow_updates.field(TIME)
        updates = updates.set_column(len(schema.names), field, pa.array(times, pa.uint64()))
    order = _placed if any(updates.column(name).null_count for name in schema.names) else None
    in_order = dict(sorted(sums.items(), key=order))
    return _picked(updates, [*schema.names, TIME], in_order, first, schema.arrow_updates)


def _placed(row: tuple[tuple[Any, ...], int]) -> tuple[tuple[bool, Any], ...]:
    """The place of a row in the total order: nulls are first."""
    return tuple((value is not None, value) for value in row[0])


def _arrow_at(schema: Schema, sources: Sequence[Source], as_of: int, less: Sequence[Source]) -> pa.Table:
    added, off = _decoded(schema, sources), _decoded(schema, less)
    updates = arrow_rows.wide(pa.concat_tables([added, off]))
    diffs: npt.NDArray[Any] = values_of(updates.column(DIFF))
    if off.num_rows:
        # The least int64 can't be negated.
        diffs = diffs.astype(object) if diffs.min() < -INT64_MAX else diffs.copy()
        diffs[added.num_rows :] *= -1
    now = np.flatnonzero(values_of(updates.column(TIME)) <= as_of)
    return _folded([*schema.names], updates.take(pa.array(now)), diffs[now], schema.arrow_diff)


def _arrow_updates(schema: Schema, sources: Sequence[Source], since: int) -> pa.Table:
    updates = arrow_rows.wide(_decoded(schema, sources))
    index = len(schema.names)
    moved = pa.array(np.maximum(values_of(updates.column(TIME)), np.uint64(since)))
    rows = updates.set_column(index, updates.schema.field(index), moved)
    return _folded([*schema.names, TIME], rows, values_of(updates.column(DIFF)), schema.arrow_updates)


def _decoded(schema: Schema, sources: Sequence[Source]) -> pa.Table:
    tables = [schema.arrow_updates.empty_table()]
    for source in sources:
        if isinstance(source, pa.RecordBatch):
            tables.append(pa.Table.from_batches([source]))
        elif isinstance(source, pa.Table):
            tables.append(source)
        else:
            table = decode_parquet(source.data, schema, key=source.key)
            time = pc.field(TIME)
            last = pa.scalar(source.upper - 1, pa.uint64())
            tables.append(table.filter((time >= pa.scalar(source.lower, pa.uint64())) & (time <= last)))
    return pa.concat_tables(tables)


def _folded(by: list[str], rows: pa.RecordBatch, diffs: npt.NDArray[Any], schema: pa.Schema) -> pa.Table:
    kept, sums = fold(by, rows, diffs)
    there = np.flatnonzero(sums != 0)
    kept, sums = kept[there], sums[there]
    try:
        totals = pa.array(sums, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        raise overflow(by, rows, kept[first_beyond(sums)]) from None
    index = schema.get_field_index(DIFF)
    contents = arrow_rows.taken(rows.select(by), kept, schema.remove(index))
    return contents.append_column(schema.field(index), totals)


def _picked(
    updates: pa.RecordBatch,
    names: list[str],
    sums: dict[tuple[object, ...], int],
    first: dict[tuple[object, ...], int],
    schema: pa.Schema,
) -> pa.Table:
    kept = [row for row, total in sums.items() if total]
    found = [sums[row] for row in kept]
    try:
        totals = pa.array(found, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        raise overflow(names, updates, first[kept[first_beyond(found)]]) from None
    places = [first[row] for row in kept]
    rows = updates.select(names)
    if places != list(range(updates.num_rows)):
        rows = rows.take(pa.array(places, pa.int64()))
    return pa.Table.from_arrays([*rows.columns, totals], schema=schema)


def _concat(schema: Schema, tables: list[pa.Table | pa.RecordBatch]) -> pa.RecordBatch:
    batches = [batch for table in tables for batch in _batches(table)]
    if not batches:
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in schema.arrow_updates], schema=schema.arrow_updates
        )
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
