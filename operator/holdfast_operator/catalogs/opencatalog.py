"""One catalog that this process has open for writing, and what reconcilers do with it. Blocking.

Invariants
- All calls of one catalog are serialized: a catalog has one transaction at a time.
- Whatever is changed outside of the catalog hangs on its fence token: a fenced process changes nothing, also
  where it was fenced after it looked.
- Facts are read after the leadership was confirmed: what a status shows was ours when it was read.
- Every change is idempotent: a step that was cut off is simply taken again.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from holdfast.catalog import Catalog, Transaction, catalog_shard_id
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast.collections import (
    CollectionSpec,
    JobRecord,
    JobState,
    Recipe,
    RenditionState,
    StorageController,
)
from holdfast.collections.hydration import HYDRATE
from holdfast.errors import (
    BadInput,
    CollectionNotFound,
    CorruptBlob,
    Fenced,
    HoldfastError,
    ShardFinalized,
    UpperMismatch,
    VersionTooNew,
)
from holdfast.persist import PersistClient, Schema
from holdfast_operator.api.names import FIELD_MANAGER
from holdfast_operator.catalogs import objectrows
from holdfast_operator.catalogs.facts import (
    Basis,
    CatalogFacts,
    ItemName,
    Look,
    Opening,
    RestoreFailed,
    Start,
    Superseded,
)
from holdfast_operator.catalogs.linking import InTwo, StashGuard
from holdfast_operator.catalogs.objects import ObjectName, ObjectsPlan, plan_objects
from holdfast_operator.catalogs.opening import HasCatalog, Observer, no_others, open_writable
from holdfast_operator.catalogs.restore import open_snapshot
from holdfast_operator.catalogs.shadow import Shadow
from holdfast_operator.collections.itemdefinition import item_definition
from holdfast_operator.collections.reading import changed, find_item, look_at
from holdfast_operator.jobs.course import SPARK
from holdfast_operator.places.bounds import Bounds

K = TypeVar("K")

log = logging.getLogger(__name__)


class OpenCatalog:
    """A writable catalog with the client and the controller of its location."""

    def __init__(
        self,
        opening: Opening,
        client: PersistClient,
        catalog: Catalog,
        start: Start,
        link: InTwo | None = None,
    ) -> None:
        self.opening = opening
        self.start = start
        self._link = link
        self._client = client
        self._catalog = catalog
        in_stash = link is not None and link.truth is Backend.STASH
        self._stash_guard = StashGuard(link.stores, catalog) if link and in_stash else None
        self._guard = self._stash_guard or catalog.fence_guard
        self._controller = StorageController(
            client, who=opening.holder, token=str(catalog.fence_token()), guard=self._guard
        )
        self._lock = threading.RLock()
        self._destroyed = False
        self._planned: tuple[int, Mapping[ObjectName, str], ObjectsPlan] | None = None
        self._shadow = Shadow(catalog) if isinstance(catalog, ShadowCatalog) and opening.shadow else None

    @classmethod
    def open(
        cls,
        opening: Opening,
        credentials: Mapping[str, str] = MappingProxyType({}),
        has_catalog: HasCatalog = no_others,
        observers: Sequence[Observer] = (),
    ) -> "OpenCatalog":
        """Open the location and take the catalog over; raises as `open_writable` does."""
        return cls(opening, *open_writable(opening, credentials, has_catalog, observers))

    def confirm(self) -> CatalogFacts:
        """Ask the store whether the catalog is still ours, and what it holds.

        Raises `Fenced`, `FenceRegressed`, `CatalogOutOfSync`.
        """
        with self._lock:
            self._catalog.confirm_leadership()
            token = self._catalog.fence_token()
            return CatalogFacts(
                organization_id=self.opening.organization_id,
                shard_id=catalog_shard_id(self.opening.organization_id),
                epoch=token.epoch,
                deploy_generation=token.deploy_generation,
                catalog_version=self._catalog.catalog_version,
                since=self._catalog.since,
                upper=self._catalog.upper,
                object_counts=tuple(sorted(self._catalog.object_counts().items())),
                holder=token.by,
                shadow=self._shadow.look() if self._shadow else None,
                **(self._link.facts if self._link else {}),
            )

    def plan_objects(self, declared: Mapping[ObjectName, str]) -> ObjectsPlan:
        """What is to change so that the catalog has what is declared; changes nothing."""
        with self._lock:
            upper = self._catalog.upper
            if self._planned is None or self._planned[:2] != (upper, declared):
                with self._catalog.transaction() as tx:
                    plan = self._plan_in(tx, declared)
                self._planned = upper, declared, plan
            return self._planned[2]

    def keep_objects(self, declared: Mapping[ObjectName, str]) -> None:
        """Make that change, all of it in one transaction: what is dropped is unused when it is committed.

        Raises as `Catalog.commit_transaction`.
        """
        with self._lock, self._catalog.transaction() as tx:
            plan = self._plan_in(tx, declared)
            owner = self.opening.organization_id
            objectrows.carry_out(tx, plan.changes, organization_id=owner, user=FIELD_MANAGER)
            self._catalog.commit_transaction(tx)

    def _plan_in(self, tx: Transaction, declared: Mapping[ObjectName, str]) -> ObjectsPlan:
        there = objectrows.contents(tx, declared, organization_id=self.opening.organization_id)
        return plan_objects(declared, there)

    def look(self, name: ItemName) -> Look:
        """What there is of a collection, after asking as `confirm` does.

        Raises as `confirm` and `find_item`.
        """
        with self._lock:
            self._catalog.confirm_leadership()
            item = find_item(self._catalog, name)
        found = look_at(self._client, self._controller, self.opening.organization_id, item)
        ahead_ms = self._client.clock.wall_ms() - self._client.now_ms()
        return replace(found, ahead_ms=max(ahead_ms, 0))

    def changed(self, looks: Mapping[K, Basis]) -> tuple[K, ...]:
        """Those of which the store has something new since they were looked at, by one question for all."""
        return changed(self._client, self._controller, looks)

    def ensure_item(self, name: ItemName, schema: Schema, shards: int) -> str:
        """Make the item of a collection, or bring it up to date, and give its id."""
        definition = item_definition(schema, shards)
        with self._lock:
            return self._catalog.ensure_item(name.database, name.schema, name.name, definition=definition)

    def drop_item(self, name: ItemName) -> None:
        """Remove the item of a collection; nothing happens where there is none."""
        with self._lock:
            self._catalog.drop_item(name.database, name.schema, name.name)

    def create_collection(self, collection_id: str, name: ItemName, schema: Schema, shards: int) -> None:
        """Create a collection, or find it."""
        spec = CollectionSpec(collection_id, str(name), schema, shards=shards)
        self._controller.create_collection(spec, command_id=f"create/{collection_id}")

    def drop_collection(self, collection_id: str) -> None:
        """Drop a collection; `CollectionInUse` while it is read. One that never was is fine."""
        # Nobody else would end what an operator left when it was killed, or somebody's own job.
        self._end_jobs(collection_id, "the collection is being dropped")
        try:
            self._controller.drop_collection(collection_id)
        except CollectionNotFound:
            return

    def retain_from(self, collection_id: str, since: int) -> None:
        """Give up what was before `since`; readers may keep it longer."""
        self._controller.set_retention_hold(collection_id, since)

    def evolve_columns(self, collection_id: str, schema: Schema) -> None:
        """Give a collection a schema that may follow its own; nothing happens where it has it."""
        self._controller.evolve_collection(collection_id, schema)

    def comment_columns(self, collection_id: str, comments: Mapping[str, str | None]) -> None:
        """Give columns comments, or take them away; nothing happens where they have these."""
        self._controller.comment_columns(collection_id, comments)

    def create_rendition(
        self,
        collection_id: str,
        rendition_id: str,
        shards: int,
        hash_columns: tuple[str, ...],
        recipe: Recipe,
    ) -> None:
        """Make a rendition, or find it."""
        self._controller.renditions.create(
            collection_id,
            shards=shards,
            hash_columns=hash_columns,
            recipe=recipe,
            rendition_id=rendition_id,
            command_id=f"create/{collection_id}/{rendition_id}",
        )

    def hydrate(self, collection_id: str, rendition_id: str, stopped: Callable[[], bool]) -> int:
        """Fill a rendition with what the collection has; answers its upper then.

        Raises `Superseded` where it was `stopped` or somebody else fills it, `Fenced` where the catalog is
        another's by now.
        """
        try:
            return self._controller.hydrate(collection_id, rendition_id, progress=_giving_up(stopped))
        except Fenced as error:
            # Of two fences: out of the catalog, or the attempt was taken over.
            with self._lock:
                self._guard()
            raise Superseded(str(error)) from error
        except BadInput as error:
            self._raise_superseded(collection_id, rendition_id, error)
            raise

    def hand_over(
        self, collection_id: str, rendition_id: str, at: int | None, stopped: Callable[[], bool]
    ) -> None:
        """Make a rendition the collection, and bring what it lacks of what was written before.

        Raises as `Renditions.hand_over`; `Superseded` where it was `stopped` before that, or can't take over
        any more.
        """
        renditions = self._controller.renditions
        known = self._controller.describe(collection_id).find(rendition_id)
        try:
            if known is not None and (known.recipe, known.state) == (Recipe.COPY, RenditionState.HYDRATING):
                # It may have waited for long, and those who write wait for all that it lacks.
                renditions.catch_up(collection_id, rendition_id, progress=_giving_up(stopped))
            renditions.hand_over(collection_id, rendition_id, at=at)
        except BadInput as error:
            self._raise_superseded(collection_id, rendition_id, error)
            raise
        self._make_difference(collection_id)

    def restore(
        self,
        collection_id: str,
        rendition_id: str,
        snapshot: str,
        *,
        bounds: Bounds,
        room: int | None,
        stopped: Callable[[], bool],
    ) -> None:
        """Make the contents of a collection those of a snapshot, of at most `room` bytes.

        It goes on where it was left, and happens once for an id of a rendition. Raises `NotAllowed` for what
        isn't within the `bounds`, `RestoreFailed`, and nothing was changed; `Superseded` where it was
        `stopped` or somebody gave the rendition up.
        """
        try:
            source = open_snapshot(snapshot, bounds)
            size = source.manifest.bytes
            if room is not None and size > room:
                raise BadInput(f"its files have {size} bytes, and spec.maxBytes leaves {max(room, 0)}")
            self._controller.restore_collection(
                collection_id,
                source,
                rendition_id=rendition_id,
                command_id=f"restore/{collection_id}/{rendition_id}",
                progress=_giving_up(stopped),
            )
        except (BadInput, CorruptBlob, VersionTooNew) as error:
            self._raise_superseded(collection_id, rendition_id, error)
            said = " ".join(str(error).split())
            raise RestoreFailed(f"{snapshot} can't be restored: {said}") from error
        self._make_difference(collection_id)

    def abort_rendition(self, collection_id: str, rendition_id: str) -> None:
        """Give up a rendition that is being filled, and its job; nothing happens where it was given up."""
        self._controller.renditions.abort(collection_id, rendition_id)
        self._end_jobs(collection_id, "the rendition was given up", rendition_id)

    def advance(self, collection_id: str) -> None:
        """Do what is due for a collection without anybody's word."""
        self._controller.advance(collection_id)

    def make_difference(self, collection_id: str) -> None:
        """Put down what differs with the last handover; nothing happens where it is there, or can't be."""
        self._controller.renditions.make_difference(collection_id)

    def start_job(self, collection_id: str, kind: str, slot: str, spec: Mapping[str, Any]) -> JobRecord:
        """Put a job on record as Running, by Spark, or find it as it is.

        What it reads as of its `as_of` is held before anything is launched. Raises `AsOfTooEarly`.
        """
        return self._controller.start_job(collection_id, kind, slot, spec=spec, by=SPARK)

    def retry_job(self, job: str, abandoned: int | None = None) -> JobRecord:
        """Start the next attempt, by Spark, of a failed job or of one whose attempt was `abandoned`.

        Raises `AsOfTooEarly` where what it is to read is gone.
        """
        return self._controller.retry_job(job, abandoned=abandoned, by=SPARK)

    def fail_job(self, job: str, attempt: int, error: str, *, stopped: bool = False) -> None:
        """Record that an attempt failed: it can't commit any more. Nothing happens where it doesn't run.

        One that was `stopped` isn't counted as a failure of the job. Raises `Fenced` where the catalog is
        another's by now.
        """
        try:
            self._controller.fail_job(job, attempt, error, stopped=stopped)
        except Fenced:
            # Of two fences: out of the catalog, or the attempt committed or failed by its own word.
            with self._lock:
                self._guard()

    def forget_jobs(self, jobs: Collection[str]) -> None:
        """Remove the records of jobs that are over."""
        self._controller.forget_jobs(jobs)

    def _end_jobs(self, collection_id: str, why: str, filled: str | None = None) -> None:
        """Put on record that the jobs of a collection ended, or only that which `filled` a rendition.

        An attempt that is under way can't commit any more.
        """
        for job in self._controller.jobs(collection_id):
            ours = filled is None or (job.kind, job.slot) == (HYDRATE, filled)
            if ours and job.state is JobState.RUNNING:
                self.fail_job(job.job_id, job.attempt, why, stopped=True)

    def _make_difference(self, collection_id: str) -> None:
        """Spare who listens through the last handover a comparison; it is as right without."""
        try:
            self.make_difference(collection_id)
        except Fenced:
            raise
        except HoldfastError as error:
            log.info("what differs with the handover of %s was not put down: %s", collection_id, error)

    def _raise_superseded(self, collection_id: str, rendition_id: str, error: HoldfastError) -> None:
        """Raise `Superseded` if it failed because the rendition isn't to be filled any more."""
        try:
            info = self._controller.describe(collection_id)
        except CollectionNotFound:
            raise Superseded(str(error)) from error
        known = next((each for each in info.renditions if each.id == rendition_id), None)
        over = known is not None and (known.state is not RenditionState.HYDRATING or known.suspect)
        if info.dropped or over:
            raise Superseded(str(error)) from error

    def destroy(self) -> None:
        """End the catalog's shard for ever; no catalog of its organization can be here again.

        Raises `Fenced` where the catalog is another's by now.
        """
        with self._lock:
            # Finalized by an attempt of unknown outcome, or by somebody else: it is for ever either way.
            with contextlib.suppress(ShardFinalized):
                self._finalize()
            self._destroyed = True

    def close(self) -> None:
        """Give up what the handles hold; the token stays in the store."""
        with self._lock:
            try:
                if not self._destroyed:
                    self._catalog.close()
                if self._stash_guard is not None:
                    self._stash_guard.close()
                self._controller.close()
            finally:
                self._client.close()

    def _finalize(self) -> None:
        end = self._client.prepare_finalize(catalog_shard_id(self.opening.organization_id))
        while True:
            guard = self._guard()
            try:
                self._client.multi_write([guard, end])
            except UpperMismatch:
                continue
            return


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
