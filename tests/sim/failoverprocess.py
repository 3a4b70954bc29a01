"""A process in a world whose consensus store fails over: its clients, and the results that they may get."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadInput, Determinate, Indeterminate, LogRegressed
from holdfast.persist import Listen, PersistClient, ReadHandle, WriteHandle
from holdfast.persist.stores import Expect, Location, Put
from sim.audit import Violation
from sim.failoveractions import ACTIONS
from sim.failoverservers import Observation, Server, named
from sim.failoverstores import FailoverBlob, FailoverConsensus
from sim.history import Followed, Write
from sim.rows import SCHEMA
from sim.story import short
from sim.weather import SOUND, CountingPlan, Exposure, SimClock
from testbed.faults import FaultyBlob, FaultyConsensus, ProcessDeath, SeededPlan

if TYPE_CHECKING:
    from sim.failoverworld import FailoverWorld

Known = dict[str, tuple[int, object]]


class Process:
    """One simulated process: it works, may die, and is started again until its work is done."""

    def __init__(self, world: "FailoverWorld", name: str) -> None:
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
                Incarnation(self).work()
            except ProcessDeath:
                self.world.scheduler.head("died")


class Session:
    """A client, which server it reaches, and all that it returned."""

    def __init__(
        self, world: "FailoverWorld", who: str, chance: random.Random | None, *, reads: bool
    ) -> None:
        self.world = world
        self.who = who
        weather = SOUND if chance is None else world.weather
        self.clock = SimClock(world.scheduler)
        self.exposure = Exposure(world.grid, weather, self.clock)
        self.last = world.primary
        self.used = {world.primary}
        self.write: Write | None = None
        self.seen: dict[str, list[Observation]] = {shard: [] for shard in world.shards}
        self.pairs: list[tuple[int, ...]] = []
        self.blocked_on: dict[str, Server] = {}
        self.uploaded: set[str] = set()
        self.allowed: set[str] = set()
        """What it began to delete while nothing blocked that, or had put itself before."""
        blob = FailoverBlob(world.blob, self.exposure, self)
        consensus = FailoverConsensus(self, self.exposure)
        location = Location(blob, consensus, world.location_id)
        if chance is not None:
            seeded = SeededPlan(
                chance.getrandbits(64), rate=weather.error_rate, death_rate=weather.death_rate
            )
            plan = CountingPlan(seeded, world.scheduler)
            faulty = FailoverLine(consensus, plan)
            location = Location(FaultyBlob(blob, plan), faulty, world.location_id)
        self.client = PersistClient(
            location, mode="read" if reads else "write", config=world.config, clock=self.clock
        )
        world.sessions.append(self)

    def reach(self) -> Server:
        """The server that a call reaches now."""
        self.world.tick()
        if self.last is not self.world.primary and not self.world.is_cut_off(self):
            self.last = self.world.primary
        self.used.add(self.last)
        return self.last

    def known(self) -> Known:
        """The newest row of each shard that the client knows."""
        versions = {shard: self.client.session.machine(shard).version for shard in self.world.shards}
        return {shard: (version.seqno, version.digest) for shard, version in versions.items()}

    def lacks(self, server: Server, shard: str | None = None) -> bool:
        """Whether the client knows a row that a server has not, of one shard or any."""
        shards = self.world.shards if shard is None else [shard]
        versions = {each: self.client.session.machine(each).version for each in shards}
        return any(not server.has(each, at.seqno, at.digest) for each, at in versions.items())

    def regressed(self) -> None:
        """Check that the client was right to end, and that it has ended."""
        self.world.scheduler.meet("clients that met another history")
        if not any(self.lacks(server) for server in self.used):
            raise Violation(f"{self.who} knew nothing that was lost, and met another history")
        for shard in self.world.shards:
            try:
                self.client.recent_upper(shard)
            except LogRegressed:
                continue
            except (Determinate, Indeterminate):
                pass
            raise Violation(f"{self.who} goes on with {shard} after it met another history")

    def commits(
        self,
        server: Server,
        puts: Sequence[Put],
        expect: Sequence[Expect],
        known: Known,
        write: Write | None,
    ) -> None:
        """Check versions that were just committed by who knew `known`."""
        for key in [*(put.key for put in puts), *(each.key for each in expect)]:
            seqno, digest = known[key]
            if not server.has(key, seqno, digest):  # type: ignore[arg-type]
                raise Violation(f"{self.who} commits on {key} and knows version {seqno}, which was lost")
        server.committed(puts, write)
        if server is self.world.primary:
            lost = [key for put in puts for key in named(server.state(put.key)) if self.world.gone(key)]
            if lost:
                raise Violation(f"{puts[0].key} version {puts[0].seqno} names blobs that are gone: {lost}")

    def truncates(self, server: Server, shard: str) -> None:
        """Check a truncation that has just happened."""
        server.truncated(shard)
        if self.blocked_on.get(shard) is server:
            raise Violation(f"{self.who} cuts {shard} while two histories stand")

    def uploads(self, key: str) -> None:
        """Note that the client puts a blob."""
        self.uploaded.add(key)

    def deletes(self, key: str) -> None:
        """Note that the client is about to delete a blob."""
        self.world.doomed.add(key)
        if key.split("/")[0] not in self.blocked_on or key in self.uploaded:
            self.allowed.add(key)

    def deleted(self, key: str) -> None:
        """Check that nobody can need the blob that goes now."""
        shard = key.split("/")[0]
        world = self.world
        if self.blocked_on.get(shard) is self.last and key not in self.uploaded | self.allowed:
            raise Violation(f"{self.who} deletes {key} while two histories stand")
        if key in named(world.primary.state(shard)):
            raise Violation(f"{key} is deleted, and in the history that was promoted")

    def check_line(self, server: Server) -> None:
        """Check that a commit on a server has recorded its line, where no call fails."""
        lines = [meta.key for meta in self.world.blob.list("lines/")]
        sound = self.world.weather is SOUND and self.last is server
        if sound and not any(line.endswith(f"-{server.line}") for line in lines):
            raise Violation(f"{self.who} has committed on {server.line}, and {lines} don't name it")

    def maintain(self, shard: str) -> None:
        """Do the upkeep of a shard, and note what it must leave alone."""
        world = self.world
        server = self.reach()
        for at in {server, world.primary}:
            if not world.stands(at, shard, to_stay=True):
                for other in world.servers:
                    if other is not at:
                        other.exposed.add(shard)
        if world.stands(server, shard, to_stay=True):
            world.scheduler.meet("upkeep while two histories stand")
            self.blocked_on[shard] = server
        self.uploaded.clear()
        world.collecting += 1
        try:
            self.client.maintain(shard)
        finally:
            world.collecting -= 1
            self.blocked_on.pop(shard, None)


class FailoverLine(FaultyConsensus):
    """A faulty consensus that still knows its line."""

    def __init__(self, inner: FailoverConsensus, plan: CountingPlan) -> None:
        super().__init__(inner, plan)
        self._reached = inner

    def line(self) -> str | None:
        return self._reached.line()


class Incarnation:
    """A process between two deaths: its clients and handles, which the actions use."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world, self.random = process.world, process.random
        self.who = f"{process.name}.{process.incarnations}"
        self.session = Session(self.world, self.who, self.random, reads=False)
        self.observer = Session(self.world, f"{self.who}r", self.random, reads=True)
        self.writers: dict[str, WriteHandle] = {}
        self.readers: dict[tuple[str, str], ReadHandle] = {}
        self.listens: dict[tuple[str, str], tuple[Listen, Followed]] = {}

    @property
    def client(self) -> PersistClient:
        return self.session.client

    def work(self) -> None:
        """Do what is left to do."""
        weights = [weight for weight, _ in ACTIONS]
        while self.process.left > 0:
            self.process.left -= 1
            (action,) = self.random.choices([action for _, action in ACTIONS], weights)
            (shard,) = self.random.choices(self.world.shards, (3, 1))
            self.world.scheduler.head(f"{action.__name__} {short(shard)}")
            server = self.world.primary
            existed = server.state(shard).exists
            try:
                action(self, shard)
            except LogRegressed as error:
                self.world.scheduler.note(f"-> {error}")
                ended = [each for each in (self.session, self.observer) if each.client.session.history.ended]
                if not ended:
                    raise Violation(f"{self.who}: no client has met another history: {error}") from error
                for session in ended:
                    session.regressed()
                return
            except BadInput as error:
                # The failover took back that the shard was made. Another process may have made it again.
                if existed and self.world.primary is server:
                    raise
                self.world.scheduler.note(f"-> {error}")
            except (Determinate, Indeterminate) as error:
                self.world.scheduler.note(f"-> {type(error).__name__}: {error}")

    def writer(self, shard: str) -> WriteHandle:
        """The handle that appends, opened where the last one is spent."""
        if shard not in self.writers:
            self.writers[shard] = self.client.writer(shard, SCHEMA, purpose=self.who)
        return self.writers[shard]

    def reader(self, session: Session, shard: str) -> ReadHandle:
        """A handle that reads."""
        if (session.who, shard) not in self.readers:
            self.readers[session.who, shard] = session.client.reader(shard, purpose=self.who)
        return self.readers[session.who, shard]
