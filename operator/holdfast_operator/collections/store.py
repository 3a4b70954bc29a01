"""Reads and changes the collections of an open catalog. Blocking.

Invariants
- Every change includes the catalog's fence token as a condition. So a fenced process changes nothing, even if
  it was fenced after it last checked.
- Every change is idempotent. A step that was interrupted is simply repeated.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from holdfast.collections import CollectionSpec, JobRecord, JobState, Recipe, RenditionState
from holdfast.collections.hydration import HYDRATE
from holdfast.errors import BadInput, CollectionNotFound, CorruptBlob, Fenced, HoldfastError, VersionTooNew
from holdfast.ingest.kept import SourceProgress
from holdfast.ingest.kept import progress as ingest_progress
from holdfast.ingest.made_from import other_recipe
from holdfast_operator.catalogs.facts import RestoreFailed
from holdfast_operator.catalogs.observed_catalog import ObservedCatalog
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.collections.facts import CollectionLook, ItemName, Superseded
from holdfast_operator.collections.item_definition import item_definition
from holdfast_operator.collections.reading import find_item, look_at
from holdfast_operator.collections.restore import open_snapshot
from holdfast_operator.collections.steps import (
    AbortRendition,
    Advance,
    CommentColumns,
    CreateCollection,
    CreateRendition,
    DropCollection,
    DropItem,
    EnsureItem,
    Erase,
    EvolveColumns,
    HandOver,
    Hydrate,
    LongChange,
    MakeDifference,
    Restore,
    Retain,
)
from holdfast_operator.engine.steps import StoreChange
from holdfast_operator.jobs.course import SPARK
from holdfast_operator.jobs.steps import FailAttempt, ForgetRuns, RetryJob, StartJob
from holdfast_operator.places.bounds import Bounds

log = logging.getLogger(__name__)


def look(handle: OpenCatalog | ObservedCatalog, name: ItemName) -> CollectionLook:
    """Confirms the leadership like `confirm`, and returns what catalog and storage hold of a collection.

    Raises the errors of `confirm` and `find_item`, and `NotReadable`.
    """
    item = handle.read(lambda catalog: find_item(catalog, name))
    found = look_at(handle.client, handle.controller, handle.opening.organization_id, item)
    if isinstance(handle, ObservedCatalog):
        return found
    ahead_ms = handle.client.clock.wall_ms() - handle.client.now_ms()
    return replace(found, ahead_ms=max(ahead_ms, 0))


def progress(handle: OpenCatalog | ObservedCatalog, collection_id: str) -> SourceProgress | None:
    """Returns how far the source of a collection is read. Writes nothing."""
    info = handle.controller.describe(collection_id)
    return None if info.dropped else ingest_progress(handle.client, info.holding)


def take(handle: OpenCatalog, step: StoreChange) -> None:
    """Applies a step that has no result. Does nothing if the step was applied before.

    Raises `CollectionInUse` if the collection to drop still has readers.
    """
    controller = handle.controller
    match step:
        case EnsureItem(item=item):
            definition = item_definition(step.schema, step.shards)
            handle.edit(
                lambda catalog: catalog.ensure_item(
                    item.database, item.schema, item.name, definition=definition
                )
            )
        case DropItem(item=item):
            handle.edit(lambda catalog: catalog.drop_item(item.database, item.schema, item.name))
        case CreateCollection(collection_id=id_):
            spec = CollectionSpec(
                id_,
                str(step.item),
                step.schema,
                shards=step.shards,
                source_fed=bool(step.made_from),
                made_from=step.made_from,
            )
            controller.create_collection(spec, command_id=f"create/{id_}")
        case EvolveColumns():
            controller.evolve_collection(step.collection_id, step.schema)
        case CommentColumns():
            controller.comment_columns(step.collection_id, step.comments)
        case Retain():
            controller.set_retention_hold(step.collection_id, step.since)
        case DropCollection():
            # Nobody else would end the jobs that a killed operator left, or jobs that others started.
            _end_jobs(handle, step.collection_id, "the collection is being dropped")
            with contextlib.suppress(CollectionNotFound):
                controller.drop_collection(step.collection_id)
        case CreateRendition(collection_id=id_):
            controller.renditions.create(
                id_,
                shards=step.shards,
                hash_columns=step.hash_columns,
                recipe=step.recipe,
                pipeline=True if step.made_from else None,
                made_from=step.made_from,
                rendition_id=step.rendition_id,
                command_id=f"create/{id_}/{step.rendition_id}",
            )
        case AbortRendition():
            controller.renditions.abort(step.collection_id, step.rendition_id)
            _end_jobs(handle, step.collection_id, "the rendition was given up", step.rendition_id)
        case FailAttempt():
            fail_job(handle, step.job_id, step.attempt, step.error, stopped=step.stopped)
        case ForgetRuns():
            controller.forget_jobs(step.job_ids)
        case _:
            raise AssertionError(step)


def take_long(handle: OpenCatalog, step: LongChange, stopped: Callable[[], bool], bounds: Bounds) -> None:
    """Applies a step that may take minutes, unless it is `stopped`. A snapshot is read only within `bounds`.

    Raises the errors of the function for the kind of step.
    """
    match step:
        case Hydrate():
            hydrate(handle, step.collection_id, step.rendition_id, stopped)
        case HandOver():
            hand_over(handle, step.collection_id, step.rendition_id, step.at, stopped)
        case Restore():
            restore(handle, step, stopped, bounds)
        case Advance():
            handle.controller.advance(step.collection_id)
        case Erase():
            handle.controller.erase_collection(step.collection_id)
        case MakeDifference():
            handle.controller.renditions.make_difference(step.collection_id)
        case _:
            raise AssertionError(step)


def hydrate(handle: OpenCatalog, collection_id: str, rendition_id: str, stopped: Callable[[], bool]) -> int:
    """Fills a rendition with the rows of the collection, and returns its upper.

    Raises `Superseded` if it was `stopped` or another process fills it, and `Fenced` if another process has
    taken the catalog over.
    """
    try:
        return handle.controller.hydrate(collection_id, rendition_id, progress=_giving_up(stopped))
    except Fenced as error:
        # There are two possible fences: on the catalog, or on the attempt.
        handle.check_fence()
        raise Superseded(str(error)) from error
    except BadInput as error:
        _raise_superseded(handle, collection_id, rendition_id, error)
        raise


def hand_over(
    handle: OpenCatalog, collection_id: str, rendition_id: str, at: int | None, stopped: Callable[[], bool]
) -> None:
    """Hands over to a rendition, and copies the rows to it that it lacks from before the handover.

    Raises the errors of `Renditions.hand_over`, and `Superseded` if it was `stopped` before the handover or
    if the rendition can no longer take over.
    """
    renditions = handle.controller.renditions
    known = handle.controller.describe(collection_id).find(rendition_id)
    try:
        if known is not None and (known.recipe, known.state) == (Recipe.COPY, RenditionState.HYDRATING):
            # The rendition may have waited for long. Catch up first, because writers wait during the
            # handover.
            renditions.catch_up(collection_id, rendition_id, progress=_giving_up(stopped))
        renditions.hand_over(collection_id, rendition_id, at=at)
    except BadInput as error:
        _raise_superseded(handle, collection_id, rendition_id, error)
        raise
    _make_difference(handle, collection_id)


def restore(handle: OpenCatalog, step: Restore, stopped: Callable[[], bool], bounds: Bounds) -> None:
    """Replaces the contents of a collection with those of a snapshot.

    An interrupted restore continues where it stopped. Each rendition id restores only once. Raises
    `NotAllowed` if the snapshot is outside the `bounds`, `RestoreFailed` if nothing was changed, and
    `Superseded` if it was `stopped` or somebody aborted the rendition.
    """
    collection_id, rendition_id = step.collection_id, step.rendition_id
    try:
        source = open_snapshot(step.snapshot, bounds, handle.s3)
        size = source.manifest.bytes
        if step.room is not None and size > step.room:
            raise BadInput(f"its files have {size} bytes, but spec.maxBytes leaves only {max(step.room, 0)}")
        pipeline, there = source.manifest.pipeline, handle.controller.describe(collection_id)
        made_from = "" if pipeline is None or not there.holding.is_fed else pipeline.made_from
        if why := other_recipe(made_from, there.holding.made_from):
            # Its source could never go on.
            raise BadInput(f"it {why}")
        handle.controller.restore_collection(
            collection_id,
            source,
            rendition_id=rendition_id,
            command_id=f"restore/{collection_id}/{rendition_id}",
            progress=_giving_up(stopped),
        )
    except (BadInput, CorruptBlob, VersionTooNew) as error:
        _raise_superseded(handle, collection_id, rendition_id, error)
        said = " ".join(str(error).split())
        raise RestoreFailed(f"{step.snapshot} can't be restored: {said}") from error
    _make_difference(handle, collection_id)


def start(handle: OpenCatalog, step: StartJob | RetryJob) -> JobRecord:
    """Records the first or next Spark attempt of a job as running, or returns the existing record.

    The record holds the job's `as_of` before anything is launched. Raises `AsOfTooEarly` if that time can no
    longer be read.
    """
    match step:
        case StartJob():
            return handle.controller.start_job(
                step.collection_id, step.kind, step.slot, spec=step.spec, by=SPARK
            )
        case RetryJob():
            return handle.controller.retry_job(step.job_id, abandoned=step.abandoned, by=SPARK)


def fail_job(handle: OpenCatalog, job: str, attempt: int, error: str, *, stopped: bool = False) -> None:
    """Records that an attempt failed, so that it can no longer commit. Does nothing if it isn't running.

    An attempt that was `stopped` doesn't count as a failure of the job. Raises `Fenced` if another process
    has taken the catalog over.
    """
    try:
        handle.controller.fail_job(job, attempt, error, stopped=stopped)
    except Fenced:
        # Either the catalog was taken over, or the attempt has already committed or failed by itself.
        handle.check_fence()


def _end_jobs(handle: OpenCatalog, collection_id: str, why: str, filled: str | None = None) -> None:
    """Records the end of all jobs of a collection, or only of the job that fills the rendition `filled`.

    A running attempt can no longer commit.
    """
    for job in handle.controller.jobs(collection_id):
        ours = filled is None or (job.kind, job.slot) == (HYDRATE, filled)
        if ours and job.state is JobState.RUNNING:
            fail_job(handle, job.job_id, job.attempt, why, stopped=True)


def _make_difference(handle: OpenCatalog, collection_id: str) -> None:
    """Stores the difference of the last handover. It only saves listeners a comparison, so it may fail."""
    try:
        handle.controller.renditions.make_difference(collection_id)
    except Fenced:
        raise
    except HoldfastError as error:
        log.info("can't store the difference of the last handover of %s: %s", collection_id, error)


def _raise_superseded(
    handle: OpenCatalog, collection_id: str, rendition_id: str, error: HoldfastError
) -> None:
    """Raises `Superseded` if the rendition should no longer be filled."""
    try:
        info = handle.controller.describe(collection_id)
    except CollectionNotFound:
        raise Superseded(str(error)) from error
    known = next((each for each in info.renditions if each.id == rendition_id), None)
    over = known is not None and (known.state is not RenditionState.HYDRATING or known.suspect)
    if info.dropped or over:
        raise Superseded(str(error)) from error


class _Progress(Protocol):
    """A callback with the number of rows that are done, and their total if known."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Raises `Superseded` if the work should end."""


def _giving_up(stopped: Callable[[], bool]) -> _Progress:
    """Returns a callback that ends the work with `Superseded` once it is `stopped`."""

    def told(done: int, total: int | None = None) -> None:
        if stopped():
            raise Superseded(f"given up after {done}{'' if total is None else f' of {total}'} rows")

    return told
