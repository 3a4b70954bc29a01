"""Attempts of a Spark job across restarts, suspends and changed specs: which run, and which count.

The handler and the store are the real ones; what answers for the API server keeps objects in a dict.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kubernetes.client import ApiClient

from holdfast.collections import JobRecord, JobState, StorageController
from holdfast.collections.record.jobs import job_id
from holdfast.persist import PersistClient, PersistConfig
from holdfast_operator.api.names import FINALIZER, Kind
from holdfast_operator.catalogs.claims import new_cache
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections.handler import CollectionHandler
from holdfast_operator.collections.poll import Watchlist
from holdfast_operator.collections.snapshot_index import SnapshotIndex
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.events import EventSink
from holdfast_operator.engine.handler import OperatorSettings, Services
from holdfast_operator.engine.kube import (
    SECRETS,
    AdmissionDenied,
    Exists,
    Gone,
    Kube,
    KubeError,
    NotServed,
    ObjectKey,
    resource_type,
)
from holdfast_operator.engine.logging import redact
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.status_writer import StatusWriter
from holdfast_operator.engine.steps import Rhythm
from holdfast_operator.jobs.course import shown_applications
from holdfast_operator.jobs.snapshot import slot_of
from holdfast_operator.places.long_calls import LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import Storage
from holdfast_operator.snapshots import handler as snapshot_handler
from holdfast_operator.snapshots.handler import SnapshotHandler
from holdfast_operator.sparkapps.adapter import Unfinished
from holdfast_operator.sparkapps.kubeflow import SPARK_APPLICATIONS, KubeflowAdapter
from holdfast_operator.sparkapps.slots import Caps, Slots

Json = dict[str, Any]

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
CATALOG = ObjectKey(Kind.CATALOG, "ns", "demo")
FLIGHTS = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights")
PATH = resource_type(FLIGHTS.kind).path("ns", "flights")
SNAPSHOT = ObjectKey(Kind.COLLECTION_SNAPSHOT, "ns", "one")
SNAPSHOT_PATH = resource_type(SNAPSHOT.kind).path("ns", "one")
APPS = SPARK_APPLICATIONS.path("ns")
OTHERS = {"holdfast.dev/job-id": "another", "holdfast.dev/attempt": "1"}
"""The labels of another collection's application."""
SPARK = {"minimumBytes": 0, "spark": {"maxAttempts": 3}}


class Died(BaseException):
    """The operator's process ends here."""


class LaterClock(SystemClock):
    """Half an hour ahead, so that no pause between two attempts is waited for."""

    def wall(self) -> datetime:
        return super().wall() + self.later

    def monotonic(self) -> float:
        """Every look is a while after the one before, so that nothing is fresh."""
        self._looks += 1
        return super().monotonic() + 10.0 * self._looks

    _looks = 0
    later = timedelta(minutes=30)


