"""Several pipelines that feed one collection from one source, by one seed, on stores that fail.

- The source gets messages while the pipelines run, in more partitions as time goes on. In most worlds it
  deletes what is acknowledged at once. Then whatever is acknowledged too early is lost.
- Timestamps go forth and back, as if the clocks of those who write were wrong. In a partition only the order
  counts.
- The oracle is the list of all messages. Each time of the collection must have the rows and errors that
  follow from its offsets, and from those of each time before it, because for Upsert the last step wins. What
  somebody read meanwhile must be the same at the end.
- At the end, the stores return to an older state. If the source has deleted what that state lacks, the
  pipeline must say that it is stalled. Otherwise it must read those messages again.
"""

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.collections import CollectionReader, CollectionSpec, StorageController
from holdfast.errors import (
    AsOfNotYetAvailable,
    Determinate,
    HandleExpired,
    Indeterminate,
    SourceChanged,
    SourceStalled,
)
from holdfast.ingest import Ingestion, StepOutcome, parse
from holdfast.ingest.checksum import RangeSum
from holdfast.ingest.kept import errors, offsets, progress
from holdfast.ingest.opened import format_of
from holdfast.ingest.source import Binding, Piece, Range
from holdfast.persist import PersistClient, PersistConfig, Schema, Updates
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.persist.stores import MemoryBlob, MemoryConsensus
from holdfast.persist.stores.location import BLOB_KEY, encode_location
from sim.audit import Auditor, Violation
from sim.ids import seeded_ids
from sim.location import OneLocation
from sim.scheduler import Scheduler
from sim.story import settings
from sim.weather import SOUND, CountingPlan, Exposure, Grid, Weather
from testbed.faults import ProcessDeath, SeededPlan
from unit.ingest.topic import Topic

NAME = "orders"
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})
WEATHERS = (
    SOUND,
    Weather(error_rate=0.03),
    Weather(death_rate=0.01),
    Weather(slow_rate=0.06),
    Weather(error_rate=0.02, death_rate=0.006, slow_rate=0.03, sleep_rate=0.005),
)
Rows = Counter[tuple[int, str]]
Bad = frozenset[tuple[str, int]]
Positions = dict[str, int]


class View:
    """The source as one process has it: others run, and may delete, between its calls."""

    def __init__(self, topic: Topic, exposure: Exposure) -> None:
        self.name = topic.name
        self._topic = topic
        self._exposure = exposure

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        self._exposure.before("source", "probe", writes=False)
        return self._topic.probe(bound)

    def read(self, wanted: Range) -> Iterator[Piece]:
        self._exposure.before("source", f"read {wanted.partition}", writes=False)
        if wanted.begin < self._topic.low.get(wanted.partition, 0):
            raise SourceChanged(f"{wanted.partition} lost {wanted.begin}")
        for piece in self._topic.read(wanted):
            yield piece
            self._exposure.scheduler.pause()

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        self._exposure.before("source", "acknowledge", writes=False)
        self._topic.acknowledge(bound)

    def forget(self) -> None:
        self._exposure.before("source", "forget", writes=False)

    def close(self) -> None:
        pass


ACTIONS = {"step": 8, "send": 5, "look": 2, "copy": 0.4, "begin anew": 0.5}


