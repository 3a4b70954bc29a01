"""Reads contents of a shard straight from its parts: no merge, and only the columns that somebody needs.

- Rows are equal or not by all of their columns, so to sum equal rows takes all columns. Nothing needs a sum
  if all updates up to the time are in one sorted run, and each of them adds rows: then they are the contents.
- The parts prove it by their statistics of `_diff`, which were verified (`holdfast.persist.parts.verified`).
- Rows come in the total order of all columns. Equal rows that were written at different times are not summed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from holdfast.persist.parts.runs import At, Run, open_runs
from holdfast.persist.parts.verified import KnownPart, known_part
from holdfast.persist.rows.constants import are_ones
from holdfast.persist.rows.row_filter import RowFilter
from holdfast.persist.rows.schema import DIFF, Schema
from holdfast.persist.state.machine import Machine

_ONLY_ADDS: Final = "only adds"
_MANY: Final = 1 << 40


def direct(
    machine: Machine,
    schema: Schema,
    runs: Sequence[Run],
    as_of: int,
    columns: Sequence[str],
    *,
    row_filter: RowFilter | None = None,
    buffer_bytes: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> tuple[Schema, Iterator[pa.RecordBatch]] | None:
    """Return the rows at a time that a filter chooses, with at least these columns; None if they need sums.

    The schema is that of the columns that are read. Raises `PartGone` and `CorruptBlob`, and iterating raises
    like `open_runs`.
    """
    parts = [part for run in runs for part in run if part.lower <= as_of]
    if sum(any(part.lower <= as_of for part in run) for run in runs) != 1:
        return None
    if any(part.inline is not None for part in parts):
        return None
    needed = {*columns, *(() if row_filter is None else row_filter.columns)}
    if not all(only_adds(known_part(machine, part)) for part in parts):
        return None
    (rows,) = open_runs(
        machine,
        schema,
        [parts],
        At(as_of),
        row_filter=row_filter,
        columns=needed,
        buffer_bytes=buffer_bytes,
    )
    return schema.narrowed(needed), _beating(rows, between)


def copies_of(rows: pa.Table) -> int:
    """The number of rows, counted with their copies. All counts are above 0."""
    if are_ones(rows.column(DIFF)):
        return int(rows.num_rows)
    diffs = rows.column(DIFF).to_numpy()
    most = int(diffs.max(initial=1))
    if most > _MANY:
        # A sum of many large counts may exceed int64.
        return sum(diffs.tolist())
    return int(diffs.sum())


def after_copies(rows: pa.Table, skip: int) -> tuple[pa.Table, int]:
    """The rows without the first `skip` copies of rows, and how many copies are still to be left out."""
    if not skip:
        return rows, 0
    diffs = rows.column(DIFF).to_pylist()
    for index, diff in enumerate(diffs):
        if diff > skip:
            left = pa.array([diff - skip, *diffs[index + 1 :]], pa.int64())
            rest = rows.slice(index)
            return rest.set_column(rest.num_columns - 1, rows.schema.field(DIFF), left), 0
        skip -= diff
    return rows.slice(0, 0), skip


def _beating(rows: Iterator[pa.RecordBatch], between: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        between()
        if batch.num_rows:
            yield batch


def only_adds(known: KnownPart) -> bool:
    """Whether each update of a part has a count above 0. Its statistics say so, which were verified."""
    if _ONLY_ADDS not in known.bounds.derived:
        metadata = known.metadata
        place = metadata.schema.names.index(DIFF)
        counts = [
            metadata.row_group(index).column(place).statistics for index in range(metadata.num_row_groups)
        ]
        known.bounds.derived[_ONLY_ADDS] = all(
            each is not None and each.has_min_max and each.min > 0 for each in counts
        )
    return bool(known.bounds.derived[_ONLY_ADDS])
