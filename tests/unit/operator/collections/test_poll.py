"""An idle resource is checked only if its store has something new."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores import Head
from holdfast.persist.stores.sqlite import SqliteConsensus
from holdfast.persist.upkeep.rollup import write_rollup
from holdfast_operator.api.names import Kind
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import Basis, ItemName
from holdfast_operator.collections.item_definition import item_definition
from holdfast_operator.collections.poll import Poll, Watchlist
from holdfast_operator.collections.reading import changed
from holdfast_operator.collections.steps import CreateCollection, EnsureItem
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.long_calls import LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import Storage

SCHEMA = Schema.of(key={"id": "int64"}, value={})
NAMES = ("flights", "airports", "planes")
CATALOG = ObjectKey(Kind.CATALOG, "ns", "demo")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[OpenCatalog]:
    """A catalog with three collections."""
    opening = Opening(
        Storage(url=f"file://{tmp_path}/store"), str(_uuid(0)), 0, "default", (), "me", "test", False
    )
    handle = OpenCatalog.open(opening)
    for name in NAMES:
        store.take(handle, EnsureItem(item(name), SCHEMA, 1))
        store.take(handle, CreateCollection(id_of(handle, name), item(name), SCHEMA, 1))
    yield handle
    handle.close()


def _uuid(number: int) -> str:
    return f"11111111-2222-3333-4444-{number:012}"


def item(name: str) -> ItemName:
    return ItemName("holdfast", "public", name)


def id_of(handle: OpenCatalog, name: str) -> str:
    found = store.look(handle, item(name)).collection_id
    assert found is not None
    return found


def key_of(name: str) -> ObjectKey:
    return ObjectKey(Kind.STORAGE_COLLECTION, "ns", name)


def at_rest(handle: OpenCatalog) -> dict[str, Basis]:
    """Look at all until there is nothing new: our own client's upkeep may come in between."""
    deadline = time.monotonic() + 60
    while True:
        looks = {name: basis for name in NAMES if (basis := store.look(handle, item(name)).basis)}
        if changed(handle.client, handle.controller, looks)[0] == ():
            return looks
        assert time.monotonic() < deadline, "there is always something new"
        threading.Event().wait(0.05)


def write(controller: StorageController, collection: str) -> None:
    writer = controller.writer(collection, purpose="test")
    rows = {"id": pa.array([1], pa.int64()), "_time": pa.array([7], pa.uint64())}
    writer.append(pa.table(rows), writer.upper(), 10)


