"""A process sleeps through its lease. Readers report it or stay right; late appends name no swept part."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import AsOfTooEarly, Determinate, HandleExpired, LeaseLost, UpperMismatch
from holdfast.persist import PersistClient, PersistConfig, Progress, Updates
from holdfast.persist.state.command import CondemnOrphans
from holdfast.persist.state.machine import commit
from holdfast.persist.upkeep.garbage import collect_garbage
from unit.persist.open_stores import SCHEMA, SHARD, Stores, changes, contents, rows

LEASE_S = 40.0


def expire(stores: Stores, other: PersistClient) -> None:
    """Another process sees nobody move for a whole lease."""
    other.maintain(SHARD)
    stores.clock.sleep(LEASE_S + 1)
    other.maintain(SHARD)


@pytest.mark.parametrize("upkeep", ["inline", "off"])
def test_use_keeps_a_lease_alive_whoever_does_the_upkeep(stores: Stores, upkeep: str) -> None:
    client, other = stores.open(lease_s=LEASE_S, maintenance=upkeep), stores.open(lease_s=LEASE_S)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    uses = {
        "snapshot": lambda reader: reader.snapshot(3).to_table(),
        "stream": lambda reader: list(reader.snapshot(3)),
        "listen": lambda reader: reader.listen(3).next(0),
        "wait": lambda reader: reader.listen(4).next(0),
    }
    for name, use in uses.items():
        reader = client.reader(SHARD, purpose=name)
        (id_,) = [r.id for r in stores.state().leased_readers.values() if r.purpose == name]
        for _ in range(10):
            use(reader)
            other.maintain(SHARD)
            stores.clock.sleep(LEASE_S / 2)
        assert id_ in stores.state().leased_readers, f"{name} is no heartbeat"
        reader.close()


def test_an_unused_reader_without_a_thread_loses_its_lease(stores: Stores) -> None:
    client, other = stores.open(lease_s=LEASE_S), stores.open(lease_s=LEASE_S)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    reader = client.reader(SHARD, purpose="test")
    expire(stores, other)
    assert not stores.state().leased_readers
    assert contents(reader.snapshot(4).to_table()) == {(1, "x"): 1}, "and takes it anew with its next use"
    assert len(stores.state().leased_readers) == 1


def test_a_listen_whose_lease_lapsed_goes_on_where_nothing_is_lost(stores: Stores) -> None:
    client, other = stores.open(lease_s=LEASE_S), stores.open(lease_s=LEASE_S)
    writer = other.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    listen = client.reader(SHARD, purpose="test").listen(4)
    expire(stores, other)
    writer.compare_and_append(rows(2), 5, 6)
    first, progress = listen.next(0)
    assert isinstance(first, Updates)
    assert changes(first.table) == [(2, "x", 5, 1)]
    assert progress == Progress(6)


def test_a_listen_whose_lease_lapsed_says_so_where_its_past_is_gone(stores: Stores) -> None:
    client, other = stores.open(lease_s=LEASE_S), stores.open(lease_s=LEASE_S)
    writer = other.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    listen = client.reader(SHARD, purpose="sleeper").listen(4)
    expire(stores, other)
    writer.compare_and_append(rows(2), 5, 9)
    other.critical_since(SHARD, purpose="hold").downgrade(7)
    with pytest.raises(LeaseLost, match=r"lost its lease .* before since 7") as lost:
        listen.next(0)
    assert isinstance(lost.value, HandleExpired)
    assert isinstance(lost.value, AsOfTooEarly)
    assert (lost.value.as_of, lost.value.since) == (4, 7)
    assert "open a new reader at 7" in lost.value.hint


def test_a_listen_does_not_wait_for_a_heartbeat_that_the_store_refuses(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server became a standby, or the role may only read now. Reads still succeed."""
    client = stores.open(lease_s=LEASE_S, retry_deadline_s=20.0)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    listen = client.reader(SHARD, purpose="test").listen(4)
    append, tries = stores.consensus.compare_and_set, 0

    def refusing(*_: object) -> bool:
        nonlocal tries
        tries += 1
        raise Determinate("cannot execute INSERT in a read-only transaction")

    monkeypatch.setattr(stores.consensus, "compare_and_set", refusing)
    stores.clock.now_s += LEASE_S / 2
    began_s = stores.clock.now_s
    for _ in range(3):
        assert listen.next(0.05) == []
    assert (stores.clock.now_s - began_s, tries) == (0, 1)
    monkeypatch.setattr(stores.consensus, "compare_and_set", append)
    (before,) = stores.state().leased_readers.values()
    stores.clock.now_s += 2
    assert listen.next(0.05) == []
    (after,) = stores.state().leased_readers.values()
    assert after.heartbeats > before.heartbeats


