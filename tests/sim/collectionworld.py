"""Several processes that write, read and re-shard one collection, by one seed, on stores that fail.

The oracle is a collection with one permanent rendition: the list of the writes that happened. Every snapshot
and every listener must return what that list says. This must not depend on the renditions, their sources, the
order in which they took over, or the processes that died or helped on the way.
"""

import random
import uuid
from collections import Counter
from unittest.mock import patch

from holdfast.collections import (
    CollectionSpec,
    CommandKind,
    Recipe,
    RenditionState,
    StorageController,
    controller_log,
)
from holdfast.errors import CLOSED
from holdfast.persist import PersistConfig
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.stores.location import BLOB_KEY, encode_location
from sim.audit import Violation
from sim.collectionfollower import Follower
from sim.collectionoracle import Oracle
from sim.collectionprocess import Incarnation
from sim.collectionsource import Snapshot, source_updates
from sim.collectionwitness import NAME, CollectionAuditor, contents
from sim.history import History
from sim.ids import seeded_ids
from sim.location import OneLocation
from sim.reference import StateDiff
from sim.rows import SCHEMA, table
from sim.scheduler import Scheduler
from sim.story import settings, version
from sim.weather import SOUND, Grid, SimClock, Weather
from testbed.faults import ProcessDeath

WEATHERS = (
    SOUND,
    SOUND,
    Weather(error_rate=0.03),
    Weather(death_rate=0.01),
    Weather(slow_rate=0.06),
    Weather(error_rate=0.02, death_rate=0.005, slow_rate=0.03, sleep_rate=0.005),
)
FOREVER_S = 1e9


