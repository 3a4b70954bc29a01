"""The operator keeps a Catalog before it does anything that only the Catalog's deletion undoes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast_operator.api.names import FINALIZER, Kind
from holdfast_operator.catalogs.claims import new_cache
from holdfast_operator.catalogs.facts import CatalogView
from holdfast_operator.catalogs.handler import CatalogHandler
from holdfast_operator.catalogs.keeping import is_loose, keep_catalog
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import plan as collection
from holdfast_operator.collections.facts import CatalogState, CollectionView
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.handler import OperatorSettings
from holdfast_operator.engine.kube import Conflict, Forbidden, Gone, KubeError, ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.steps import Decision, Free, Keep, KeepCatalog, Release, Settle, ready
from holdfast_operator.jobs.steps import StartJob
from holdfast_operator.migrations import plan as migration
from holdfast_operator.migrations.facts import MigrationView
from holdfast_operator.migrations.moves import Migrations
from holdfast_operator.places.long_calls import LongCalls
from holdfast_operator.places.pool import StorePool
from unit.operator.collections import test_plan as collections
from unit.operator.engine.oneobject import KEY, OneObject, services
from unit.operator.jobs import test_compaction as compactions
from unit.operator.migrations import test_plan as migrations

RHYTHM = collections.RHYTHM
MOVE = replace(migrations.FRESH, catalog_loose=True)
DOOMED = replace(
    collections.FRESH, spec=collections.spec(deletionPolicy="Delete"), asks_to_delete=True, catalog_loose=True
)
SUSPENDED = collections.spec(deletionPolicy="Delete", suspend=True)
FLIGHTS = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights")


@pytest.mark.parametrize(
    "seen",
    [
        MOVE,
        migrations.asked(MOVE, suspend=True),
        replace(migrations.asked(MOVE, suspend=True), state=migrations.RUNNING),
        replace(MOVE, state=None, trouble=migrations.stalled(migrations.Reason.STORE_UNREACHABLE, "x")),
        replace(migrations.BEGUN, catalog_loose=True),
    ],
)
def test_a_migration_shows_and_does_nothing_before_its_catalog_is_kept(seen: MigrationView) -> None:
    assert migration.plan(replace(seen, has_finalizer=False), RHYTHM) == Keep()
    assert migration.plan(seen, RHYTHM) == KeepCatalog()
    assert migration.plan(replace(seen, catalog_loose=False), RHYTHM) != KeepCatalog()
    assert migration.plan(replace(seen, needs_finalizer=False), RHYTHM) != KeepCatalog()


@pytest.mark.parametrize(
    "seen",
    [
        DOOMED,
        replace(DOOMED, spec=SUSPENDED),
        replace(DOOMED, catalog=CatalogState.CLOSED),
        replace(DOOMED, catalog=CatalogState.OPENING),
        replace(DOOMED, catalog_observed=True),
        replace(DOOMED, item_id="u1", collection_id="c1", facts=collections.FACTS),
    ],
)
def test_a_doomed_collection_shows_and_makes_nothing_before_its_catalog_is_kept(
    seen: CollectionView,
) -> None:
    fresh = replace(seen, has_finalizer=False)
    assert collection.plan(fresh, RHYTHM) == KeepCatalog()
    assert collection.plan(replace(fresh, catalog_loose=False), RHYTHM) == Keep()
    # Somebody removed the finalizer of the Catalog.
    assert collection.plan(seen, RHYTHM) == KeepCatalog()
    assert collection.plan(replace(seen, catalog_loose=False), RHYTHM) != KeepCatalog()
    assert collection.plan(replace(seen, needs_finalizer=False), RHYTHM) != KeepCatalog()


def test_a_job_is_not_begun_before_the_catalog_is_kept() -> None:
    seen = replace(collections.THERE, asked=(compactions.ASKED,), needs_finalizer=False)
    decided = [
        collection.plan(replace(seen, has_finalizer=held, catalog_loose=loose), RHYTHM)
        for held, loose in ((False, True), (False, False), (True, True), (True, False))
    ]
    assert decided[:3] == [KeepCatalog(), Keep(), KeepCatalog()]
    assert isinstance(decided[3], StartJob)


@pytest.mark.parametrize("fields", [{}, {"suspend": True}, {"rollback": True}, {"dryRun": True}], ids=str)
@pytest.mark.parametrize("since", [None, migrations.NOW])
def test_a_migration_never_waits_for_a_catalog_that_went_first(fields: dict[str, Any], since: Any) -> None:
    """It may have its own finalizer before its Catalog has one. `since` is when it began by its status."""
    before = migrations.asked(MOVE, **fields)
    shown = before.shown.model_copy(update={"start_time": since})
    gone = replace(
        before,
        deleting=True,
        shown=shown,
        state=None,
        move=None,
        catalog_loose=False,
        catalog_missing=True,
        no_catalog=migrations.stalled(migrations.Reason.CATALOG_NOT_FOUND, "none"),
    )
    step = migration.plan(gone, RHYTHM)
    assert isinstance(step, Release)
    unknown = since is not None and not fields.get("dryRun")
    assert [note.reason for note in step.notes] == [migrations.Reason.DELETION_INCOMPLETE] * unknown


@pytest.mark.parametrize("deleting", [False, True])
def test_only_a_catalog_that_stays_without_our_finalizer_is_loose(*, deleting: bool) -> None:
    assert is_loose(OneObject(["theirs"], deleting=deleting).body) is not deleting
    assert not is_loose(OneObject([FINALIZER], deleting=deleting).body)


def test_a_catalog_is_kept_and_others_finalizers_stay() -> None:
    server, seen = OneObject(["theirs"]), list[Any]()
    asyncio.run(keep_catalog(services(server, seen), KEY))
    assert server.metadata["finalizers"] == ["theirs", FINALIZER]
    assert [each["metadata"]["resourceVersion"] for each in seen] == ["2"]
    asyncio.run(keep_catalog(services(server, seen), KEY))
    assert len(seen) == 1


@pytest.mark.parametrize("refusal", [Conflict("409"), Gone("404")], ids=str)
def test_a_catalog_that_changed_meanwhile_is_looked_at_again(refusal: KubeError) -> None:
    server, seen = OneObject([]), list[Any]()
    server.refusals.append(refusal)
    asyncio.run(keep_catalog(services(server, seen), KEY))
    assert (server.metadata["finalizers"], seen) == ([], [])


def test_a_catalog_that_cannot_be_kept_is_an_error() -> None:
    server = OneObject([])
    server.refusals.append(Forbidden("403: catalogs may not be patched"))
    with pytest.raises(Forbidden):
        asyncio.run(keep_catalog(services(server, []), KEY))
    with pytest.raises(KubeError, match="admission webhook"):
        asyncio.run(keep_catalog(services(Stripping([]), []), KEY))


class Stripping(OneObject):
    """Takes every finalizer off what is written."""

    async def request(self, method: str, path: str, *, query: Any = None, body: Any = None) -> Any:
        if method == "PATCH":
            body["metadata"]["finalizers"] = []
        return await super().request(method, path, query=query, body=body)


class Slow(OneObject):
    """Writes only when it is let."""

    def __init__(self) -> None:
        super().__init__([FINALIZER])
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def request(self, method: str, path: str, *, query: Any = None, body: Any = None) -> Any:
        if method == "PATCH" and not path.endswith("/status"):
            self.asked.set()
            await self.may.wait()
        return await super().request(method, path, query=query, body=body)


class Freed(CatalogHandler):
    """Takes the finalizer off, and shows that then all is well."""

    async def observe(self, key: ObjectKey, body: Any) -> CatalogView:
        return body  # type: ignore[no-any-return]

    def plan(self, observed: Any) -> Decision:
        return Free() if FINALIZER in observed["metadata"]["finalizers"] else Settle(ready("fine"))


def freed(server: OneObject, cache: ObjectCache) -> Freed:
    metrics = Metrics()
    pool, long = StorePool(metrics), LongCalls(metrics, lambda _: None)
    stores = Stores(pool, long)
    settings = OperatorSettings("me", None, storage_shared=False, rhythm=RHYTHM)
    return Freed(services(server, []), stores, cache, settings, Migrations(pool, long, stores))


def flights(*finalizers: str, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "flights", "finalizers": list(finalizers)}
    return {"metadata": metadata, "spec": {"catalogRef": {"name": "demo"}, **spec}}


def test_a_catalog_that_is_needed_since_it_was_looked_at_is_not_let_go() -> None:
    server, cache = OneObject([FINALIZER]), new_cache(None)
    deleting = flights(deletionPolicy="Delete")
    deleting["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    for needing in (flights(FINALIZER), flights(deletionPolicy="Delete")):
        cache.put(FLIGHTS, needing)
        result = asyncio.run(freed(server, cache).reconcile(KEY))
        assert (server.metadata["finalizers"], result.requeue_after) == ([FINALIZER], 0.0)
    cache.put(FLIGHTS, deleting)
    asyncio.run(freed(server, cache).reconcile(KEY))
    assert server.metadata["finalizers"] == []


def test_who_comes_to_need_a_catalog_waits_for_the_write_that_lets_it_go() -> None:
    async def race() -> list[bool]:
        server, cache = Slow(), new_cache(None)
        letting = asyncio.create_task(freed(server, cache).reconcile(KEY))
        await server.asked.wait()
        cache.put(FLIGHTS, flights(FINALIZER))
        looking = asyncio.create_task(cache.freed(KEY))
        await asyncio.sleep(0)
        waits = not looking.done()
        server.may.set()
        await looking
        loose = is_loose(server.body)
        await letting
        await cache.freed(KEY)
        return [waits, loose]

    assert asyncio.run(race()) == [True, True]


def test_a_resource_that_is_about_to_start_a_job_needs_its_catalog_until_it_changes() -> None:
    cache, body = new_cache(None), flights()
    body["metadata"]["resourceVersion"] = "1"
    cache.need_catalog(FLIGHTS)
    cache.put(FLIGHTS, body)
    assert not cache.is_needed(KEY)
    cache.need_catalog(FLIGHTS)
    cache.put(FLIGHTS, body)
    assert cache.is_needed(KEY)
    body["metadata"]["resourceVersion"] = "2"
    cache.put(FLIGHTS, body)
    assert not cache.is_needed(KEY)


@pytest.mark.parametrize("kind", [Kind.STORAGE_COLLECTION, Kind.CATALOG_MIGRATION])
def test_what_is_not_understood_keeps_its_catalog_too(kind: Kind) -> None:
    cache = new_cache(None)
    cache.put(ObjectKey(kind, "ns", "x"), flights(FINALIZER, nonsense=True))
    assert cache.is_needed(KEY)
    cache.put(ObjectKey(kind, "ns", "x"), {**flights(FINALIZER), "spec": {}})
    assert not cache.is_needed(KEY)
