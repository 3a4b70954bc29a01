"""The metadata shard: updates `(rendition, time, diff)` that record which rendition is current at which time.

At each time below its upper exactly one rendition is current. Its first append is `[0, 1)` with the first
one.
"""

from typing import Final

import pyarrow as pa

from holdfast.collections.record.spec import CollectionInfo
from holdfast.errors import HoldfastError
from holdfast.persist.rows.schema import DIFF, Column, Schema

METADATA_SCHEMA: Final = Schema(key=(Column("rendition", "string", nullable=False),), value=())


def first_rendition(rendition_id: str) -> pa.RecordBatch:
    """The updates of the first append."""
    return _updates([(rendition_id, 0, 1)])


def handover(old: str, new: str, at: int) -> pa.RecordBatch:
    """The updates of a handover at the time `at`."""
    return _updates([(old, at, -1), (new, at, 1)])


def holder(info: CollectionInfo, contents: pa.Table) -> str:
    """The current rendition, from the metadata shard's contents at one time.

    Raises `HoldfastError` unless exactly one is current.
    """
    held = {row["rendition"]: row[DIFF] for row in contents.to_pylist()}
    if list(held.values()) != [1]:
        raise HoldfastError(
            f"metadata shard {info.metadata_shard} of collection {info.name} is damaged: expected one current"
            f" rendition, found {held or 'none'}",
            hint="somebody wrote to the shard directly, or restored it from an older state: run"
            " 'holdfast persist verify', and restore the newest state",
        )
    (rendition_id,) = held
    return str(rendition_id)


def _updates(rows: list[tuple[str, int, int]]) -> pa.RecordBatch:
    renditions, times, diffs = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(renditions, pa.string()), pa.array(times, pa.uint64()), pa.array(diffs, pa.int64())],
        schema=METADATA_SCHEMA.arrow_updates,
    )