class CollectionWorld(OneLocation):
    """The stores, the processes, and what they were told."""

    auditor: CollectionAuditor

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.blob = MemoryBlob(clock=self.scheduler.wall_ms)
        self.consensus = MemoryConsensus()
        self.history = History(self.scheduler.note)
        self.weather = self.random.choice(WEATHERS)
        self.leases_end = self.random.random() < 0.2
        self.follows = self.random.random() < 0.6
        """Else readers come and go, so that what retired may be dropped."""
        self.feeds = self.random.random() < 0.45
        """Whether pipelines fill and feed renditions, each from a source of its own."""
        self.restores = self.random.random() < 0.35
        self.holds = self.random.random() < 0.4
        self.snapshots: list[Snapshot] = []
        self.shards = self.random.randint(1, 3)
        self.actions = self.random.randint(15, 40)
        self.config = PersistConfig(
            inline_max_bytes=self.random.choice([0, 64 * 1024, 64 * 1024]),
            rollup_every=self.random.randint(5, 40),
            compaction_fanin=self.random.randint(2, 5),
            gc_grace_s=0.0,
            lease_s=0.3 if self.leases_end else FOREVER_S,
            retry_deadline_s=self.random.choice([0.0, 0.03, 1.0]),
            maintenance=self.random.choice(["inline", "off"]),
            builder_threads=False,
            hostname="sim",
        )
        self.location_id = uuid.UUID(int=self.random.getrandbits(128))
        self.blob.put(BLOB_KEY, encode_location(self.location_id))
        stores = Location(self.blob, self.consensus, self.location_id)
        self.auditor = CollectionAuditor(stores, SimClock(self.scheduler), self._tell)
        self.grid = Grid(self.scheduler, None, self.auditor.power_lost)
        self.upper = 0
        """The greatest upper that anybody was told."""

    def run(self) -> None:
        """Let all processes do their work, then judge what they saw."""
        processes = [Process(self, f"p{number}") for number in range(self.random.randint(1, 4))]
        # The since of the records moves often, so that it passes the mirrors of processes that are behind.
        trails = patch.multiple(controller_log, _TRAIL_EVERY=2, _TRAIL_BY=0)
        with seeded_ids(random.Random(self.random.getrandbits(64))), trails:
            controller = StorageController(self.client(SOUND, None, "first")[0])
            controller.create_collection(CollectionSpec(NAME, NAME, SCHEMA, shards=self.shards))
            self.scheduler.run({process.name: process.main for process in processes})
            self.scheduler.land_all()
            self.grid.mend()
            held = [since for process in processes for since in process.holds.values() if since is not None]
            self._judge(min(held, default=CLOSED))

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        return ["configuration", *settings(self.config), "weather", *settings(self.weather)]

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""
        return self.scheduler.met + self.history.met()

    def _tell(self, diff: StateDiff) -> None:
        if self.scheduler.telling:
            self.scheduler.note(f"   {version(diff)}")

    def _judge(self, held: int) -> None:
        """Compare all with the oracle; somebody holds the times from `held` on."""
        client, _ = self.client(SOUND, None, "judge")
        controller = StorageController(client)
        reader = controller.reader(NAME, purpose="judge")
        since, upper = reader.since(), reader.upper()
        if since > held:
            raise Violation(f"since is {since}, and somebody holds {held}")
        if upper < self.upper:
            raise Violation(f"the upper is {upper}, and somebody was told {self.upper}")
        written = self._end(controller, max(upper, 1) + 1)
        upper = reader.upper()
        _, final = contents(reader, upper - 1)
        info = controller.describe(NAME)
        seen = [each.held_from for each in info.held]
        times = {since, *(time for at in seen for time in (at - 1, at) if since <= time < upper)}
        for time in sorted(times):
            _, found = contents(reader, time)
            self.history.read("judge", NAME, time, found, self.history.now())
        follower = Follower(reader.listen(since), "judge", since + 1, self.history)
        while follower.followed.frontier < upper:
            follower.follow(None)
        for each in self.history.followed:
            if any(each.lower < at < each.frontier for at in seen) and each.who != "judge":
                self.scheduler.meet("handovers listened through")
        snapshots = {str(snapshot.folder): snapshot.contents for snapshot in self.snapshots}
        restored = {
            str(command.result["rendition"]): snapshots[str(command.result["snapshot"])]
            for command in controller.history(NAME)
            if command.kind is CommandKind.RESTORE_COLLECTION
        }
        oracle = Oracle(info, self.auditor.ends, {**self.auditor.written, **written}, restored)
        chapters = oracle.judge(self.history, final)
        self.scheduler.met["other contents listened through"] += chapters
        reader.close()
        self._judge_end(controller)

    def _end(self, controller: StorageController, upper: int) -> dict[str, int]:
        """End what was begun, and take the collection to `upper` or beyond.

        Answers up to where those renditions are written that only a source feeds.
        """
        info = controller.describe(NAME)
        upper = max(upper, info.holding.held_from + 1)
        written = {}
        for each in info.held:
            if each.recipe is Recipe.SOURCE:
                pipeline = controller.rendition_writer(NAME, each.id, purpose="judge")
                lower = pipeline.upper()
                # With the promise, where it had gone ahead of that.
                there = min(max(upper, lower + 1), each.held_to)
                if lower < there:
                    updates = tuple(source_updates(each.id, lower, there))
                    pipeline.append(table(updates, pipeline.schema) if updates else None, lower, there)
                if each.id not in self.auditor.written:
                    written[each.id] = pipeline.upper()
        if info.holding.recipe is not Recipe.SOURCE:
            # Whoever comes brings a tail that is missing.
            controller.writer(NAME, purpose="judge").seal(upper)
        return written

    def _judge_end(self, controller: StorageController) -> None:
        """What is given up ends, and what nobody holds any more goes."""
        info = controller.describe(NAME)
        for each in info.live:
            if each.state is RenditionState.HYDRATING:
                controller.renditions.abort(NAME, each.id)
        for hold in info.holders:
            release = controller.release_write if hold.writes else controller.release_hold
            release(NAME, hold.purpose)
        controller.set_retention_hold(NAME, controller.frontiers(NAME).upper - 1)
        holds = controller.client.inspect(info.metadata_shard).holds
        left = {hold.purpose for hold in holds if hold.kind == "critical"}
        if left != {"retention"}:
            raise Violation(f"holds are left: {left}")
        since = controller.frontiers(NAME).since
        controller.renditions.drop_retired(NAME)
        readable = {each.id for each in controller.describe(NAME).held if each.held_to > since}
        kept = {each.id for each in controller.describe(NAME).held}
        if kept != readable:
            raise Violation(f"since is {since}: kept are {sorted(kept)}, readable {sorted(readable)}")
        controller.drop_collection(NAME, force=True)
        client = controller.client
        shards = {shard for shard in client.shards() if not client.inspect(shard).finalized}
        if left := shards - {controller.shard_id}:
            raise Violation(f"shards are left: {sorted(left)}")


class Process:
    """One simulated process: it works, may die, and is started again until its work is done."""

    def __init__(self, world: CollectionWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(world.random.getrandbits(64))
        self.left = world.actions
        self.incarnations = 0
        self.holds: dict[str, int | None] = {}
        """The durable holds that it took, by purpose: since when it holds. None: perhaps it doesn't."""
        self.named = 0
        self.restoring: tuple[Snapshot, str] | None = None
        """What it restores from, and by which command, until it was told that that is done."""

    def main(self) -> None:
        """Start and start again."""
        while self.left > 0:
            self.incarnations += 1
            try:
                Incarnation(self.world, self).work()
            except ProcessDeath:
                self.world.scheduler.head("died")
