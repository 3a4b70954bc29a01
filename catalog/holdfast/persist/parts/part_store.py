"""Writes and reads parts: small updates go inline, larger ones into Parquet blobs.

A part is uploaded before the commit that names it. So a part in the live state always exists, and a part that
no version names is garbage. Storage calls are retried until the retry deadline. Each part has its own key, so
an upload of unknown outcome can be repeated.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import StorageError
from holdfast.persist.ids import new_id, part_key
from holdfast.persist.rows.blocks import footer_of
from holdfast.persist.rows.canonical import sort_updates, time_bounds
from holdfast.persist.rows.consolidate import ParquetSource, Source
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.limits import Limit, first_value, limits_of
from holdfast.persist.rows.part import (
    Encoding,
    checksum,
    decode_inline,
    decode_parquet,
    encode_parquet,
    encode_small,
    verify,
)
from holdfast.persist.rows.schema import TIME, Schema
from holdfast.persist.rows.sizes import pieces_of
from holdfast.persist.rows.values import R, Rows
from holdfast.persist.state.machine import Machine, read_twice, retry
from holdfast.persist.state.state import Part


class PartGone(Exception):
    """A part's blob is gone, because the state that named it is old."""


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Makes parts of prepared updates of one schema, in the name of one writer."""

    machine: Machine
    writer_id: str
    schema: Schema
    schema_id: int

    def write(
        self,
        updates: Rows,
        bounds: tuple[int, int] | None,
        before_upload: Callable[[], None],
        *,
        is_sorted: bool = False,
        inline: bool = True,
        encoding: Encoding | None = None,
    ) -> tuple[Part, ...]:
        """Make parts, and upload those that are not inline. Without `inline`, upload all.

        `bounds` are the `time_bounds` of the updates. `before_upload` runs before each upload. If it
        raises an error, or an upload fails with a `StorageError`, the uploads before it are deleted.
        """
        config = self.machine.config
        if bounds is None:
            return ()
        data = encode_small(updates, self.schema, config.inline_max_bytes) if inline else None
        if data is not None:
            return (Part(updates.num_rows, self.schema_id, bounds[0], bounds[1] + 1, len(data), inline=data),)
        table = updates if is_sorted else sort_updates(self.schema, updates)
        parts: list[Part] = []
        try:
            for piece in pieces_of(table, config.part_target_bytes):
                key = part_key(self.machine.shard_id, self.writer_id, new_id("p"))
                before_upload()
                parts.append(_upload(self.machine, key, self.schema, self.schema_id, piece, encoding))
        except BaseException:
            delete_parts(self.machine, parts)
            raise
        return tuple(parts)


def _upload(
    machine: Machine, key: str, schema: Schema, schema_id: int, piece: Rows, encoding: Encoding | None
) -> Part:
    bounds = time_bounds(piece)
    assert bounds is not None
    return put_part(
        machine,
        key,
        encode_parquet(schema, schema_id, piece, encoding=encoding),
        rows=piece.num_rows,
        schema_id=schema_id,
        times=bounds,
        first=first_value(schema, piece, 0),
        last=first_value(schema, piece, piece.num_rows - 1),
    )


def put_part(
    machine: Machine,
    key: str,
    data: bytes | memoryview,
    *,
    rows: int,
    schema_id: int,
    times: tuple[int, int],
    first: Limit | None,
    last: Limit | None,
) -> Part:
    """Upload a Parquet part, with retries until the retry deadline, and return what the state says of it.

    `times` are the `time_bounds` of its rows. `first` and `last` are the `first_value` of its first and last
    row.
    """
    retry(lambda: machine.location.blob.put(key, data), machine.config, machine.clock)
    least, greatest = limits_of(first, last)
    footer_bytes, footer_crc32c = footer_of(data)
    return Part(
        rows,
        schema_id,
        times[0],
        times[1] + 1,
        len(data),
        checksum(data),
        key,
        least=least,
        greatest=greatest,
        footer_bytes=footer_bytes,
        footer_crc32c=footer_crc32c,
    )


def delete_parts(machine: Machine, parts: Sequence[Part]) -> None:
    """Delete the blobs of parts that no version names. A blob that can't be deleted now is leaked."""
    with suppress(StorageError):
        for part in parts:
            if part.blob_key is not None:
                machine.location.blob.delete(part.blob_key)


def read_part(machine: Machine, schema: Schema, part: Part) -> Source:
    """Read a part as updates of `schema`, for consolidation. It is checked against the state.

    Raises:
        PartGone: its blob does not exist.
        CorruptBlob: its bytes are damaged.
    """
    if part.inline is not None:
        return read_inline(machine, schema, part)
    key = part.blob_key
    assert key is not None

    def read() -> bytes:
        # No more than tells that it is too large: somebody may have put another object there.
        most = part.size_bytes + 1
        data = retry(lambda: machine.location.blob.get_start(key, most), machine.config, machine.clock)
        if data is None:
            raise PartGone(key)
        verify(data, size=part.size_bytes, crc32c=part.crc32c, key=key)
        return data

    data = read_twice(machine.location, key, read)
    own = machine.schema_of(part)
    if own == schema:
        return ParquetSource(data, key, part.lower, part.upper)
    return upgraded(within(decode_parquet(data, own, key=key), part), own, schema)


def read_inline(machine: Machine, schema: Schema, part: Part) -> pa.Table:
    """Read an inline part as updates of `schema`, unsorted. Raises `CorruptBlob`."""
    assert part.inline is not None
    own = machine.schema_of(part)
    return upgraded(within(decode_inline(part.inline, own, key="an inline part"), part), own, schema)


def within(rows: R, part: Part, from_time: int = 0) -> R:
    """Return the rows of a part's object that belong to the part, at `from_time` and later."""
    lower, upper = max(part.lower, from_time), part.upper
    bounds = time_bounds(rows)
    if bounds is None or (lower <= bounds[0] and bounds[1] < upper):
        return rows
    times = rows.column(TIME)
    inside = pc.and_(
        pc.greater_equal(times, pa.scalar(lower, pa.uint64())),
        pc.less_equal(times, pa.scalar(upper - 1, pa.uint64())),
    )
    return rows.filter(inside)


def read_updates(machine: Machine, schema: Schema, part: Part, *, from_time: int) -> pa.Table:
    """Read the updates of a part at `from_time` and later. Raises the same errors as `read_part`."""
    source = read_part(machine, schema, part)
    if isinstance(source, ParquetSource):
        table = decode_parquet(source.data, schema, key=source.key)
    else:
        table = source
    return within(table, part, from_time)
