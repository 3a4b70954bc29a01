"""`df.write.format("holdfast")` and `df.writeStream.format("holdfast")`: Spark's interface for writers.

- Spark creates a batch writer once and commits with a copy of it. For each batch of a stream, Spark creates a
  writer to plan it, which is pickled, and another one to commit it. So the messages contain what the commit
  needs to know.
- After a failed commit, Spark aborts the whole write. That removes nothing that was appended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from holdfast.errors import HoldfastError
from holdfast.spark import planned_write
from holdfast.spark.planned_write import StreamBatch, Uploads, WritePlan


@dataclass
class Uploaded(WriterCommitMessage):
    """What a task has uploaded; for a stream, also the plan and the id of its query."""

    uploads: Uploads
    plan: WritePlan | None = None
    query: str = ""


class HoldfastWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of one task."""
        return Uploaded(planned_write.upload(self._plan, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what all tasks have uploaded."""
        planned_write.commit(self._plan, [each.uploads for each in _known(messages)])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Take away what was uploaded."""
        planned_write.abort(self._plan, [each.uploads for each in _known(messages)])


class HoldfastStreamWriter(DataSourceStreamArrowWriter):
    """The write of one batch of a stream, done once for the id of its query and the number of the batch."""

    def __init__(self, plan: Callable[[], WritePlan]) -> None:
        self._make = plan
        self._plan: WritePlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """With the plan: this is where Spark sends it to the tasks."""
        if self._plan is None:
            self._plan = self._make()
        return {"_plan": self._plan}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of one task."""
        assert self._plan is not None
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise HoldfastError(
                "Spark gives no query id (sql.streaming.queryId), which is needed to write each batch once",
                hint="start the stream with writeStream and a checkpointLocation",
            )
        return Uploaded(planned_write.upload(self._plan, iterator), self._plan, query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Append what all tasks have uploaded, unless the batch was written before."""
        known = _known(messages)
        if known and known[0].plan is not None:
            batch = StreamBatch(known[0].query, batchId)
            planned_write.commit(known[0].plan, [each.uploads for each in known], batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Take away what was uploaded."""
        known = _known(messages)
        if known and known[0].plan is not None:
            planned_write.abort(known[0].plan, [each.uploads for each in known])


def _known(messages: Sequence[WriterCommitMessage | None]) -> list[Uploaded]:
    return [each for each in messages if isinstance(each, Uploaded)]