class Cluster(Kube):
    """Keeps objects by their paths; `refuse` is raised when an application is made, `after` when it was."""

    def __init__(self, clock: LaterClock) -> None:
        super().__init__(ApiClient())
        self.objects: dict[str, Json] = {}
        self.refuse: BaseException | None = None
        self.refused = 0
        self.behind = timedelta()
        """How far its clock is behind the operator's."""
        self._clock = clock
        self.version = 0

    def server_time(self) -> datetime:
        return self._clock.wall() - self.behind

    async def request(
        self, method: str, path: str, *, query: Any = None, body: Json | None = None, keep: Any = None
    ) -> Json:
        match method:
            case "GET" if path in self.objects:
                return self.objects[path]
            case "GET" if path == APPS:
                return {"items": list(map(keep, self.apps))}
            case "POST" if path == APPS and self.refuse is not None:
                self.refused += 1
                raise self.refuse
            case "POST" if body is not None:
                return self.put(f"{path}/{body['metadata']['name']}", body)
            case "PATCH" if body is not None and path.endswith("/status"):
                found = self.objects[path.removesuffix("/status")]
                return self.put(path.removesuffix("/status"), _merged(found, body))
            case "PATCH" if body is not None and path in self.objects:
                changed = self.put(path, _merged(self.objects[path], body))
                if changed["metadata"].get("deletionTimestamp") and not changed["metadata"]["finalizers"]:
                    del self.objects[path]
                return changed
            case "DELETE" if self.objects.pop(path, None) is not None:
                return {}
        raise Gone(path)

    def put(self, path: str, body: Json) -> Json:
        if path.startswith(APPS) and path in self.objects and "uid" not in body["metadata"]:
            raise Exists(path)
        self.version += 1
        given = {"uid": f"uid-{self.version}", "creationTimestamp": self.server_time().isoformat()}
        kept = {**given, **body["metadata"], "generation": 1, "resourceVersion": str(self.version)}
        self.objects[path] = {**body, "metadata": kept}
        return self.objects[path]

    @property
    def apps(self) -> list[Json]:
        return [body for path, body in self.objects.items() if path.startswith(APPS)]

    def says(self, state: str) -> None:
        """Each application that runs is in this state from now on."""
        for app in self.apps:
            if app.get("status", {}).get("applicationState", {}).get("state") in {None, "RUNNING"}:
                app["status"] = {"applicationState": {"state": state}}


def _merged(old: Json, patch: Json) -> Json:
    new = dict(old)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(old.get(name) or {}, value) if isinstance(value, dict) else value
    return new


class World:
    """One collection with a rendition to be filled, and operators one after the other."""

    def __init__(self, url: str) -> None:
        self.clock = LaterClock()
        self.cluster = Cluster(self.clock)
        self.url = url
        self.caps = Caps()
        self.spec: Json = {
            "catalogRef": {"name": "demo"},
            "columns": [{"name": "id", "type": "int64"}],
            "key": ["id"],
        }
        catalog = {
            "organizationId": ORGANIZATION,
            "storage": {"url": url},
            "environment": "test",
            "deletionPolicy": "Retain",
        }
        conditions = [{"type": "Ready", "status": "True"}]
        self.cluster.put(
            resource_type(CATALOG.kind).path("ns", "demo"),
            {"metadata": {"name": "demo"}, "spec": catalog, "status": {"conditions": conditions}},
        )
        self.change()

    def change(self, **spec: Any) -> None:
        """Change the spec of the collection; None removes a field."""
        given = {**self.spec, **spec}
        self.spec = {name: value for name, value in given.items() if value is not None}
        path = PATH
        old = self.cluster.objects.get(path, {"metadata": {"name": "flights", "namespace": "ns"}})
        old["metadata"]["finalizers"] = [FINALIZER]
        self.cluster.put(path, {**old, "spec": self.spec})

    def delete(self, *, since: timedelta = timedelta(), failed: int = 0) -> None:
        """Ask for the deletion; or let it have been asked for, or have `failed`, for a while."""
        asked = (self.clock.wall() - since).isoformat()
        body = self.cluster.objects[PATH]
        kept = {"storeFailedSeconds": failed, "lastFailure": "no answer"}
        status = {**body["status"], "deletion": kept} if failed else body["status"]
        metadata = {**body["metadata"], "deletionTimestamp": asked}
        self.cluster.put(PATH, {**body, "metadata": metadata, "status": status})

    @property
    def gone(self) -> bool:
        return PATH not in self.cluster.objects

    @property
    def warnings(self) -> list[str]:
        """What Events say."""
        return [body["message"] for path, body in self.cluster.objects.items() if "/events/" in path]

    @property
    def status(self) -> Json:
        return dict(self.cluster.objects[PATH].get("status", {}))

    @property
    def said(self) -> str:
        conditions = {each["type"]: each for each in self.status.get("conditions", [])}
        ready = conditions.get("Ready", {"reason": "Nothing", "message": ""})
        return f"{ready['reason']}: {ready['message']}"

    def run(self, story: Callable[["Operator"], Awaitable[None]]) -> None:
        """Let an operator live for a story; it may die in it."""

        async def live() -> None:
            metrics = Metrics()
            long = LongCalls(metrics, lambda _: None, patience=60.0)
            pool = StorePool(metrics, deadline=60.0)
            stores = Stores(pool, long)
            await stores.open(
                CATALOG, Opening(Storage(url=self.url), ORGANIZATION, 0, "default", (), "me", "test")
            )
            services = Services(
                kube=self.cluster,
                status=StatusWriter(self.cluster, metrics),
                events=EventSink(self.cluster, self.clock),
                clock=self.clock,
                metrics=metrics,
                enqueue=lambda *_: None,
                look=lambda _: None,
                seen=lambda *_: None,
            )
            settings = OperatorSettings("me", None, True, Rhythm(2.0, 60.0))
            spark = KubeflowAdapter(self.cluster)
            slots = Slots(self.caps, spark, self.clock, self.shown_applications, ["ns"])
            index, watchlist, cache = SnapshotIndex(), Watchlist(stores), new_cache(None)
            handler = CollectionHandler(services, stores, watchlist, cache, settings, spark, slots, index)
            snapshots = SnapshotHandler(
                services, stores, watchlist, cache, settings, spark, slots, index, pool
            )
            try:
                await story(Operator(self, handler, stores, snapshots))
            except Died:
                pass
            finally:
                await stores.close_all()
                long.close()
                pool.close()

        asyncio.run(live())

    async def shown_applications(self, owner: ObjectKey) -> frozenset[Unfinished]:
        body = await self.cluster.read(owner)
        names = shown_applications(body.get("status", {}))
        return frozenset(Unfinished(owner, body["metadata"]["uid"], name) for name in names)

    def look(self) -> JobRecord | None:
        """The record of the job that fills the rendition."""
        with PersistClient.open(self.url, config=PersistConfig(maintenance="off")) as client:
            jobs = [job for job in StorageController(client).jobs() if job.kind == "hydrate"]
            assert len(jobs) <= 1
            return jobs[0] if jobs else None

    def record(self) -> JobRecord:
        job = self.look()
        assert job is not None
        return job

    def write(self, since: int = 0, upper: int = 10) -> None:
        with PersistClient.open(self.url, config=PersistConfig(maintenance="off")) as client:
            controller = StorageController(client)
            (info,) = controller.list_collections()
            rows = pa.table({"id": pa.array(range(100), pa.int64())})
            controller.writer(info.collection_id, purpose="test").append(rows, since, upper)


