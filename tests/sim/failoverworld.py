"""A world whose consensus store fails over to a copy of itself that lags some commits behind.

At moments that the seed chooses, a server is promoted that has an earlier state of the primary. In some
worlds a few clients continue to use the old primary for a while. The world checks:

- The results of each client belong to one history.
- A client that knows a lost row never commits on the promoted history. Every other client can continue.
- While two histories exist, nobody deletes anything.

A copy may lag no farther than garbage is kept: to survive a failover, an operator must keep garbage longer
than a standby lags. Half of the worlds have no such grace. In these, no upkeep is running at a failover.
"""

import random
import uuid
from collections import Counter
from typing import Any

from holdfast.persist import PersistConfig
from holdfast.persist.state.divergence import markers_of
from holdfast.persist.state.state import Part
from holdfast.persist.stores import MemoryBlob
from holdfast.persist.stores.location import BLOB_KEY, encode_location
from holdfast.persist.upkeep.compaction import CompactionTask
from sim.audit import Violation
from sim.failoverprocess import Process, Session
from sim.failoverservers import Moment, Server, named
from sim.history import Write, contents_of
from sim.ids import seeded_ids
from sim.reference import decode_state
from sim.rows import contents
from sim.scheduler import Scheduler
from sim.story import settings
from sim.weather import WEATHERS, Grid

FOREVER_S = 1e9
GRACE_S = 1000.0
MOST_LAG = 12


