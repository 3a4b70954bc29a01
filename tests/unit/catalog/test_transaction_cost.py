"""What a transaction costs: the objects that it touches, whatever else the catalog holds.

Counted are the calls that decode and encode messages, and what is copied, never time.
"""

import sys
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, Object, OpenMode, catalog_shard_id, persist_catalog
from holdfast.catalog.objects import codec
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.packed import PackedRows
from holdfast.catalog.objects.registry import AUDIT_LOG, ITEMS
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.transaction import Transaction
from holdfast.errors import UniquenessViolation
from holdfast.persist import PersistClient, PersistConfig

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
FIRST_ID = 1_000_000
SMALL, LARGE = 2_000, 100_000
COUNTED = {
    codec._decode.__code__: "decoded",
    codec.known.__code__: "decoded",
    codec.known_value.__code__: "decoded",
    codec.encode_message.__code__: "encoded",
    PackedRows._key.__code__: "looked at",
}


def item(number: int, name: str = "", definition: str = "") -> Object[pb.ItemKey, pb.ItemValue]:
    value = pb.ItemValue(
        schema_id=pb.ObjectId(user=1), name=name or f"t{number}", type=3, definition=definition
    )
    return Object(pb.ItemKey(id=pb.ObjectId(user=FIRST_ID + number)), value)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often messages are decoded and encoded, and loaded rows looked at, in the block."""
    found = Counter[str]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in COUNTED:
            found[COUNTED[frame.f_code]] += 1

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)


def catalog_of(size: int) -> tuple[PersistClient, Catalog]:
    """A catalog that was loaded with so many items."""
    client = PersistClient.open(f"memory://{uuid.uuid4()}", config=PersistConfig(maintenance="off"))
    openable = persist_catalog(client, ORG)
    openable.initialize(holder="me", purpose="test")
    shard = CatalogShard(client, catalog_shard_id(ORG), purpose="test")
    items = (item(number) for number in range(size))
    shard.append((RowUpdate(encode(ITEMS, found.key, found.value), 1) for found in items), 1)
    return client, openable.open(OpenMode.WRITABLE, holder="me", purpose="test")


@pytest.fixture(scope="module")
def catalogs() -> Iterator[dict[int, Catalog]]:
    """A small one, of which the items are packed too, and one with fifty times as many."""
    opened = {size: catalog_of(size) for size in (SMALL, LARGE)}
    yield {size: catalog for size, (_, catalog) in opened.items()}
    for client, _ in opened.values():
        client.close()


def rename(catalog: Catalog, number: int) -> None:
    with catalog.transaction() as tx:
        tx.update(ITEMS, *pair(item(number, f"renamed{number}")))
        catalog.commit_transaction(tx)


def pair(object_: Object[pb.ItemKey, pb.ItemValue]) -> tuple[pb.ItemKey, pb.ItemValue]:
    return object_.key, object_.value


def insert_audited(catalog: Catalog, number: int) -> None:
    with catalog.transaction() as tx:
        (id_,) = tx.allocate_ids(IdKind.USER_ITEM)
        tx.insert(ITEMS, *pair(item(id_ + 2_000_000)))
        tx.audit(
            pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
            pb.ObjectType.OBJECT_TYPE_COLLECTION,
            f"u{number}",
            "name",
        )
        catalog.commit_transaction(tx)


def refused(catalog: Catalog, number: int) -> None:
    with catalog.transaction() as tx:
        tx.update(ITEMS, *pair(item(number, f"t{number + 1}")))
        with pytest.raises(UniquenessViolation):
            catalog.commit_transaction(tx)


def ensure(catalog: Catalog, number: int) -> None:
    catalog.ensure_item("holdfast", "public", f"made{number}")
    catalog.drop_item("holdfast", "public", f"made{number}")


def swap(catalog: Catalog, number: int) -> None:
    with catalog.transaction() as tx:
        tx.update(ITEMS, *pair(item(number, f"t{number + 1}")))
        tx.update(ITEMS, *pair(item(number + 1, f"t{number}")))
        catalog.commit_transaction(tx)


@pytest.mark.parametrize("work", [rename, insert_audited, refused, ensure, swap])
def test_the_work_of_a_transaction_does_not_depend_on_the_size_of_the_catalog(
    catalogs: dict[int, Catalog], work: Callable[[Catalog, int], None]
) -> None:
    costs = []
    number = 10 * (1 + [rename, insert_audited, refused, ensure, swap].index(work))
    for catalog in catalogs.values():
        with counted() as cost:
            work(catalog, number)
        costs.append(cost)
    small, large = costs
    assert small == large
    assert 0 < large["encoded"] < 60
    assert 0 < large["decoded"] < 60


def test_a_transaction_takes_memory_for_what_it_touches(catalogs: dict[int, Catalog]) -> None:
    catalog = catalogs[LARGE]
    rename(catalog, 0)  # what is imported or kept once
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        rename(catalog, 1)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One pointer for each object would be 800 kB.
    assert peak - before < 200_000
    assert after - before < 50_000


def test_following_a_change_costs_the_change(catalogs: dict[int, Catalog]) -> None:
    costs = []
    for catalog in catalogs.values():
        client = catalog._store._client  # type: ignore[attr-defined]
        reader = persist_catalog(client, ORG).open(OpenMode.READ_ONLY)
        subscription = reader.subscribe()
        with counted() as cost:
            rename(catalog, 60)
            reader.sync()
            changes = subscription.next(60)
        assert [(found.object.value.name, found.diff) for found in changes] == [("t60", -1), ("renamed60", 1)]
        costs.append(cost)
        subscription.close()
        reader.close()
    assert costs[0] == costs[1]
    assert costs[1]["decoded"] < 60


def test_a_large_transaction_costs_in_proportion(catalogs: dict[int, Catalog]) -> None:
    """Each object some calls, also where each is looked for among the changes before it is inserted."""
    catalog = catalogs[SMALL]
    per_object = []
    for start, size in ((500_000, 100), (600_000, 4_000)):
        with counted() as cost, catalog.transaction() as tx:
            for number in range(start, start + size):
                key, value = pair(item(number))
                assert tx.find(ITEMS, value) is None
                tx.insert(ITEMS, key, value)
            catalog.commit_transaction(tx)
        per_object.append({what: found / size for what, found in cost.items()})
    small, large = per_object
    for what, found in large.items():
        assert found < small[what] + 1
    assert large["decoded"] < 10
    assert large["encoded"] < 10
    found = Transaction(catalog._cache).find(ITEMS, item(603_999).value)  # type: ignore[attr-defined]
    assert found is not None
    assert found.key == item(603_999).key


def test_a_large_batch_is_there_whole_for_everyone(catalogs: dict[int, Catalog]) -> None:
    catalog = catalogs[SMALL]
    known = catalog.object_counts()
    size = 5_000
    with catalog.transaction() as tx:
        for number in range(700_000, 700_000 + size):
            tx.insert(ITEMS, *pair(item(number)))
            tx.audit(
                pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
                pb.ObjectType.OBJECT_TYPE_COLLECTION,
                f"u{number}",
                "name",
            )
        catalog.commit_transaction(tx)
    expected = known | {"items": known["items"] + size, "audit_log": known["audit_log"] + size}
    client = catalog._store._client  # type: ignore[attr-defined]
    with persist_catalog(client, ORG).open(OpenMode.READ_ONLY) as reader:
        assert catalog.object_counts() == reader.object_counts() == expected
        assert sum(1 for _ in reader.stream(AUDIT_LOG)) == expected["audit_log"]
        assert sorted(reader._cache.rows()) == sorted(catalog._cache.rows())  # type: ignore[attr-defined]