class Operator:
    """One life of an operator."""

    def __init__(
        self, world: World, handler: CollectionHandler, stores: Stores, snapshots: SnapshotHandler
    ) -> None:
        self.handler = handler
        self.stores = stores
        self.snapshots = snapshots
        self._world = world

    async def until(self, done: Callable[[], bool]) -> None:
        """Reconcile until it is so; what was said last tells why not."""
        for _ in range(40):
            if done():
                return
            await self._reconcile()
        raise AssertionError(self._world.said)

    async def rest(self) -> None:
        """Reconcile some times more than anything takes."""
        for _ in range(6):
            await self._reconcile()

    async def _reconcile(self) -> None:
        await self.handler.reconcile(FLIGHTS)
        if SNAPSHOT_PATH in self._world.cluster.objects:
            await self.snapshots.reconcile(SNAPSHOT)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A collection of 100 rows whose next rendition is to be filled by Spark."""
    world = World((tmp_path / "store").as_uri())

    async def begin(operator: Operator) -> None:
        await operator.until(lambda: world.said.startswith("Available"))

    world.run(begin)
    world.write()
    world.change(rendition={"shards": 2}, hydration=SPARK)
    return world


def test_an_operator_that_ends_before_the_launch_costs_no_attempt(world: World) -> None:
    """However often: the next one launches the attempt that is on record."""

    async def dies(operator: Operator) -> None:
        world.cluster.refuse = Died()
        await operator.until(lambda: False)

    async def launches(operator: Operator) -> None:
        world.cluster.refuse = None
        await operator.until(lambda: bool(world.cluster.apps))

    for _ in range(4):
        world.run(dies)
        assert (world.record().state, world.record().attempt) == (JobState.RUNNING, 1)
    world.run(launches)
    (app,) = world.cluster.apps
    assert app["metadata"]["labels"]["holdfast.dev/attempt"] == "1"
    assert (world.record().attempt, world.record().failures) == (1, 0)


def test_an_api_server_that_is_away_costs_no_attempt(world: World) -> None:
    async def story(operator: Operator) -> None:
        world.cluster.refuse = KubeError("no route to host")
        await operator.rest()
        await operator.rest()
        assert world.record().attempt == 1
        world.cluster.refuse = None
        await operator.until(lambda: bool(world.cluster.apps))
        assert (world.record().attempt, world.record().failures) == (1, 0)

    world.run(story)


def test_an_application_that_the_api_server_fails_to_create_is_shown_until_it_is_created(
    world: World,
) -> None:
    """Each attempt to create it may fail in other words, and the status is written once."""

    async def story(operator: Operator) -> None:
        world.cluster.refuse = KubeError("POST: 500 the conversion webhook has no endpoints")
        await operator.until(lambda: world.said.startswith("LaunchFailed"))
        cause = "its application can't be created: POST: 500 the conversion webhook has no endpoints"
        assert f"{cause}; the operator retries by itself" in world.said
        refused, version = world.cluster.refused, world.cluster.version
        assert refused >= 4
        await operator.until(lambda: world.cluster.refused > refused + 2)
        assert world.cluster.version == version
        world.cluster.refuse = None
        await operator.until(lambda: "a Spark job fills" in world.said)
        assert (world.record().attempt, world.record().failures) == (1, 0)

    world.run(story)
    events = [each for path, each in world.cluster.objects.items() if "/events/" in path]
    assert [each["type"] for each in events if each["reason"] == "LaunchFailed"] == ["Warning"]


@pytest.mark.parametrize(
    "refusal", [AdmissionDenied("403 webhook w denied the request"), NotServed("404 page not found")]
)
def test_an_application_that_the_cluster_refuses_is_a_failure_that_says_why(
    world: World, refusal: KubeError
) -> None:
    async def story(operator: Operator) -> None:
        world.cluster.refuse = refusal
        if isinstance(refusal, NotServed):
            await operator.rest()
            assert (world.record().state, world.record().failures) == (JobState.RUNNING, 0)
            return
        await operator.until(lambda: world.said.startswith("HydrationFailed"))
        assert "failed 3 times, last: its application is refused: 403 webhook w denied" in world.said
        assert world.record().attempt == 3

    world.run(story)


def test_a_quota_without_room_costs_no_attempt_and_is_asked_again_after_a_pause(world: World) -> None:
    full = AdmissionDenied(
        "POST: 403 exceeded quota: team, requested: count/x=1, used: count/x=2, limited: count/x=2"
    )

    async def story(operator: Operator) -> None:
        world.cluster.refuse = full
        await operator.until(lambda: "exceeded quota: team" in world.said)
        assert "denies its application for now" in world.said
        refused, version = world.cluster.refused, world.cluster.version
        for _ in range(4):
            await operator.rest()
        assert world.cluster.refused > refused
        assert world.cluster.version == version
        world.cluster.refuse = None
        await operator.until(lambda: bool(world.cluster.apps))
        assert (world.record().attempt, world.record().failures) == (1, 0)

    world.run(story)


def test_a_clock_that_goes_back_keeps_no_attempt_waiting(world: World) -> None:
    """As after a failover to a host whose clock is behind that of the one before."""

    async def fails(operator: Operator) -> None:
        await operator.until(lambda: bool(world.cluster.apps))
        world.cluster.apps[0]["status"] = {"applicationState": {"state": "FAILED"}}
        world.clock.later = timedelta()
        await operator.until(lambda: world.record().state is JobState.FAILED)

    async def goes_on(operator: Operator) -> None:
        world.clock.later = timedelta(minutes=-10)
        await operator.until(lambda: world.record().attempt == 2)

    world.run(fails)
    world.run(goes_on)


@pytest.mark.parametrize("minutes", [10, -10])
def test_the_clock_of_the_api_server_decides_how_long_an_attempt_waits(world: World, minutes: int) -> None:
    """The operator's is ahead, or behind; a driver has five minutes to start."""

    async def story(operator: Operator) -> None:
        world.cluster.behind = timedelta(minutes=minutes)
        await operator.until(lambda: bool(world.cluster.apps))
        await operator.rest()
        assert (world.record().state, world.record().attempt) == (JobState.RUNNING, 1)
        world.clock.later += timedelta(minutes=6)
        await operator.until(lambda: world.record().state is JobState.FAILED)
        assert "did not start within 300 s" in world.record().error

    world.run(story)


