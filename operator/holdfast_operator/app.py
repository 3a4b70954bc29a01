"""The operator process: connects the parts, and starts and ends them.

Invariants
- Nothing is reconciled until all objects have been listed once. So it is known from the start which of two
  objects is older. If the CRD of a kind was deleted, the kind has no objects, and it is watched again when
  the CRD exists again.
- A reconciliation uses the objects as the watches show them (see `engine.known`). After a list that may hide
  deletions, and at each resync, their versions are compared with the API server.
- On SIGTERM the process finishes running steps, starts no new ones, closes its handles, and exits with 0.
- With a Lease, nothing starts before the process holds the Lease or after it loses the Lease: no request that
  changes anything, and no call to a store. A process that stands by watches, so that it knows all objects. If
  the Lease is lost, the process exits at once with 0. On SIGTERM it releases the Lease last.
- If the process is fenced without a Lease, it writes to no store any more, records the other process in one
  log line and in the Catalogs' statuses, and exits with 0. A restarted process takes a catalog back, but not
  for ever: see `catalogs.fencing`.
- If the process is fenced with a Lease, it reads the Lease again. If the Lease is lost, it exits as above. If
  it still holds the Lease, it records the fence, closes that one catalog, and takes it back unless
  `catalogs.fencing` decides otherwise. Other catalogs are not affected.
"""

import asyncio
import itertools
import logging
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, assert_never

from holdfast.errors import Fenced
from holdfast_operator.api.names import FIELD_MANAGER, GROUP, VERSION, Kind
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.catalogs.claims import new_cache
from holdfast_operator.catalogs.fence_records import FencedCatalogs
from holdfast_operator.catalogs.handler import CatalogHandler
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections.handler import CollectionHandler
from holdfast_operator.collections.poll import Poll, Watchlist
from holdfast_operator.collections.snapshot_index import SnapshotIndex
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.deletion import left_at_once
from holdfast_operator.engine.elector import Elector, LeaseStanding
from holdfast_operator.engine.events import EventSink
from holdfast_operator.engine.follower import Follower
from holdfast_operator.engine.handler import Handler, OperatorSettings, Services
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.informer import Informer
from holdfast_operator.engine.known import version_of
from holdfast_operator.engine.kube import (
    Gone,
    Kube,
    KubeError,
    NotLeading,
    NotServed,
    ObjectKey,
    ResourceType,
    resource_type,
)
from holdfast_operator.engine.logging import about
from holdfast_operator.engine.memory import give_back
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.queue import KeyedQueue, Result
from holdfast_operator.engine.resources import is_deleting
from holdfast_operator.engine.schedule import Backoff
from holdfast_operator.engine.server import Server
from holdfast_operator.engine.status_writer import StatusWriter
from holdfast_operator.engine.steps import Rhythm
from holdfast_operator.engine.troubles import Troubles
from holdfast_operator.jobs.course import shown_applications
from holdfast_operator.migrations.handler import MigrationHandler
from holdfast_operator.migrations.moves import Migrations
from holdfast_operator.places.bounds import shared_beside
from holdfast_operator.places.long_calls import LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.slow_servers import SLOW, SlowServers
from holdfast_operator.snapshots.handler import SnapshotHandler
from holdfast_operator.sparkapps import images
from holdfast_operator.sparkapps.adapter import Unfinished
from holdfast_operator.sparkapps.choice import AdapterName, adapter, followed
from holdfast_operator.sparkapps.job import JOBS, PODS
from holdfast_operator.sparkapps.limits import TemplateLimits
from holdfast_operator.sparkapps.slots import Caps, Slots

Json = dict[str, Any]

log = logging.getLogger(__name__)

