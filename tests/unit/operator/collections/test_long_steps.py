"""Long steps on renditions: a step that only saves time never makes a collection unready."""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.collections import Recipe, StorageController
from holdfast.errors import StoreUnreachable
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.collections.long_steps import LongSteps
from holdfast_operator.collections.steps import CreateCollection, Erase, MakeDifference
from holdfast_operator.engine.handler import Halt
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.steps import Settle, ready
from holdfast_operator.places.long_calls import LongCalls, UnderWay
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import Storage

CATALOG = ObjectKey(Kind.CATALOG, "ns", "demo")
FLIGHTS = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights")
SCHEMA = Schema.of({"id": "int64"}, {"note": "string"})
ROWS = 5_000


def hand_over(url: str, collection: str) -> None:
    """To a rendition of other rows, which its source has written up to then."""
    client = PersistClient.open(url, config=PersistConfig(maintenance="off"))
    with StorageController(client) as controller:
        notes = [uuid.uuid4().hex for _ in range(ROWS)]
        rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "note": pa.array(notes)})
        controller.writer(collection, purpose="test").append(rows, 0, 10)
        controller.renditions.create(collection, shards=2, rendition_id="spec-2", recipe=Recipe.SOURCE)
        source = controller.rendition_writer(collection, "spec-2", purpose="test")
        source.append(rows.slice(1), 0, 10)
        source.seal(controller.renditions.hand_over(collection, "spec-2").held_from + 1)


def tell(story: Callable[[Stores], Awaitable[None]], *, patience: float = 60.0) -> None:
    """Run the story with the stores of a process."""

    async def run() -> None:
        metrics = Metrics()
        long = LongCalls(metrics, lambda _: None, patience=patience)
        pool = StorePool(metrics, deadline=60.0)
        stores = Stores(pool, long)
        try:
            await story(stores)
        finally:
            await stores.close_all()
            long.close()
            pool.close()

    asyncio.run(run())


@pytest.mark.parametrize("readable", [True, False])
def test_a_difference_that_can_not_be_made_stalls_nothing(tmp_path: Path, readable: bool) -> None:
    url = (tmp_path / "store").as_uri()
    opening = Opening(Storage(url=url), str(uuid.uuid4()), 0, "default", (), "me", "test")
    collection = str(uuid.uuid4())
    step = MakeDifference(collection, "spec-2", ready("retiring"), Settle(ready("retiring"), requeue_after=9))

    async def story(stores: Stores) -> None:
        await stores.open(CATALOG, opening)
        create = CreateCollection(collection, ItemName("holdfast", "public", "flights"), SCHEMA, 1)
        await stores.use(CATALOG, create.call, lambda handle: store.take(handle, create))
        await asyncio.to_thread(hand_over, url, collection)
        if not readable:
            parts = [path for path in (tmp_path / "store" / "blob").rglob("*") if path.is_file()]
            for path in parts:
                if path.name != "location.json":
                    path.unlink()
        steps = LongSteps(stores, None)
        if readable:
            await steps.take(FLIGHTS, step, CATALOG)
        else:
            with pytest.raises(Halt) as halt:
                await steps.take(FLIGHTS, step, CATALOG)
            assert step.resting is not None
            assert halt.value.outcome == replace(step.resting, retry=True)
            assert halt.value.outcome.health.reason is Reason.AVAILABLE
        look = await stores.use(
            CATALOG, "describe", lambda h: h.controller.describe(collection).holding.difference_shard
        )
        assert bool(look) is readable

    tell(story)


def test_a_deletion_of_data_that_takes_long_and_fails_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reconciliation of a deleted resource stops other long steps, but not this one."""
    url = (tmp_path / "store").as_uri()
    opening = Opening(Storage(url=url), str(uuid.uuid4()), 0, "default", (), "me", "test")
    step = Erase("c", "", ready("deleting"), Settle(ready("deleting"), requeue_after=9))
    begun, end = threading.Event(), threading.Event()
    calls = []

    def erase(_: object, collection_id: str) -> None:
        calls.append(collection_id)
        begun.set()
        assert end.wait(30)
        raise StoreUnreachable("the bucket does not respond")

    monkeypatch.setattr(StorageController, "erase_collection", erase)

    async def opened(stores: Stores) -> None:
        while True:
            try:
                return await stores.open(CATALOG, opening)
            except UnderWay:
                await asyncio.sleep(0.01)

    async def story(stores: Stores) -> None:
        await opened(stores)
        long = LongSteps(stores, None)
        with pytest.raises(Halt):
            await long.take(FLIGHTS, step, CATALOG)
        assert await asyncio.to_thread(begun.wait, 30)
        long.make_way(FLIGHTS)
        end.set()

        async def until_it_ends() -> None:
            while True:
                with contextlib.suppress(Halt):
                    await long.take(FLIGHTS, step, CATALOG)
                await asyncio.sleep(0.01)

        with pytest.raises(StoreUnreachable, match="does not respond"):
            await until_it_ends()

    tell(story, patience=0.1)
    assert calls == ["c"]
