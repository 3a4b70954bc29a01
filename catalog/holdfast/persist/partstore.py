"""Parts between memory and storage: small updates go inline, larger ones into Parquet blobs.

Upload comes before the commit that names the part, so a part in the live state always exists; one that no
version names is garbage.
"""

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.persist.canonical import Rows, sort_updates, time_bounds
from holdfast.persist.config import PersistConfig
from holdfast.persist.consolidate import ParquetSource, Source
from holdfast.persist.ids import new_id, part_key
from holdfast.persist.part import (
    checksum,
    decode_inline,
    decode_parquet,
    encode_inline,
    encode_parquet,
    verify,
)
from holdfast.persist.schema import TIME, Schema
from holdfast.persist.state import Part
from holdfast.persist.storage import Location


class PartGone(Exception):  # noqa: N818 - not an error: the reader plans again
    """A part's blob is not there any more: the state that named it is old."""


def write_parts(
    location: Location,
    config: PersistConfig,
    *,
    shard_id: str,
    writer_id: str,
    schema: Schema,
    schema_id: int,
    updates: Rows,
    is_sorted: bool = False,
) -> tuple[Part, ...]:
    """Make parts of prepared updates, uploading what is not inline; empty for no updates."""
    bounds = time_bounds(updates)
    if bounds is None:
        return ()
    lower, upper = bounds[0], bounds[1] + 1
    if updates.nbytes <= config.inline_max_bytes:
        data = encode_inline(_one_batch(updates))
        if len(data) <= config.inline_max_bytes:
            return (Part(updates.num_rows, schema_id, lower, upper, len(data), inline=data),)
    table = updates if is_sorted else sort_updates(schema, updates)
    parts = []
    for piece in _cut(table, config.part_target_bytes):
        piece_bounds = time_bounds(piece)
        assert piece_bounds is not None
        data = encode_parquet(schema, schema_id, piece)
        key = part_key(shard_id, writer_id, new_id("p"))
        location.blob.put(key, data)
        lower, upper = piece_bounds[0], piece_bounds[1] + 1
        parts.append(Part(piece.num_rows, schema_id, lower, upper, len(data), checksum(data), key))
    return tuple(parts)


def _one_batch(updates: Rows) -> pa.RecordBatch:
    if isinstance(updates, pa.RecordBatch):
        return updates
    batches = updates.combine_chunks().to_batches()
    assert len(batches) == 1
    return batches[0]


def _cut(table: Rows, target_bytes: int) -> Sequence[Rows]:
    pieces = max(1, math.ceil(table.nbytes / target_bytes))
    rows = math.ceil(table.num_rows / pieces)
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


def read_part(location: Location, schema: Schema, part: Part) -> Source:
    """A part for consolidation, checked against what the state says of it.

    Raises:
        PartGone: its blob does not exist.
        CorruptBlob: its bytes are not what was written.
    """
    if part.inline is not None:
        return decode_inline(part.inline, schema, key="an inline part")
    assert part.blob_key is not None
    data = location.blob.get(part.blob_key)
    if data is None:
        raise PartGone(part.blob_key)
    verify(data, size=part.size_bytes, crc32c=part.crc32c, key=part.blob_key)
    return ParquetSource(data, part.blob_key)


def read_updates(location: Location, schema: Schema, part: Part, *, from_time: int) -> pa.Table:
    """The updates of a part at `from_time` and later. Raises as `read_part` does."""
    source = read_part(location, schema, part)
    if isinstance(source, ParquetSource):
        table = decode_parquet(source.data, schema, key=source.key)
    else:
        table = source
    if part.lower >= from_time:
        return table
    return table.filter(pc.greater_equal(table[TIME], pa.scalar(from_time, pa.uint64())))
