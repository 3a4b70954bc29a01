"""The packed rows of a load: they are found again, and refused if they do not fit. One kind is read alone."""

import uuid
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import OpenMode, catalog_shard_id, persist_catalog
from holdfast.catalog.cache import APPEND_ONLY, Cache
from holdfast.catalog.objects.codec import Row, RowUpdate, encode, encode_key
from holdfast.catalog.objects.packed import Keys, PackedRows, Places, pack, rows_of
from holdfast.catalog.objects.registry import AUDIT_LOG, CONFIGS, ROLES, SETTINGS, STORAGE_USAGE, Kind
from holdfast.catalog.stores.persist import CatalogShard, ranges_with, ranges_without
from holdfast.catalog.stores.store import batch_of
from holdfast.catalog.transaction import Transaction
from holdfast.errors import CatalogOutOfSync, CorruptBlob, VersionTooNew
from holdfast.persist import KeyRange, PersistClient, PersistConfig

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")


@pytest.fixture(scope="module", autouse=True, params=["few", "packed"])
def _both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Few rows are not packed: here as they are, and packed all the same."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "packed":
            patch.setattr("holdfast.catalog.cache._FEW_ROWS", 0)
        yield


def role(number: int, name: str) -> Row:
    return encode(ROLES, pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=name))


def odd_role(number: int, name: str) -> Row:
    """The same role, its key written in another way."""
    row = role(number, name)
    return Row(row.key + row.key[2:], row.value)


def loaded(*batches: Iterable[Row]) -> Cache:
    return Cache.load(batch_of(rows) for rows in batches)


numbers = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(numbers, max_size=20))
def test_places_are_all_and_only_those_of_the_hash(hashes: list[int]) -> None:
    places = Places(array("q", hashes))
    for wanted in {*hashes, 0}:
        assert sorted(places.of(wanted)) == [n for n, found in enumerate(hashes) if found == hash(wanted)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12))
def test_twins_share_the_value_and_not_only_the_hash(rows: list[tuple[int, int]]) -> None:
    places = Places(array("q", [hash_ for hash_, _ in rows]))
    counts = Counter(rows)
    assert set(places.twins(rows.__getitem__)) == {row for row, count in counts.items() if count > 1}


def test_what_is_packed_is_found_by_its_key_and_by_what_is_unique() -> None:
    rows = [role(number, f"r{number}") for number in range(10_000)]
    packed, odd = pack(ROLES, [batch_of(rows[6_000:]), batch_of(rows[:6_000]), batch_of([])])
    assert (len(packed), odd, sorted(packed)) == (len(rows), [], sorted(rows))
    for number in (0, 4_095, 4_096, 5_999, 6_000, 9_999):
        assert packed.get(rows[number].key) == rows[number]
        assert packed.holder(f"r{number}") == rows[number].key
    assert packed.get(role(10_000, "").key) is None
    assert packed.holder("r10000") is None
    settings, _ = pack(SETTINGS, [batch_of([encode(SETTINGS, pb.SettingKey(name="a"), pb.SettingValue())])])
    assert settings.holder("a") is None


def test_rows_whose_hashes_collide_are_told_apart() -> None:
    rows = [role(1, "a"), role(2, "b"), role(3, "c")]
    batch = batch_of(rows)
    names = [pa.chunked_array([batch.column(name)]) for name in ("key", "value")]
    for wanted, name in zip(rows, "abc", strict=True):
        by_key = Places(array("q", [hash(wanted.key)] * 3))
        packed = PackedRows(ROLES, *names, by_key, Places(array("q", [hash(name)] * 3)))
        packed.check()
        assert packed.get(wanted.key) == wanted
        assert packed.holder(name) == wanted.key
    by_key, by_name = (Places(array("q", [hash(other)] * 3)) for other in (role(4, "").key, "d"))
    packed = PackedRows(ROLES, *names, by_key, by_name)
    assert packed.get(role(4, "").key) is None
    assert packed.holder("d") is None


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0, 2**61 - 1, 5]), st.sampled_from([b"a", b"b", b"c"]))
    )
)
def test_keys_are_those_that_were_added(steps: list[tuple[bool, int, bytes]]) -> None:
    # Python's hash of 2^61 - 1 is that of 0.
    keys, model = Keys(), dict[int, list[bytes]]()
    for adds, unique, key in steps:
        held = model.setdefault(hash(unique), [])
        if adds:
            keys.add(unique, key)
            held += [key] * (key not in held)
        else:
            keys.remove(unique, key)
            held[:] = [other for other in held if other != key]
        for each in (0, 2**61 - 1, 5):
            assert [*keys.of(each)] == model.get(hash(each), [])


