"""A world of several processes that write, read and clean up the same shards, on stores that fail.

Everything depends on the seed: the settings, the faults, the work of each process and the order in which
they take turns. `run` raises an error if a check fails.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable

from holdfast.persist import PersistClient, PersistConfig, UploadTicket, WriteMode
from holdfast.persist.stores import Blob, FileBlob, Location, MemoryBlob, MemoryConsensus
from holdfast.persist.stores.location import BLOB_KEY, encode_location
from sim.audit import Auditor, Violation
from sim.disk import Disk, DiskOf
from sim.history import History, Row
from sim.ids import seeded_ids
from sim.process import Process
from sim.reference import StateDiff
from sim.rows import SCHEMA, contents
from sim.scheduler import Scheduler
from sim.stores import SimBlob, SimConsensus
from sim.story import settings, version
from sim.weather import CROWDED, SOUND, WEATHERS, Exposure, Grid, SimClock
from testbed.faults import FaultPlan, FaultyBlob, FaultyConsensus

FOREVER_S = 1e9
HOLDS = ("audit", "backup")


class World:
    """The stores, the processes, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.disk = Disk(self.random, self.scheduler.wall_ms) if self.random.random() < 0.25 else None
        self.blob: Blob = (
            MemoryBlob(clock=self.scheduler.wall_ms) if self.disk is None else _file_blob(self.disk)
        )
        self.consensus = MemoryConsensus()
        self.history = History(self.scheduler.note)
        self.weather = self.random.choice(WEATHERS)
        self.leases_end = self.random.random() < 0.4
        self.leases = self.random.random() < 0.6
        self.holds = HOLDS if not self.leases or self.random.random() < 0.5 else ()
        blobs = self.random.random() < (0.3 if self.disk is None else 0.7)
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
        self.auditor = Auditor(self.blob, int(self.config.gc_grace_s * 1000), self._tell)
        self.grid = Grid(self.scheduler, self.disk, self.auditor.power_lost)
        # Of its own, so that all other worlds are what they would be without.
        self.evolves = random.Random(f"evolves {seed}").random() < 0.25
        self.shares_writers = random.Random(f"shares writers {seed}").random() < 0.1
        if self.shares_writers:
            self.weather = CROWDED
        self.tickets: dict[str, UploadTicket] = {}
        """The writers that all processes share, by shard."""
        self.shards = [f"s{uuid.UUID(hex=letter * 32)}" for letter in "ab"]
        self.actions = self.random.randint(12, 24) if blobs else self.random.randint(15, 30)
        self.location_id = uuid.UUID(int=self.random.getrandbits(128))
        self.blob.put(BLOB_KEY, encode_location(self.location_id))
        self.sweeps = self.location_id.int % 3 == 0
        # A call gives up after the deadline, and an upload is a few calls; one that sleeps takes much longer.
        self.longest_upload_s = 60.0 if self.weather.sleep_rate else 5 * self.config.retry_deadline_s + 0.5
        self.mode = WriteMode.WRITE_SEAL if self.random.random() < 0.3 else WriteMode.APPEND

    def run(self) -> None:
        """Let all processes do their work, then judge what they saw."""
        count = self.random.randint(1, 4)
        processes = [Process(self, f"p{number}") for number in range(count)]
        with seeded_ids(random.Random(self.random.getrandbits(64))):
            self.scheduler.run({process.name: process.main for process in processes})
            self.scheduler.land_all()
            self.grid.mend()
            self._judge()

    def _tell(self, diff: StateDiff) -> None:
        if self.scheduler.telling:
            self.scheduler.note(f"   {version(diff)}")

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        stores = "the file blob on a disk" if self.disk else "memory"
        weather = ["weather", *settings(self.weather)]
        return ["configuration", *settings(self.config), *weather, "stores", f"  {stores}"]

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""
        met = self.scheduler.met + self.history.met() + self.auditor.met
        states = [self.auditor.state(shard) for shard in self.shards]
        met["batches made by compaction"] += sum(
            batch.level > 0 for state in states for batch in state.batches
        )
        met["shards that evolved"] += sum(len(state.schemas) > 1 for state in states)
        met["logs cut"] += sum(
            entry.seqno > 1 for shard in self.shards for entry in self.consensus.scan(shard, 1, 1)
        )
        return met

    def _judge(self) -> None:
        clock = SimClock(self.scheduler)
        exposure = Exposure(self.grid, SOUND, clock)
        location = self.location(exposure, None, "judge")
        client = PersistClient(location, config=self.config, clock=clock)
        if self.mode is WriteMode.WRITE_SEAL:
            self._seal_all(client)
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

    def _seal_all(self, client: PersistClient) -> None:
        """What was written is durable: once sealed, it is there."""
        client.exclusive("judge", purpose="judge", take_over=True)
        for shard in self.shards:
            state = self.auditor.state(shard)
            upper = max((batch.upper for batch in state.pending.values()), default=state.upper)
            if state.exists:
                client.writer(shard, SCHEMA, purpose="judge", mode=self.mode).seal(upper)

    def location(self, exposure: Exposure, plan: FaultPlan | None, who: str) -> Location:
        """The stores as one process has them."""
        inner = self.blob
        if self.disk is not None:
            inner = _file_blob(self.disk, exposure.file_step)
        blob = SimBlob(inner, exposure, self.auditor)
        consensus = SimConsensus(self.consensus, exposure, self.auditor, who)
        if plan is None:
            return Location(blob, consensus, self.location_id)
        return Location(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan), self.location_id)


def _file_blob(disk: Disk, step: Callable[[str], None] = lambda _: None) -> FileBlob:
    """The real file blob, on a disk of the simulation."""
    return FileBlob(disk.root, create=False, files=DiskOf(disk, step))
