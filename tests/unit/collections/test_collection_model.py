"""Compares a collection with a list of updates: writes, seals, compaction, reopening and listening."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.collections import CollectionListen, CollectionSpec, Frontiers, StorageController
from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly, UpperMismatch
from holdfast.persist import Progress
from unit.collections.stores import SCHEMA, Row, Stores, counted, updates

Update = tuple[int, str | None, int, int]

ids = st.integers(0, 8)
names = st.none() | st.sampled_from(["a", "b"])
steps = st.integers(1, 6) | st.integers(9_000, 30_000)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stores = Stores()
        self.written: list[Update] = []
        self.upper = self.since = 0

    def contents(self, as_of: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for id_, name, time, diff in self.written:
            if time <= as_of:
                found[id_, name] += diff
        return Counter({row: count for row, count in found.items() if count})

    def open(self) -> None:
        self.client = self.stores.open(
            inline_max_bytes=600, compaction_fanin=2, rollup_every=5, part_target_bytes=300
        )
        self.controller = StorageController(self.client)
        self.writer = self.controller.writer("model", purpose="writer")
        self.reader = self.controller.reader("model", purpose="reader")

    @initialize(shards=st.integers(1, 4))
    def create(self, shards: int) -> None:
        controller = StorageController(self.stores.open())
        controller.create_collection(CollectionSpec("c", "model", SCHEMA, shards=shards))
        self.open()
        self.follow(0)

    def follow(self, as_of: int) -> None:
        self.heard: Counter[Row] = Counter()
        self.heard_from = as_of
        self.listen: CollectionListen = self.reader.listen(as_of)
        self.heard_to = as_of + 1

    @rule(step=steps, data=st.data())
    def append(self, step: int, data: st.DataObject) -> None:
        times = st.integers(self.upper, self.upper + step - 1)
        added = data.draw(st.lists(st.tuples(ids, names, times, st.sampled_from([1, 1, 2, -1])), max_size=8))
        self.writer.append(updates(added), self.upper, self.upper + step)
        self.written += added
        self.upper += step

    @rule(step=steps)
    def seal(self, step: int) -> None:
        self.upper += step
        self.writer.seal(self.upper)

    @rule(expected=st.integers(0, 50_000), step=steps)
    def append_at_another_upper(self, expected: int, step: int) -> None:
        if expected != self.upper:
            with pytest.raises(UpperMismatch) as lost:
                self.writer.append(updates([(1, "lost", expected, 1)]), expected, expected + step)
            assert lost.value.actual == self.upper

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(0, self.upper + 2))
        if as_of < self.since:
            with pytest.raises(AsOfTooEarly):
                self.reader.snapshot(as_of)
        elif as_of >= self.upper:
            with pytest.raises(AsOfNotYetAvailable):
                self.reader.snapshot(as_of)
        else:
            assert counted(self.reader.snapshot(as_of).to_table()) == self.contents(as_of)

    @precondition(lambda self: self.upper > 0)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        since = data.draw(st.integers(self.since, min(self.upper - 1, self.heard_to - 1)))
        self.reader.allow_compaction(since)
        self.since = max(self.since, self.controller.set_retention_hold("model", since))
        self.reader.allow_compaction(since)
        self.since = self.reader.since()
        assert self.since <= since
        for shard in self.client.shards():
            self.client.maintain(shard)

    @rule()
    def reopen(self) -> None:
        self.reader.close()
        self.open()
        self.follow(max(self.since, self.heard_to - 1))

    @rule()
    def hear(self) -> None:
        times: list[int] = []
        while self.heard_to < self.upper:
            for event in self.listen.next(0.0):
                if isinstance(event, Progress):
                    assert all(time < event.frontier for time in times)
                    self.heard_to = event.frontier
                else:
                    times = event.table["_time"].to_pylist()
                    assert all(time >= self.heard_to for time in times)
                    self.heard.update(counted(event.table))
        expected = self.contents(self.heard_to - 1)
        expected.subtract(self.contents(self.heard_from))
        assert {row: n for row, n in self.heard.items() if n} == {row: n for row, n in expected.items() if n}

    @invariant()
    def frontiers_agree(self) -> None:
        if hasattr(self, "client"):
            assert self.controller.frontiers("model") == Frontiers(self.since, self.upper)
            assert self.writer.upper() == self.upper


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