class FailoverWorld:
    """The servers, the processes, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.weather = self.random.choice(WEATHERS)
        self.grace = self.random.random() < 0.5
        self.partitions = self.grace and self.random.random() < 0.7
        self.config = PersistConfig(
            inline_max_bytes=self.random.choice([0, 64 * 1024]),
            rollup_every=self.random.randint(3, 10),
            compaction_fanin=self.random.randint(2, 4),
            gc_grace_s=GRACE_S if self.grace else 0.0,
            lease_s=FOREVER_S,
            retry_deadline_s=self.random.choice([0.0, 0.03, 1.0]),
            maintenance="off",
            debug_validate=self.random.random() < 0.3,
            hostname="sim",
        )
        self.location_id = uuid.UUID(int=self.random.getrandbits(128))
        self.blob = MemoryBlob(clock=self.scheduler.wall_ms)
        self.blob.put(BLOB_KEY, encode_location(self.location_id))
        self.shards = [f"s{uuid.UUID(hex=letter * 32)}" for letter in "ab"]
        self.servers = [Server(0)]
        self.grid = Grid(self.scheduler, None, lambda: None)
        self.sessions: list[Session] = []
        self.writes: list[Write] = []
        self.merged: list[tuple[Server, CompactionTask, tuple[Part, ...]]] = []
        self.doomed: set[str] = set()
        self.collecting = 0
        self.actions = self.random.randint(20, 32)
        self._calls = 0
        self._failovers = self._moments(self.random.choice([1, 1, 2, 3]))
        self._cut_off: dict[Session, int] = {}

    def _moments(self, count: int) -> list[int]:
        at, moments = 0, []
        for _ in range(count):
            at += self.random.randint(40, 250)
            moments.append(at)
        return moments

    @property
    def primary(self) -> Server:
        """The server that was promoted last."""
        return self.servers[-1]

    def tick(self) -> None:
        """Count a call to the consensus store, and fail over where that is due."""
        self._calls += 1
        if self._failovers and self._calls >= self._failovers[0]:
            self._fail_over()

    def fail_over_soon(self) -> None:
        """Let the next call to the consensus store find another primary, if one more is to come."""
        if self._failovers:
            self._failovers[0] = self._calls

    def _fail_over(self) -> None:
        if self.collecting and not self.grace:
            return
        lag = self.random.randint(1, MOST_LAG)
        moments = self.primary.moments[-1 - lag : -1]
        moment = next(filter(self._may_be_promoted, moments), None)
        if moment is None:
            return
        self._failovers.pop(0)
        old = self.primary
        self.servers.append(Server(len(self.servers), moment))
        lost = {shard: old.state(shard).seqno - self.primary.state(shard).seqno for shard in self.shards}
        self.scheduler.meet("failovers", f"to {self.primary.line}, which lost {[*lost.values()]} versions")
        if self.partitions:
            for session in self.sessions:
                if session.last is old and self.random.random() < 0.4:
                    self._cut_off[session] = self._calls + self.random.randint(20, 150)
                    self.scheduler.meet("clients cut off", session.who)

    def _may_be_promoted(self, moment: Moment) -> bool:
        """Whether a copy lags no farther than garbage is kept."""
        if moment.named() & self.doomed:
            return False
        if not self.grace:
            return True
        named = moment.named()
        now_ms = self.scheduler.wall_ms()
        garbage = [each for state in self.primary.states.values() for each in state.garbage.values()]
        return all(now_ms - each.wall_ms < GRACE_S * 500 for each in garbage if each.blob_key in named)

    def is_cut_off(self, session: Session) -> bool:
        """Whether a client reaches the old primary only."""
        return self._cut_off.get(session, 0) > self._calls

    def let_time_pass(self) -> None:
        """Let garbage become old, unless somebody still reaches an old primary."""
        if all(until <= self._calls for until in self._cut_off.values()):
            self.scheduler.now += 0.3 * GRACE_S

    def gone(self, key: str) -> bool:
        """Whether a blob is not there."""
        return self.blob.get(key) is None

    def stands(self, server: Server, shard: str, *, to_stay: bool = False, cut: bool = False) -> bool:
        """Whether the blobs show two histories of a shard, as seen from a server.

        With `to_stay`, only what the next write on a server does not end: the record of a line before. With
        `cut`, also rollups of versions that the log no longer has: they may show it, or not.
        """
        lines = sorted(meta.key for meta in self.blob.list("lines/"))
        is_old = server is not self.primary or not to_stay
        if is_old and lines and not lines[-1].endswith(f"-{server.line}"):
            return True
        if any(not server.has(shard, each.seqno, each.known) for each in markers_of(self.blob, shard)):
            return True
        return any(
            self._is_foreign(server, shard, meta.key, cut=cut) for meta in self.blob.list(f"{shard}/v")
        )

    def _is_foreign(self, server: Server, shard: str, key: str, *, cut: bool) -> bool:
        state = server.state(shard)
        if key in state.garbage or key in named(state):
            return False
        data = self.blob.get(key)
        assert data is not None
        found = decode_state(data, key)
        if found.seqno > state.seqno:
            return True
        log = server.consensus._logs[shard]
        if found.seqno < log[0].seqno and not cut:
            return False
        return not any(moment.states.get(shard) == found for moment in server.moments) and not any(
            moment.states.get(shard) == found
            for other in self.servers
            if self._shares(other, server, shard, found.seqno)
            for moment in other.moments
        )

    def _shares(self, other: Server, server: Server, shard: str, seqno: int) -> bool:
        """Whether a version is the same on both servers."""
        ours, theirs = server.versions.get(shard, []), other.versions.get(shard, [])
        return seqno <= min(len(ours), len(theirs)) and ours[seqno - 1] == theirs[seqno - 1]

    def run(self) -> None:
        """Let all processes do their work, then judge what they saw."""
        processes = [Process(self, f"p{number}") for number in range(self.random.randint(2, 4))]
        with seeded_ids(random.Random(self.random.getrandbits(64))):
            self.scheduler.run({process.name: process.main for process in processes})
            self.scheduler.land_all()
            self.grid.mend()
            self._failovers, self._cut_off = [], {}
            self._judge()

    def _judge(self) -> None:
        for session in self.sessions:
            self._judge_session(session)
        for server in self.servers[:-1]:
            self._judge_lost(server)
        judge = Session(self, "judge", None, reads=False)
        for again in (False, True):
            for shard in self.shards:
                self._judge_contents(judge, shard)
                if not again:
                    stands = self.stands(self.primary, shard, cut=True)
                    judge.maintain(shard)
                    kept = judge.client.session.machine(shard).kept_because
                    if kept and not stands:
                        raise Violation(f"nothing of {shard} is deleted for no reason: {kept}")

    def _judge_session(self, session: Session) -> None:
        for shard, seen in session.seen.items():
            why = {server.line: server.explains(shard, seen) for server in self.servers}
            if all(why.values()):
                raise Violation(f"{session.who} saw two histories of {shard}: {why}")
        for pair in session.pairs:
            if not any(pair == self._uppers(moment) for server in self.servers for moment in server.moments):
                raise Violation(f"{session.who}: the uppers {pair} are not of one moment")

    def _uppers(self, moment: Moment) -> tuple[int, ...]:
        return tuple(moment.states[shard].upper if shard in moment.states else 0 for shard in self.shards)

    def _judge_lost(self, server: Server) -> None:
        """While two histories stand from their beginning on, the blobs of the lost one are there too."""
        for shard, state in server.states.items():
            lost = [key for key in named(state) if self.gone(key)]
            if lost and shard not in server.exposed and self.stands(self.primary, shard):
                raise Violation(f"{lost} are gone, which {server.line} names")
            self.scheduler.met["lost histories that are whole"] += not lost

    def _judge_contents(self, judge: Session, shard: str) -> None:
        state = self.primary.state(shard)
        upper = judge.client.recent_upper(shard)
        if upper != state.upper:
            raise Violation(f"{shard} has upper {upper}, not {state.upper}")
        if not upper:
            return
        with judge.client.reader(shard, purpose="judge") as reader:
            found = contents(reader.snapshot(upper - 1).to_table())
        expected = contents_of(self.primary.updates(shard), upper)
        if found != expected:
            raise Violation(f"{shard} has {found}, not {expected}, at its end")

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        return ["configuration", *settings(self.config), "weather", *settings(self.weather)]

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""
        met: Counter[Any] = Counter(self.scheduler.met)
        met["logs cut"] += sum(
            log[0].seqno > 1 for server in self.servers for log in server.consensus._logs.values()
        )
        return met
