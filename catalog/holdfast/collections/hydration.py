"""Hydration: a rendition of recipe COPY gets the contents of its collection, as a job.

- The contents are committed with the step of the JobRecord from Running(attempt) to Done. Of several
  drivers, zombies included, one does it; what others uploaded goes with them or is swept.
- Whoever hydrates takes the place of the attempt before: it is fenced.
- What the collection has by then and the rendition lacks is caught up with; that needs no job, for whoever
  does it brings the same.
- An attempt that fails says so in its record. The rendition's own hold stays until it takes over or is
  aborted, so that the next attempt finds what it needs.

In process all rows pass through one process's memory and disk: 3 million small rows take 13 s, in 0.5 GB.
From `SPARK_BYTES` or `SPARK_ROWS` of stored updates on that takes minutes: `holdfast.spark.jobs.hydrate` has
Spark's executors sort and upload. What differs is who fills; the rest is the same.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from holdfast.collections.bringing import Progress, brought
from holdfast.collections.record.jobs import JobRecord, JobState, Json, job_id, one_line
from holdfast.collections.record.spec import (
    CollectionInfo,
    Frontiers,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.renditions import Renditions
from holdfast.collections.uppers import common_upper
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
"""The kind of the job; its slot is the id of the rendition."""
SPARK_BYTES: Final = 256 << 20
"""From how many stored bytes of a collection on one process is a poor place to hydrate it."""
SPARK_ROWS: Final = 20_000_000
"""Likewise, from how many stored rows on."""

Fill: TypeAlias = Callable[
    [CollectionInfo, RenditionInfo, int, Progress], AbstractContextManager[Callable[[], list[Prepared]]]
]
"""Makes what takes an empty rendition to an upper, at most the collection's; as `bringing.brought`."""

# What work on a rendition meets when it ends meanwhile.
_GONE: Final = (AsOfTooEarly, HandleExpired, ShardFinalized, TornRendition, UpperMismatch)


def needs_spark(size: StoredSize) -> bool:
    """Whether a collection of this size is too large to be hydrated in one process within minutes."""
    return size.size_bytes >= SPARK_BYTES or size.rows >= SPARK_ROWS


class Controls(Protocol):
    """The commands of the storage controller that a hydration needs."""

    client: PersistClient

    @property
    def renditions(self) -> Renditions:
        """The commands on renditions."""

    def describe(self, id_or_name: str) -> CollectionInfo:
        """What is on record for a collection."""

    def frontiers(self, id_or_name: str) -> Frontiers:
        """The since and the upper of a collection, linearized."""

    def job(self, job_id: str) -> JobRecord | None:
        """The record of a job."""

    def check_attempt(self, job_id: str, attempt: int) -> JobRecord:
        """The job, if this is its running attempt."""

    def start_job(self, id_or_name: str, kind: str, slot: str, *, spec: Json) -> JobRecord:
        """Begin a job."""

    def retry_job(self, job_id: str, *, abandoned: int) -> JobRecord:
        """Begin the next attempt of a job."""

    def fail_job(self, job_id: str, attempt: int, error: str) -> Any:
        """Record that an attempt failed."""

    def finish_job(
        self,
        job_id: str,
        attempt: int,
        result: Json,
        effects: Sequence[Prepared] | Callable[[], Sequence[Prepared]],
    ) -> Any:
        """Commit the effects of an attempt with its record."""


class Hydration:
    """One attempt to hydrate one rendition, by `fill` where it isn't all done in this process.

    It is `attempt` of the job where that is given, which must be the one on record; else the next one.
    """

    def __init__(
        self,
        controller: Controls,
        info: CollectionInfo,
        rendition_id: str,
        progress: Progress | None = None,
        *,
        fill: Fill | None = None,
        attempt: int | None = None,
    ) -> None:
        self._controller = controller
        self._client = controller.client
        self._id = info.collection_id
        self._rendition_id = rendition_id
        self._progress = progress
        self._make = fill or self._here
        self._given = attempt
        self._rows = 0

    def run(self) -> int:
        """Do it; answers the rendition's upper. Raises as `StorageController.hydrate` does."""
        self._filling()
        job = self._attempt()
        if job.state is not JobState.DONE:
            try:
                self._fill(job)
            except Fenced:
                raise
            except Exception as error:
                gone = self._gone(error)
                # The work's error matters more than that it could not be put on record.
                with suppress(HoldfastError):
                    self._controller.fail_job(job.job_id, job.attempt, one_line(gone or error))
                if gone is not None:
                    raise gone from error
                raise
        try:
            renditions = self._controller.renditions
            return renditions.catch_up(self._id, self._rendition_id, progress=self._progress)
        except _GONE as error:
            if (gone := self._gone(error)) is not None:
                raise gone from error
            raise

    def _attempt(self) -> JobRecord:
        """The job, where it is done, or an attempt of it that is this one's."""
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
            # The attempt that was to be given up was done first.
            done = self._controller.job(id_)
            if done is None or done.state is not JobState.DONE:
                raise
            return done

    def _fill(self, job: JobRecord) -> None:
        """Commit the contents with the record; only that where somebody else brought some of them."""
        upper = self._controller.frontiers(self._id).upper
        info, rendition = self._filling()
        while True:
            there = common_upper(info, rendition, self._client.recent_uppers)
            # The upper of what has been aborted is the end of time.
            self._filling()
            if there > 0 or upper == 0:
                self._finish(job, there, ())
                return
            try:
                with self._make(info, rendition, upper, self._tell) as steps:
                    self._finish(job, upper, steps)
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

    def _here(
        self, info: CollectionInfo, rendition: RenditionInfo, upper: int, progress: Progress
    ) -> AbstractContextManager[Callable[[], list[Prepared]]]:
        """All of it through this process."""
        describe = partial(self._controller.describe, self._id)
        return brought(self._client, info, rendition, 0, upper, describe, progress=progress)

    def _tell(self, done: int, total: int) -> None:
        self._rows = done
        if self._progress is not None:
            self._progress(done, max(done, total))

    def _filling(self) -> tuple[CollectionInfo, RenditionInfo]:
        """The rendition, while it is to be filled from the collection."""
        info = self._controller.describe(self._id)
        if info.dropped:
            raise CollectionNotFound(info.end)
        known = info.known(self._rendition_id)
        if known.recipe is not Recipe.COPY:
            raise BadInput(
                f"rendition {known.id} of collection {info.name} is not filled from the collection: its"
                f" recipe is {known.recipe.name}"
            )
        if known.state is not RenditionState.HYDRATING:
            raise BadInput(
                f"rendition {known.id} of collection {info.name} is {known.state.name}, not HYDRATING"
            )
        return info, known

    def _gone(self, error: Exception) -> BadInput | None:
        """That the rendition is not to be filled any more, where that is why the work failed."""
        # What an executor met is told by whoever runs it, in an error of its own.
        if isinstance(error, _GONE) or self._given is not None:
            try:
                self._filling()
            except BadInput as gone:
                return gone
            except StorageError:
                return None
        return None
