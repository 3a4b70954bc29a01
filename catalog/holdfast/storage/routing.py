"""Which row goes to which shard of a rendition: `row_hash(hash columns) mod shards`.

A row and its retraction have equal bytes, so they meet in one shard, and the shards' consolidated contents
put together are the consolidated contents of the collection.
"""

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.persist.rowhash import shard_of
from holdfast.storage.spec import RenditionInfo


def split_rows(rendition: RenditionInfo, updates: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The updates of each shard, in the rendition's order of shards; empty batches where there are none."""
    count = len(rendition.shards)
    if count == 1:
        return [updates]
    shards = pa.array(shard_of(updates, rendition.hash_columns, count))
    return [updates.filter(pc.equal(shards, shard)) for shard in range(count)]
