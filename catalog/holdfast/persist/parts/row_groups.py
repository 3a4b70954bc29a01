"""What the footer of a part says of its row groups: their sizes, and the times and diffs of their updates.

The footer was verified with the part. What a process has derived from it is kept with what it knows of the
part.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.persist.parts.verified import KnownPart
from holdfast.persist.rows.schema import Schema

_SIZES: Final = "sizes of row groups"
_TIMES: Final = "times and diffs of row groups"


class Sizes(NamedTuple):
    """A row group's rows, and the columns of it that are read, with their bytes in memory and in the file."""

    rows: int
    columns: int
    raw_bytes: int
    stored_bytes: int


class TimesAndDiff(NamedTuple):
    """Bounds of the times of a row group, both inclusive, and the one diff of its updates.

    `times` is None if the bounds are not known. `diff` is None if updates have several diffs.
    """

    times: tuple[int, int] | None
    diff: int | None


def sizes(metadata: pq.FileMetaData, size: int, groups: Sequence[int]) -> dict[int, Sizes]:
    """The sizes of all columns of some row groups of a file of `size` bytes."""
    found = {}
    for index in groups:
        group = metadata.row_group(index)
        stored = size * group.num_rows // max(1, metadata.num_rows)
        found[index] = Sizes(group.num_rows, group.num_columns, group.total_byte_size, stored)
    return found


def sizes_of(known: KnownPart, columns: Sequence[str], groups: Sequence[int]) -> dict[int, Sizes]:
    """The sizes of these columns, at least one, of some row groups. The part has all of the columns."""
    each = [_column_sizes(known, name) for name in columns]
    found = {}
    for index in groups:
        chunks = [column[index] for column in each]
        raw, stored = (sum(chunk[place] for chunk in chunks) for place in (1, 2))
        found[index] = Sizes(chunks[0][0], len(chunks), raw, stored)
    return found


def _column_sizes(known: KnownPart, name: str) -> list[tuple[int, int, int]]:
    """For each row group its rows, and the bytes of the column in memory and in the file."""
    if (_SIZES, name) not in known.bounds.derived:
        metadata = known.metadata
        place = metadata.schema.names.index(name)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        chunks = [(group.num_rows, group.column(place)) for group in groups]
        known.bounds.derived[_SIZES, name] = [
            (rows, chunk.total_uncompressed_size, chunk.total_compressed_size) for rows, chunk in chunks
        ]
    found: list[tuple[int, int, int]] = known.bounds.derived[_SIZES, name]
    return found


def times_and_diff(known: KnownPart, groups: Sequence[int]) -> TimesAndDiff:
    """What these row groups, at least one, have together."""
    if _TIMES not in known.bounds.derived:
        metadata = known.metadata
        each = (metadata.row_group(index) for index in range(metadata.num_row_groups))
        known.bounds.derived[_TIMES] = [_times_and_diff(group) for group in each]
    kept: list[TimesAndDiff] = known.bounds.derived[_TIMES]
    found = [kept[index] for index in groups]
    known_times = [each.times for each in found if each.times is not None]
    times = None
    if len(known_times) == len(found):
        times = min(least for least, _ in known_times), max(greatest for _, greatest in known_times)
    diffs = {each.diff for each in found}
    return TimesAndDiff(times, diffs.pop() if len(diffs) == 1 else None)


def _times_and_diff(group: pq.RowGroupMetaData) -> TimesAndDiff:
    time, diff = (group.column(group.num_columns - back).statistics for back in (2, 1))
    times = (time.min, time.max) if time is not None and time.has_min_max else None
    is_one = diff is not None and diff.has_min_max and diff.min == diff.max
    return TimesAndDiff(times, diff.min if is_one else None)


def least_width(schema: Schema) -> int:
    """Estimate the fewest bytes that a row takes in memory. A text takes an offset and a few bytes."""
    return sum(
        16
        if pa.types.is_binary(field.type) or pa.types.is_string(field.type)
        else field.type.bit_width // 8 + 1
        for field in schema.arrow_updates
    )
