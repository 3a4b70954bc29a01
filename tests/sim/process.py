"""A simulated process: it opens handles, runs actions of the repertoire, dies, and is started again."""

import random
from typing import TYPE_CHECKING

from holdfast.errors import Determinate, Fenced, Indeterminate, LockHeld
from holdfast.persist import (
    CriticalSince,
    Exclusive,
    Listen,
    PersistClient,
    ReadHandle,
    WriteHandle,
    WriteMode,
)
from sim.audit import Violation
from sim.history import Followed
from sim.repertoire import repertoire
from sim.rows import LATER, SCHEMA
from sim.story import short
from sim.weather import CountingPlan, Exposure, SimClock
from testbed.faults import ProcessDeath, SeededPlan

if TYPE_CHECKING:
    from sim.world import World


class Process:
    """One simulated process: it works, may die, and is started again until its work is done."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(world.random.getrandbits(64))
        self.left = world.actions
        self.incarnations = 0
        # Two of them have one id, against the rules: each fences the other.
        self.reentrance_id = f"job{int(name[1:]) % 2}"

    def main(self) -> None:
        """Start and start again."""
        while self.left > 0:
            self.incarnations += 1
            try:
                Incarnation(self.world, self).work()
            except ProcessDeath:
                self.world.scheduler.head("died")


class Incarnation:
    """A process between two deaths: its clients and handles, which the actions use."""

    def __init__(self, world: "World", process: Process) -> None:
        self.world, self.process, self.random = world, process, process.random
        self.auditor, self.history = world.auditor, world.history
        self.who = f"{process.name}.{process.incarnations}"
        weather = world.weather
        plan = SeededPlan(self.random.getrandbits(64), rate=weather.error_rate, death_rate=weather.death_rate)
        self.clock = SimClock(world.scheduler)
        self.exposure = Exposure(world.grid, weather, self.clock)
        location = world.location(self.exposure, CountingPlan(plan, world.scheduler), self.who)
        self.client = PersistClient(location, config=world.config, clock=self.clock)
        self.observer = PersistClient(location, mode="read", config=world.config, clock=self.clock)
        self.observed: dict[str, ReadHandle] = {}
        self.writers: dict[str, WriteHandle] = {}
        self.readers: dict[str, tuple[ReadHandle, int]] = {}
        self.listens: dict[str, tuple[Listen, Followed]] = {}
        self.holds: dict[tuple[str, str], tuple[CriticalSince, bytes]] = {}
        """By shard and purpose, each with the token that it acts with."""
        self.lock: Exclusive | None = None

    def work(self) -> None:
        """Do what is left to do."""
        actions = repertoire(self.world.mode, evolves=self.world.evolves, shares=self.world.shares_writers)
        weights = [weight for weight, _ in actions]
        while self.process.left > 0:
            self.process.left -= 1
            (action,) = self.random.choices([action for _, action in actions], weights)
            (shard,) = self.random.choices(self.world.shards, (3, 1))
            self.world.scheduler.head(f"{action.__name__} {short(shard)}")
            try:
                action(self, shard)
            except (Determinate, Indeterminate) as error:
                self.world.scheduler.note(f"-> {type(error).__name__}: {error}")
            except Fenced:
                self.world.scheduler.meet("processes fenced")
                self.lock = None
                if self.random.random() < 0.5:
                    # As it should: it starts anew.
                    return

    def locked(self) -> bool:
        """Whether this process has the write lock, as far as it knows, after it has asked for it."""
        if self.lock is None:
            take_over = self.random.random() < 0.3
            try:
                self.lock = self.client.exclusive(
                    self.process.reentrance_id, purpose=self.who, take_over=take_over
                )
            except LockHeld:
                self.world.scheduler.meet("locks refused")
        return self.lock is not None

    def exists(self, shard: str) -> bool:
        """Whether the shard is there: an action on one that isn't tells nothing."""
        return self.auditor.state(shard).exists

    def writer(self, shard: str) -> WriteHandle:
        """The handle that appends, opened where the last one is spent."""
        if shard not in self.writers:
            # Not those that the audit knows: they are of its own code, and equal nothing of a mutant's.
            schemas = (SCHEMA, LATER)[: len(self.auditor.state(shard).schemas)]
            schema = self.random.choice(schemas) if len(schemas) > 1 else SCHEMA
            mode = self.world.mode
            if self.world.shares_writers and mode is WriteMode.APPEND:
                self.writers[shard] = self._shared_writer(shard)
            else:
                self.writers[shard] = self.client.writer(shard, schema, purpose=self.who, mode=mode)
        return self.writers[shard]

    def _shared_writer(self, shard: str) -> WriteHandle:
        """A handle of the writer that all processes share, until its entry is dropped."""
        if shard not in self.world.tickets:
            own = self.client.writer(shard, SCHEMA, purpose=self.who)
            self.world.tickets[shard] = own.hand_on(lease_s=self.world.config.lease_s)
        self.world.scheduler.meet("shared writers")
        return self.client.writer_of(self.world.tickets[shard], purpose=self.who)

    def reader(self, shard: str) -> ReadHandle:
        """A handle that reads under a lease, in worlds that have leases."""
        if not self.world.leases:
            return self.observing(shard)
        if shard not in self.readers:
            reader = self.client.reader(shard, purpose=self.who)
            self.readers[shard] = (reader, self.client.session.machine(shard).state.upper)
        return self.readers[shard][0]

    def observing(self, shard: str) -> ReadHandle:
        """A handle that reads without a lease."""
        if shard not in self.observed:
            self.observed[shard] = self.observer.reader(shard, purpose=self.who)
        return self.observed[shard]

    def check_upper(self, shard: str, before: int, answer: int) -> None:
        """Refuse an upper that was not the shard's at any time since `before` was."""
        now = self.auditor.state(shard).upper
        if not before <= answer <= now:
            raise Violation(f"upper {answer} of {shard} was never true during the call: {before} to {now}")

    def check_too_early(self, shard: str, as_of: int, reader: ReadHandle | None = None) -> None:
        """Refuse the answer "too early" at a time that somebody holds."""
        floor = self.auditor.floor(shard)
        if self.auditor.state(shard).since <= as_of:
            raise Violation(f"{self.who}: {shard} is readable at {as_of}, yet the answer was 'too early'")
        if floor is not None and as_of >= floor:
            raise Violation(f"{self.who}: {shard} can't be read at {as_of} despite a hold at {floor}")
        held = self.readers.get(shard)
        if held is not None and reader in (None, held[0]) and as_of >= held[1] and not self.world.leases_end:
            raise Violation(f"{self.who}: {shard} can't be read at {as_of} despite a lease at {held[1]}")
