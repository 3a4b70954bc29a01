"""The collections of a catalog, as reconcilers look at them and change them. Blocking.

Invariants
- Every change hangs on the catalog's fence token: a fenced process changes nothing, also where it was fenced
  after it looked.
- Every change is idempotent: a step that was cut off is simply taken again.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from holdfast.collections import CollectionSpec, JobRecord, JobState, Recipe, RenditionState
from holdfast.collections.hydration import HYDRATE
from holdfast.errors import BadInput, CollectionNotFound, CorruptBlob, Fenced, HoldfastError, VersionTooNew
from holdfast_operator.catalogs.facts import RestoreFailed
from holdfast_operator.catalogs.observedcatalog import ObservedCatalog
from holdfast_operator.catalogs.opencatalog import OpenCatalog
from holdfast_operator.collections.facts import CollectionLook, ItemName, Superseded
from holdfast_operator.collections.itemdefinition import item_definition
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
    """What there is of a collection, after asking as `confirm` does.

    Raises as `confirm` and `find_item`, and `NotReadable`.
    """
    item = handle.read(lambda catalog: find_item(catalog, name))
    found = look_at(handle.client, handle.controller, handle.opening.organization_id, item)
    if isinstance(handle, ObservedCatalog):
        return found
    ahead_ms = handle.client.clock.wall_ms() - handle.client.now_ms()
    return replace(found, ahead_ms=max(ahead_ms, 0))


def take(handle: OpenCatalog, step: StoreChange) -> None:
    """Take a step that needs no answer; nothing happens where it was taken before.

    Raises `CollectionInUse` where a collection is to be dropped that is read.
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
            spec = CollectionSpec(id_, str(step.item), step.schema, shards=step.shards)
            controller.create_collection(spec, command_id=f"create/{id_}")
        case EvolveColumns():
            controller.evolve_collection(step.collection_id, step.schema)
        case CommentColumns():
            controller.comment_columns(step.collection_id, step.comments)
        case Retain():
            controller.set_retention_hold(step.collection_id, step.since)
        case DropCollection():
            # Nobody else would end what an operator left when it was killed, or somebody's own job.
            _end_jobs(handle, step.collection_id, "the collection is being dropped")
            with contextlib.suppress(CollectionNotFound):
                controller.drop_collection(step.collection_id)
        case CreateRendition(collection_id=id_):
            controller.renditions.create(
                id_,
                shards=step.shards,
                hash_columns=step.hash_columns,
                recipe=step.recipe,
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
    """Take a step that may take minutes, until it is `stopped`; a snapshot is read within the `bounds`.

    Raises as the function for each kind.
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
        case MakeDifference():
            handle.controller.renditions.make_difference(step.collection_id)
        case _:
            raise AssertionError(step)


def hydrate(handle: OpenCatalog, collection_id: str, rendition_id: str, stopped: Callable[[], bool]) -> int:
    """Fill a rendition with what the collection has; answers its upper then.

    Raises `Superseded` where it was `stopped` or somebody else fills it, `Fenced` where the catalog is
    another's by now.
    """
    try:
        return handle.controller.hydrate(collection_id, rendition_id, progress=_giving_up(stopped))
    except Fenced as error:
        # Of two fences: out of the catalog, or the attempt was taken over.
        handle.check_fence()
        raise Superseded(str(error)) from error
    except BadInput as error:
        _raise_superseded(handle, collection_id, rendition_id, error)
        raise


def hand_over(
    handle: OpenCatalog, collection_id: str, rendition_id: str, at: int | None, stopped: Callable[[], bool]
) -> None:
    """Make a rendition the collection, and bring what it lacks of what was written before.

    Raises as `Renditions.hand_over`; `Superseded` where it was `stopped` before that, or can't take over
    any more.
    """
    renditions = handle.controller.renditions
    known = handle.controller.describe(collection_id).find(rendition_id)
    try:
        if known is not None and (known.recipe, known.state) == (Recipe.COPY, RenditionState.HYDRATING):
            # It may have waited for long, and those who write wait for all that it lacks.
            renditions.catch_up(collection_id, rendition_id, progress=_giving_up(stopped))
        renditions.hand_over(collection_id, rendition_id, at=at)
    except BadInput as error:
        _raise_superseded(handle, collection_id, rendition_id, error)
        raise
    _make_difference(handle, collection_id)


def restore(handle: OpenCatalog, step: Restore, stopped: Callable[[], bool], bounds: Bounds) -> None:
    """Make the contents of a collection those of a snapshot.

    It goes on where it was left, and happens once for an id of a rendition. Raises `NotAllowed` for what
    isn't within the `bounds`, `RestoreFailed`, and nothing was changed; `Superseded` where it was
    `stopped` or somebody gave the rendition up.
    """
    collection_id, rendition_id = step.collection_id, step.rendition_id
    try:
        source = open_snapshot(step.snapshot, bounds)
        size = source.manifest.bytes
        if step.room is not None and size > step.room:
            raise BadInput(f"its files have {size} bytes, and spec.maxBytes leaves {max(step.room, 0)}")
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
    """Put a job on record as running its first or next attempt, by Spark, or find it as it is.

    What it reads as of its `as_of` is held before anything is launched. Raises `AsOfTooEarly` where that is
    gone.
    """
    match step:
        case StartJob():
            return handle.controller.start_job(
                step.collection_id, step.kind, step.slot, spec=step.spec, by=SPARK
            )
        case RetryJob():
            return handle.controller.retry_job(step.job_id, abandoned=step.abandoned, by=SPARK)


def fail_job(handle: OpenCatalog, job: str, attempt: int, error: str, *, stopped: bool = False) -> None:
    """Record that an attempt failed: it can't commit any more. Nothing happens where it doesn't run.

    One that was `stopped` isn't counted as a failure of the job. Raises `Fenced` where the catalog is
    another's by now.
    """
    try:
        handle.controller.fail_job(job, attempt, error, stopped=stopped)
    except Fenced:
        # Of two fences: out of the catalog, or the attempt committed or failed by its own word.
        handle.check_fence()


def _end_jobs(handle: OpenCatalog, collection_id: str, why: str, filled: str | None = None) -> None:
    """Put on record that the jobs of a collection ended, or only that which `filled` a rendition.

    An attempt that is under way can't commit any more.
    """
    for job in handle.controller.jobs(collection_id):
        ours = filled is None or (job.kind, job.slot) == (HYDRATE, filled)
        if ours and job.state is JobState.RUNNING:
            fail_job(handle, job.job_id, job.attempt, why, stopped=True)


def _make_difference(handle: OpenCatalog, collection_id: str) -> None:
    """Spare who listens through the last handover a comparison; it is as right without."""
    try:
        handle.controller.renditions.make_difference(collection_id)
    except Fenced:
        raise
    except HoldfastError as error:
        log.info("what differs with the handover of %s was not put down: %s", collection_id, error)


def _raise_superseded(
    handle: OpenCatalog, collection_id: str, rendition_id: str, error: HoldfastError
) -> None:
    """Raise `Superseded` if it failed because the rendition isn't to be filled any more."""
    try:
        info = handle.controller.describe(collection_id)
    except CollectionNotFound:
        raise Superseded(str(error)) from error
    known = next((each for each in info.renditions if each.id == rendition_id), None)
    over = known is not None and (known.state is not RenditionState.HYDRATING or known.suspect)
    if info.dropped or over:
        raise Superseded(str(error)) from error


class _Progress(Protocol):
    """Is told how many rows are done and, where that is known, of how many."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Raises `Superseded` where the work is to end."""


def _giving_up(stopped: Callable[[], bool]) -> _Progress:
    """Progress that ends the work with `Superseded` once it is `stopped`."""

    def told(done: int, total: int | None = None) -> None:
        if stopped():
            raise Superseded(f"given up after {done}{'' if total is None else f' of {total}'} rows")

    return told
