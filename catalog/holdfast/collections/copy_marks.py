"""Marks at the source of a copy: they show that the source still has the history that was copied.

- A source may be returned to an earlier state, and then be written again. Then its times before the upper of
  the copy may have other rows. Neither its ids nor its frontiers show that.
- When a copy is complete up to an upper, the source gets a record with a new random mark. Then the record of
  the copy gets the same one. The source had all that the copy has before it got the mark. So it still has all
  of that while it has the mark.
- A source that was returned to a state before the mark has an earlier mark, or none. This holds for a
  restored backup, and for files that were copied back while nobody wrote them.
- A recovery returns each shard by itself, so a mark may outlive rows. So the mark of a copy also has the
  number of recoveries, which each recovery and each restored backup changes.
- Another mark proves nothing: a process may have ended between the two records, or two ran at once. A source
  that can't be written gets no mark. Then the copy has to be compared with the source in full.
- A collection keeps the latest marks. A copy whose mark was removed is compared in full, and gets a new one.
"""

import uuid
from typing import Final

from holdfast.collections.controller import StorageController
from holdfast.collections.record.jobs import BATCH, job_id
from holdfast.persist.state.divergence import read_recoveries

COPIED: Final = "copied"
"""The kind of the records at a source: it was copied. The slot is the id of the copy."""
MARK: Final = "mark"
"""In the results of the records at the source and at the copy."""

_MOST_MARKS: Final = 100
"""A collection keeps at most this number of marks. It is not told when a copy is dropped."""


def new_mark(source: StorageController, collection_id: str, copy_id: str, upper: int) -> str:
    """Give a source a new mark for its copy, which is complete up to an upper. Empty if it is read-only."""
    if source.client.mode == "read":
        return ""
    known = source.job(job_id(collection_id, COPIED, copy_id))
    batch = 1 if known is None else known.result[BATCH] + 1
    source.record_batch(
        collection_id,
        COPIED,
        copy_id,
        batch,
        spec={},
        result={MARK: uuid.uuid4().hex, "upper": upper},
        effects=lambda: (),
    )
    marks = [each for each in source.jobs(collection_id) if each.kind == COPIED]
    if len(marks) > _MOST_MARKS:
        oldest = sorted(marks, key=lambda each: each.finished_ms)[:-_MOST_MARKS]
        source.forget_jobs([each.job_id for each in oldest])
    # If another run was faster, its mark is as good: the source had all that this copy has before it, too.
    return mark_of(source, collection_id, copy_id)


def mark_of(source: StorageController, collection_id: str, copy_id: str) -> str:
    """The mark of a source for its copy. Empty if it has none."""
    known = source.job(job_id(collection_id, COPIED, copy_id))
    return "" if known is None else f"{known.result[MARK]}/{read_recoveries(source.client.location.blob)}"
