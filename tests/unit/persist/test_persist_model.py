"""Compares a shard with a list of updates: appends, holds, upkeep, restarts and reads, in any order."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly, UpperMismatch
from holdfast.persist import CriticalSince, Listen, PersistClient, Progress, ReadHandle, Schema, Updates
from unit.persist.open_stores import SCHEMA, SHARD, Row, Stores, Update, contents, updates

CLIENTS = 3
SCHEMAS = (
    SCHEMA,
    Schema.of({"k": "int64"}, {"v": "string?"}),
    Schema.of({"k": "int64"}, {"v": "string?", "n": "int8?"}),
    Schema.of({"k": "int64"}, {"v": "string?", "n": "int32?", "x": "float32?"}),
)
"""What the shard evolves through; the new columns stay null, so that its rows are the same rows."""
clients = st.integers(0, CLIENTS - 1)
rows_of_some = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), st.integers(0, 4), st.sampled_from([1, 2, -1])),
    max_size=6,
)


@dataclass
class Followed:
    listen: Listen
    reader: ReadHandle
    lower: int
    frontier: int
    heard: Counter[tuple[int, str, int]] = field(default_factory=Counter)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stores = Stores()
        self.blobs = False
        self.schemas = [SCHEMA]
        self.clients: list[PersistClient] = [self.start() for _ in range(CLIENTS)]
        self.written: list[Update] = []
        self.upper = self.since = 0
        self.exists = False
        self.readers: list[tuple[ReadHandle, int]] = []
        self.holds: dict[str, tuple[CriticalSince, int]] = {}
        self.followed: list[Followed] = []

    def start(self) -> PersistClient:
        return self.stores.open(
            maintenance="inline" if self.blobs else "off",
            inline_max_bytes=0 if self.blobs else 4096,
            part_target_bytes=100,
            rollup_every=5,
            compaction_fanin=3,
        )

    def contents(self, as_of: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for key, value, time, diff in self.written:
            if time <= as_of:
                found[key, value] += diff
        return Counter({row: count for row, count in found.items() if count})

    def moved(self) -> None:
        """Somebody has moved a hold."""
        holds = [since for _, since in self.readers] + [since for _, since in self.holds.values()]
        self.since = max(self.since, min(*holds, max(self.upper - 1, 0), 1 << 64))

    @precondition(lambda self: self.exists and len(self.schemas) < len(SCHEMAS))
    @rule(who=clients)
    def evolve(self, who: int) -> None:
        self.schemas.append(SCHEMAS[len(self.schemas)])
        self.clients[who].evolve(SHARD, self.schemas[-1])

    @rule(who=clients, given=rows_of_some, step=st.integers(1, 5), schema=st.integers(0, 9))
    def append(self, who: int, given: list[Update], step: int, schema: int) -> None:
        lower, upper = self.upper, self.upper + step
        placed = [(key, value, lower + time % step, diff) for key, value, time, diff in given]
        # Also one that others have followed.
        known = self.schemas[schema % len(self.schemas)]
        writer = self.clients[who].writer(SHARD, known, purpose="model")
        table = updates(placed)
        for column in known.columns[2:]:
            table = table.append_column(column.name, pa.nulls(len(table), column.arrow.type))
        writer.compare_and_append(table, lower, upper)
        self.written += placed
        self.upper, self.exists = upper, True

    @rule(who=clients, wrong=st.sampled_from([-1, 1, 7]))
    def append_elsewhere(self, who: int, wrong: int) -> None:
        expected = max(0, self.upper + wrong)
        if expected == self.upper:
            return
        writer = self.clients[who].writer(SHARD, SCHEMA, purpose="model")
        with pytest.raises(UpperMismatch) as mismatch:
            writer.compare_and_append(updates([(9, "never", expected, 1)]), expected, expected + 9)
        assert mismatch.value.actual == self.upper
        # A writer makes itself known before it uploads, and the shard with it.
        self.exists = self.exists or self.stores.state().exists

    @rule(who=clients, step=st.integers(0, 3))
    def seal(self, who: int, step: int) -> None:
        self.clients[who].writer(SHARD, SCHEMA, purpose="model").seal(self.upper + step)
        self.upper += step
        self.exists = self.exists or step > 0

    @precondition(lambda self: self.exists)
    @rule(who=clients)
    def open_reader(self, who: int) -> None:
        self.readers.append((self.clients[who].reader(SHARD, purpose="model"), self.since))

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 9), to=st.integers(0, 60))
    def downgrade(self, which: int, to: int) -> None:
        which %= len(self.readers)
        reader, since = self.readers[which]
        reader.allow_compaction(to)
        self.readers[which] = (reader, max(since, to))
        if to >= since:
            self.moved()

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 9))
    def close_reader(self, which: int) -> None:
        reader, _ = self.readers.pop(which % len(self.readers))
        reader.close()
        self.followed = [followed for followed in self.followed if followed.reader is not reader]

    @precondition(lambda self: self.exists)
    @rule(who=clients, purpose=st.sampled_from(["backup", "audit"]), to=st.integers(0, 60))
    def hold(self, who: int, purpose: str, to: int) -> None:
        hold = self.clients[who].critical_since(SHARD, purpose=purpose)
        _, since = self.holds.get(purpose, (hold, self.since))
        assert hold.since == since
        hold.downgrade(to)
        self.holds[purpose] = (hold, max(since, to))
        if to >= since:
            self.moved()

    @precondition(lambda self: self.holds)
    @rule(purpose=st.sampled_from(["backup", "audit"]))
    def release(self, purpose: str) -> None:
        if purpose in self.holds:
            self.holds.pop(purpose)[0].release()

    @rule(who=clients)
    def maintain(self, who: int) -> None:
        self.clients[who].maintain(SHARD)

    @rule(who=clients, blobs=st.booleans())
    def restart(self, who: int, blobs: bool) -> None:
        """A process dies without a word; its readers' leases stay."""
        self.blobs = blobs
        self.clients[who] = self.start()

    @precondition(lambda self: self.exists)
    @rule(who=clients, back=st.integers(0, 12), leased=st.booleans())
    def snapshot(self, who: int, back: int, leased: bool) -> None:
        as_of = max(0, self.upper - back)
        client = self.clients[who] if leased else self.stores.open(mode="read")
        reader = client.reader(SHARD, purpose="model")
        if self.since <= as_of < self.upper:
            assert contents(reader.snapshot(as_of).to_table()) == self.contents(as_of)
        elif as_of < self.since:
            with pytest.raises(AsOfTooEarly) as early:
                reader.snapshot(as_of)
            assert early.value.since == self.since
        else:
            with pytest.raises(AsOfNotYetAvailable) as late:
                reader.snapshot(as_of)
            assert late.value.upper == self.upper
        reader.close()

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 9), back=st.integers(0, 6))
    def follow(self, which: int, back: int) -> None:
        reader, _ = self.readers[which % len(self.readers)]
        as_of = max(self.since, self.upper - back)
        self.followed.append(Followed(reader.listen(as_of), reader, as_of + 1, as_of + 1))

    @precondition(lambda self: self.followed)
    @rule(which=st.integers(0, 9))
    def hear(self, which: int) -> None:
        followed = self.followed[which % len(self.followed)]
        if self.since >= followed.frontier and self.upper > followed.frontier:
            try:
                # A process that has not seen since move may still read what is there, and must read it right.
                self.hear_all(followed)
            except AsOfTooEarly:
                self.followed.remove(followed)
                return
        else:
            self.hear_all(followed)
        expected: Counter[tuple[int, str, int]] = Counter()
        for key, value, time, diff in self.written:
            if followed.lower <= time < followed.frontier:
                expected[key, value, time] += diff
        assert {row: n for row, n in followed.heard.items() if n} == {r: n for r, n in expected.items() if n}
        assert followed.frontier == max(followed.lower, self.upper)

    def hear_all(self, followed: Followed) -> None:
        while events := followed.listen.next(0):
            for event in events:
                match event:
                    case Updates(table):
                        for row in table.to_pylist():
                            assert row["_time"] >= followed.frontier
                            followed.heard[row["k"], row["v"], row["_time"]] += row["_diff"]
                    case Progress(frontier):
                        assert frontier > followed.frontier
                        followed.frontier = frontier

    @invariant()
    def the_frontiers_are_those_of_the_model(self) -> None:
        state = self.stores.state()
        assert (state.since, state.upper, state.exists) == (self.since, self.upper, self.exists)

    def teardown(self) -> None:
        if self.upper:
            reader = self.stores.open(mode="read").reader(SHARD, purpose="model")
            for as_of in {self.since, self.upper - 1}:
                assert contents(reader.snapshot(as_of).to_table()) == self.contents(as_of)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
