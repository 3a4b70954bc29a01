"""Hydration: a job that fills a rendition of recipe COPY with the contents of its collection.

- The contents are committed together with the change of the JobRecord from Running(attempt) to Done. If
  several processes try, even old ones that were thought dead, exactly one succeeds. The uploads of the others
  are deleted at the end of their blocks, or by a sweep.
- A new attempt replaces the one before, which is then fenced.
- Afterwards the rendition catches up with rows that were written during the job. That needs no job, because
  every process that does it copies the same rows.
- A failed attempt records its error. The rendition's own hold stays until it is current or aborted, so that
  the next attempt can still read what it needs.

If you hydrate in one process, all rows pass through its memory and disk: 3 million small rows take 13 s and
0.5 GB. From `SPARK_BYTES` or `SPARK_ROWS` of stored updates on that takes minutes. Then use
`holdfast.spark.jobs.hydrate`, which lets Spark's executors sort and upload. Only the filling differs. What
its attempts upload is kept for the next attempt (`holdfast.collections.staging`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from holdfast.collections.frontiers import common_upper
from holdfast.collections.record.jobs import JobRecord, JobState, Json, job_id, one_line
from holdfast.collections.record.spec import (
    CollectionInfo,
    Frontiers,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.rendition_copy import OnProgress, prepared_copy
from holdfast.collections.renditions import Renditions
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CollectionNotFound,
    Fenced,
    HandleExpired,
    HoldfastError,
    ShardFinalized,
    StorageError,
    TornRendition,
    UpperMismatch,
)
from holdfast.persist import PersistClient, Prepared, StoredSize

HYDRATE: Final = "hydrate"
"""The kind of the job. Its slot is the id of the rendition."""
SPARK_BYTES: Final = 256 << 20
"""If a collection has this many stored bytes or more, don't hydrate it in one process."""
SPARK_ROWS: Final = 20_000_000
"""If a collection has this many stored rows or more, don't hydrate it in one process."""

Steps: TypeAlias = Callable[[], list[Prepared]]
Fill: TypeAlias = Callable[
    [CollectionInfo, RenditionInfo, int, OnProgress], AbstractContextManager[tuple[int, Steps]]
]
"""Takes an empty rendition to the collection's upper, or an earlier one. Returns that upper, and the steps.
See `prepared_copy`."""

# The errors that work on a rendition raises if the rendition ends during the work.
_GONE: Final = (AsOfTooEarly, HandleExpired, ShardFinalized, TornRendition, UpperMismatch)


def needs_spark(size: StoredSize) -> bool:
    """Whether a collection of this size is too large to hydrate it in one process within minutes."""
    return size.size_bytes >= SPARK_BYTES or size.rows >= SPARK_ROWS


class Controls(Protocol):
    """The commands of the storage controller that a hydration needs."""

    client: PersistClient

    @property
    def renditions(self) -> Renditions:
        """The commands on renditions."""

    def describe(self, id_or_name: str) -> CollectionInfo:
        """Read the record of a collection."""

    def frontiers(self, id_or_name: str) -> Frontiers:
        """The since and the upper of a collection as of now (linearized)."""

    def job(self, job_id: str) -> JobRecord | None:
        """The record of a job."""

    def check_attempt(self, job_id: str, attempt: int) -> JobRecord:
        """Return the job if this attempt is the running one."""

    def start_job(self, id_or_name: str, kind: str, slot: str, *, spec: Json) -> JobRecord:
        """Start a job."""

    def retry_job(self, job_id: str, *, abandoned: int) -> JobRecord:
        """Start the next attempt of a job."""

    def fail_job(self, job_id: str, attempt: int, error: str) -> Any:
        """Record that an attempt failed."""

    def finish_job(
        self,
        job_id: str,
        attempt: int,
        result: Json,
        effects: Sequence[Prepared] | Callable[[], Sequence[Prepared]],
    ) -> Any:
        """Commit the effects of an attempt together with its record."""


