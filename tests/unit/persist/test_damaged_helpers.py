"""Damage of the small blobs of upkeep is found, loses nothing, and can be repaired."""

from collections.abc import Callable

import pytest

from holdfast.errors import HandleExpired
from holdfast.persist import PersistClient
from holdfast.persist.admin.accept import accept
from holdfast.persist.admin.verify import verify
from holdfast.persist.ids import rollup_key
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.cuts import cut_log, damaged_digests, decode_digests
from holdfast.persist.state.divergence import Marker, encode_marker, marker_keys, why_keep
from holdfast.persist.stores import Digest, LogRow
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "torn": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}
damaged = pytest.mark.parametrize("damage", [pytest.param(how, id=name) for name, how in DAMAGE.items()])


def write(client: PersistClient, first: int, count: int, shard: str = SHARD) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


def cutting(stores: Stores) -> PersistClient:
    return stores.open(maintenance="inline", rollup_every=4)


def log_begins(stores: Stores) -> int:
    return stores.consensus.scan(SHARD, 0, 1)[0].seqno


def found(stores: Stores) -> dict[str, str]:
    findings = verify(stores.open(mode="read"), SHARD).findings
    assert len({finding.key for finding in findings}) == len(findings)
    return {finding.key: finding.what for finding in findings}


def digests_of_cuts(stores: Stores) -> list[str]:
    return [meta.key for meta in stores.blob.list(f"{SHARD}/c")]


def spoil(stores: Stores, key: str, damage: Callable[[bytes], bytes]) -> None:
    data = stores.blob.get(key)
    assert data is not None
    stores.blob.put(key, damage(data))


@damaged
def test_damaged_digests_of_a_cut_count_as_none_and_are_replaced(
    stores: Stores, damage: Callable[[bytes], bytes]
) -> None:
    client, idle = cutting(stores), stores.open()
    write(client, 0, 2)
    idle.recent_upper(SHARD)
    write(client, 2, 20)
    (key,) = digests_of_cuts(stores)
    spoil(stores, key, damage)
    begins = log_begins(stores)
    assert found(stores).keys() == {key}
    assert "the next cut of the log replaces it" in found(stores)[key]
    with pytest.raises(HandleExpired, match="no longer has version"):
        idle.recent_upper(SHARD)
    fresh = stores.open()
    assert fresh.recent_upper(SHARD) == 22
    write(client, 22, 20)
    assert log_begins(stores) > begins
    assert found(stores) == {}
    (replaced,) = digests_of_cuts(stores)
    assert replaced != key
    assert fresh.recent_upper(SHARD) == 42


def test_the_digests_of_another_cut_under_this_name_are_found(stores: Stores) -> None:
    client = cutting(stores)
    write(client, 0, 20)
    (key,) = digests_of_cuts(stores)
    before = stores.blob.get(key)
    assert before is not None
    write(client, 20, 20)
    (later,) = digests_of_cuts(stores)
    stores.blob.put(later, before)
    assert "its digest of row" in found(stores)[later]


@damaged
def test_a_cut_that_is_done_again_writes_what_was_damaged(
    stores: Stores, damage: Callable[[bytes], bytes]
) -> None:
    """The collector died after it cut, and before it recorded that."""
    client = cutting(stores)
    write(client, 0, 20)
    (key,) = digests_of_cuts(stores)
    spoil(stores, key, damage)
    machine = client.session.machine(SHARD)
    state, digest = machine.version
    assert cut_log(machine.location, SHARD, log_begins(stores), LogRow(state.seqno, digest))
    data = stores.blob.get(key)
    assert data is not None
    assert decode_digests(data, key)[0] == log_begins(stores)
    assert [*damaged_digests(machine.location, SHARD)] == []


def marker(recoveries: int = 0) -> Marker:
    return Marker(SHARD, recoveries, 3, Digest(9, b"mine"), None, 1, "ship", 0)


NO_MARKERS = {
    "empty": b"",
    "torn": encode_marker(marker())[:50],
    "no object": b"[]",
    "no number": encode_marker(marker()).replace(b'"head": 1', b'"head": Infinity'),
    "deep": b"[" * 100_000,
    "large": b" " * (64 << 10) + encode_marker(marker()),
    "another one": encode_marker(Marker(OTHER, 0, 3, Digest(9, b"mine"), None, 1, "ship", 0)),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in NO_MARKERS.items()])
def test_a_damaged_marker_keeps_everything_until_it_is_accepted(stores: Stores, data: bytes) -> None:
    client = cutting(stores)
    write(client, 0, 20)
    key = marker().key
    stores.blob.put(key, data)
    before, begins = stores.blobs(), log_begins(stores)
    write(client, 20, 20)
    assert before <= stores.blobs()
    assert log_begins(stores) == begins
    machine = client.session.machine(SHARD)
    assert key in machine.kept_because
    assert found(stores).keys() == {key}
    accept(machine)
    assert marker_keys(stores.blob, SHARD) == []
    client.maintain(SHARD)
    assert log_begins(stores) > begins
    assert found(stores) == {}


def test_a_damaged_marker_from_before_a_recovery_stands_no_more(stores: Stores) -> None:
    client = cutting(stores)
    write(client, 0, 4)
    stores.blob.put(marker(recoveries=7).key, b"")
    client.session.machine(SHARD).refresh()
    assert why_keep(client.session.machine(SHARD)) == ""


def of_another(stores: Stores) -> bytes:
    write(stores.open(), 0, 3, OTHER)
    return encode_state(stores.state(OTHER))


@pytest.mark.parametrize("is_covered", [True, False])
@pytest.mark.parametrize("what", [*DAMAGE, "another shard's"])
def test_a_damaged_rollup_that_no_version_names_keeps_everything_until_it_is_accepted(
    stores: Stores, what: str, is_covered: bool
) -> None:
    """Its writer may even be about to record it, where no later one is recorded."""
    client = cutting(stores)
    write(client, 0, 22)
    state = stores.state()
    newest = state.latest_rollup
    assert newest is not None
    seqno = newest.seqno if is_covered else state.seqno
    assert is_covered or newest.seqno < seqno
    data = DAMAGE[what](encode_state(state)) if what in DAMAGE else of_another(stores)
    key = rollup_key(SHARD, seqno)
    stores.blob.put(key, data)
    begins = log_begins(stores)
    write(client, 22, 8)
    machine = client.session.machine(SHARD)
    assert log_begins(stores) == begins
    assert key in machine.kept_because
    assert found(stores).keys() == {key}
    accept(machine)
    after = stores.state()
    assert key in after.garbage
    assert after.latest_rollup is not None
    assert after.latest_rollup.seqno >= seqno
    client.maintain(SHARD)
    assert key not in stores.blobs()
    assert log_begins(stores) > begins
    assert found(stores) == {}
    assert len(contents(stores.open().reader(SHARD, purpose="r").snapshot(29).to_table())) == 30


def test_no_more_of_a_small_blob_is_read_than_it_may_have(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = cutting(stores)
    write(client, 0, 20)
    (digests,) = digests_of_cuts(stores)
    for key in (digests, marker().key):
        stores.blob.put(key, bytes(10 << 20))
    location = client.session.machine(SHARD).location
    kind = type(stores.blob)
    get = kind.get
    monkeypatch.setattr(kind, "get_start", lambda self, key, most: (get(self, key) or b"")[:most])
    monkeypatch.setattr(kind, "get", lambda *_: pytest.fail("all of it is read"))
    assert [key for key, _ in damaged_digests(location, SHARD)] == [digests]
    assert marker().key in why_keep(client.session.machine(SHARD))