_GRACE: Final = 20.0
_CLOSE_SECONDS: Final = 5.0
_RECORD_SECONDS: Final = 15.0
_CRD_SECONDS: Final = 3.0
_LISTING: Final = "listing"
"""The key of the trouble that resources or their CRDs can't be listed."""
_COMPARING: Final = "comparing"
"""The beginning of the key of the trouble that the versions of a kind can't be listed."""
_WATCHING: Final = "watching"
"""The key of the trouble that watches don't work."""
_CHECK_SECONDS: Final = 5.0
"""How often it is checked whether the watches work."""
_UNWATCHED_SECONDS: Final = 60.0
"""How often the versions of all objects are compared while a watch doesn't work."""
_LISTED_SECONDS: Final = 5.0
"""How long after a list of kopf the versions of all objects are compared."""
_TRIM_SECONDS: Final = 30.0
_STUCK_WORK: Final = 300.0
STUCK_WAIT: Final = 120.0
"""Seconds that an object may be due before the process is unhealthy. An alert fires earlier."""
_FORGIVEN: Final = 60.0
"""Seconds after which an end of the watches no longer lengthens the next pause."""
_SILENCE: Final = 4
"""The number of store deadlines after which a waiting open counts as unreachable instead of slow."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the operator. Times are in seconds."""

    namespaces: tuple[str, ...] = ()
    """The namespaces to watch. Empty means all namespaces."""
    data_dir: Path | None = None
    """Folder for catalogs whose spec names no storage."""
    allowed_locations: tuple[str, ...] = ()
    """URLs below which catalogs are allowed, in addition to `data_dir`. Empty means anywhere."""
    storage_shared: bool = False
    """Whether Spark pods see the same files as the operator."""
    identity: str = FIELD_MANAGER
    """The name of this process in Events."""
    spark_adapter: AdapterName = AdapterName.AUTO
    """The adapter that runs Spark jobs."""
    spark_caps: Caps = field(default_factory=Caps)
    spark_limits: TemplateLimits = field(default_factory=TemplateLimits)
    """What templates of Spark jobs may contain."""
    """The limits on concurrent Spark jobs."""
    spark_image: str = images.DEFAULT
    """The image of Spark jobs whose template names none."""
    host: str = "127.0.0.1"
    port: int = 8080
    unsteady: float = 2.0
    steady: float = 60.0
    resync: float = 600.0
    """Every object is reconciled after this time (plus or minus a fifth), even if nothing has changed."""
    concurrency: int = 16
    """The number of concurrent reconciliations. Those of one location use at most half of them."""
    store_deadline: float = 30.0
    backoff: Backoff = field(default_factory=lambda: Backoff(limit=30.0))


