"""Ids and allocators: they skip used ids, and never go back."""

from collections.abc import Callable

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.cache import Cache
from holdfast.catalog.objects.allocation import APPENDED, KEYED, key_with
from holdfast.catalog.objects.codec import encode, encode_key
from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    ID_ALLOCATORS,
    ITEMS,
    OBJECT_TYPES,
    ROLES,
    STORAGE_USAGE,
    TIMESTAMPS,
)
from holdfast.catalog.transaction import Transaction
from holdfast.errors import BadInput, UniquenessViolation

ITEM_IDS = pb.IdAllocatorKey(name=IdKind.USER_ITEM)


def allocator(kind: IdKind, next_id: int) -> tuple[pb.IdAllocatorKey, pb.IdAllocatorValue]:
    return pb.IdAllocatorKey(name=kind), pb.IdAllocatorValue(next_id=next_id)


def item(number: int) -> tuple[pb.ItemKey, pb.ItemValue]:
    return pb.ItemKey(id=pb.ObjectId(user=number)), pb.ItemValue(name=f"item {number}")


def committed(cache: Cache, change: Callable[[Transaction], object]) -> None:
    tx = Transaction(cache)
    change(tx)
    cache.apply(tx.updates())


def test_every_kind_of_id_is_that_of_one_object_type() -> None:
    assert sorted([*KEYED, *APPENDED.values()]) == sorted(IdKind)
    assert set(APPENDED) == {row.kind for row in OBJECT_TYPES.values() if row.append_only}
    for kind, (collection, field) in KEYED.items():
        assert kind == f"{field}_{collection.name.removeprefix('cluster_').removesuffix('s')}"
    assert key_with(IdKind.USER_ITEM, 7) == encode_key(ITEMS, item(7)[0])
    assert key_with(IdKind.SYSTEM_ROLE, 7) == encode_key(ROLES, pb.RoleKey(id=pb.RoleId(system=7)))


def test_an_append_only_object_is_new_by_its_id() -> None:
    cache = Cache([encode(ID_ALLOCATORS, *allocator(IdKind.STORAGE_USAGE, 5))])

    def insert(tx: Transaction, number: int) -> None:
        tx.insert(STORAGE_USAGE, pb.StorageUsageKey(id=number), pb.StorageUsageValue(size_bytes=1))

    tx = Transaction(cache)
    for number in (0, 1, 4):
        with pytest.raises(UniquenessViolation, match="ids below 5 are used"):
            insert(tx, number)
    assert tx.updates() == ()
    first, second = tx.allocate_ids(IdKind.STORAGE_USAGE, 2)
    insert(tx, second)
    insert(tx, first)
    with pytest.raises(UniquenessViolation):
        insert(tx, second)
    insert(tx, 20)
    assert tx.allocate_ids(IdKind.STORAGE_USAGE) == [21]
    with pytest.raises(BadInput, match="no id could follow it"):
        insert(tx, (1 << 64) - 1)
    cache.apply(tx.updates())
    with pytest.raises(UniquenessViolation):
        insert(Transaction(cache), 20)
    assert cache.counts()["storage_usage"] == 3


def test_what_a_repair_puts_beyond_an_allocator_moves_it() -> None:
    tx = Transaction(Cache())
    tx.dangerous_put(AUDIT_LOG, pb.AuditLogKey(id=9), pb.AuditLogValue())
    assert tx.allocate_ids(IdKind.AUDIT_LOG) == [10]
    tx.dangerous_put(AUDIT_LOG, pb.AuditLogKey(id=30), None)
    assert tx.allocate_ids(IdKind.AUDIT_LOG) == [11]


def test_ids_that_objects_have_already_are_skipped() -> None:
    cache = Cache([encode(ITEMS, *item(number)) for number in (1, 3, 4)])
    tx = Transaction(cache)
    tx.insert(ITEMS, *item(6))
    assert tx.allocate_ids(IdKind.USER_ITEM, 3) == [2, 5, 7]
    tx.delete(ITEMS, item(3)[0])
    assert tx.allocate_ids(IdKind.USER_ITEM) == [8]
    assert tx.allocate_ids(IdKind.SYSTEM_ITEM, 2) == [1, 2]
    assert tx.allocate_ids(IdKind.USER_ROLE, 2) == [1, 2]
    assert tx.allocate_ids(IdKind.USER_ITEM, 0) == []


def test_ids_end_where_the_last_ones_are_taken() -> None:
    last = (1 << 64) - 2
    cache = Cache([encode(ID_ALLOCATORS, *allocator(IdKind.USER_ITEM, last)), encode(ITEMS, *item(last))])
    with pytest.raises(BadInput, match="used up"):
        Transaction(cache).allocate_ids(IdKind.USER_ITEM)


@pytest.mark.parametrize(
    "change",
    [
        lambda tx: tx.set(ID_ALLOCATORS, *allocator(IdKind.USER_ITEM, 8)),
        lambda tx: tx.update(ID_ALLOCATORS, *allocator(IdKind.USER_ITEM, 0)),
        lambda tx: tx.delete(ID_ALLOCATORS, ITEM_IDS),
        lambda tx: tx.set(TIMESTAMPS, pb.TimestampKey(timeline="t"), pb.TimestampValue(ts=99)),
        lambda tx: tx.update(TIMESTAMPS, pb.TimestampKey(timeline="t"), pb.TimestampValue(ts=0)),
        lambda tx: (
            tx.delete(TIMESTAMPS, pb.TimestampKey(timeline="t")),
            tx.insert(TIMESTAMPS, pb.TimestampKey(timeline="t"), pb.TimestampValue(ts=99)),
        ),
    ],
)
def test_nothing_goes_back(change: Callable[[Transaction], object]) -> None:
    cache = Cache()
    committed(cache, lambda tx: tx.set(ID_ALLOCATORS, *allocator(IdKind.USER_ITEM, 9)))
    committed(cache, lambda tx: tx.set(TIMESTAMPS, pb.TimestampKey(timeline="t"), pb.TimestampValue(ts=100)))
    with pytest.raises(BadInput, match=r"can't go back|can't be deleted") as caught:
        change(Transaction(cache))
    assert "\n" not in str(caught.value)
    committed(cache, lambda tx: tx.set(ID_ALLOCATORS, *allocator(IdKind.USER_ITEM, 9)))
    committed(cache, lambda tx: tx.set(TIMESTAMPS, pb.TimestampKey(timeline="t"), pb.TimestampValue(ts=101)))


def test_a_transaction_does_not_take_back_what_it_has_allocated() -> None:
    tx = Transaction(Cache())
    tx.allocate_ids(IdKind.USER_ITEM, 5)
    with pytest.raises(BadInput, match="is at 6 and can't go back to 3"):
        tx.set(ID_ALLOCATORS, *allocator(IdKind.USER_ITEM, 3))
