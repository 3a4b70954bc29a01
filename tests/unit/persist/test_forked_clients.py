"""Clients and handles in a forked child of their process: an error, never a hang or damage."""

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsedAfterFork
from holdfast.forks import ForkLock
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.handles.builder import BatchBuilder
from holdfast.persist.handles.compactions import Compactions
from holdfast.persist.handles.critical import CriticalSince
from holdfast.persist.handles.exclusive import Exclusive
from holdfast.persist.handles.read import Listen, ReadHandle
from holdfast.persist.handles.write import WriteHandle
from holdfast.persist.parts.snapshot import Snapshot
from holdfast.persist.session import Session
from holdfast.persist.state.state import WriteMode
from testbed.forking import in_child, locks_held, public_names

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
CONFIG = PersistConfig(inline_max_bytes=0, debug_validate=True, gc_grace_s=0.0)
Calls = dict[str, Callable[[Any], object]]

# What is a value or a name, and what only the library calls.
FREE = {
    PersistClient: {"clock", "close", "config", "location", "location_id", "mode", "new_shard_id"},
    Session: {"begin_close", "close_stores", "new_handle"},
    WriteHandle: {"shard_id", "cached_upper", "refused", "close"},
    ReadHandle: {"shard_id", "schema", "lease_s", "pin", "too_early", "end", "close"},
    Listen: {"begin_with", "begin_at_once"},
    Snapshot: {"stored_bytes", "filtered", "narrowed", "within"},
    CriticalSince: {
        "since",
        "opaque",
        "prepare_downgrade",
        "prepare_compare_and_downgrade",
        "prepare_release",
    },
    Exclusive: {"reentrance_id", "close"},
    BatchBuilder: {"close"},
    Compactions: set[str](),
}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator["Opened"]:
    opened = Opened(f"file://{tmp_path}/location")
    yield opened
    opened.client.close()


