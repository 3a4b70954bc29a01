"""Writing what a pipeline keeps, bindings and errors, into a snapshot. Needs no pyspark.

They are few compared with the rows, so one process writes them.
"""

from collections.abc import Iterator

import pyarrow as pa

from holdfast.collections import CollectionInfo
from holdfast.collections.pipeline import PIPELINE_SCHEMAS
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.manifest import PIPELINE_NAMES, SnapshotPipeline
from holdfast.collections.snapshots.parquet import write_named
from holdfast.persist import PersistClient
from holdfast.spark.batches import rows_of

_PURPOSE = "snapshot"


def write_pipeline(
    client: PersistClient, info: CollectionInfo, as_of: int, folder: SnapshotFolder
) -> SnapshotPipeline | None:
    """Write the bindings and errors of a collection at a time. None, and no file, if nothing kept them then.

    `info` must be read after `as_of` was complete, and that time must be held.
    """
    (rendition,) = (each for each in info.held if each.holds_at(as_of))
    if rendition.pipeline is None:
        return None
    remap, errors = (
        write_named(_rows(client, shard, as_of), schema, folder, name)
        for shard, schema, name in zip(rendition.pipeline.all, PIPELINE_SCHEMAS, PIPELINE_NAMES, strict=True)
    )
    return SnapshotPipeline(made_from=rendition.made_from, remap=remap, errors=errors)


def _rows(client: PersistClient, shard: str, as_of: int) -> Iterator[pa.RecordBatch]:
    with client.reader(shard, purpose=_PURPOSE) as reader:
        for batch in reader.snapshot(as_of):
            yield from rows_of(batch, where=f"shard {shard} at {as_of}")
