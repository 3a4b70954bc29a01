"""A shard of mode WRITE_SEAL against two plain lists: what is written, and how far it is sealed.

Processes take the lock from each other and die; any order of writes, seals, holds, upkeep and reads.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly, Fenced, NotWritable, UpperMismatch
from holdfast.persist import Listen, PersistClient, Progress, ReadHandle, Updates, WriteHandle, WriteMode
from holdfast.persist.state.state import part_keys
from unit.persist.open_stores import SCHEMA, SHARD, Row, Stores, Update, contents, updates

CLIENTS = 3
clients = st.integers(0, CLIENTS - 1)
some_updates = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), st.integers(0, 9), st.sampled_from([1, 2, -1])),
    min_size=1,
    max_size=6,
)


@dataclass
class Followed:
    listen: Listen
    lower: int
    heard: Counter[tuple[int, str, int]] = field(default_factory=Counter)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stores = Stores()
        self.blobs = False
        self.clients: list[PersistClient] = [self.start() for _ in range(CLIENTS)]
        # Who has the lock; and who has had it, and does not know better.
        self.holder: int | None = None
        self.fenced: set[int] = set()
        self.written: list[Update] = []
        self.upper = self.since = 0
        self.hold: ReadHandle | None = None
        self.held = 0
        self.followed: list[Followed] = []

    def start(self) -> PersistClient:
        return self.stores.open(
            maintenance="inline" if self.blobs else "off",
            inline_max_bytes=0 if self.blobs else 4096,
            part_target_bytes=200,
            rollup_every=5,
            compaction_fanin=3,
            audit_pushdown=True,
        )

    def writer(self, who: int) -> WriteHandle:
        return self.clients[who].writer(SHARD, SCHEMA, purpose="model", mode=WriteMode.WRITE_SEAL)

    def contents(self, as_of: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for key, value, time, diff in self.written:
            if time <= as_of:
                found[key, value] += diff
        return Counter({row: count for row, count in found.items() if count})

    @rule(who=clients, take_over=st.booleans())
    def take_lock(self, who: int, take_over: bool) -> None:
        if self.holder == who:
            return
        self.clients[who].exclusive("job" if take_over else "job again", take_over=True)
        if self.holder is not None:
            self.fenced.add(self.holder)
        self.fenced.discard(who)
        self.holder = who

    def refused(self, who: int) -> type[Exception]:
        return Fenced if who in self.fenced else NotWritable

    @rule(who=clients, given=some_updates)
    def write(self, who: int, given: list[Update]) -> None:
        placed = [(key, value, self.upper + time, diff) for key, value, time, diff in given]
        if who != self.holder:
            with pytest.raises(self.refused(who)):
                self.writer(who).write(updates(placed))
            return
        self.writer(who).write(updates(placed))
        self.written += placed

    @precondition(lambda self: self.holder is not None and self.upper > 0)
    @rule(given=some_updates, late=st.integers(1, 3))
    def write_too_late(self, given: list[Update], late: int) -> None:
        assert self.holder is not None
        placed = [(key, value, self.upper + time, diff) for key, value, time, diff in given]
        placed[0] = (9, "never", max(0, self.upper - late), 1)
        with pytest.raises(UpperMismatch) as mismatch:
            self.writer(self.holder).write(updates(placed))
        assert mismatch.value.actual == self.upper

    @rule(who=clients, step=st.integers(0, 7))
    def seal(self, who: int, step: int) -> None:
        if step == 0 and who in self.fenced:
            # There is nothing to do, so it need not notice.
            return
        if who != self.holder:
            with pytest.raises(self.refused(who)):
                self.writer(who).seal(self.upper + step)
            return
        self.writer(who).seal(self.upper + step)
        self.upper += step

    @precondition(lambda self: self.holder is not None)
    @rule(given=some_updates, step=st.integers(1, 7))
    def write_and_seal(self, given: list[Update], step: int) -> None:
        assert self.holder is not None
        placed = [(key, value, self.upper + time, diff) for key, value, time, diff in given]
        writer = self.writer(self.holder)
        commands = [writer.prepare_write(updates(placed)), writer.prepare_seal(self.upper, self.upper + step)]
        self.clients[self.holder].multi_write(commands)
        self.written += placed
        self.upper += step

    @rule(who=clients, blobs=st.booleans())
    def restart(self, who: int, blobs: bool) -> None:
        """A process dies without a word; the lock stays as it is."""
        self.blobs = blobs
        self.clients[who] = self.start()
        self.fenced.discard(who)
        if self.holder == who:
            self.clients[who].exclusive("job", take_over=True)

    @rule(who=clients)
    def maintain(self, who: int) -> None:
        if who in self.fenced:
            return
        self.clients[who].maintain(SHARD)

    @precondition(lambda self: self.upper and self.hold is None)
    @rule()
    def take_hold(self) -> None:
        self.hold, self.held = self.stores.open().reader(SHARD, purpose="model"), self.since

    @precondition(lambda self: self.hold is not None)
    @rule(to=st.integers(0, 40))
    def move_hold(self, to: int) -> None:
        assert self.hold is not None
        self.hold.allow_compaction(to)
        if to >= self.held:
            self.held = to
            self.since = max(self.since, min(to, max(self.upper - 1, 0)))

    @precondition(lambda self: self.upper)
    @rule(who=clients, back=st.integers(0, 9), streamed=st.booleans())
    def snapshot(self, who: int, back: int, streamed: bool) -> None:
        as_of = max(0, self.upper - back)
        reader = self.stores.open(mode="read", audit_pushdown=True).reader(SHARD, purpose="model")
        if as_of < self.since:
            with pytest.raises(AsOfTooEarly):
                reader.snapshot(as_of)
        elif as_of >= self.upper:
            with pytest.raises(AsOfNotYetAvailable):
                reader.snapshot(as_of)
        elif streamed:
            found = [row for batch in reader.snapshot(as_of) for row in batch.to_pylist()]
            assert {(row["k"], row["v"]): row["_diff"] for row in found} == self.contents(as_of)
        else:
            assert contents(reader.snapshot(as_of).to_table()) == self.contents(as_of)

    @precondition(lambda self: self.upper)
    @rule(back=st.integers(1, 6))
    def follow(self, back: int) -> None:
        as_of = max(self.since, self.upper - back)
        reader = self.stores.open(mode="read").reader(SHARD, purpose="model")
        self.followed.append(Followed(reader.listen(as_of), as_of + 1))

    @precondition(lambda self: self.followed)
    @rule(which=st.integers(0, 9))
    def hear(self, which: int) -> None:
        followed = self.followed[which % len(self.followed)]
        try:
            while events := followed.listen.next(0):
                for event in events:
                    match event:
                        case Updates(table):
                            for row in table.to_pylist():
                                followed.heard[row["k"], row["v"], row["_time"]] += row["_diff"]
                        case Progress():
                            pass
        except AsOfTooEarly:
            assert self.since >= followed.listen.frontier
            self.followed.remove(followed)
            return
        expected: Counter[tuple[int, str, int]] = Counter()
        for key, value, time, diff in self.written:
            if followed.lower <= time < followed.listen.frontier:
                expected[key, value, time] += diff
        assert {row: n for row, n in followed.heard.items() if n} == {r: n for r, n in expected.items() if n}
        assert followed.listen.frontier == max(followed.lower, self.upper)

    @invariant()
    def the_frontiers_are_those_of_the_model(self) -> None:
        state = self.stores.state()
        assert (state.since, state.upper) == (self.since, self.upper)
        assert part_keys(state) <= self.stores.parts()

    def teardown(self) -> None:
        """What was written was durable: sealed at last, it is there."""
        if not self.written:
            return
        last = self.stores.open()
        last.exclusive("last", take_over=True)
        last.writer(SHARD, SCHEMA, purpose="model", mode=WriteMode.WRITE_SEAL).seal(self.upper + 10)
        reader = last.reader(SHARD, purpose="model")
        for as_of in range(max(self.since, self.upper - 1), self.upper + 10):
            assert contents(reader.snapshot(as_of).to_table()) == self.contents(as_of)


TestSealModel = Model.TestCase
TestSealModel.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