class Hydration:
    """One attempt to hydrate one rendition.

    `fill` does the filling if this process doesn't do all of it, and then `follow` may copy what was written
    during it. This process copies the rest.

    If `attempt` is given, it must be the recorded attempt of the job. Otherwise this starts the next one.
    """

    def __init__(
        self,
        controller: Controls,
        info: CollectionInfo,
        rendition_id: str,
        progress: OnProgress | None = None,
        *,
        fill: Fill | None = None,
        follow: Callable[[], None] = lambda: None,
        attempt: int | None = None,
    ) -> None:
        self._controller = controller
        self._client = controller.client
        self._id = info.collection_id
        self._rendition_id = rendition_id
        self._progress = progress
        self._make = fill or self._here
        self._follow = follow
        self._given = attempt
        self._rows = 0

    def run(self) -> int:
        """Hydrate. Returns the upper of the rendition. Raises like `StorageController.hydrate`."""
        self._filling()
        job = self._attempt()
        if job.state is not JobState.DONE:
            try:
                self._fill(job)
            except Fenced:
                raise
            except Exception as error:
                gone = self._gone(error)
                # The error of the work matters more than an error while recording it.
                with suppress(HoldfastError):
                    self._controller.fail_job(job.job_id, job.attempt, one_line(gone or error))
                if gone is not None:
                    raise gone from error
                raise
        try:
            self._follow()
            renditions = self._controller.renditions
            return renditions.catch_up(self._id, self._rendition_id, progress=self._progress)
        except _GONE as error:
            if (gone := self._gone(error)) is not None:
                raise gone from error
            raise

    def _attempt(self) -> JobRecord:
        """The job if it is done, or the attempt that this process runs."""
        id_ = job_id(self._id, HYDRATE, self._rendition_id)
        if self._given is not None:
            return self._controller.check_attempt(id_, self._given)
        known = self._controller.job(id_)
        if known is None:
            spec: Json = {"collection": self._id, "rendition": self._rendition_id}
            return self._controller.start_job(self._id, HYDRATE, self._rendition_id, spec=spec)
        if known.state is JobState.DONE:
            return known
        try:
            return self._controller.retry_job(id_, abandoned=known.attempt)
        except BadInput:
            # The attempt that we wanted to replace has finished first.
            done = self._controller.job(id_)
            if done is None or done.state is not JobState.DONE:
                raise
            return done

    def _fill(self, job: JobRecord) -> None:
        """Commit the contents with the record, or only the record if another process copied contents."""
        upper = self._controller.frontiers(self._id).upper
        info, rendition = self._filling()
        while True:
            there = common_upper(info, rendition, self._client.recent_uppers)
            # An aborted rendition has the upper CLOSED, so check its state again.
            self._filling()
            if there > 0 or upper == 0:
                self._finish(job, there, ())
                return
            try:
                with self._make(info, rendition, upper, self._tell) as (filled, steps):
                    self._finish(job, filled, steps)
                return
            except UpperMismatch:
                if common_upper(info, rendition, self._client.recent_uppers) == 0:
                    raise

    def _finish(
        self, job: JobRecord, upper: int, effects: Sequence[Prepared] | Callable[[], Sequence[Prepared]]
    ) -> None:
        try:
            result = {"upper": upper, "rows": self._rows}
            self._controller.finish_job(job.job_id, job.attempt, result, effects)
        except Fenced:
            known = self._controller.job(job.job_id)
            if known is None or known.state is not JobState.DONE:
                raise
            if self._given not in (None, known.attempt):
                raise

    @contextmanager
    def _here(
        self, info: CollectionInfo, rendition: RenditionInfo, upper: int, progress: OnProgress
    ) -> Iterator[tuple[int, Steps]]:
        """Fill the rendition through this process."""
        describe = partial(self._controller.describe, self._id)
        with prepared_copy(self._client, info, rendition, 0, upper, describe, progress=progress) as steps:
            yield upper, steps

    def _tell(self, done: int, total: int) -> None:
        self._rows = done
        if self._progress is not None:
            self._progress(done, max(done, total))

    def _filling(self) -> tuple[CollectionInfo, RenditionInfo]:
        """Return the rendition. Raises `BadInput` if it is not to be filled from the collection."""
        info = self._controller.describe(self._id)
        if info.dropped:
            raise CollectionNotFound(info.end)
        known = info.known(self._rendition_id)
        if known.recipe is not Recipe.COPY:
            raise BadInput(
                f"rendition {known.id} of collection {info.name} can't be filled from the collection: its"
                f" recipe is {known.recipe.name}, not COPY",
                hint="its own pipeline or restore fills it; to copy the collection, create another rendition",
            )
        if known.state is not RenditionState.HYDRATING:
            raise BadInput(
                f"rendition {known.id} of collection {info.name} can't be filled: it is {known.state.name},"
                " not HYDRATING",
                hint="create another rendition, and fill that one",
            )
        return info, known

    def _gone(self, error: Exception) -> BadInput | None:
        """The reason why the rendition is no longer to be filled, if that explains the error."""
        # The driver of a Spark job reports errors of its executors as its own kind of error.
        if isinstance(error, _GONE) or self._given is not None:
            try:
                self._filling()
            except BadInput as gone:
                return gone
            except StorageError:
                return None
        return None