def test_a_name_that_somebody_elses_application_has_costs_one_attempt(world: World) -> None:
    """What a collection of the same name left, which was deleted and made again, may be there yet."""

    async def dies(operator: Operator) -> None:
        world.cluster.refuse = Died()
        await operator.until(lambda: False)

    async def goes_on(operator: Operator) -> None:
        await operator.until(lambda: len(world.cluster.apps) == 2)
        assert (world.record().attempt, world.record().failures) == (2, 1)

    async def launches(operator: Operator) -> None:
        await operator.until(lambda: bool(world.cluster.apps))
        (app,) = world.cluster.apps
        app["metadata"]["ownerReferences"] = [{"uid": "another"}]
        world.change(suspend=None)

    world.run(dies)
    world.cluster.refuse = None
    world.run(launches)
    world.run(goes_on)


def test_an_attempt_waits_for_a_slot_and_is_launched_when_one_is_free(world: World) -> None:
    """Also one that is on record already, whose operator ended before the launch."""
    world.caps = Caps(in_all=1)
    owner = {"kind": "StorageCollection", "name": "other", "uid": "uid-of-other"}
    metadata = {"name": "other", "namespace": "ns", "labels": OTHERS, "ownerReferences": [owner]}
    other = {"metadata": metadata}
    # Its owner shows it.
    world.cluster.put(
        resource_type(Kind.STORAGE_COLLECTION).path("ns", "other"),
        {
            "metadata": {"name": "other", "namespace": "ns", "uid": "uid-of-other"},
            "status": {"compactionJob": {"jobId": "j", "attempt": 1, "application": "other"}},
        },
    )

    async def waits(operator: Operator) -> None:
        world.cluster.put(f"{APPS}/other", other)
        await operator.until(lambda: "1 Spark job runs" in world.said)
        await operator.rest()
        assert world.look() is None
        del world.cluster.objects[f"{APPS}/other"]
        world.cluster.refuse = Died()
        await operator.until(lambda: False)

    async def launches(operator: Operator) -> None:
        world.cluster.refuse = None
        world.cluster.put(f"{APPS}/other", other)
        await operator.until(lambda: "1 Spark job runs" in world.said)
        assert (world.record().state, world.record().attempt) == (JobState.RUNNING, 1)
        del world.cluster.objects[f"{APPS}/other"]
        await operator.until(lambda: bool(world.cluster.apps))
        assert (world.record().attempt, world.record().failures) == (1, 0)

    world.run(waits)
    world.run(launches)