class Opened:
    """A client with one of each of its handles, all in use."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = client = PersistClient.open(url, config=CONFIG)
        self.shard = client.create_or_load("shard", SCHEMA)
        self.writer = client.writer(self.shard, SCHEMA, purpose="test")
        for time in range(3):
            self.writer.compare_and_append([{"k": time, "v": "x"}], time, time + 1)
        self.reader = client.reader(self.shard, purpose="test")
        self.listen = self.reader.listen(0)
        self.snapshot = self.reader.snapshot(2)
        self.batches = iter(self.snapshot)
        next(self.batches)
        self.critical = client.critical_since(self.shard, purpose="hold")
        self.lock = client.exclusive("job")
        self.builder = self.writer.batch_builder(memory_bytes=1)
        self.builder.add([{"k": 9, "v": "y"}])
        self.append = self.builder.prepare_append(3, 4)
        self.sealed = client.create_or_load("sealed", SCHEMA, mode=WriteMode.WRITE_SEAL)
        self.sealer = client.writer(self.sealed, SCHEMA, purpose="test", mode=WriteMode.WRITE_SEAL)
        self.task = client.compactions.claim(self.shard, purpose="test", full=True)
        self.ticket = client.writer(self.shard, SCHEMA, purpose="test").upload_ticket()
        self.upload = client.upload(self.ticket, [])
        (self.part,) = self.reader.snapshot_parts(2, max_parts=1)

    def handles(self) -> list[tuple[object, Calls]]:
        shard, schema = self.shard, SCHEMA
        client: Calls = {
            "writer": lambda c: c.writer(shard, schema, purpose="child"),
            "reader": lambda c: c.reader(shard, purpose="child"),
            "readers": lambda c: c.readers([shard], purpose="child"),
            "critical_since": lambda c: c.critical_since(shard, purpose="child"),
            "exclusive": lambda c: c.exclusive("job"),
            "prepare_create": lambda c: c.prepare_create(c.new_shard_id(), schema, purpose="child"),
            "prepare_evolve": lambda c: c.prepare_evolve(shard, schema),
            "evolve": lambda c: c.evolve(shard, schema),
            "prepare_critical": lambda c: c.prepare_critical(shard, purpose="child"),
            "prepare_downgrade_critical": lambda c: c.prepare_downgrade_critical(shard, 1, purpose="hold"),
            "prepare_release_critical": lambda c: c.prepare_release_critical(shard, purpose="hold"),
            "prepare_expect_upper": lambda c: c.prepare_expect_upper(shard, 3),
            "prepare_finalize": lambda c: c.prepare_finalize(shard),
            "prepare_drop_staged": lambda c: c.prepare_drop_staged(shard),
            "finalize": lambda c: c.finalize(shard),
            "erase": lambda c: c.erase(shard),
            "is_erased": lambda c: c.is_erased(shard),
            "multi_write": lambda c: c.multi_write([self.append]),
            "create_or_load": lambda c: c.create_or_load("shard", schema),
            "names": lambda c: c.names(),
            "forget": lambda c: c.forget("shard"),
            "now_ms": lambda c: c.now_ms(),
            "store_ms": lambda c: c.store_ms(),
            "store_or_host_ms": lambda c: c.store_or_host_ms(),
            "recent_upper": lambda c: c.recent_upper(shard),
            "recent_uppers": lambda c: c.recent_uppers([shard]),
            "versions": lambda c: c.versions([shard]),
            "known": lambda c: c.known(shard),
            "known_since": lambda c: c.known_since(shard),
            "known_writers": lambda c: c.known_writers(shard),
            "appends": lambda c: c.appends(shard),
            "exists": lambda c: c.exists(shard),
            "shards": lambda c: c.shards(),
            "inspect": lambda c: c.inspect(shard),
            "stored": lambda c: c.stored(shard),
            "staged": lambda c: c.staged(shard),
            "read_snapshot_part": lambda c: c.read_snapshot_part(self.part).to_table(),
            "upload": lambda c: c.upload(self.ticket, []),
            "writer_of": lambda c: c.writer_of(self.ticket, purpose="child"),
            "uploaded": lambda c: list(c.uploaded(self.upload)),
            "keep_alive": lambda c: c.keep_alive(self.ticket, purpose="child"),
            "give_up": lambda c: c.give_up(self.ticket),
            "discard": lambda c: c.discard([self.upload]),
            "maintain": lambda c: c.maintain(shard),
            "end_silent_leases": lambda c: c.end_silent_leases(shard),
            "compactions": lambda c: c.compactions,
            "publish_changes": lambda c: c.publish_changes("tcp://127.0.0.1:0"),
            "follow_changes": lambda c: c.follow_changes("tcp://127.0.0.1:1"),
        }
        session: Calls = {
            "check_open": lambda s: s.check_open(),
            "check_writable": lambda s: s.check_writable(),
            "check_locked": lambda s: s.check_locked(shard),
            "now_ms": lambda s: s.now_ms(),
            "store_ms": lambda s: s.store_ms(),
            "machine": lambda s: s.machine(shard),
            "existing": lambda s: s.existing(shard),
            "publish_changes": lambda s: s.publish_changes("tcp://127.0.0.1:0"),
            "follow_changes": lambda s: s.follow_changes("tcp://127.0.0.1:1"),
        }
        writer: Calls = {
            "upper": lambda w: w.upper(),
            "compare_and_append": lambda w: w.compare_and_append([{"k": 7, "v": "z"}], 3, 4),
            "prepare_append": lambda w: w.prepare_append([{"k": 7, "v": "z"}], 3, 4),
            "prepare_batch": lambda w: w.prepare_batch(None, 3, 4),
            "prepare_run": lambda w: w.prepare_run([], 3, 4),
            "upload_ticket": lambda w: w.upload_ticket(),
            "hand_on": lambda w: w.hand_on(lease_s=1),
            "keep_alive": lambda w: w.keep_alive(),
            "prepare_uploads": lambda w: w.prepare_uploads([], 3, 4),
            "prepare_stage": lambda w: w.prepare_stage({}, 3, 4),
            "prepare_staged": lambda w: w.prepare_staged([], 3, 4),
            "batch_builder": lambda w: w.batch_builder(),
            "check_upper": lambda w: w.check_upper(3),
            "commit": lambda w: w.commit(self.append),
            "seal": lambda w: w.seal(4),
            "prepare_seal": lambda w: w.prepare_seal(3, 4),
            "write": lambda _: self.sealer.write([{"k": 7, "v": "z"}]),
            "prepare_write": lambda _: self.sealer.prepare_write([{"k": 7, "v": "z"}]),
        }
        reader: Calls = {
            "since": lambda r: r.since(),
            "upper": lambda r: r.upper(),
            "snapshot": lambda r: r.snapshot(2),
            "changes": lambda r: r.changes(1, 2),
            "snapshot_of": lambda r: r.snapshot_of(self.part),
            "snapshot_parts": lambda r: r.snapshot_parts(2),
            "listen": lambda r: r.listen(0),
            "subscribe": lambda r: r.subscribe(2),
            "change_counts": lambda r: r.change_counts(0),
            "count_changes": lambda r: r.count_changes(0, 2, 10),
            "sum_changes": lambda r: r.sum_changes(0, 2, 10),
            "allow_compaction": lambda r: r.allow_compaction(1),
            "heartbeat": lambda r: r.heartbeat(),
            "beat": lambda r: r.beat(),
        }
        compactions: Calls = {
            "claim": lambda c: c.claim(shard, purpose="child"),
            "claimants": lambda c: c.claimants(shard),
            "size": lambda c: c.size(self.task),
            "renew": lambda c: c.renew(self.task),
            "renewal": lambda c: c.renewal(self.task),
            "pieces": lambda c: c.pieces(self.task, 2),
            "merge_piece": lambda c: c.merge_piece(_Piece(self.task)),
            "merge": lambda c: c.merge(self.task),
            "install": lambda c: c.install(self.task, ()),
            "release": lambda c: c.release(self.task),
            "end": lambda c: c.end(shard, ["test"]),
        }
        return [
            (self.client, client),
            (self.client.session, session),
            (self.writer, writer),
            (self.reader, reader),
            (
                self.listen,
                {"next": lambda listen: listen.next(0), "__iter__": lambda listen: next(iter(listen))},
            ),
            (
                self.snapshot,
                {
                    "to_table": lambda s: s.to_table(),
                    "files": lambda s: s.files().__enter__(),
                    "sources": lambda s: s.sources(),
                    "__iter__": lambda s: next(iter(s)),
                    "going on": lambda _: list(self.batches),
                },
            ),
            (
                self.critical,
                {
                    "downgrade": lambda c: c.downgrade(1),
                    "compare_and_downgrade": lambda c: c.compare_and_downgrade(b"", b"x", 1),
                    "release": lambda c: c.release(),
                },
            ),
            (self.lock, {}),
            (
                self.builder,
                {
                    "add": lambda b: b.add([{"k": 8, "v": "z"}]),
                    "compare_and_append": lambda b: b.compare_and_append(3, 4),
                    "prepare_append": lambda b: b.prepare_append(3, 4),
                    "updates": lambda b: b.updates(),
                },
            ),
            (self.client.compactions, compactions),
        ]


class _Piece:
    def __init__(self, task: object) -> None:
        self.task = task


def test_every_call_raises_whatever_lock_a_thread_of_the_parent_held(opened: Opened) -> None:
    handles = opened.handles()
    with locks_held(*(handle for handle, _ in handles)) as held:
        assert held > 10
        calls = {
            f"{type(handle).__name__}.{name}": lambda handle=handle, call=call: call(handle)  # type: ignore[misc]
            for handle, of_handle in handles
            for name, call in of_handle.items()
        }
        found = in_child(calls)

    assert found == dict.fromkeys(calls, "UsedAfterFork")
    for handle, of_handle in handles:
        kind = type(handle)
        named = {name for name in of_handle if name.isidentifier() and not name.startswith("_")}
        assert named | FREE[kind] == public_names(kind)


def test_closing_in_a_child_ends_nothing_of_the_parent(opened: Opened) -> None:
    blob, before = opened.client.location.blob, opened.client.inspect(opened.shard)
    blobs = {meta.key for meta in blob.list("")}

    def closed() -> None:
        opened.builder.close()
        opened.append.abandon()
        opened.reader.close()
        opened.writer.close()
        opened.lock.close()
        opened.batches.close()  # type: ignore[attr-defined]
        with opened.client, opened.lock, opened.builder, opened.reader:
            pass

    handles = [handle for handle, _ in opened.handles()]
    with locks_held(*handles):
        assert in_child({"close": closed, "gc": lambda: (opened.__dict__.clear(), gc.collect())}) == {
            "close": "",
            "gc": "",
        }

    assert {meta.key for meta in blob.list("")} == blobs
    after = opened.client.inspect(opened.shard)
    assert after == before
    # All of it works on.
    assert sum(batch.num_rows for batch in opened.batches) == 2
    opened.client.multi_write([opened.append])
    assert opened.client.recent_upper(opened.shard) == 4
    assert opened.reader.snapshot(3).to_table().num_rows == 4


def test_a_child_that_exits_leaves_the_parent_alone(opened: Opened) -> None:
    before = opened.client.inspect(opened.shard)
    child = os.fork()
    if not child:
        # The whole end of an interpreter is in a program of its own below; here is what `sys.exit` unwinds.
        try:
            with opened.client:
                sys.exit(0)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert opened.client.inspect(opened.shard) == before
    opened.writer.compare_and_append(None, 3, 4)


def test_a_child_opens_the_location_anew_and_both_go_on(opened: Opened) -> None:
    def append() -> None:
        with PersistClient.open(opened.url, config=CONFIG) as client:
            writer = client.writer(opened.shard, SCHEMA, purpose="child")
            writer.compare_and_append([{"k": 70, "v": "child"}], 3, 4)

    assert in_child({"append": append}) == {"append": ""}
    opened.lock.close()
    assert in_child({"append": append}) == {"append": "UpperMismatch"}
    opened.writer.compare_and_append([{"k": 71, "v": "parent"}], 4, 5)
    keys = opened.reader.snapshot(4).to_table().column("k").to_pylist()
    assert sorted(keys) == [0, 1, 2, 70, 71]


def test_the_error_says_who_opened_it_and_what_to_do(opened: Opened) -> None:
    said = multiprocessing.get_context("fork").SimpleQueue()

    def use() -> None:
        try:
            opened.writer.compare_and_append([{"k": 7, "v": "z"}], 3, 4)
        except UsedAfterFork as error:
            said.put((str(error), error.hint, error.opened_in, error.used_in))

    child = multiprocessing.get_context("fork").Process(target=use)
    child.start()
    child.join(30)

    assert child.exitcode == 0
    message, hint, opened_in, used_in = said.get()
    assert (opened_in, used_in) == (os.getpid(), child.pid)
    assert str(os.getpid()) in message
    assert "open it again in the child" in hint
    assert opened.client.recent_upper(opened.shard) == 3


def test_a_grandchild_is_a_process_of_its_own(opened: Opened) -> None:
    def nested() -> None:
        with PersistClient.open(opened.url, config=CONFIG) as client:
            assert in_child({"upper": lambda: client.recent_upper(opened.shard)}) == {
                "upper": "UsedAfterFork"
            }
            assert client.recent_upper(opened.shard) == 3

    assert in_child({"nested": nested}) == {"nested": ""}


def test_a_location_in_memory_is_not_shared_with_a_child() -> None:
    with PersistClient.open("memory://forked") as client:
        client.create_or_load("shard", SCHEMA)

        def names() -> None:
            with PersistClient.open("memory://forked") as own:
                assert own.names() == {}

        assert in_child({"names": names}) == {"names": ""}
        assert list(client.names()) == ["shard"]


def test_ctrl_c_never_leaves_a_lock_locked() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    lock = ForkLock()
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for _ in range(20):
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0002)
                while True:
                    with lock:
                        pass
            except KeyboardInterrupt:
                assert not lock._lock.locked()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