def test_a_load_takes_rows_in_any_order_and_batches_of_any_kinds() -> None:
    rows = [
        role(2, "b"),
        encode(AUDIT_LOG, pb.AuditLogKey(id=1), pb.AuditLogValue()),
        encode(CONFIGS, pb.ConfigKey(key="mine"), pb.ConfigValue(value=7)),
        odd_role(3, "c"),
        role(1, "a"),
    ]
    cache = loaded(rows[:3], rows[3:], [])
    assert sorted(cache.rows()) == sorted(row for row in rows if row.kind is not Kind.AUDIT_LOG)
    assert cache.get(CONFIGS, pb.ConfigKey(key="mine")) == pb.ConfigValue(value=7)
    tx = Transaction(cache)
    for number, name in enumerate("abc", start=1):
        key = pb.RoleKey(id=pb.RoleId(user=number))
        assert cache.get(ROLES, key) == pb.RoleValue(name=name)
        found = tx.find(ROLES, pb.RoleValue(name=name))
        assert found is not None
        assert found.key == key
        tx.delete(ROLES, key)
    cache.apply(tx.updates())
    assert [*cache.objects(ROLES)] == []
    assert not cache.has_counts
    cache.set_counts({Kind.AUDIT_LOG: 1})
    assert {name: count for name, count in cache.counts().items() if count} == {"config": 1, "audit_log": 1}


def test_a_load_refuses_what_it_can_not_hold() -> None:
    key = encode_key(ROLES, pb.RoleKey(id=pb.RoleId(user=1)))
    refusals: list[tuple[type[Exception], str, list[Row]]] = [
        (CatalogOutOfSync, "already exists", [role(1, "a"), role(1, "b")]),
        (CatalogOutOfSync, "already exists", [role(1, "a"), odd_role(1, "b")]),
        (CorruptBlob, "unique", [role(1, "a"), role(2, "b"), role(3, "a")]),
        (CorruptBlob, "unique", [role(1, "a"), odd_role(2, "a")]),
        (CorruptBlob, "known kind", [role(1, "a"), Row(b"\xff\xff", b"")]),
        (CorruptBlob, "known kind", [Row(b"\x00", b"")]),
        (CorruptBlob, "unknown fields", [Row(key, b"\x78\x01")]),
        (CorruptBlob, "unknown fields", [Row(key + b"\x78\x01", b"")]),
        (CorruptBlob, "bytes ff", [Row(key, b"\xff")]),
        (CorruptBlob, "0 or 1", [encode(CONFIGS, pb.ConfigKey(key="tombstone"), pb.ConfigValue(value=2))]),
        (
            VersionTooNew,
            "9999",
            [
                Row(key, b"\xff"),
                encode(CONFIGS, pb.ConfigKey(key="user_version"), pb.ConfigValue(value=9999)),
            ],
        ),
    ]
    for error, match, rows in refusals:
        with pytest.raises(error, match=match):
            loaded(rows)


def test_what_was_loaded_changes_like_what_came_after() -> None:
    cache = loaded([role(1, "a"), role(2, "b")])
    cache.apply([RowUpdate(role(1, "a"), -1), RowUpdate(role(1, "b"), 1), RowUpdate(role(2, "b"), -1)])
    cache.apply([RowUpdate(role(2, "a"), 1)])
    assert sorted(cache.rows()) == [role(1, "b"), role(2, "a")]
    assert cache.table(Kind.ROLE).holder("a") == role(2, "").key
    with pytest.raises(CatalogOutOfSync, match="retracted"):
        cache.apply([RowUpdate(role(1, "a"), -1)])
    with pytest.raises(CorruptBlob, match="unique"):
        cache.apply([RowUpdate(role(3, "b"), 1)])