def test_three_suspends_are_no_failures_and_the_job_still_runs(world: World) -> None:
    async def story(operator: Operator) -> None:
        for attempt in (1, 2, 3):
            await operator.until(
                lambda number=attempt: bool(world.cluster.apps) and world.record().attempt == number
            )
            world.cluster.says("RUNNING")
            world.change(suspend=True)
            await operator.until(lambda: not world.cluster.apps and world.said.startswith("Suspended"))
            assert world.record().state is JobState.FAILED
            world.change(suspend=None)
        await operator.until(lambda: bool(world.cluster.apps))
        assert (world.record().attempt, world.record().failures) == (4, 0)
        # Those that fail of themselves do count, and only those.
        for failures in (1, 2, 3):
            await operator.until(lambda: world.record().state is JobState.RUNNING)
            world.cluster.says("FAILED")
            await operator.until(lambda count=failures: world.record().failures == count)
        await operator.until(lambda: world.said.startswith("HydrationFailed"))
        assert "failed 3 times" in world.said
        assert world.record().attempt == 6

    world.run(story)


def test_an_application_that_somebody_deletes_is_followed_by_another_attempt(world: World) -> None:
    """It was there: its driver may live on, so that its attempt is over."""

    async def story(operator: Operator) -> None:
        await operator.until(lambda: "application" in str(world.status.get("renditions")))
        (gone,) = world.cluster.apps
        del world.cluster.objects[f"{APPS}/{gone['metadata']['name']}"]
        await operator.until(lambda: bool(world.cluster.apps))
        assert (world.record().attempt, world.record().failures) == (2, 1)

    world.run(story)


