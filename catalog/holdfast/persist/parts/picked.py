"""Reads the few rows that a filter chooses, all at once: no merge of runs, and no row group decoded twice.

- Each row group that may have chosen rows is decoded as a whole, once: its rows are kept in memory for the
  next read (`holdfast.persist.parts.verified`). Of the groups only the chosen rows are copied.
- A filter chooses equal rows alike. So the sums of the chosen rows are those of the contents.
- Inline parts are decoded once too. Each commit adds one, and their rows together are kept for each shard, up
  to `_INLINE_BYTES`.
- What can't be read here is left to the merge, which tries again, or raises the right error.

In memory are the chosen rows, at most `_MOST_BYTES` of them, and one row group in addition to those that are
kept.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa

from holdfast.errors import CorruptBlob, Determinate, Indeterminate
from holdfast.forks import ForkLock
from holdfast.persist.parts.part_store import read_inline, within
from holdfast.persist.parts.runs import At, Run
from holdfast.persist.parts.verified import KnownPart, known_part, rows_of_groups, small_rows
from holdfast.persist.rows.canonical import SMALL_ROWS
from holdfast.persist.rows.consolidate import consolidate_at
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.fold import naming_shard
from holdfast.persist.rows.key_filter import KeyFilter, ascends
from holdfast.persist.rows.merge import consolidate_chunk
from holdfast.persist.rows.order import EVERYTHING, numbers
from holdfast.persist.rows.part import UNREADABLE
from holdfast.persist.rows.row_filter import ConditionFailed, RowFilter
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part

# A filter by something else than keys may choose most rows of the groups that it reads.
_FEW_ROWS: Final = 64 * 1024
_FEW_BYTES: Final = 4 * 1024 * 1024
_MOST_BYTES: Final = 16 * 1024 * 1024
_INLINE_BYTES: Final = 1024 * 1024
_CONTENTS_BYTES: Final = 64 * 1024
_SORTED: Final = "numbers in order"


class _Inline(NamedTuple):
    """The rows of some inline parts of a shard, as updates of a schema."""

    schema: Schema
    parts: tuple[Part, ...]
    rows: pa.RecordBatch


class _Contents(NamedTuple):
    """The contents of a shard whose updates are all in these inline parts, as rows of a schema."""

    schema: Schema
    parts: tuple[Part, ...]
    rows: pa.Table


_lock: Final = ForkLock()
_inline: Final["WeakKeyDictionary[Machine, _Inline]"] = WeakKeyDictionary()
_contents: Final["WeakKeyDictionary[Machine, _Contents]"] = WeakKeyDictionary()


def picked(
    machine: Machine,
    schema: Schema,
    runs: Sequence[Run],
    as_of: int,
    row_filter: RowFilter,
    *,
    few: bool,
    between: Callable[[], None] = lambda: None,
) -> pa.Table | None:
    """Return the contents at a time that a filter chooses, in no order. None: there may be too many of them.

    `few` allows few row groups only. Without it, a filter by not too many keys may read any number of row
    groups. `between` is called from time to time. Raises `PartGone`, and `DiffOverflow` for a sum that does
    not fit int64.
    """
    if row_filter.schema != schema or machine.config.audit_pushdown:
        return None
    parts = [part for run in runs for part in run if part.lower <= as_of]
    few = few or not isinstance(row_filter, KeyFilter) or row_filter.keys > _FEW_ROWS
    try:
        found = _chosen(machine, schema, parts, as_of, row_filter, few, between)
    except (*UNREADABLE, CorruptBlob, ConditionFailed, Determinate, Indeterminate):
        return None
    if found is None:
        return None
    with naming_shard(machine.shard_id):
        if sum(rows.num_rows for rows in found) <= SMALL_ROWS:
            return consolidate_at(schema, found, as_of)
        contents = consolidate_chunk(schema.names, [At(as_of).apply(rows) for rows in found])
        return pa.Table.from_batches([contents])


def inline_contents(machine: Machine, schema: Schema, runs: Sequence[Run], as_of: int) -> pa.Table | None:
    """Return the contents at a time, if all updates of a shard are up to it, inline and few. None if not.

    They are kept until another update comes. Raises `CorruptBlob` and `DiffOverflow`.
    """
    parts = tuple(part for run in runs for part in run)
    if any(part.inline is None or part.upper > as_of + 1 for part in parts):
        return None
    if sum(part.rows for part in parts) > SMALL_ROWS:
        return None
    with _lock:
        known = _contents.get(machine)
    if known is not None and known.schema == schema and _are_same(known.parts, parts):
        return known.rows
    rows = consolidate_at(schema, [read_inline(machine, schema, part) for part in parts], as_of)
    if rows.nbytes <= _CONTENTS_BYTES:
        with _lock:
            _contents[machine] = _Contents(schema, parts, rows)
    return rows


def _are_same(some: Sequence[Part], others: Sequence[Part]) -> bool:
    """Whether these are the same objects. A part is never changed, so it then has the same rows."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _chosen(
    machine: Machine,
    schema: Schema,
    parts: Sequence[Part],
    as_of: int,
    row_filter: RowFilter,
    few: bool,
    between: Callable[[], None],
) -> list[pa.RecordBatch] | None:
    """The updates of some parts that a filter chooses. None if there are too many of them."""
    plan: list[tuple[Part, list[int]]] = []
    rows = size = 0
    for part in parts:
        if part.inline is not None:
            continue
        known = known_part(machine, part)
        groups = known.groups_through(schema, machine.schema_of(part))
        met = [i for i in row_filter.groups(known.bounds) if groups[i].may_meet(EVERYTHING, 0, as_of)]
        if few:
            rows += sum(groups[i].rows for i in met)
            size += sum(known.metadata.row_group(i).total_byte_size for i in met)
            if rows > _FEW_ROWS or size > _FEW_BYTES:
                return None
        if met:
            plan.append((part, met))
    found: list[pa.RecordBatch] = []
    total = 0
    for batch, source, is_sorted in _updates(machine, schema, parts, plan):
        between()
        chosen = _picked_rows(batch, row_filter, is_sorted=is_sorted)
        if not chosen.num_rows:
            continue
        if source is not None:
            chosen = within(chosen, source)
        found.append(chosen)
        total += chosen.get_total_buffer_size()
        if total > _MOST_BYTES:
            return None
    return found