def test_ranges_of_kinds_tile_the_keys() -> None:
    def limits(ranges: list[KeyRange]) -> list[tuple[bytes | None, bytes | None]]:
        return [(found.lower and found.lower[0][1], found.upper and found.upper[0][1]) for found in ranges]

    near = (Kind.FENCE_TOKEN, Kind.CONFIG)
    assert limits(ranges_with((Kind.ITEM, *reversed(near)))) == [
        (b"\x00\x01", b"\x00\x03"),
        (b"\x00\x0c", b"\x00\x0d"),
    ]
    assert limits(ranges_without(APPEND_ONLY)) == [(None, b"\x00\x12"), (b"\x00\x14", None)]
    assert limits(ranges_without(())) == [(None, None)]
    assert limits(ranges_with(())) == []


def test_a_store_reads_the_kinds_that_are_asked_for(tmp_path: Path) -> None:
    # The audit reads what statistics exclude all the same, and refuses a part where they are wrong.
    config = PersistConfig(maintenance="off", audit_pushdown=True, inline_max_bytes=0)
    with PersistClient.open(f"file://{tmp_path}", config=config) as client:
        catalog = persist_catalog(client, ORG).open(OpenMode.WRITABLE, holder="me", purpose="test")
        for name in ("a", "b", "c"):
            catalog.ensure_item("holdfast", "public", name)
        shard = CatalogShard(client, catalog_shard_id(ORG), purpose="test")
        shard.append(
            [RowUpdate(Row(b"\xff\xff", b"unknown"), 1), RowUpdate(Row(b"\x00", b"short"), 1)], catalog.upper
        )
        as_of = shard.upper() - 1
        with client.reader(catalog_shard_id(ORG), purpose="test") as reader:
            table = reader.snapshot(as_of).to_table()
        rows = sorted(map(Row, table.column("key").to_pylist(), table.column("value").to_pylist()))
        assert sorted(shard.rows(as_of)) == rows

        def tagged(*kinds: Kind) -> list[Row]:
            return [row for row in rows if row.key[:2] in {kind.tag for kind in kinds}]

        assert len(tagged(Kind.ITEM)) == 3
        for kinds in ([Kind.ITEM], [Kind.AUDIT_LOG, Kind.CONFIG, Kind.FENCE_TOKEN], [STORAGE_USAGE.kind]):
            assert sorted(shard.rows(as_of, kinds)) == tagged(*kinds)
            assert +shard.count(as_of, kinds) == Counter(row.kind for row in tagged(*kinds))
        rest = [row for batch in shard.batches(as_of, but=APPEND_ONLY) for row in rows_of(batch)]
        assert sorted(rest) == [row for row in rows if row not in tagged(*APPEND_ONLY)]


def test_a_store_gives_no_row_that_is_there_twice(tmp_path: Path) -> None:
    with PersistClient.open(f"file://{tmp_path}", config=PersistConfig(maintenance="off")) as client:
        shard = CatalogShard(client, catalog_shard_id(ORG), purpose="test")
        event = encode(AUDIT_LOG, pb.AuditLogKey(id=1), pb.AuditLogValue())
        shard.append([RowUpdate(event, 2), RowUpdate(role(1, "a"), 1)], 0)
        assert [*shard.rows(0, [Kind.ROLE])] == [role(1, "a")]
        for read in (
            lambda: [*shard.rows(0)],
            lambda: [*shard.batches(0)],
            lambda: shard.count(0, APPEND_ONLY),
        ):
            with pytest.raises(CorruptBlob, match="a row several times"):
                read()


def test_objects_that_nobody_counted_are_not_read_at_the_open(tmp_path: Path) -> None:
    with PersistClient.open(f"file://{tmp_path}", config=PersistConfig(maintenance="off")) as client:
        openable = persist_catalog(client, ORG)
        with openable.open(OpenMode.WRITABLE, holder="me", purpose="test") as catalog:
            catalog.ensure_item("holdfast", "public", "a")
            known = catalog.object_counts()
            catalog.ensure_item("holdfast", "public", "b")
            expected = known | {"items": 2, "audit_log": known["audit_log"] + 1}
            assert catalog.object_counts() == expected
        for mode in (OpenMode.READ_ONLY, OpenMode.WRITABLE, OpenMode.SAVEPOINT):
            assert openable.open(mode, holder="you", purpose="test").object_counts() == expected
        savepoint = openable.open(OpenMode.SAVEPOINT)
        savepoint.ensure_item("holdfast", "public", "c")
        expected |= {"items": 3, "audit_log": known["audit_log"] + 2}
        assert savepoint.object_counts() == expected
        savepoint.drop_item("holdfast", "public", "c")
        assert savepoint.object_counts()["audit_log"] == known["audit_log"] + 3