def test_an_attempt_without_a_driver_is_stopped_with_its_collection_too(world: World) -> None:
    """On record, and never launched: what it holds would be held for as long as nobody goes on."""

    async def dies(operator: Operator) -> None:
        world.cluster.refuse = Died()
        await operator.until(lambda: False)

    async def suspends(operator: Operator) -> None:
        world.cluster.refuse = None
        await operator.until(lambda: world.said.startswith("Suspended"))
        assert (world.record().state, world.record().failures) == (JobState.FAILED, 0)
        world.change(suspend=None)
        await operator.until(lambda: bool(world.cluster.apps))
        assert (world.record().state, world.record().attempt) == (JobState.RUNNING, 2)

    world.run(dies)
    assert world.record().state is JobState.RUNNING
    # No status ever told of it, so that the spec has to.
    assert "job" not in str(world.status.get("renditions"))
    world.change(suspend=True)
    world.run(suspends)


def test_a_deletion_that_keeps_the_data_ends_the_attempt_on_record_and_its_driver(world: World) -> None:
    async def story(operator: Operator) -> None:
        await operator.until(lambda: bool(world.cluster.apps))
        world.cluster.says("RUNNING")
        world.delete()
        await operator.until(lambda: world.gone)
        assert world.cluster.apps == []
        stopped = world.record()
        assert (stopped.state, stopped.failures) == (JobState.FAILED, 0)
        assert stopped.error == "the StorageCollection is being deleted"
        assert not any("could not be written" in text for text in world.warnings)

    world.run(story)


def test_a_deletion_without_a_catalog_that_is_open_waits_for_an_attempt_until_it_failed_for_long(
    world: World,
) -> None:
    async def story(operator: Operator) -> None:
        await operator.until(lambda: "Running" in str(world.status.get("renditions")))
        await operator.stores.close(CATALOG)
        # Nobody tried meanwhile: the operator was down, or a clock is ahead.
        world.delete(since=timedelta(minutes=11))
        await operator.rest()
        text = "deletion waits for Catalog 'demo' to be ready; check its conditions"
        assert world.said == f"WaitingForCatalog: {text}"
        world.delete(failed=600)
        await operator.until(lambda: world.gone)
        (told,) = (text for text in world.warnings if "could not be written" in text)
        assert f"attempt 1 of job {world.record().job_id}" in told
        assert world.record().state is JobState.RUNNING

    world.run(story)


def test_an_overdue_deletion_asks_no_store(world: World) -> None:
    """One that doesn't answer would keep it for ever."""

    async def story(operator: Operator) -> None:
        await operator.until(lambda: "Running" in str(world.status.get("renditions")))
        world.delete(failed=600)
        await operator.until(lambda: world.gone)
        assert world.record().state is JobState.RUNNING
        assert any("could not be written" in text for text in world.warnings)

    world.run(story)


