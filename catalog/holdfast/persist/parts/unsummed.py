"""Reads contents of a shard from several runs, and sums only the rows with keys that rows were removed from.

- Rows need a sum only if an update removes one, and that has the same key. So first the keys of all updates
  that remove rows are read. The parts whose statistics of `_diff` show that they only add rows are skipped.
- Rows with other keys come as they were written. Rows with these keys are summed by all of their columns, so
  also a count below 0 is found. If they are in less than half of the row groups, these are read a second time
  for them, and of the other rows only the columns that somebody needs. Otherwise all columns are read once.
- A read that was interrupted goes on at a key: all rows before it have been read, and no others.

In memory are, in addition to what `open_runs` and a merge have, at most `_MOST_KEY_BYTES` of keys, about ten
times as much to find them, and the rows of one key: at most two row groups of each run, and
`_ONE_KEY_BYTES` of row groups that have one key only.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.persist.parts.direct import only_adds
from holdfast.persist.parts.runs import At, Run, merged, open_runs
from holdfast.persist.parts.verified import KnownPart, known_part
from holdfast.persist.rows.fold import naming_shard
from holdfast.persist.rows.key_filter import KeyFilter
from holdfast.persist.rows.merge import consolidate_chunk, interleaved
from holdfast.persist.rows.order import Key
from holdfast.persist.rows.row_filter import RowFilter, both
from holdfast.persist.rows.schema import DIFF, Schema
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part

_MOST_KEY_BYTES: Final = 1024 * 1024
_ONE_KEY_BYTES: Final = 4 * 1024 * 1024
_MOST_RUNS: Final = 32
# A merge of fewer rows costs less than to find out what need not be merged.
_LEAST_ROWS: Final = 16 * 1024
# Rows to sum are read a second time if they are in less than this share of all rows' row groups.
_APART: Final = 0.5
_ONE_KEY: Final = "bytes of row groups of one key"


class _Plan(NamedTuple):
    """What is read: the runs, those parts of them that are stored, and the keys of the rows to sum."""

    runs: list[list[Part]]
    stored: list[list[Part]]
    inline: list[Part]
    removed: pa.Table | None
    sums_apart: bool
    """Whether the rows to sum are read a second time."""


def unsummed(
    machine: Machine,
    schema: Schema,
    runs: Sequence[Run],
    as_of: int,
    columns: Sequence[str],
    *,
    row_filter: RowFilter | None = None,
    buffer_bytes: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> tuple[Schema, Iterator[tuple[pa.Table, Key | None]]] | None:
    """Return the rows at a time that a filter chooses, with at least these columns. None: merge all rows.

    The schema is that of the columns that are read. The keys are those of `interleaved`. Raises `PartGone`
    and `CorruptBlob`, and iterating raises like `open_runs`.
    """
    if not schema.key or (row_filter is not None and row_filter.schema != schema):
        return None
    plan = _plan(machine, schema, runs, as_of, between)
    if plan is None:
        return None
    narrow = {*schema.key_names, *columns, *(() if row_filter is None else row_filter.columns)}
    seen = schema.narrowed(narrow if plan.sums_apart else schema.names)
    names = [*seen.names, DIFF]
    others, view = row_filter, At(as_of)
    streams: list[Iterator[pa.RecordBatch]] = []
    if plan.removed is not None and plan.sums_apart:
        others = KeyFilter(schema, plan.removed, others=True)
        if row_filter is not None:
            # The filter that may choose few rows comes first.
            others = both(row_filter, others)
        tables = merged(
            machine,
            schema,
            plan.runs,
            view,
            row_filter=_with(row_filter, KeyFilter(schema, plan.removed)),
            buffer_bytes=buffer_bytes,
            between=between,
        )
        streams.append(batch for rows in tables for batch in rows.to_batches())
    streams += open_runs(
        machine, schema, plan.stored, view, row_filter=others, columns=seen.names, buffer_bytes=buffer_bytes
    )
    if plan.inline:
        streams += open_runs(machine, schema, [plan.inline], view, row_filter=others)
    found = interleaved(
        schema.key_names, [(rows.select(names) for rows in stream) for stream in streams], between
    )
    if plan.removed is None or plan.sums_apart:
        return seen, found
    return seen, _summed(machine, schema, found, KeyFilter(schema, plan.removed))


def _summed(
    machine: Machine, schema: Schema, tables: Iterator[tuple[pa.Table, Key | None]], removed: KeyFilter
) -> Iterator[tuple[pa.Table, Key | None]]:
    """The same with the rows of these keys summed. All rows of a key are in one table."""
    for table, before in tables:
        found: list[pa.RecordBatch] = []
        pieces: list[pa.RecordBatch] = []
        for rows in table.to_batches():
            mask = removed.mask(rows)
            if mask.true_count:
                pieces.append(rows.filter(mask))
                rows = rows.filter(pc.invert(mask))
            found.append(rows)
        if pieces:
            with naming_shard(machine.shard_id):
                found.append(consolidate_chunk(schema.names, pieces))
        yield pa.Table.from_batches([rows for rows in found if rows.num_rows], table.schema), before


def _plan(
    machine: Machine, schema: Schema, runs: Sequence[Run], as_of: int, between: Callable[[], None]
) -> _Plan | None:
    """Read the keys of what was removed. None if there are few rows, or too many of these keys."""
    wanted = [[part for part in run if part.lower <= as_of] for run in runs]
    stored = [[part for part in run if part.inline is None] for run in wanted]
    stored = [run for run in stored if run]
    inline = [part for run in wanted for part in run if part.inline is not None]
    if not 0 < len(stored) <= _MOST_RUNS:
        return None
    known = [known_part(machine, part) for run in stored for part in run]
    if sum(each.metadata.num_rows for each in known) < _LEAST_ROWS:
        return None
    if sum(_one_key_bytes(each, schema) for each in known) > _ONE_KEY_BYTES:
        return None
    found: list[pa.Table] = []
    sources = [[each.part] for each in known if not only_adds(each)]
    for run in [*sources, inline] if inline else sources:
        for rows in _of(open_runs(machine, schema, [run], At(as_of), columns=schema.key_names)):
            between()
            keys = rows.filter(pc.less(rows.column(DIFF), 0)).select(schema.key_names)
            found.append(pa.Table.from_batches([keys]))
            if sum(each.nbytes for each in found) > _MOST_KEY_BYTES:
                return None
    removed = pa.concat_tables(found) if found else None
    if removed is None or not len(removed):
        return _Plan(wanted, stored, inline, None, sums_apart=True)
    there = KeyFilter(schema, removed)
    again = sum(each.metadata.row_group(i).num_rows for each in known for i in there.groups(each.bounds))
    total = sum(each.metadata.num_rows for each in known)
    return _Plan(wanted, stored, inline, removed, sums_apart=again < _APART * total)


def _of(opened: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    return (rows for each in opened for rows in each)


def _with(row_filter: RowFilter | None, keys: KeyFilter) -> RowFilter:
    return keys if row_filter is None else both(keys, row_filter)


def _one_key_bytes(known: KnownPart, schema: Schema) -> int:
    """The bytes of the row groups that may have rows of one key only."""
    if (_ONE_KEY, schema) not in known.bounds.derived:
        bounds = [known.bounds.of(column) for column in schema.key]
        known.bounds.derived[_ONE_KEY, schema] = sum(
            known.metadata.row_group(index).total_byte_size
            for index in range(known.bounds.groups)
            if all(_may_be_one(each[index].values) for each in bounds)
        )
    return int(known.bounds.derived[_ONE_KEY, schema])


def _may_be_one(limits: pa.Array | None) -> bool:
    return limits is None or bool(limits[0] == limits[1])
