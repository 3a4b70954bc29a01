"""A rendition that attempts of one job fill in pieces, by one seed, on stores that fail.

- Attempts die, sleep, and go on beside their successors. Each does its tasks itself, one after the other.
- Others write to the collection meanwhile, and merge and collect its shards and those of the rendition. The
  time that a plan reads may go, and then the next attempt makes another plan.
- An attempt never does a piece again that was staged when it began, and never replaces a plan that can still
  be read.
- At the end, an attempt that nothing disturbs fills the rendition. It must have the rows of the collection,
  each once, at the time of the fill and at the end, and nothing may be staged any more. After a return to an
  older state of the stores, the same holds.
"""

import gc
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.collections import CollectionSpec, JobRecord, JobState, StorageController, job_id
from holdfast.collections.record.transitions import retry_job
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.collections.staging import FillPlan
from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    Determinate,
    Fenced,
    HandleExpired,
    Indeterminate,
    UpperMismatch,
)
from holdfast.persist import PersistConfig, Schema
from holdfast.persist.rows.schema import DIFF
from holdfast.persist.stores import MemoryBlob, MemoryConsensus
from holdfast.persist.stores.location import BLOB_KEY, encode_location
from sim.audit import Auditor, Violation
from sim.ids import seeded_ids
from sim.ingestworld import WEATHERS, Blind
from sim.location import OneLocation
from sim.scheduler import Scheduler
from sim.story import settings
from sim.weather import SOUND, CountingPlan, Grid
from testbed.faults import ProcessDeath, SeededPlan
from testbed.hydrations import hydrate_in_pieces

NAME = "orders"
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})
JOB = job_id("c1", "hydrate", "r2")
ACTIONS = {"attempt": 5, "join": 3, "write": 4, "upkeep": 3, "lose": 2.5, "copy": 0.4}
_PIECE_ROWS = 5
_KILLS = 0.15
Rows = Counter[tuple[int, str]]
# What may end an attempt, or another action, in such weather.
_ENDS = (Determinate, Indeterminate, HandleExpired, Fenced, UpperMismatch, AsOfTooEarly, AsOfNotYetAvailable)


