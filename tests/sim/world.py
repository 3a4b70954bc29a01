"""A world of some processes that write, read and clean up the same shards, on stores that fail.

Everything follows from the seed: the settings, the faults, the work of each process and the order in which
they take turns. `run` raises what went wrong.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    Determinate,
    HandleExpired,
    Indeterminate,
    UpperMismatch,
)
from holdfast.persist import (
    Clock,
    CriticalSince,
    Listen,
    PersistClient,
    PersistConfig,
    Progress,
    ReadHandle,
    Schema,
    Updates,
    WriteHandle,
)
from holdfast.persist.state import ShardState
from holdfast.persist.storage import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.storage.faults import FaultyBlob, FaultyConsensus, ProcessDeath, SeededPlan
from sim.audit import Auditor, Violation
from sim.history import MARKER, Fate, Followed, History, Read, Row, Update
from sim.scheduler import Scheduler
from sim.stores import SimBlob, SimConsensus

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
FOREVER_S = 1e9
HOLDS = ("audit", "backup")


@dataclass(frozen=True, slots=True)
class Weather:
    """How hard a world is on its processes: probabilities per storage call."""

    error_rate: float
    death_rate: float
    slow_rate: float


WEATHERS = (
    Weather(0.0, 0.0, 0.0),
    Weather(0.06, 0.0, 0.0),
    Weather(0.0, 0.01, 0.0),
    Weather(0.0, 0.0, 0.12),
    Weather(0.05, 0.008, 0.06),
)


class SimClock(Clock):
    """The world's time; the wall clock of each process may be wrong, and jump."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_s = 0.0

    def wall_ms(self) -> int:
        return int((1_000_000 + self._scheduler.now + self.offset_s) * 1000)

    def monotonic(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


class World:
    """The stores, the processes, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.blob, self.consensus = MemoryBlob(clock=lambda: 0), MemoryConsensus()
        self.auditor = Auditor(self.blob)
        self.history = History()
        self.weather = self.random.choice(WEATHERS)
        self.leases_end = self.random.random() < 0.4
        self.leases = self.random.random() < 0.6
        self.holds = HOLDS if not self.leases or self.random.random() < 0.5 else ()
        blobs = self.random.random() < 0.3
        self.config = PersistConfig(
            inline_max_bytes=0 if blobs else 64 * 1024,
            part_target_bytes=self.random.choice([64, 100_000]),
            rollup_every=self.random.randint(2, 20),
            compaction_fanin=self.random.randint(2, 5),
            gc_grace_s=self.random.choice([0.0, 0.0, 0.05]),
            lease_s=0.3 if self.leases_end else FOREVER_S,
            retry_deadline_s=self.random.choice([0.0, 0.03, 1.0]),
            maintenance=self.random.choice(["inline", "inline", "off"]),
            debug_validate=self.random.random() < 0.5,
            hostname="sim",
        )
        self.shards = [f"s{uuid.UUID(int=self.random.getrandbits(128))}" for _ in range(2)]
        self.actions = self.random.randint(12, 24) if blobs else self.random.randint(15, 30)
        self.location_id = uuid.UUID(int=self.random.getrandbits(128))

    def run(self) -> None:
        """Let all processes do their work, then judge what they saw."""
        count = self.random.randint(1, 4)
        processes = [Process(self, f"p{number}") for number in range(count)]
        self.scheduler.run({process.name: process.main for process in processes})
        self.scheduler.land_all()
        self._judge()

    def _judge(self) -> None:
        sound = Weather(0.0, 0.0, 0.0)
        client = PersistClient(self.location(sound, None), config=self.config, clock=SimClock(self.scheduler))
        final: dict[str, Counter[Row]] = {}
        for again in (False, True):
            for shard in self.shards:
                upper = client.recent_upper(shard)
                if upper != self.auditor.state(shard).upper:
                    raise Violation(f"{shard} has upper {upper}, not {self.auditor.state(shard).upper}")
                reader = client.reader(shard, purpose="judge") if upper else None
                found = contents(reader.snapshot(upper - 1).to_table()) if reader else Counter()
                if again and found != final[shard]:
                    raise Violation(f"upkeep of {shard} changed its contents")
                final[shard] = found
                if reader is not None:
                    reader.close()
                client.maintain(shard)
        self.history.judge(final)

    def location(self, weather: Weather, plan: SeededPlan | None) -> Location:
        """The stores as one process sees them."""
        blob = SimBlob(self.blob, self.scheduler, self.auditor, weather.slow_rate)
        consensus = SimConsensus(self.consensus, self.scheduler, self.auditor, weather.slow_rate)
        if plan is None:
            return Location(blob, consensus, self.location_id)
        return Location(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan), self.location_id)


class Process:
    """One simulated process: it works, may die, and is started again until its work is done."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(world.random.getrandbits(64))
        self.left = world.actions
        self.incarnations = 0

    def main(self) -> None:
        """Start and start again."""
        while self.left > 0:
            self.incarnations += 1
            try:
                Incarnation(self.world, self).work()
            except ProcessDeath:
                self.world.scheduler.note("died")


class Incarnation:
    """A process between two deaths."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process, self.random = world, process, process.random
        self.auditor, self.history = world.auditor, world.history
        self.who = f"{process.name}.{process.incarnations}"
        weather = world.weather
        plan = SeededPlan(self.random.getrandbits(64), rate=weather.error_rate, death_rate=weather.death_rate)
        self.clock = SimClock(world.scheduler)
        location = world.location(weather, plan)
        self.client = PersistClient(location, config=world.config, clock=self.clock)
        self.observer = PersistClient(location, mode="read", config=world.config, clock=self.clock)
        self.observed: dict[str, ReadHandle] = {}
        self.writers: dict[str, WriteHandle] = {}
        self.readers: dict[str, tuple[ReadHandle, int]] = {}
        self.listens: dict[str, tuple[Listen, Followed]] = {}
        self.holds: dict[tuple[str, str], CriticalSince] = {}

    def work(self) -> None:
        """Do what is left to do."""
        actions: list[tuple[int, Callable[[str], None]]] = [
            (10, self.append),
            (4, self.append_to_all),
            (2, self.seal),
            (5, self.snapshot),
            (5, self.observe),
            (3, self.peek),
            (5, self.follow),
            (2, self.start_following),
            (3, self.allow_compaction),
            (3, self.move_hold),
            (2, self.heartbeat),
            (1, self.close_reader),
            (3, self.maintain),
            (1, self.time_passes),
        ]
        weights = [weight for weight, _ in actions]
        while self.process.left > 0:
            self.process.left -= 1
            (action,) = self.random.choices([action for _, action in actions], weights)
            (shard,) = self.random.choices(self.world.shards, (3, 1))
            self.world.scheduler.note(f"{action.__name__} {shard[:5]}")
            try:
                action(shard)
            except (Determinate, Indeterminate) as error:
                self.world.scheduler.note(type(error).__name__)

    def writer(self, shard: str) -> WriteHandle:
        if shard not in self.writers:
            self.writers[shard] = self.client.writer(shard, SCHEMA, purpose=self.who)
        return self.writers[shard]

    def reader(self, shard: str) -> ReadHandle:
        if not self.world.leases:
            return self.observing(shard)
        if shard not in self.readers:
            reader = self.client.reader(shard, purpose=self.who)
            self.readers[shard] = (reader, self.client.machine(shard).state.upper)
        return self.readers[shard][0]

    def observing(self, shard: str) -> ReadHandle:
        if shard not in self.observed:
            self.observed[shard] = self.observer.reader(shard, purpose=self.who)
        return self.observed[shard]

    def exists(self, shard: str) -> bool:
        return self.auditor.state(shard).exists

    def expected_upper(self, shard: str) -> int:
        """Mostly what the process believes; now and then a guess."""
        known = self.writer(shard).cached_upper
        return known if self.random.random() < 0.9 else max(0, known + self.random.randint(-3, 3))

    def updates(self, shards: list[str], lower: int, upper: int) -> list[Update]:
        name = f"{len(self.history.writes)}"
        times = range(lower, upper)
        added = [
            (self.random.randint(0, 4), name, self.random.choice(times), self.random.choice([1, 1, 2]))
            for _ in range(self.random.randint(0, 3))
        ]
        done = [w for w in self.history.writes.values() if w.fate is Fate.DONE and set(shards) <= {*w.shards}]
        for earlier in self.random.sample(done, min(len(done), self.random.randint(0, 2))):
            key, value, _, diff = self.random.choice(earlier.updates)
            if key != MARKER:
                added.append((key, value, self.random.choice(times), -diff))
        return added

    def append(self, shard: str) -> None:
        self._append([shard])

    def append_to_all(self, shard: str) -> None:
        self._append(self.world.shards)

    def _append(self, shards: list[str]) -> None:
        uppers = [self.expected_upper(shard) for shard in shards]
        if len(set(uppers)) > 1:
            self._seal(min(zip(uppers, shards, strict=True))[1], max(uppers))
        lower = max(uppers)
        upper = lower + self.random.randint(1, 3)
        before = {shard: self.auditor.state(shard).upper for shard in shards}
        write = self.history.begin(shards, lower, upper, self.updates(shards, lower, upper))
        try:
            commands = [self.writer(s).prepare_append(table(write.updates), lower, upper) for s in shards]
            for shard, purpose in list(self.holds):
                if shard in shards and self.random.random() < 0.3:
                    since = self.random.randint(0, lower + 1)
                    self.auditor.may_move(shard, purpose, since)
                    commands.append(self.holds[shard, purpose].prepare_downgrade(since))
            self.client.multi_write(commands)
        except UpperMismatch as mismatch:
            write.fate = Fate.REJECTED
            self._check_upper(mismatch.shard_id, before[mismatch.shard_id], mismatch.actual)
            if mismatch.actual == mismatch.expected:
                raise Violation(f"{mismatch} is no mismatch") from mismatch
        except (Indeterminate, HandleExpired):
            for shard in shards:
                self.writers.pop(shard, None)
        except Determinate:
            write.fate = Fate.REJECTED
            raise
        else:
            write.fate = Fate.DONE
            for shard in shards:
                self._check_upper(shard, upper, self.auditor.state(shard).upper)

    def _check_upper(self, shard: str, before: int, answer: int) -> None:
        now = self.auditor.state(shard).upper
        if not before <= answer <= now:
            raise Violation(f"upper {answer} of {shard} was never true during the call: {before} to {now}")

    def seal(self, shard: str) -> None:
        self._seal(shard, self.writer(shard).cached_upper + self.random.randint(0, 2))

    def _seal(self, shard: str, upper: int) -> None:
        try:
            self.writer(shard).seal(upper)
        except (HandleExpired, Indeterminate):
            self.writers.pop(shard, None)

    def peek(self, shard: str) -> None:
        before = self.auditor.state(shard)
        upper = self.client.recent_upper(shard)
        self._check_upper(shard, before.upper, upper)

    def snapshot(self, shard: str) -> None:
        if self.exists(shard):
            self._snapshot(shard, self.reader(shard))

    def observe(self, shard: str) -> None:
        """Read without a lease: what is being read may go."""
        if self.exists(shard):
            known = self.observer.machine(shard).state
            self._snapshot(shard, self.observing(shard), known if known.exists else None)

    def _snapshot(self, shard: str, reader: ReadHandle, known: ShardState | None = None) -> None:
        state = known or self.auditor.state(shard)
        as_of = self.random.randint(state.since, max(state.upper - 1, state.since))
        try:
            found = contents(reader.snapshot(as_of).to_table())
        except AsOfNotYetAvailable:
            if as_of < state.upper:
                raise
        except AsOfTooEarly:
            self._check_too_early(shard, as_of, reader)
        else:
            self.history.reads.append(Read(self.who, shard, as_of, found))

    def _check_too_early(self, shard: str, as_of: int, reader: ReadHandle | None = None) -> None:
        floor = self.auditor.floor(shard)
        if self.auditor.state(shard).since <= as_of:
            raise Violation(f"{self.who}: {shard} is readable at {as_of}, yet the answer was 'too early'")
        if floor is not None and as_of >= floor:
            raise Violation(f"{self.who}: {shard} can't be read at {as_of} despite a hold at {floor}")
        held = self.readers.get(shard)
        if held is not None and reader in (None, held[0]) and as_of >= held[1] and not self.world.leases_end:
            raise Violation(f"{self.who}: {shard} can't be read at {as_of} despite a lease at {held[1]}")

    def start_following(self, shard: str) -> None:
        if not self.exists(shard):
            return
        reader = self.reader(shard)
        state = self.auditor.state(shard)
        as_of = self.random.randint(state.since, max(state.upper - 1, state.since))
        try:
            follow = self.random.choice([reader.listen, reader.subscribe])
            listen = follow(as_of)
        except AsOfTooEarly:
            self._check_too_early(shard, as_of)
            return
        except AsOfNotYetAvailable:
            return
        followed = Followed(self.who, shard, as_of + 1, as_of + 1)
        self.history.followed.append(followed)
        self.listens[shard] = (listen, followed)

    def follow(self, shard: str) -> None:
        if shard not in self.listens:
            return
        listen, followed = self.listens[shard]
        try:
            events = listen.next(timeout=0)
        except AsOfTooEarly:
            del self.listens[shard]
            self._check_too_early(shard, followed.frontier - 1)
            return
        for event in events:
            match event:
                case Updates(found):
                    times = found.column("_time").to_pylist()
                    if times and min(times) < followed.lower:
                        self._take_snapshot(shard, followed, found)
                        continue
                    if times and min(times) < followed.frontier:
                        raise Violation(f"{self.who}: updates at {min(times)} after {followed.frontier}")
                    columns = [found.column(name).to_pylist() for name in ("k", "v", "_time", "_diff")]
                    for key, value, time, diff in zip(*columns, strict=True):
                        followed.updates[key, value, time] += diff
                case Progress(frontier):
                    if frontier < followed.frontier:
                        raise Violation(f"{self.who}: progress went from {followed.frontier} to {frontier}")
                    followed.frontier = frontier

    def _take_snapshot(self, shard: str, followed: Followed, found: pa.Table) -> None:
        """The first updates of a subscription are the contents at its beginning."""
        as_of = followed.lower - 1
        if set(found.column("_time").to_pylist()) != {as_of}:
            raise Violation(f"{self.who}: a subscription at {as_of} begins with other times")
        self.history.reads.append(Read(self.who, shard, as_of, contents(found.drop_columns(["_time"]))))

    def allow_compaction(self, shard: str) -> None:
        if shard not in self.readers:
            return
        reader, held = self.readers[shard]
        upper = self.auditor.state(shard).upper
        since = self.random.choice([upper + 2, self.random.randint(0, upper)])
        self.readers[shard] = (reader, max(held, since))
        reader.allow_compaction(since)

    def move_hold(self, shard: str) -> None:
        if not self.exists(shard) or not self.world.holds:
            return
        purpose = self.random.choice(self.world.holds)
        hold = self.holds.get((shard, purpose))
        if hold is None:
            hold = self.holds[shard, purpose] = self.client.critical_since(shard, purpose=purpose)
            self.auditor.may_move(shard, purpose, hold.since)
            return
        since = self.random.randint(0, self.auditor.state(shard).upper + 2)
        self.auditor.may_move(shard, purpose, since)
        hold.downgrade(since)

    def heartbeat(self, shard: str) -> None:
        if shard in self.readers:
            self.readers[shard][0].heartbeat()

    def close_reader(self, shard: str) -> None:
        if shard in self.readers:
            self.listens.pop(shard, None)
            self.readers.pop(shard)[0].close()

    def maintain(self, shard: str) -> None:
        self.heartbeat(shard)
        self.client.maintain(shard)

    def time_passes(self, shard: str) -> None:
        self.clock.offset_s += self.random.choice([-5.0, 0.0, 5.0])
        self.world.scheduler.sleep(self.random.choice([0.01, 0.1, 0.5]))


def table(updates: tuple[Update, ...]) -> pa.Table:
    """Updates as a writer hands them in."""
    keys, values, times, diffs = zip(*updates, strict=True)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array(values, pa.string()),
            "_time": pa.array(times, pa.uint64()),
            "_diff": pa.array(diffs, pa.int64()),
        }
    )


def contents(found: pa.Table) -> Counter[Row]:
    """A snapshot as rows and how often they are in; a row that is given twice is an error."""
    columns = [found.column(name).to_pylist() for name in ("k", "v", "_diff")]
    rows: Counter[Row] = Counter()
    for key, value, diff in zip(*columns, strict=True):
        if (key, value) in rows or diff == 0:
            raise Violation(f"a snapshot is not consolidated: {key}, {value}")
        rows[key, value] = diff
    return rows


def run(seed: int) -> World:
    """Run the world of a seed to its end."""
    world = World(seed)
    world.run()
    return world
