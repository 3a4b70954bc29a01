"""Staged batches: uploads that several processes record under names, and that one append takes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import HandleExpired, UpperMismatch
from holdfast.persist import PersistClient, StoredSize, Upload, WriteHandle
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.admin.verify import verify
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.upkeep.rollup import write_rollup
from testbed.faults import Fault, Operation
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents

BLOBS: dict[str, Any] = {"inline_max_bytes": 0, "compaction_fanin": 3}
END = 10


def uploaded(client: PersistClient, writer: WriteHandle, piece: int) -> Upload:
    """The rows of a piece. Each upload of the piece has the same ones."""
    updates = [{"k": key, "v": "x", "_time": END - 1} for key in range(10 * piece, 10 * piece + piece)]
    batch = prepare_updates(SCHEMA, updates, default_time=0)
    return client.upload(writer.upload_ticket(), [sort_updates(SCHEMA, batch)] if updates else [])


def stage(client: PersistClient, writer: WriteHandle, *pieces: int) -> list[Upload]:
    """Stage pieces, and return the refused uploads."""
    uploads = {f"piece {piece}": uploaded(client, writer, piece) for piece in pieces}
    client.multi_write([writer.prepare_stage(uploads, 0, END)])
    refused = writer.refused(uploads)
    client.discard(refused)
    return refused


def rows_of(*pieces: int) -> Counter[tuple[Any, ...]]:
    return Counter({(key, "x"): 1 for piece in pieces for key in range(10 * piece, 10 * piece + piece)})


def read(stores: Stores) -> Counter[tuple[Any, ...]]:
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    return contents(reader.snapshot(END - 1).to_table())


def writer_of(client: PersistClient) -> WriteHandle:
    return client.writer(SHARD, SCHEMA, purpose="test")


def test_the_next_process_appends_what_the_first_one_has_staged(stores: Stores) -> None:
    first = stores.open(**BLOBS)
    stage(first, writer_of(first), 0, 2, 5)
    first.close()
    stores.clock.sleep(30 * 3600)
    other = stores.open(**BLOBS)
    assert not [each for shard in sweep(other, delete=True) for each in shard.orphans]
    other.maintain(SHARD)
    found = other.staged(SHARD)
    assert [*found] == ["piece 0", "piece 2", "piece 5"]
    assert [size.rows for size in found.values()] == [0, 2, 5]
    assert found["piece 0"] == StoredSize(0, 0)
    assert (other.recent_upper(SHARD), other.stored(SHARD).rows) == (0, 0)
    writer = writer_of(other)
    other.multi_write([writer.prepare_staged([*found], 0, END)])
    assert (other.staged(SHARD), read(stores)) == ({}, rows_of(2, 5))
    (batch,) = stores.state().batches
    assert len(batch.runs) == 1, "they don't overlap"


def test_two_that_stage_the_same_count_once(stores: Stores) -> None:
    one, two = stores.open(**BLOBS), stores.open(**BLOBS)
    late = writer_of(two)
    assert not stage(one, writer_of(one), 1, 2)
    before = stores.parts()
    refused = stage(two, late, 2, 3)
    assert [each.rows for each in refused] == [2]
    assert len(stores.parts()) == len(before) + 1, "the refused upload is deleted"
    two.multi_write([late.prepare_staged(["piece 1", "piece 2", "piece 3"], 0, END)])
    assert read(stores) == rows_of(1, 2, 3)
    with pytest.raises(UpperMismatch):
        stage(one, writer_of(one), 4)


def test_what_an_append_has_left_is_dropped_by_upkeep(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    writer = writer_of(client)
    stage(client, writer, 1, 2)
    client.multi_write([writer.prepare_staged(["piece 2"], 0, END)])
    client.maintain(SHARD)
    assert client.staged(SHARD) == {}
    stores.clock.sleep(1)
    write_rollup(client.session.machine(SHARD))
    client.maintain(SHARD)
    assert len(stores.parts()) == 1
    assert read(stores) == rows_of(2)


def test_nothing_is_appended_if_a_batch_is_gone(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    writer = writer_of(client)
    stage(client, writer, 1, 2)
    both = writer.prepare_staged(["piece 1", "piece 2"], 0, END)
    client.multi_write([client.prepare_drop_staged(SHARD)])
    with pytest.raises(HandleExpired, match="2 of 2 staged batches are gone"):
        client.multi_write([both])
    with pytest.raises(HandleExpired, match="1 of 1 staged batches are gone"):
        writer.prepare_staged(["piece 1"], 0, END)
    assert client.recent_upper(SHARD) == 0


def test_uploads_of_a_silent_writer_are_not_staged(stores: Stores) -> None:
    client = stores.open(lease_s=100.0, **BLOBS)
    writer = writer_of(client)
    uploads = {"piece 1": uploaded(client, writer, 1)}
    prepared = writer.prepare_stage(uploads, 0, END)
    other = stores.open(**BLOBS)
    other.maintain(SHARD)
    stores.clock.sleep(1000)
    other.maintain(SHARD)
    assert not stores.state().writers
    with pytest.raises(HandleExpired):
        client.multi_write([prepared])
    with pytest.raises(HandleExpired):
        writer.prepare_stage(uploads, 0, END)


@pytest.mark.parametrize("dropped", [False, True])
def test_staging_of_unknown_outcome_is_settled(stores: Stores, dropped: bool) -> None:
    """It was staged. Meanwhile others may have dropped it, and deleted its blob."""
    client = stores.open(**BLOBS)
    writer = writer_of(client)
    upload = uploaded(client, writer, 1)

    class Lost:
        lost = False

        def decide(self, operation: Operation) -> Fault:
            if operation.name == "consensus.compare_and_set" and not self.lost:
                self.lost = True
                return Fault.INDETERMINATE_AFTER
            if operation.name.startswith("consensus.") and self.lost and dropped:
                other = stores.open(**BLOBS)
                if other.staged(SHARD):
                    other.multi_write([other.prepare_drop_staged(SHARD)])
                    write_rollup(other.session.machine(SHARD))
                    other.maintain(SHARD)
                    assert not stores.parts()
            return Fault.NONE

    flaky = stores.open(Lost(), **BLOBS)
    prepared = writer.prepare_stage({"piece 1": upload}, 0, END)
    flaky.multi_write([prepared])
    assert [*client.staged(SHARD)] == ([] if dropped else ["piece 1"])
    assert not writer.refused({"piece 1": upload})
    assert len(stores.parts()) == (0 if dropped else 1)


class Staging(RuleBasedStateMachine):
    """Attempts stage pieces, drop them and append them, at any time and as often as they like."""

    @initialize()
    def begin(self) -> None:
        self.stores = Stores()
        self.clients = [self.stores.open(**BLOBS) for _ in range(3)]
        self.writers = [writer_of(client) for client in self.clients]
        self.names: set[int] = set()
        self.done: Counter[tuple[Any, ...]] | None = None

    @rule(who=st.integers(0, 2), pieces=st.sets(st.integers(0, 3), min_size=1))
    def stage(self, who: int, pieces: set[int]) -> None:
        if self.done is not None:
            with pytest.raises(UpperMismatch):
                stage(self.clients[who], self.writers[who], *pieces)
            return
        stage(self.clients[who], self.writers[who], *pieces)
        self.names |= pieces

    @rule(who=st.integers(0, 2))
    def drop(self, who: int) -> None:
        self.clients[who].multi_write([self.clients[who].prepare_drop_staged(SHARD)])
        self.names.clear()

    @rule(who=st.integers(0, 2), pieces=st.sets(st.integers(0, 3), min_size=1))
    def append(self, who: int, pieces: set[int]) -> None:
        writer, names = self.writers[who], [f"piece {piece}" for piece in sorted(pieces)]
        if pieces <= self.names and self.done is None:
            self.clients[who].multi_write([writer.prepare_staged(names, 0, END)])
            self.done = rows_of(*pieces)
            self.names -= pieces
        else:
            with pytest.raises((HandleExpired, UpperMismatch)):
                self.clients[who].multi_write([writer.prepare_staged(names, 0, END)])

    @rule(who=st.integers(0, 2))
    def maintain(self, who: int) -> None:
        self.clients[who].maintain(SHARD)
        if self.done is not None:
            self.names.clear()

    @invariant()
    def each_row_counts_once(self) -> None:
        if self.stores.consensus.list_keys():
            client = self.clients[0]
            if client.exists(SHARD):
                assert {*client.staged(SHARD)} == {f"piece {piece}" for piece in self.names}
                if self.done is not None:
                    assert read(self.stores) == self.done

    def teardown(self) -> None:
        if self.clients[0].exists(SHARD):
            assert verify(self.clients[0], SHARD).findings == ()


TestStaging = Staging.TestCase
TestStaging.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