class HydrateWorld(OneLocation):
    """The stores, the collection, and the attempts that fill its second rendition."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.blob = MemoryBlob(clock=self.scheduler.wall_ms)
        self.consensus = MemoryConsensus()
        self.weather = self.random.choice(WEATHERS)
        self.shards = self.random.randint(1, 2), self.random.randint(1, 3)
        self.most = self.random.randint(2, 8)
        self.actions = self.random.randint(6, 16)
        self.config = PersistConfig(
            inline_max_bytes=0,
            rollup_every=self.random.randint(5, 40),
            compaction_fanin=self.random.randint(2, 5),
            gc_grace_s=0.0,
            lease_s=1e9,
            retry_deadline_s=self.random.choice([0.0, 0.03, 1.0]),
            maintenance=self.random.choice(["inline", "off"]),
            builder_threads=False,
            hostname="sim",
        )
        self.location_id = uuid.UUID(int=self.random.getrandbits(128))
        self.blob.put(BLOB_KEY, encode_location(self.location_id))
        self.auditor = Auditor(self.blob, 0, lambda _: None)
        self.grid = Grid(self.scheduler, None, self.auditor.power_lost)
        self.written = 0
        self.older: tuple[MemoryBlob, MemoryConsensus] | None = None

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        return [
            f"shards {self.shards}, at most {self.most} pieces",
            "configuration",
            *settings(self.config),
            "weather",
            *settings(self.weather),
        ]

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""
        return self.scheduler.met

    def run(self) -> None:
        """Let all processes do their work, then judge what they did."""
        processes = [Process(self, f"p{number}") for number in range(self.random.randint(2, 3))]
        with _no_collector(), seeded_ids(random.Random(self.random.getrandbits(64))):
            controller = StorageController(self.client(SOUND, None, "first")[0])
            controller.create_collection(CollectionSpec("c1", NAME, SCHEMA, shards=self.shards[0]))
            for _ in range(4):
                self.write(controller)
            controller.renditions.create(NAME, shards=self.shards[1], rendition_id="r2")
            controller.start_job("c1", "hydrate", "r2", spec={})
            self.keep_copy()
            self.scheduler.run({process.name: process.main for process in processes})
            self.scheduler.land_all()
            self.grid.mend()
            self.judge("at the end")
            assert self.older is not None
            self.blob, self.consensus = self.older
            self.auditor = Blind(self.blob, 0, lambda _: None)
            self.judge("after a restore")

    def keep_copy(self) -> None:
        """Copy the stores as they are, in place of an earlier copy."""
        blob, consensus = MemoryBlob(clock=self.scheduler.wall_ms), MemoryConsensus()
        blob._objects.update(self.blob._objects)
        consensus._logs.update({key: list(log) for key, log in self.consensus._logs.items()})
        self.older = blob, consensus

    def write(self, controller: StorageController) -> None:
        """Append rows, and take some away that may be there."""
        upper = controller.frontiers(NAME).upper
        first, self.written = self.written, self.written + _PIECE_ROWS
        rows = [
            {"id": number * 7 % 100, "name": str(number), "_time": upper}
            for number in range(first, self.written)
        ]
        if upper and self.random.random() < 0.5:
            with controller.reader(NAME, purpose="look") as reader:
                found = reader.snapshot(upper - 1).to_table().to_pylist()
            rows += [{**row, DIFF: -row[DIFF], "_time": upper} for row in found[:2]]
        controller.writer(NAME, purpose="test").append(rows, upper, upper + 1)

    def attempt(self, controller: StorageController, *, anew: bool, kills: bool = True) -> None:
        """Run the next attempt, or another driver of the latest one, perhaps until it is killed."""
        before = controller.job(JOB)
        record = self.next_attempt(controller) if anew else before
        if record is None or record.state is not JobState.RUNNING:
            return
        assert before is not None
        plan = before.plan
        staged = self.staged(controller)

        def check(number: int) -> None:
            self.scheduler.met["tasks"] += 1
            # A task takes longer than a commit.
            self.scheduler.sleep(self.random.choice([0.0, 0.1, 0.5]))
            if kills and self.random.random() < _KILLS:
                self.scheduler.meet("killed before a task")
                raise ProcessDeath
            now = controller.job(JOB)
            if plan is None or now is None or now.attempt != record.attempt or now.state is JobState.DONE:
                return
            if now.plan != plan:
                holds = controller.client.inspect(controller.describe(NAME).metadata_shard).holds
                if any(
                    each.purpose == rendition_hold("r2") and each.since <= plan["as_of"] for each in holds
                ):
                    raise Violation(f"a plan as of {plan['as_of']} was replaced, whose time is held")
                return
            if all(FillPlan.of("c1", plan).names[number] in each for each in staged):
                raise Violation(f"piece {number} was staged already")

        hydrate_in_pieces(
            controller,
            NAME,
            "r2",
            record.attempt,
            most=self.most,
            on_task=check,
            on_staged=lambda _: self.scheduler.meet("all staged"),
        )
        if any(staged):
            self.scheduler.met["staged by others"] += 1
        self.scheduler.meet("filled")

    def next_attempt(self, controller: StorageController) -> JobRecord | None:
        """Fence the latest attempt, and return the record of the next one; None if the job is done."""
        record = controller.job(JOB)
        assert record is not None
        if record.state is JobState.DONE:
            return None
        try:
            return controller.retry_job(JOB, abandoned=record.attempt)
        except BadInput:
            return None

    def staged(self, controller: StorageController) -> list[set[str]]:
        """The names of the pieces that each shard of the rendition has."""
        shards = controller.describe(NAME).rendition("r2").shards
        return [{*controller.client.staged(shard)} for shard in shards]

    def lose(self, controller: StorageController) -> None:
        """Give up an attempt, and all times but the latest ones, also the time that its plan reads.

        In one step: an attempt that commits at a time that is gone could never catch up.
        """
        record, client = controller.job(JOB), controller.client
        assert record is not None
        if record.state is JobState.DONE:
            return
        since = controller.frontiers(NAME).upper - 1
        self.write(controller)
        controller.set_retention_hold(NAME, since)
        shard = controller.describe(NAME).metadata_shard
        moved = client.prepare_downgrade_critical(shard, since, purpose=rendition_hold("r2"))
        try:
            controller._log.commit(
                lambda state: retry_job(state, JOB, 0, abandoned=record.attempt), lambda _: [moved]
            )
        except BadInput:
            return
        if record.plan is not None and record.plan["as_of"] < controller.frontiers(NAME).since:
            self.scheduler.met["plans lost"] += 1
        # The attempt that was given up may still run beside it.
        self.attempt(controller, anew=False)

    def upkeep(self, controller: StorageController, chance: random.Random) -> None:
        """Merge and collect one shard of either rendition."""
        info = controller.describe(NAME)
        controller.client.maintain(chance.choice([*info.holding.shards, *info.rendition("r2").shards]))

    def judge(self, when: str) -> None:
        """Fill the rendition, and compare it with the collection."""
        controller = StorageController(self.client(SOUND, None, f"judge {when}")[0])
        self.attempt(controller, anew=True, kills=False)
        upper = controller.renditions.catch_up(NAME, "r2")
        record = controller.job(JOB)
        assert record is not None
        if record.state is not JobState.DONE or upper != controller.frontiers(NAME).upper:
            raise Violation(f"{when}, {record} is {record.state.name}, complete before {upper}")
        shards = controller.describe(NAME).rendition("r2").shards
        with controller.reader(NAME, purpose="judge") as reader:
            # What was written after the fill is copied at one time.
            for time in {record.result["upper"] - 1, upper - 1}:
                if time < controller.frontiers(NAME).since:
                    continue
                wanted = _rows(reader.snapshot(time).to_table().to_pylist())
                found: Rows = Counter()
                for shard in shards:
                    with controller.client.reader(shard, purpose="judge") as mine:
                        found += _rows(mine.snapshot(time).to_table().to_pylist())
                if found != wanted:
                    raise Violation(f"{when}, at {time} there are {sorted(found)}, not {sorted(wanted)}")
                self.scheduler.met[f"times judged {when}"] += 1
        for shard in shards:
            controller.client.maintain(shard)
        if any(left := self.staged(controller)):
            raise Violation(f"{when}, {left} are still staged")


@contextmanager
def _no_collector() -> Iterator[None]:
    """Collect no cycles in the block: writers that are collected with them would retire at any time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _rows(rows: list[dict[str, object]]) -> Rows:
    """Rows, each as often as it is there."""
    found: Rows = Counter()
    for row in rows:
        found[row["id"], row["name"]] += row[DIFF]  # type: ignore[index, operator]
    return found