class Operator:
    """One operator process."""

    def __init__(
        self, options: Options, kube: Kube, metrics: Metrics, elector: Elector | None = None
    ) -> None:
        """Creates the parts. `kube` may write only while the elector leads, or always without one."""
        self._options = options
        self._kube = kube
        self._clock = SystemClock()
        self._metrics = metrics
        self._elector = elector
        self._keeping: asyncio.Task[None] | None = None
        self._cache = new_cache(options.data_dir, options.allowed_locations)
        self._snapshots = SnapshotIndex()
        self._slow_servers = SlowServers()
        self._pool = StorePool(
            self._metrics,
            deadline=options.store_deadline,
            may_act=self._leads,
            slow_servers=self._slow_servers,
        )
        self._long = LongCalls(
            self._metrics,
            lambda key: self._queue.add(key),
            may_act=self._leads,
            slow_servers=self._slow_servers,
        )
        self._stores = Stores(self._pool, self._long, self._cache.asks_for)
        self._migrations = Migrations(self._pool, self._long, self._stores)
        self._stop = asyncio.Event()
        self._watchlist = Watchlist(self._stores)
        self._poll = Poll(
            self._stores, self._watchlist, self._look, self._clock, options.steady, options.resync
        )
        self._polling: asyncio.Task[None] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []
        self._acts = False
        """Whether objects are reconciled. Not while the process stands by."""
        self._compare_soon = asyncio.Event()
        """Set if kopf has listed objects again."""
        self._fenced = False
        self._lost = False
        self._listed = False
        self._troubles: Troubles[str] = Troubles(log)
        self._rng = random.Random()  # noqa: S311 - spreads resyncs
        self._queue: KeyedQueue[ObjectKey] = KeyedQueue(
            self._work,
            concurrency=options.concurrency,
            backoff=options.backoff,
            clock=self._clock,
            owner=lambda key: key.namespace,
            most_of_owner=options.concurrency - options.concurrency // 4,
            lane=self._lane,
            most_of_lane=max(1, options.concurrency // 2),
        )
        self._informer = self._new_informer()
        self._informer_pause = Backoff(first=1.0, limit=30.0)
        self._informer_ends: list[float] = []
        self._restarting: asyncio.Task[None] | None = None
        self._undefined: frozenset[Kind] = frozenset()
        self._telling: set[asyncio.Task[None]] = set()
        """Tasks that post Events. Without a reference, a task could be garbage collected."""
        self._handlers = self._make_handlers()
        self._server = Server(
            self._metrics, healthy=self._unhealthy, ready=self._unready, refresh=self._refresh_gauges
        )

    async def run(self) -> int:
        """Runs until a signal or a lost Lease. Returns the exit code. Raises `OSError` if it can't listen."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        port = await self._server.start(self._options.host, self._options.port)
        log.info("health and metrics on http://%s:%d", self._options.host, port)
        if shared := shared_beside(self._options.allowed_locations):
            log.warning(
                "namespaces are not isolated: all share %s, while allowed locations of the other kind "
                "of store contain {namespace}; put {namespace} into the path or schema of these too",
                ", ".join(shared),
            )
        if wrong := images.mismatch(self._options.spark_image):
            log.warning("%s", wrong)
        workers: asyncio.Task[None] | None = None
        watching = asyncio.create_task(self._begin_to_watch())
        if await self._lead() and await watching:
            self._acts = True
            self._look_at_all()
            workers = asyncio.create_task(self._queue.run())
            self._polling = asyncio.create_task(self._poll.run(self._stop))
            self._trimming = asyncio.create_task(self._trim())
            self._comparing = asyncio.create_task(self._compare_again_and_again())
            log.info("started; watching %s", ", ".join(self._options.namespaces) or "all namespaces")
            await self._stop.wait()
        await watching
        await self._shut_down(workers)
        return 0

    async def _begin_to_watch(self) -> bool:
        """Lists and watches everything. Returns False if it is stopped before that."""
        if not await self._list_all():
            return False
        self._watch()
        for namespace in self._options.namespaces or (None,):
            for type_, objects in followed(self._options.spark_adapter).items():
                follower = Follower(
                    self._kube, type_, namespace, objects, self._on_child, self._look_at_all, self._clock
                )
                self._following.append(asyncio.create_task(follower.run(self._stop)))
        return True

    @property
    def hangs(self) -> bool:
        """Whether calls are still running that nobody waits for."""
        return self._lost or self._pool.busy + self._long.busy > 0

    async def _lead(self) -> bool:
        """Stands by until this process may act. Returns False if it is stopped before that."""
        if self._elector is None:
            return True
        if not await self._elector.acquire(self._stop):
            return False
        self._keeping = asyncio.create_task(self._keep(self._elector))
        return True

    async def _keep(self, elector: Elector) -> None:
        try:
            await elector.keep()
        except Exception:
            log.exception("%s can't be renewed", elector)
        log.warning("%s is lost; another operator may act, so this one ends", elector)
        self._lost = True
        self._stop.set()

    def _leads(self) -> bool:
        return self._elector is None or self._elector.leads()

    async def _shut_down(self, workers: asyncio.Task[None] | None) -> None:
        at_once = self._fenced or self._lost
        await self._queue.stop(0.0 if at_once else _GRACE)
        if workers is not None:
            await workers
        for task in (self._polling, self._trimming, self._comparing, *self._following):
            if task is not None:
                task.cancel()
        if self._lost:
            # Calls in threads end with the process. Nobody waits for them: see `hangs`.
            log.info("stopped")
            return
        await self._informer.stop()
        if not self._fenced:
            try:
                await asyncio.wait_for(self._close_all(), _CLOSE_SECONDS)
            except (TimeoutError, NotLeading):
                log.warning("could not close everything in time; its leases expire by themselves")
        if self._elector is not None:
            await self._stand_down(self._elector)
        self._pool.close()
        self._long.close()
        await self._server.stop()
        self._kube.close()
        log.info("stopped")

    async def _stand_down(self, elector: Elector) -> None:
        """Releases the Lease, unless calls may still be running here. Then it must expire by itself."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            if not self.hangs:
                await elector.release()
        elector.close()

    async def _close_all(self) -> None:
        await self._stores.close_all()
        await self._migrations.close_all()

    async def _list_all(self) -> bool:
        """Lists all objects, and waits for their CRDs. Returns False if it is stopped before that."""
        while not self._stop.is_set():
            try:
                found = {kind: await self._list_once(kind) for kind in Kind}
                undefined = frozenset(kind for kind, ending in found.items() if ending is None)
                ending = any(found.values())
                # If some resources are being deleted, continue without the deleted CRDs. Otherwise wait until
                # the CRDs are installed.
                if undefined and not (ending or (self._listed and undefined < set(Kind))):
                    raise NotServed(f"there is no CRD of {_names(undefined)}")
            except NotServed as error:
                text = f"the cluster doesn't serve all of {GROUP}/{VERSION}: install its CRDs"
                self._troubles.tell(_LISTING, f"{text} (kubectl apply -k crds); {error}")
            except KubeError as error:
                self._troubles.tell(_LISTING, f"the API server can't be read: {error}")
            else:
                self._troubles.over(_LISTING, "all resources are listed")
                self._undefined = undefined
                self._listed = True
                return True
            await self._clock.wait(self._stop, _CRD_SECONDS)
        return False

    async def _list_once(self, kind: Kind) -> bool | None:
        """Lists the objects of a kind. Returns whether one is being deleted, or None if there is no CRD."""
        type_, ending = resource_type(kind), False

        def take(body: Json) -> tuple[ObjectKey, bool]:
            key = _key(kind, body)
            self._kube.known.put(key, body)
            self._cache.put(key, body)
            self._snapshots.put(key, body)
            self._look(key)
            return key, is_deleting(body)

        for namespace in self._options.namespaces or (None,):
            try:
                found, version = await self._kube.list_each(type_, namespace, take)
            except NotServed:
                if await self._kube.is_undefined(type_):
                    return None
                raise
            self._drop_others(kind, namespace, {key for key, _ in found}, version)
            ending = ending or any(is_ending for _, is_ending in found)
        return ending

    def _drop_others(
        self, kind: Kind, namespace: str | None, there: Collection[ObjectKey], version: int
    ) -> None:
        """Forgets known objects that a list doesn't have, as of its version. Reconciles them once more."""
        known = self._kube.known
        for key in known:
            gone = key.kind is kind and namespace in {None, key.namespace} and key not in there
            if gone and known.version(key) <= version:
                known.drop(key)
                self._queue_up(key)

    async def _compare_again_and_again(self) -> None:
        """Compares the versions of all objects at each resync, and after each list of kopf.

        While a watch is down, it compares them each minute.
        """
        while not self._stop.is_set():
            await self._wait_to_compare()
            for kind in set(Kind) - self._undefined:
                what = f"{_COMPARING} {kind.plural}"
                try:
                    await self._compare(kind)
                except KubeError as error:
                    self._troubles.tell(what, f"can't compare the {kind.plural} with the API server: {error}")
                except Exception:
                    log.exception("the %s could not be compared with the API server", kind.plural)
                else:
                    self._troubles.over(what, f"the {kind.plural} are compared with the API server again")

    async def _wait_to_compare(self) -> None:
        since = self._clock.monotonic()
        while not self._compare_soon.is_set():
            resync = self._options.resync
            if down := self._informer.down():
                resync = min(resync, _UNWATCHED_SECONDS)
                text = (
                    f"no watch works for {', '.join(down)}: resources are requested each time until it does"
                )
                self._troubles.tell(_WATCHING, text)
            else:
                self._troubles.over(_WATCHING, "all watches work again")
            left = since + resync - self._clock.monotonic()
            if left <= 0:
                return
            await self._clock.wait(self._compare_soon, min(left, _CHECK_SECONDS))
        # More pages of the same list follow.
        await self._clock.wait(self._stop, _LISTED_SECONDS)
        self._compare_soon.clear()

    async def _compare(self, kind: Kind) -> None:
        """Finds objects of which no event has reported the last change, and reconciles them."""
        known = self._kube.known
        for namespace in self._options.namespaces or (None,):
            before = known.newest
            found, version = await self._kube.list_each(
                resource_type(kind), namespace, lambda body: (_key(kind, body), version_of(body)), brief=True
            )
            if version < before:
                log.warning("the API server's history went back: every resource is read again")
                known.doubt_all()
            versions = dict(found)
            self._drop_others(kind, namespace, versions.keys(), version)
            for key, its in versions.items():
                if kind is Kind.CATALOG or its > known.version(key):
                    # Catalogs are few. Their CRD may have changed, which changes no version.
                    known.doubt(key)
                if its > known.version(key):
                    self._look(key)

    def _lane(self, key: ObjectKey) -> Hashable:
        """Returns the lane of an object: its location, or one lane for all locations on slow servers."""
        storage = self._cache.storage_of(self._snapshots.collection_of(key) or key)
        if storage is None:
            return None
        return SLOW if self._slow_servers.is_slow(str(storage)) else storage.stores

    async def _work(self, key: ObjectKey) -> Result:
        with about(key), self._metrics.reconcile_seconds.labels(key.kind.value).time():
            try:
                result = await self._handlers[key.kind].reconcile(key)
            except Fenced as error:
                return await self._on_fenced(key, error)
            except NotLeading as error:
                log.info("%s", error)
                return Result(retry=True)
            except asyncio.CancelledError:
                log.warning("the step was interrupted; the next operator repeats it")
                raise
        outcome = "retry" if result.retry else "ok"
        self._metrics.reconciles.labels(key.kind.value, outcome).inc()
        if result.retry or not self._cache.knows(key):
            return result
        due = result.requeue_after
        if self._watchlist.covers(key) and self._kube.known.follows:
            # The resync of all resting collections finds each change.
            return result
        resync = self._options.resync * (0.8 + 0.4 * self._rng.random())
        return Result(requeue_after=resync if due is None else min(due, resync))

    async def _on_fenced(self, key: ObjectKey, error: Fenced) -> Result:
        if self._elector is None:
            await self._end_fenced(error)
            return Result()
        match await self._elector.confirm():
            case LeaseStanding.LOST:
                return Result()
            case LeaseStanding.UNKNOWN:
                return Result(retry=True)
            case LeaseStanding.HELD:
                dependent = self._snapshots.collection_of(key) or key
                catalog = key if key.kind is Kind.CATALOG else self._cache.catalog_of(dependent)
                if catalog is not None:
                    await self._fences.take_back(catalog)
                return Result(retry=True)
            case standing:
                assert_never(standing)

    async def _end_fenced(self, error: Fenced) -> None:
        self._metrics.fences.inc()
        if self._fenced:
            return
        self._fenced = True
        log.warning("%s; another operator has taken over, so this one ends", error)
        try:
            await asyncio.wait_for(self._fences.record_all(), _RECORD_SECONDS)
        except TimeoutError:
            log.warning("could not record in time for all Catalogs which process took them over")
        finally:
            self._stop.set()

    async def _trim(self) -> None:
        while not self._stop.is_set():
            await self._clock.wait(self._stop, _TRIM_SECONDS)
            await asyncio.to_thread(give_back)

    def _on_event(self, key: ObjectKey, type_: str | None, body: Json) -> None:
        known = self._kube.known
        if type_ == "DELETED":
            known.drop(key, body)
            self._queue_up(key)
            if self._acts and (note := left_at_once(key, body)) is not None:
                log.warning("%s: %s", key, note.message)
                task = asyncio.create_task(self._events.post(key, body["metadata"]["uid"], note))
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)
            return
        known.put(key, body)
        if self._cache.has(key, body) or version_of(body) < known.version(key):
            # It was written here, or the event is late.
            return
        is_known = self._cache.knows(key)
        self._note(key, body)
        self._queue_up(key)
        if key.kind is Kind.CATALOG and (not is_known or body["metadata"].get("deletionTimestamp")):
            for dependent in self._cache.dependents_of(key):
                self._look(dependent)

    def _on_child(self, type_: ResourceType, body: Json) -> None:
        """Reconciles the owner of an application, or of the Job of a pod."""
        namespace = body["metadata"]["namespace"]
        for owner in body["metadata"].get("ownerReferences", []):
            if owner.get("apiVersion") == f"{GROUP}/{VERSION}" and owner.get("kind") in set(Kind):
                self._queue_up(ObjectKey(Kind(owner["kind"]), namespace, owner["name"]))
            elif type_ == PODS and (job := self._kube.followed_with_uid(JOBS, namespace, owner["uid"])):
                self._on_child(JOBS, job)

    async def _shown_applications(self, owner: ObjectKey) -> frozenset[Unfinished]:
        """Returns the applications that the status of an object shows."""
        if not self._cache.knows(owner):
            return frozenset()
        try:
            body = self._kube.known.get(owner) or await self._kube.read(owner)
        except Gone:
            return frozenset()
        uid, names = body["metadata"]["uid"], shown_applications(body.get("status", {}))
        return frozenset(Unfinished(owner, uid, name) for name in names)

    def _look_at_all(self) -> None:
        for key in self._cache:
            self._look(key)

    def _queue_up(self, key: ObjectKey) -> None:
        """Enqueues an object, because something happened to it."""
        if self._acts:
            self._queue.add(key)

    def _look(self, key: ObjectKey) -> None:
        """Enqueues an unchanged object as routine work, because there may be thousands of them."""
        if self._acts:
            self._queue.add(key, routine=True)

    def _note(self, key: ObjectKey, body: Json) -> None:
        for rival in self._cache.put(key, body):
            self._queue_up(rival)
        self._snapshots.put(key, body)
        for snapshot in self._snapshots.waiting_for(key):
            self._look(snapshot)

    def _new_informer(self) -> Informer:
        return Informer(
            namespaces=self._options.namespaces,
            on_event=self._on_event,
            on_list=self._compare_soon.set,
            on_end=self._on_informer_end,
        )

    def _on_informer_end(self, error: BaseException | None) -> None:
        self._kube.known.follow(lambda: False)
        log.error("the watches ended by themselves and are restarted: %s", error)
        self._metrics.informer_restarts.inc()
        if self._restarting is not None:
            self._restarting.cancel()
        self._restarting = asyncio.create_task(self._restart_informer())

    async def _restart_informer(self) -> None:
        """Restarts the watches after a pause, which grows if they keep ending soon."""
        now = self._clock.monotonic()
        self._informer_ends = [end for end in self._informer_ends if now - end < _FORGIVEN] + [now]
        pause = self._informer_pause.delay(len(self._informer_ends), self._rng)
        await self._clock.wait(self._stop, pause)
        await self._watch_again()

    def _watch(self) -> None:
        """Starts to watch the defined kinds, and to check for those that aren't defined."""
        informer = self._informer
        informer.start(set(Kind) - self._undefined)
        self._kube.known.follow(lambda: not informer.down())
        if self._undefined:
            names = _names(self._undefined)
            log.warning("the cluster has no CRD of %s: it has no such resources until it is installed", names)
            self._restarting = asyncio.create_task(self._await_definitions())

    async def _await_definitions(self) -> None:
        """Restarts the watches as soon as a further kind is defined."""
        while not self._stop.is_set():
            await self._clock.wait(self._stop, _CRD_SECONDS)
            try:
                if any([await self._list_once(kind) is not None for kind in self._undefined]):
                    await self._informer.stop()
                    await self._watch_again()
                    return
            except KubeError as error:
                self._troubles.tell(_LISTING, f"can't check whether CRDs are installed now: {error}")
            else:
                self._troubles.over(_LISTING, "which CRDs are there can be told again")

    async def _watch_again(self) -> None:
        # kopf checks only once which types are served. If none are, it never watches anything.
        if self._stop.is_set() or not await self._list_all():
            return
        self._informer = self._new_informer()
        self._watch()
        log.info("watching again")
        self._look_at_all()

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("%s: finishing running work", number.name)
        self._stop.set()

    def _make_handlers(self) -> dict[Kind, Handler[Any]]:
        self._events = EventSink(self._kube, self._clock, self._options.identity)
        services = Services(
            kube=self._kube,
            status=StatusWriter(self._kube, self._metrics),
            events=self._events,
            clock=self._clock,
            metrics=self._metrics,
            enqueue=lambda key, after: self._queue.add(key, after=after),
            look=self._look,
            seen=self._note,
        )
        image = self._options.spark_image
        settings = OperatorSettings(
            holder=f"holdfast-operator {os.getpid()} on {socket.gethostname()}",
            data_dir=self._options.data_dir,
            allowed_locations=self._options.allowed_locations,
            storage_shared=self._options.storage_shared,
            spark_template=SparkTemplate(image=image) if image else None,
            rhythm=Rhythm(self._options.unsteady, self._options.steady),
            silence=timedelta(seconds=_SILENCE * self._options.store_deadline),
        )
        spark = adapter(self._kube, self._options.spark_adapter, self._options.spark_limits)
        slots = Slots(
            self._options.spark_caps, spark, self._clock, self._shown_applications, self._options.namespaces
        )
        self._fences = FencedCatalogs(services, self._stores, self._cache)
        return {
            Kind.CATALOG: CatalogHandler(services, self._stores, self._cache, settings, self._migrations),
            Kind.CATALOG_MIGRATION: MigrationHandler(
                services, self._stores, self._cache, settings, self._migrations
            ),
            Kind.STORAGE_COLLECTION: CollectionHandler(
                services, self._stores, self._watchlist, self._cache, settings, spark, slots, self._snapshots
            ),
            Kind.COLLECTION_SNAPSHOT: SnapshotHandler(
                services,
                self._stores,
                self._watchlist,
                self._cache,
                settings,
                spark,
                slots,
                self._snapshots,
                self._pool,
            ),
        }

    def _unhealthy(self) -> str:
        if self._queue.oldest_work > _STUCK_WORK:
            return f"a reconciliation has been running for {self._queue.oldest_work:.0f} s"
        if min(self._queue.oldest_wait, self._queue.idle) > STUCK_WAIT:
            return f"objects are waiting, and no reconciliation has ended for {self._queue.idle:.0f} s"
        return ""

    def _unready(self) -> str:
        if self._elector is not None and self._keeping is None:
            return self._elector.stale()
        if not self._listed:
            why = self._troubles.said(_LISTING)
            return "the resources have not been listed yet" + (f": {why}" if why else "")
        return "" if self._informer.running else "the informer doesn't run"

    def _refresh_gauges(self) -> None:
        self._metrics.queue_depth.set(self._queue.depth)
        self._metrics.queue_oldest.set(self._queue.oldest_wait)
        self._metrics.breakers_open.set(self._pool.left_alone)
        down = Counter(path.rpartition("/")[2] for path in self._informer.down())
        for kind in Kind:
            self._metrics.watches_down.labels(kind.plural).set(down[kind.plural])
        phases = self._cache.phases()
        for kind, phase in itertools.product(Kind, Phase):
            self._metrics.objects.labels(kind.value, phase.value).set(phases[kind, phase])


def _key(kind: Kind, body: Json) -> ObjectKey:
    return ObjectKey(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def _names(kinds: Iterable[Kind]) -> str:
    """Returns the names of the kinds' CRDs."""
    return ", ".join(sorted(f"{kind.plural}.{GROUP}" for kind in kinds))