class IngestWorld(OneLocation):
    """The stores, the source, and the pipelines."""

    choices: Mapping[str, float] = ACTIONS

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.blob = MemoryBlob(clock=self.scheduler.wall_ms)
        self.consensus = MemoryConsensus()
        self.weather = self.random.choice(WEATHERS)
        self.topic = Topic(deletes=self.random.random() < 0.7, piece=self.random.randint(1, 3))
        self.is_upsert = self.random.random() < 0.6
        self.block = {
            "generator": {"rows": 1},
            "format": {"json": {}},
            "envelope": "Upsert" if self.is_upsert else "None",
            "run": {"progressInterval": "0s"},
            "batch": {
                "maxRows": self.random.randint(1, 8),
                "maxBytes": self.random.choice(["256Mi", "256Mi", "60"]),
            },
        }
        self.shards = self.random.randint(1, 3)
        self.actions = self.random.randint(15, 40)
        self.config = PersistConfig(
            inline_max_bytes=self.random.choice([0, 64 * 1024]),
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
        self.sent = 0
        self.looks: list[tuple[int, Positions, Rows, Bad]] = []
        """What processes read at a time."""
        self.judged: dict[int, tuple[Positions, Rows, Bad]] = {}
        """What the judge read at each time at which bindings changed."""
        self.older: tuple[MemoryBlob, MemoryConsensus] | None = None
        self.is_restored = False

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        source = [f"  deletes = {self.topic.deletes}", f"  {self.block}"]
        return [
            "source",
            *source,
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
        processes = [Process(self, f"p{number}") for number in range(self.random.randint(1, 3))]
        with seeded_ids(random.Random(self.random.getrandbits(64))):
            controller = StorageController(self.client(SOUND, None, "first")[0])
            spec = CollectionSpec("c1", NAME, SCHEMA, shards=self.shards, source_fed=True)
            controller.create_collection(spec)
            controller.set_retention_hold(NAME, 0)
            self.begin(controller)
            self.keep_copy()
            self.scheduler.run({process.name: process.main for process in processes})
            self.scheduler.land_all()
            self.grid.mend()
            self._judge()
            self._judge_restored()

    def pipeline(self, client: PersistClient, exposure: Exposure) -> Ingestion:
        """One instance of the pipeline."""
        spec = parse(self.block)
        view = View(self.topic, exposure)
        return Ingestion(StorageController(client), NAME, spec, view, partial(format_of, spec))

    def last_pipeline(self, client: PersistClient, exposure: Exposure) -> Ingestion:
        """The pipeline that goes on when all others have ended."""
        return self.pipeline(client, exposure)

    def begin(self, controller: StorageController) -> None:
        """Do what comes before the first message."""

    def partition_of(self, _: int, partition: str) -> str:
        """The partition of a message with a key. By default any."""
        return partition

    def act(self, action: str, controller: StorageController) -> None:
        """Do what only worlds of another kind do."""
        raise AssertionError(action)

    def send(self, chance: random.Random) -> None:
        """Somebody writes a few messages to a partition, perhaps a new one."""
        partition = str(chance.randint(0, len(self.topic.partitions)) if chance.random() < 0.2 else 0)
        for _ in range(chance.randint(1, 4)):
            self.sent += 1
            id_ = chance.randint(0, 5)
            partition = self.partition_of(id_, partition)
            kind = chance.random()
            row: object = {"id": id_, "name": f"{self.sent}"}
            if kind < 0.1:
                row = b"bad"
            elif kind < 0.25:
                row = None
            self.topic.send(partition, row, key={"id": id_}, at=self.stamp())

    def stamp(self) -> int | None:
        """The timestamp of the message that is sent, in some order, or none."""
        return None if self.sent % 5 == 4 else self.sent * 7 % 11

    def keep_copy(self) -> None:
        """Copy the stores as they are, in place of an earlier copy."""
        blob, consensus = MemoryBlob(clock=self.scheduler.wall_ms), MemoryConsensus()
        blob._objects.update(self.blob._objects)
        consensus._logs.update({key: list(log) for key, log in self.consensus._logs.items()})
        self.older = blob, consensus

    def look(self, controller: StorageController, at: int | None = None) -> tuple[int, Positions, Rows, Bad]:
        """What the collection has at a time, by default at the newest one."""
        at, bound = offsets(controller, NAME, at)
        with controller.reader(NAME, purpose="look") as reader:
            return at, *self._seen(controller, reader, at, bound)

    def _seen(
        self, controller: StorageController, reader: CollectionReader, at: int, bound: pa.Table
    ) -> tuple[Positions, Rows, Bad]:
        """What the collection has at a time, with its bindings of that time."""
        positions = {row["partition"]: row["position"] for row in bound.to_pylist()}
        bad = frozenset(
            (row["partition"], row["position"]) for row in errors(controller, NAME, at)[1].to_pylist()
        )
        return positions, rows_at(reader, at), bad

    def _judge(self) -> None:
        client, exposure = self.client(SOUND, None, "judge")
        self._finish(client, exposure)
        controller = StorageController(client)
        try:
            _, positions, _, _ = self.look(controller)
        except AsOfNotYetAvailable:
            positions = {}
        wanted = {partition: len(messages) for partition, messages in self.topic.partitions.items()}
        if positions != wanted:
            raise Violation(f"the collection has {positions}, and {wanted} was sent")
        if not wanted:
            return
        oracle = Oracle(self.topic, is_upsert=self.is_upsert)
        with controller.reader(NAME, purpose="judge") as reader:
            for time in self._times(client, controller):
                _, bound = offsets(controller, NAME, time)
                positions, rows, bad = self._seen(controller, reader, time, bound)
                self._check_bindings(bound, time, oracle.positions)
                oracle.step(positions)
                oracle.check(time, rows, bad)
                self.judged[time] = positions, rows, bad
                self.scheduler.met["times judged"] += 1
        for time, positions, rows, bad in self.looks:
            # Nobody writes any more, so what was judged at a time is there still.
            found = self.judged.get(time) or self.look(controller, time)[1:]
            if (positions, rows, bad) != found:
                raise Violation(f"at {time} somebody read {positions} {rows} {bad}")
        self.scheduler.met["looks judged"] += len(self.looks)

    def _times(self, client: PersistClient, controller: StorageController) -> list[int]:
        """The times at which bindings changed."""
        times: set[int] = set()
        for each in controller.describe(NAME).held:
            assert each.pipeline is not None
            with client.reader(each.pipeline.remap, purpose="judge") as reader:
                listen, upper = reader.listen(0), reader.upper()
                while listen.frontier < upper:
                    for event in listen.next(0.0):
                        if isinstance(event, Updates):
                            times.update(at for at in event.table[TIME].to_pylist() if each.holds_at(at))
        return sorted(times)

    def _check_bindings(self, bound: pa.Table, time: int, before: Positions) -> None:
        """Each binding describes the messages since the binding before it."""
        for row in bound.to_pylist():
            partition = row["partition"]
            begin = before.get(partition, 0)
            if row[DIFF] != 1:
                raise Violation(f"at {time} partition {partition} is bound {row[DIFF]} times")
            if begin == row["position"]:
                continue
            total = RangeSum()
            for piece in self.topic.everything(partition, begin, row["position"]):
                total.add(piece.messages)
            if (row["rows"], row["checksum"]) != (total.rows, total.checksum):
                raise Violation(f"at {time} the binding of {partition} is {row}, the sum {total.rows}")

    def _finish(self, client: PersistClient, exposure: Exposure) -> None:
        """Step until nothing is new."""
        feed = self.last_pipeline(client, exposure)
        while feed.step().outcome is not StepOutcome.IDLE:
            pass

    def _judge_restored(self) -> None:
        """The stores return to the copy."""
        assert self.older is not None
        self.blob, self.consensus = self.older
        self.auditor = Blind(self.blob, 0, lambda _: None)
        self.is_restored = True
        client, exposure = self.client(SOUND, None, "restored")
        controller = StorageController(client)
        # The rendition that goes on may have less than the one before it.
        known = progress(client, controller.describe(NAME).holding)
        positions = dict(known.positions) if known else {}
        is_gone = any(positions.get(each, 0) < low for each, low in self.topic.low.items())
        try:
            self._finish(client, exposure)
        except SourceStalled as stalled:
            if not is_gone:
                raise Violation(f"stalled after a restore that lost nothing: {stalled}") from stalled
            self.scheduler.met["stalled after a restore"] += 1
            return
        if is_gone:
            raise Violation(f"went on from {positions}, and the source begins with {self.topic.low}")
        if self.topic.partitions:
            self.scheduler.met["went on after a restore"] += 1
            wanted = {partition: len(messages) for partition, messages in self.topic.partitions.items()}
            if self.look(controller)[1] != wanted:
                raise Violation(f"after a restore the collection does not have {wanted}")


def rows_at(reader: CollectionReader, at: int) -> Rows:
    """The rows of a collection at a time, each as often as it is there."""
    rows: Rows = Counter()
    for row in reader.snapshot(at).to_table().to_pylist():
        rows[row["id"], row["name"]] += row[DIFF]
    return rows


class Blind(Auditor):
    """Sees nothing: it did not see how the stores came to be what they are."""

    def committed(self, puts: Any, who: str) -> None:
        pass

    def deleted(self, key: str) -> None:
        pass

    def truncated(self, shard: str, seqno: int) -> None:
        pass


class Oracle:
    """What a collection must have after each step."""

    def __init__(self, topic: Topic, *, is_upsert: bool) -> None:
        self._topic = topic
        self._is_upsert = is_upsert
        self.positions: Positions = {}
        self.rows: Rows = Counter()
        self.bad: dict[tuple[str, int], int] = {}
        """Errors, with the key."""

    def step(self, positions: Positions) -> None:
        """The messages up to these positions are bound."""
        found: list[tuple[int, str, int]] = []
        for partition in sorted(positions):
            begin, end = self.positions.get(partition, 0), positions[partition]
            if end < begin:
                raise Violation(f"partition {partition} went back from {begin} to {end}")
            newest = -1
            for position in range(begin, end):
                newest = max(newest, self._topic.stamps.get((partition, position), -1))
                found.append((newest, partition, position))
        for _, partition, position in sorted(found):
            key, value = self._topic.partitions[partition][position]
            assert key is not None
            self._message(partition, position, json.loads(key)["id"], value)
        self.positions = dict(positions)

    def _message(self, partition: str, position: int, id_: int, value: bytes | None) -> None:
        is_bad = value == b"bad" or (value is None and not self._is_upsert)
        if self._is_upsert:
            # The last message of a key counts, and a bad one hides the row.
            self.rows = Counter({row: count for row, count in self.rows.items() if row[0] != id_})
            if not is_bad:
                self.bad = {where: key for where, key in self.bad.items() if key != id_}
        if is_bad:
            self.bad[partition, position] = id_
        elif value is not None:
            self.rows[id_, json.loads(value)["name"]] += 1

    def check(self, time: int, rows: Rows, bad: Bad) -> None:
        """Refuse other rows or errors."""
        if rows != self.rows:
            raise Violation(f"at {time} there are {sorted(rows.items())}, not {sorted(self.rows.items())}")
        if bad != frozenset(self.bad):
            raise Violation(f"at {time} the errors are {sorted(bad)}, not {sorted(self.bad)}")


class Process:
    """An instance of the pipeline: it works, may die, and is started again until its work is done."""

    def __init__(self, world: IngestWorld, name: str) -> None:
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
            except (Determinate, Indeterminate, HandleExpired) as error:
                self.world.scheduler.note(f"-> {type(error).__name__}: {error}")

    def _live(self) -> None:
        world = self.world
        plan = SeededPlan(
            self.random.getrandbits(64), rate=world.weather.error_rate, death_rate=world.weather.death_rate
        )
        who = f"{self.name}.{self.lives}"
        client, exposure = world.client(world.weather, CountingPlan(plan, world.scheduler), who)
        feed: Ingestion | None = None
        while self.left > 0:
            self.left -= 1
            (action,) = self.random.choices(list(world.choices), list(world.choices.values()))
            world.scheduler.head(action)
            try:
                match action:
                    case "step":
                        feed = feed or world.pipeline(client, exposure)
                        if self._step(feed) is StepOutcome.HANDED_OVER:
                            feed = None
                    case "send":
                        world.send(self.random)
                    case "look":
                        world.looks.append(world.look(StorageController(client)))
                    case "copy":
                        world.keep_copy()
                    case "begin anew":
                        feed = None
                    case _:
                        world.act(action, StorageController(client))
            except AsOfNotYetAvailable:
                world.scheduler.note("nothing is readable yet")
            except (Determinate, Indeterminate) as error:
                world.scheduler.note(f"-> {type(error).__name__}: {error}")
                if self.random.random() < 0.5:
                    feed = None

    def _step(self, feed: Ingestion) -> StepOutcome:
        step = feed.step()
        what = step.outcome.value
        self.world.scheduler.meet(f"steps {what}", f"{step.messages} messages, {step.errors} errors")
        if step.errors:
            self.world.scheduler.met["bad records"] += step.errors
        return step.outcome
