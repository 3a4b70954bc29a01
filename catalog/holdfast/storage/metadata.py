"""The metadata shard: updates `(rendition, time, diff)` that tell which rendition holds at which time.

At any time below its upper exactly one rendition holds. Its first append is `[0, 1)` with the first one.
"""

from typing import Final

import pyarrow as pa

from holdfast.errors import HoldfastError, VersionTooNew
from holdfast.persist.schema import DIFF, TIME, Column, Schema
from holdfast.storage.spec import CollectionInfo, RenditionInfo

METADATA_SCHEMA: Final = Schema(key=(Column("rendition", "string", nullable=False),), value=())


def first_rendition(rendition_id: str) -> pa.RecordBatch:
    """The updates of the first append."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([rendition_id], pa.string()),
            pa.array([0], pa.uint64()),
            pa.array([1], pa.int64()),
        ],
        schema=METADATA_SCHEMA.arrow_updates,
    )


def holder(info: CollectionInfo, contents: pa.Table) -> RenditionInfo:
    """The rendition that holds, from the metadata shard's contents at one time.

    Raises `HoldfastError` where not exactly one holds, `VersionTooNew` where the record of the collection
    doesn't know it.
    """
    held = {row["rendition"]: row[DIFF] for row in contents.to_pylist()}
    if list(held.values()) != [1]:
        raise HoldfastError(
            f"collection {info.name}, metadata {info.metadata_shard}: expected one rendition, found {held}"
        )
    (rendition_id,) = held
    try:
        return info.rendition(rendition_id)
    except KeyError:
        raise VersionTooNew(
            f"collection {info.name}: rendition {rendition_id} is not in the record of the collection"
        ) from None


def refuse_handover(info: CollectionInfo, updates: pa.Table) -> None:
    """Raise `VersionTooNew` where updates tell of a handover: this version can't follow one."""
    if updates.num_rows:
        at = min(updates.column(TIME).to_pylist())
        raise VersionTooNew(f"collection {info.name} is handed over to another rendition at {at}")