def test_a_driver_goes_on_when_the_template_goes_and_the_operator_follows_it(world: World) -> None:
    async def story(operator: Operator) -> None:
        await operator.until(lambda: bool(world.cluster.apps))
        world.cluster.says("RUNNING")
        world.change(hydration=None)
        await operator.rest()
        assert len(world.cluster.apps) == 1
        assert (world.record().state, world.record().attempt, world.record().by) == (
            JobState.RUNNING,
            1,
            "spark",
        )
        world.cluster.says("FAILED")
        await operator.until(lambda: world.status["activeRendition"] == "spec-2")
        record = world.record()
        assert (record.state, record.attempt, record.by) == (JobState.DONE, 2, "")

    world.run(story)


def test_a_template_that_comes_leaves_the_operators_own_attempt_at_work(world: World) -> None:
    """Also one that went and comes again; when the operator ends, the next attempt is Spark's."""
    world.change(hydration=None)
    begun, ended = threading.Event(), threading.Event()

    def fill(handle: Any) -> None:
        """The operator's fill, which lasts."""
        record = handle.controller.start_job(collection(), "hydrate", "spec-2", spec={})
        assert record.by == ""
        begun.set()
        ended.wait(60)

    def collection() -> str:
        return str(world.status["collectionId"])

    async def story(operator: Operator) -> None:
        await operator.until(lambda: "spec-2" in str(world.status.get("renditions")))
        how = FLIGHTS, "hydrate", (collection(), "spec-2")
        filling = asyncio.create_task(operator.stores.use_long(CATALOG, how, fill))
        assert await asyncio.to_thread(begun.wait, 60)
        for hydration in (SPARK, None, SPARK):
            world.change(hydration=hydration)
            seen = await operator.handler.observe(FLIGHTS, world.cluster.objects[PATH])
            step = operator.handler.plan(seen)
            assert type(step).__name__ == "Hydrate", step
        assert world.record().attempt == 1
        ended.set()
        await filling

    world.run(story)

    async def follows(operator: Operator) -> None:
        await operator.until(lambda: bool(world.cluster.apps))

    world.run(follows)
    record = world.record()
    assert (record.state, record.attempt, record.by) == (JobState.RUNNING, 2, "spark")


def test_what_a_snapshot_reads_is_held_from_its_record_on_and_once_it_is_gone_the_job_is_over(
    world: World,
) -> None:
    """However short the retention is, and whether its driver has started or not."""
    world.change(
        rendition=None,
        hydration=None,
        retention={"period": "1ms"},
    )
    wanted = {
        "collectionRef": {"name": "flights"},
        "destination": "file:///out",
        "spark": {"maxAttempts": 3},
    }
    world.cluster.put(SNAPSHOT_PATH, {"metadata": {"name": "one", "namespace": "ns"}, "spec": wanted})

    def taken() -> tuple[JobRecord, int]:
        """The job, and since when the collection can be read."""
        with PersistClient.open(world.url, config=PersistConfig(maintenance="off")) as client:
            controller = StorageController(client)
            (info,) = controller.list_collections()
            (job,) = controller.jobs(info.collection_id)
            return job, controller.frontiers(info.collection_id).since

    def told() -> Json:
        conditions = world.cluster.objects[SNAPSHOT_PATH]["status"]["conditions"]
        return dict(next(each for each in conditions if each["type"] == "Ready"))

    async def dies(operator: Operator) -> None:
        world.cluster.refuse = Died()
        await operator.until(lambda: False)

    async def launches(operator: Operator) -> None:
        world.cluster.refuse = None
        await operator.rest()
        assert len(world.cluster.apps) == 1
        assert taken() == (job, 9)
        world.cluster.says("FAILED")
        await operator.until(lambda: told()["reason"] == "SnapshotFailed")

    world.run(dies)
    job, _ = taken()
    assert (job.state, job.attempt, job.spec["as_of"]) == (JobState.RUNNING, 1, 9)
    world.write(10, 5000)
    world.run(launches)
    job, since = taken()
    assert (job.state, job.attempt, since) == (JobState.FAILED, 1, 4998)
    assert told()["status"] == "False"
    assert "it can't be retried: time 9 is gone, the earliest readable time is 4998" in (told()["message"])