CHANGES: dict[str, Callable[[StorageController, str], object]] = {
    "rows": write,
    "history": lambda c, id_: (write(c, id_), c.set_retention_hold(id_, 8)),
    "job": lambda c, id_: c.start_job(id_, "snapshot", "1", spec={}),
    "rendition": lambda c, id_: c.renditions.create(id_, shards=2),
    "suspect": lambda c, id_: c.renditions.suspect(id_, "r1", "it differs"),
    "reader": lambda c, id_: c.reader(id_, purpose="a report"),
    "hold": lambda c, id_: c.hold(id_, "backup"),
    "columns": lambda c, id_: c.evolve_collection(
        id_, Schema.of(key={"id": "int64"}, value={"n": "string?"})
    ),
    "drop": lambda c, id_: c.drop_collection(id_, force=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_others_change_is_new_until_it_is_looked_at(
    catalog: OpenCatalog, change: Callable[[StorageController, str], object]
) -> None:
    looks = at_rest(catalog)
    url = catalog.opening.storage.url
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        controller = StorageController(client)
        kept = change(controller, id_of(catalog, "airports"))
        # Nor is one new that nobody looked at yet.
        controller.create_collection(CollectionSpec(_uuid(9), "other", SCHEMA))
        for _ in range(2):
            assert "airports" in changed(catalog.client, catalog.controller, looks)[0]
        at_rest(catalog)
        del kept


def test_upkeep_and_heartbeats_make_nothing_new(catalog: OpenCatalog) -> None:
    """A thousand collections were looked at because their shards had got their first rollups."""
    url = catalog.opening.storage.url
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        controller = StorageController(client)
        reader = controller.reader(id_of(catalog, "airports"), purpose="a report")
        info = controller.describe(id_of(catalog, "airports"))
        looks = at_rest(catalog)
        shards = (info.metadata_shard, *info.data_shards)
        before = client.versions(shards)
        for shard in shards:
            write_rollup(client.session.machine(shard))
        for handle in client.session.maintainer._readers:
            handle.heartbeat()
        after = client.versions(shards)
        assert all(after[shard] > before[shard] for shard in shards)
        found, same = changed(catalog.client, catalog.controller, looks)
        assert found == ()
        # With the new bases, nobody looks into these versions again.
        assert set(after.values()) <= set(same["airports"].versions)
        looks |= same
        assert changed(catalog.client, catalog.controller, looks) == ((), {})
        write(controller, info.collection_id)
        assert changed(catalog.client, catalog.controller, looks) == (("airports",), {})
        reader.close()


def test_a_resync_finds_what_has_changed_in_the_catalog_and_nothing_else(catalog: OpenCatalog) -> None:
    """Only that asks for the items: nobody else writes a catalog that is open here."""

    async def story() -> None:
        metrics = Metrics()
        pool = StorePool(metrics)
        stores = Stores(pool, LongCalls(metrics, lambda _: None))
        watchlist = Watchlist(stores)
        stores.adopt(CATALOG, catalog)
        for name in NAMES:
            await watchlist.look(CATALOG, key_of(name), item(name))
        while again := await watchlist.changed(CATALOG):
            # Our own client's upkeep.
            for key in again:
                await watchlist.look(CATALOG, key, item(key.name))
        assert [watchlist.covers(key_of(name)) for name in (*NAMES, "others")] == [True] * 3 + [False]
        assert await watchlist.changed(CATALOG, items=True) == ()
        catalog.edit(lambda there: there.drop_item("holdfast", "public", "airports"))
        definition = item_definition(SCHEMA, 7)
        catalog.edit(lambda there: there.ensure_item("holdfast", "public", "planes", definition=definition))
        found = await watchlist.changed(CATALOG, items=True)
        assert set(found) == {key_of("airports"), key_of("planes")}
        await watchlist.look(CATALOG, key_of("airports"), item("airports"))
        assert not watchlist.covers(key_of("airports")), "there is nothing to compare"
        pool.close()

    asyncio.run(story())


def test_what_a_new_process_looked_at_first_is_not_new(catalog: OpenCatalog) -> None:
    """After a restart, a basis without versions had every collection looked at twice."""
    at_rest(catalog)
    catalog.close()
    again = OpenCatalog.open(catalog.opening)
    looks = {name: basis for name in NAMES if (basis := store.look(again, item(name)).basis)}
    assert changed(again.client, again.controller, looks) == ((), {})
    again.close()


def test_a_look_reads_the_log_twice(catalog: OpenCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the leadership, and once for the records and all shards together."""
    at_rest(catalog)
    reads = counted_heads(monkeypatch)
    for number, name in enumerate(NAMES, 1):
        assert store.look(catalog, item(name)).facts is not None
        assert len(reads) == 2 * number


def test_a_poll_of_a_store_that_nobody_wrote_to_compares_nothing(
    catalog: OpenCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        metrics = Metrics()
        pool = StorePool(metrics)
        stores = Stores(pool, LongCalls(metrics, lambda _: None))
        watchlist = Watchlist(stores)
        stores.adopt(CATALOG, catalog)
        await rest(watchlist)
        reads = counted_heads(monkeypatch)
        assert await watchlist.changed(CATALOG) == ()
        assert reads == []
        # The leadership is always confirmed with the items, even if there is nothing to compare.
        assert await watchlist.changed(CATALOG, items=True) == ()
        assert len(reads) == 1
        collection = id_of(catalog, "airports")
        with PersistClient.open(catalog.opening.storage.url) as client:
            write(StorageController(client), collection)
        for _ in range(2):
            assert await watchlist.changed(CATALOG) == (key_of("airports"),)
        await rest(watchlist)
        reads.clear()
        assert await watchlist.changed(CATALOG) == ()
        assert reads == []
        # A look may show what a poll has not compared.
        await watchlist.look(CATALOG, key_of("planes"), item("planes"))
        reads.clear()
        assert await watchlist.changed(CATALOG) == ()
        assert reads != []
        # Another handle has another store, whose marks are not those of the first.
        await stores.close(CATALOG)
        again = OpenCatalog.open(catalog.opening)
        stores.adopt(CATALOG, again)
        reads.clear()
        await watchlist.changed(CATALOG)
        assert reads != []
        await stores.close(CATALOG)
        pool.close()

    asyncio.run(story())


async def rest(watchlist: Watchlist) -> None:
    """Look at all until a poll finds nothing new: our own client's upkeep may come in between."""
    new: tuple[ObjectKey, ...] = tuple(map(key_of, NAMES))
    while new:
        for key in new:
            await watchlist.look(CATALOG, key, item(key.name))
        new = await watchlist.changed(CATALOG, items=True)


def counted_heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many heads each further read of a log asks for."""
    reads, heads = list[int](), SqliteConsensus.heads

    def counted(self: SqliteConsensus, keys: Sequence[str], *args: Any) -> dict[str, Head]:
        reads.append(len(keys))
        return heads(self, keys, *args)

    monkeypatch.setattr(SqliteConsensus, "heads", counted)
    return reads


def test_a_collection_is_listed_with_the_catalog_that_it_was_last_looked_at_in(catalog: OpenCatalog) -> None:
    other = ObjectKey(Kind.CATALOG, "ns", "other")

    async def story() -> None:
        metrics = Metrics()
        pool = StorePool(metrics)
        stores = Stores(pool, LongCalls(metrics, lambda _: None))
        watchlist = Watchlist(stores)
        stores.adopt(CATALOG, catalog)
        stores.adopt(other, catalog)
        planes, flights = key_of("planes"), key_of("flights")
        for key, where in ((planes, CATALOG), (flights, CATALOG), (planes, other)):
            await watchlist.look(where, key, item(key.name))
        assert [watchlist.watched(each) for each in (CATALOG, other)] == [(flights,), (planes,)]
        catalog.edit(lambda there: there.drop_item("holdfast", "public", "planes"))
        assert planes in await watchlist.changed(other, items=True)
        assert planes not in await watchlist.changed(CATALOG, items=True)
        for _ in range(2):
            watchlist.forget(planes)
        assert (watchlist.watched(other), watchlist.covers(planes)) == ((), False)
        assert watchlist.covers(flights)
        pool.close()

    asyncio.run(story())


def test_a_tick_has_what_is_new_looked_at_and_all_where_that_cannot_be_told(catalog: OpenCatalog) -> None:
    file = Path(str(catalog.opening.storage.url).removeprefix("file://")) / "consensus.sqlite"
    collection = id_of(catalog, "airports")

    async def story() -> None:
        metrics, seen, stop = Metrics(), asyncio.Queue[ObjectKey](), asyncio.Event()
        pool = StorePool(metrics)
        stores = Stores(pool, LongCalls(metrics, seen.put_nowait))
        watchlist = Watchlist(stores)
        stores.adopt(CATALOG, catalog)
        for name in NAMES:
            await watchlist.look(CATALOG, key_of(name), item(name))
        watchlist.forget(key_of("planes"))
        poll = Poll(stores, watchlist, seen.put_nowait, SystemClock(), 0.01, 600.0)
        ticking = asyncio.create_task(poll.run(stop))
        with PersistClient.open(catalog.opening.storage.url) as client:
            await asyncio.to_thread(write, StorageController(client), collection)
        assert await asyncio.wait_for(seen.get(), 60) == key_of("airports")
        await watchlist.look(CATALOG, key_of("airports"), item("airports"))
        away = file.rename(file.with_suffix(".away"))
        found = set()
        while key_of("flights") not in found:
            found.add(await asyncio.wait_for(seen.get(), 60))
        assert found <= {key_of("airports"), key_of("flights")}
        away.rename(file)
        stop.set()
        await ticking
        pool.close()

    asyncio.run(story())


def test_a_basis_is_never_newer_than_what_was_seen_with_it(
    catalog: OpenCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads a newer version of a shard while a collection is looked at."""
    at_rest(catalog)
    id_ = id_of(catalog, "flights")
    read = catalog.controller.read_together
    with PersistClient.open(catalog.opening.storage.url, config=PersistConfig(maintenance="off")) as client:
        writes = iter([StorageController(client)])

        def read_late(collection_id: str) -> Any:
            found = read(collection_id)
            if (other := next(writes, None)) is not None:
                write(other, id_)
                info = found[0]
                catalog.client.recent_uppers([*info.data_shards, info.metadata_shard])
            return found

        monkeypatch.setattr(catalog.controller, "read_together", read_late)
        found = store.look(catalog, item("flights"))
        monkeypatch.undo()
    now = store.look(catalog, item("flights"))
    assert found.facts is not None
    assert now.facts is not None
    assert found.facts.upper == now.facts.upper