def sweep(other: PersistClient, keys: set[str]) -> None:
    """What a sweeper does to blobs that it takes for orphans, to the end."""
    machine = other.session.machine(SHARD)
    blobs = tuple((key, 0) for key in sorted(keys))
    assert commit([(machine, CondemnOrphans(blobs))]) == [tuple(key for key, _ in blobs)]
    other.maintain(SHARD)
    collect_garbage(machine)
    assert not machine.state.garbage.keys() & keys, "swept and forgotten"


def test_a_late_append_never_names_what_was_swept(stores: Stores) -> None:
    client = stores.open(lease_s=LEASE_S, inline_max_bytes=0)
    other = stores.open(lease_s=LEASE_S, rollup_every=1)
    other.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    writer = client.writer(SHARD, SCHEMA, purpose="sleeper")
    prepared = writer.prepare_append(rows(2), 5, 6)
    expire(stores, other)
    sweep(other, stores.parts())
    assert not stores.parts()

    with pytest.raises(HandleExpired, match="sent no heartbeat for too long") as expired:
        client.multi_write([prepared])
    assert "prepare the append again" in expired.value.hint
    assert stores.state().upper == 5

    writer.compare_and_append(rows(3), 5, 6)
    reader = stores.open().reader(SHARD, purpose="test")
    assert contents(reader.snapshot(5).to_table()) == {(1, "x"): 1, (3, "x"): 1}


def test_an_append_that_was_swept_stays_refused_when_its_writer_is_back(stores: Stores) -> None:
    """A second append of the same handle makes the writer known again, and not the first one's uploads."""
    client = stores.open(lease_s=LEASE_S, inline_max_bytes=0)
    other = stores.open(lease_s=LEASE_S, rollup_every=1)
    other.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    writer = client.writer(SHARD, SCHEMA, purpose="sleeper")
    prepared = writer.prepare_append(rows(2), 6, 7)
    expire(stores, other)
    sweep(other, stores.parts())

    writer.compare_and_append(rows(3), 5, 6)
    with pytest.raises(HandleExpired):
        client.multi_write([prepared])
    assert stores.state().upper == 6


def test_an_upload_that_takes_longer_than_a_lease_keeps_its_writer_known(stores: Stores) -> None:
    client = stores.open(lease_s=LEASE_S, inline_max_bytes=0, part_target_bytes=1, builder_threads=False)
    other = stores.open(lease_s=LEASE_S)
    other.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    writer = client.writer(SHARD, SCHEMA, purpose="slow")

    def slowly() -> Iterator[Any]:
        for key in range(10):
            yield (
                rows(key)
                .append_column("_time", [[5]])
                .append_column("_diff", [[1]])
                .cast(SCHEMA.arrow_updates)
            )
            stores.clock.sleep(LEASE_S / 2)
            other.maintain(SHARD)

    client.multi_write([writer.prepare_run(slowly(), 5, 6)])
    reader = stores.open().reader(SHARD, purpose="test")
    assert sum(contents(reader.snapshot(5).to_table()).values()) == 11