def _updates(
    machine: Machine, schema: Schema, parts: Sequence[Part], plan: Sequence[tuple[Part, list[int]]]
) -> Iterator[tuple[pa.RecordBatch, Part | None, bool]]:
    """The updates of all inline parts, and of some row groups of the others with their part.

    The last value says whether the first column is known to have numbers in order.
    """
    inline = tuple(part for part in parts if part.inline is not None)
    if inline:
        # One look at all of them costs little more than one at each.
        yield _inline_rows(machine, schema, inline), None, False
    for part, groups in plan:
        own, known = machine.schema_of(part), known_part(machine, part)
        small = small_rows(machine, known)
        if small is not None:
            yield upgraded(small, own, schema), part, _is_sorted(known, None, small)
            continue
        for group, rows in zip(groups, rows_of_groups(machine, known, groups), strict=True):
            yield upgraded(rows, own, schema), part, _is_sorted(known, group, rows)


def _is_sorted(known: KnownPart, group: int | None, rows: pa.RecordBatch) -> bool:
    """Whether the first column of a row group, or of a part, has numbers in order. Found out once."""
    if (_SORTED, group) not in known.bounds.derived:
        values = numbers(rows.column(0))
        known.bounds.derived[_SORTED, group] = values is not None and ascends(values)
    return bool(known.bounds.derived[_SORTED, group])


def _inline_rows(machine: Machine, schema: Schema, parts: tuple[Part, ...]) -> pa.RecordBatch:
    """The updates of some inline parts, which are in one batch for the next read."""
    with _lock:
        known = _inline.get(machine)
    batches: list[pa.RecordBatch] = []
    there = 0
    if known is not None and known.schema == schema and _are_same(known.parts, parts[: len(known.parts)]):
        batches, there = [known.rows], len(known.parts)
    for part in parts[there:]:
        batches += read_inline(machine, schema, part).to_batches()
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_batches(batches)
    if rows.nbytes <= _INLINE_BYTES:
        with _lock:
            _inline[machine] = _Inline(schema, parts, rows)
    return rows


def _picked_rows(rows: pa.RecordBatch, row_filter: RowFilter, *, is_sorted: bool) -> pa.RecordBatch:
    places = row_filter.places(rows, is_sorted=is_sorted) if isinstance(row_filter, KeyFilter) else None
    if places is None:
        return rows.filter(row_filter.mask(rows))
    return rows.take(places) if len(places) else rows.slice(0, 0)