class Process:
    """A process that works, may die, and is started again until its work is done."""

    def __init__(self, world: HydrateWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(world.random.getrandbits(64))
        self.left = world.actions
        self.lives = 0

    def main(self) -> None:
        """Start and start again."""
        while self.left > 0:
            self.lives += 1
            try:
                self._live()
            except ProcessDeath:
                self.world.scheduler.head("died")
            except _ENDS as error:
                self.world.scheduler.note(f"-> {type(error).__name__}: {error}")

    def _live(self) -> None:
        world = self.world
        plan = SeededPlan(
            self.random.getrandbits(64), rate=world.weather.error_rate, death_rate=world.weather.death_rate
        )
        who = f"{self.name}.{self.lives}"
        client, _ = world.client(world.weather, CountingPlan(plan, world.scheduler), who)
        controller = StorageController(client)
        acts: dict[str, Callable[[], object]] = {
            "attempt": lambda: world.attempt(controller, anew=True),
            "join": lambda: world.attempt(controller, anew=False),
            "write": lambda: world.write(controller),
            "upkeep": lambda: world.upkeep(controller, self.random),
            "lose": lambda: world.lose(controller),
            "copy": world.keep_copy,
        }
        while self.left > 0:
            self.left -= 1
            (action,) = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
            world.scheduler.head(action)
            try:
                acts[action]()
            except Fenced as error:
                world.scheduler.meet("attempts fenced", str(error))
            except _ENDS as error:
                world.scheduler.note(f"-> {type(error).__name__}: {error}")
                if self.random.random() < 0.3:
                    raise