def test_the_files_of_a_snapshot_are_deleted_only_with_the_credentials_of_its_catalog(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the operator may do more. It uses them only if nothing names others."""
    catalog_path = resource_type(CATALOG.kind).path("ns", "demo")
    catalog = world.cluster.objects[catalog_path]
    storage = {"url": "s3://tenant/x", "credentialsSecretRef": {"name": "s3"}}
    secret = {"AWS_ACCESS_KEY_ID": "VEVOQU5U", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0LTEyMzQ1Njc4"}
    used: list[Json | None] = []
    own = job_id("c1", "snapshot", slot_of("u1"))

    class Folder:
        def __init__(self, _: str, credentials: Json | None) -> None:
            self.credentials = credentials

        def remove(self) -> None:
            used.append(self.credentials)

    monkeypatch.setattr(snapshot_handler, "folder_at", Folder)

    def delete(spec: Json, *, has_secret: bool = True) -> str:
        """What the snapshot shows, or empty once it is gone."""
        snapshot = {"name": "one", "namespace": "ns", "uid": "u1", "finalizers": [FINALIZER]}
        world.cluster.put(catalog_path, {**catalog, "spec": {**catalog["spec"], "storage": storage, **spec}})
        world.cluster.objects.pop(SECRETS.path("ns", "s3"), None)
        if has_secret:
            world.cluster.put(SECRETS.path("ns", "s3"), {"metadata": {"name": "s3"}, "data": secret})
        world.cluster.put(
            SNAPSHOT_PATH,
            {
                "metadata": {**snapshot, "deletionTimestamp": world.clock.wall().isoformat()},
                "spec": {
                    "collectionRef": {"name": "flights"},
                    "destination": "s3://tenant/out",
                    "deletionPolicy": "Delete",
                },
                "status": {
                    "completionTime": "2026-01-01T00:00:00Z",
                    "collectionId": "c1",
                    "location": f"s3://tenant/out/{own}/attempt-1",
                },
            },
        )

        async def story(operator: Operator) -> None:
            await operator.rest()
            if SNAPSHOT_PATH not in world.cluster.objects:
                await operator.snapshots.reconcile(SNAPSHOT)

        world.run(story)
        left = world.cluster.objects.get(SNAPSHOT_PATH, {"status": {"conditions": []}})
        told = (each["message"] for each in left["status"]["conditions"] if each["type"] == "Stalled")
        return next(told, "")

    waits = delete({}, has_secret=False)
    assert "'s3' is not in this namespace; create it" in waits
    assert "kubectl holdfast abandon" in waits
    assert "unknown to this operator" in delete({"storage": {**storage, "new": 1}})
    assert not used
    assert delete({"new": 1}) == ""
    assert used
    assert all(each is not None and each["AWS_ACCESS_KEY_ID"] == "TENANT" for each in used)
    # What hides the Secret in the log does not outlive the snapshot.
    assert redact("secret-12345678") == "secret-12345678"
    used.clear()
    assert delete({"storage": {"url": "s3://tenant/x"}}) == ""
    assert set(map(str, used)) == {"None"}


def test_what_a_source_keeps_is_named_if_no_job_could_delete_it(tmp_path: Path) -> None:
    world = World((tmp_path / "store").as_uri())
    source = {"kafka": {"bootstrapServers": "kafka:9092", "topic": "orders"}, "format": {"json": {}}}
    world.change(source=source, deletionPolicy="Delete")

    async def story(operator: Operator) -> None:
        await operator.until(lambda: world.said.startswith("Available"))
        world.cluster.refuse = AdmissionDenied("403 exceeded quota: spark")
        world.delete()
        await operator.until(lambda: world.gone)

    world.run(story)
    events = [body for path, body in world.cluster.objects.items() if "/events/" in path]
    (left,) = (body["message"] for body in events if body["reason"] == "SourceLeft")
    assert "403 exceeded quota" in left
