"""Which shard of a rendition a row goes to: `row_hash(hash columns) mod shards`.

A row and its retraction have equal bytes, so they go to the same shard. So the consolidated contents of the
shards together are the consolidated contents of the collection.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.collections.record.spec import RenditionInfo
from holdfast.persist import Schema
from holdfast.persist.rows.canonical import total_order
from holdfast.persist.rows.row_hash import shard_of


def split_rows(rendition: RenditionInfo, updates: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The updates of each shard, in the rendition's order of shards. A shard without updates has an empty
    batch.

    The updates of a shard keep their order.
    """
    if len(rendition.shards) == 1:
        return [updates]
    return _split(rendition, updates, None)


def split_sorted(rendition: RenditionInfo, schema: Schema, updates: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Like `split_rows`, with the updates of each shard in the total order. Sorts and moves all rows once."""
    return _split(rendition, updates, total_order(schema, updates))


def _split(
    rendition: RenditionInfo, updates: pa.RecordBatch, order: npt.NDArray[np.integer[Any]] | None
) -> list[pa.RecordBatch]:
    count = len(rendition.shards)
    shards = shard_of(updates, rendition.hash_columns, count)
    # Integers of few bits are sorted by counting.
    narrow = shards.astype(np.min_scalar_type(count - 1))
    rows = np.argsort(narrow if order is None else narrow[order], kind="stable")
    moved = updates.take(pa.array(rows if order is None else order[rows]))
    ends = np.cumsum(np.bincount(shards, minlength=count)).tolist()
    return [moved.slice(start, end - start) for start, end in pairwise([0, *ends])]