PROCESS_LEASE_S = 0.5
SLEEPER = """
import json
import sys
import pyarrow as pa
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, PersistConfig, Schema, Updates

places, shard, work, lease_s = json.loads(sys.argv[1])
config = PersistConfig(lease_s=lease_s, inline_max_bytes=0, gc_grace_s=0.0, maintenance="off")
with PersistClient.open(**places, config=config) as client:
    if work == "listen":
        listen = client.reader(shard, purpose="sleeper").listen(2)
    else:
        writer = client.writer(shard, Schema.of({"k": "int64"}, {"v": "string"}), purpose="sleeper")
        prepared = writer.prepare_append(pa.table({"k": [2], "v": ["x"]}), 5, 6)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        if work == "listen":
            found = []
            while listen.frontier < 9:
                for event in listen.next():
                    if isinstance(event, Updates):
                        found += event.table.to_pylist()
        else:
            client.multi_write([prepared])
            found = "committed"
    except HoldfastError as error:
        found = type(error).__name__
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    if request.param == "file":
        return {"url": f"file://{tmp_path}"}
    return {"blob": f"file://{tmp_path}", "consensus": request.getfixturevalue("postgres_url")}


def asleep(places: dict[str, str], work: str, meanwhile: Any, client: PersistClient) -> Any:
    """What a process finds that is stopped for longer than its lease while `meanwhile` happens."""
    arguments = json.dumps([places, SHARD, work, PROCESS_LEASE_S])
    command = [sys.executable, "-c", SLEEPER, arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 60
            while _knows(client, "sleeper"):
                assert time.monotonic() < deadline
                client.maintain(SHARD)
                threading.Event().wait(PROCESS_LEASE_S / 10)
            meanwhile()
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        finally:
            process.kill()


def _knows(client: PersistClient, purpose: str) -> bool:
    state = client.session.machine(SHARD).refresh()
    return any(h.purpose == purpose for h in (*state.leased_readers.values(), *state.writers.values()))


@pytest.mark.parametrize("case", ["since moved", "since stayed"])
def test_a_process_that_was_stopped_reads_rightly_or_says_why_not(places: dict[str, str], case: str) -> None:
    config = PersistConfig(lease_s=PROCESS_LEASE_S, gc_grace_s=0.0, inline_max_bytes=0, compaction_fanin=2)
    with PersistClient.open(**places, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append(rows(1), 0, 5)
        hold = client.critical_since(SHARD, purpose="hold")

        def meanwhile() -> None:
            for at in range(5, 9):
                writer.compare_and_append(rows(at), at, at + 1)
            if case == "since moved":
                hold.downgrade(7)
            client.maintain(SHARD)

        found = asleep(places, "listen", meanwhile, client)
        if case == "since moved":
            assert found == "LeaseLost"
        else:
            assert [(row["k"], row["_time"]) for row in found] == [(at, at) for at in range(5, 9)]


@pytest.mark.parametrize("case", ["swept", "overtaken"])
def test_an_append_of_a_process_that_was_stopped_is_decided(places: dict[str, str], case: str) -> None:
    config = PersistConfig(lease_s=PROCESS_LEASE_S, gc_grace_s=0.0, rollup_every=1)
    with PersistClient.open(**places, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append(rows(1), 0, 5)

        def meanwhile() -> None:
            if case == "swept":
                blobs = {meta.key for meta in client.location.blob.list(SHARD) if "/w" in meta.key}
                sweep(client, blobs)
            else:
                writer.compare_and_append(rows(3), 5, 6)

        found = asleep(places, "append", meanwhile, client)
        assert found == (HandleExpired if case == "swept" else UpperMismatch).__name__
        expected = {(1, "x"): 1} if case == "swept" else {(1, "x"): 1, (3, "x"): 1}
        reader = client.reader(SHARD, purpose="test")
        assert contents(reader.snapshot(reader.upper() - 1).to_table()) == expected
