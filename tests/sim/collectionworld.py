"""Some processes that write, read and re-shard one collection, by one seed, on stores that fail.

The oracle is a collection that has one rendition for ever: the list of the writes that happened. Whatever
renditions there were, in which order they took over, who died on the way and who helped, every snapshot and
every listener must have been given what that list says.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable

from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    Determinate,
    Fenced,
    HandleExpired,
    Indeterminate,
    NotCaughtUp,
    UpperMismatch,
)
from holdfast.persist import PersistClient, PersistConfig, Progress
from holdfast.persist.storage import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.storage.faults import FaultPlan, FaultyBlob, FaultyConsensus, ProcessDeath, SeededPlan
from holdfast.storage import (
    CollectionListen,
    CollectionReader,
    CollectionSpec,
    CollectionWriter,
    RenditionState,
    StorageController,
)
from sim.audit import Auditor, Violation
from sim.history import MARKER, Fate, Followed, History, Row, Update
from sim.ids import seeded_ids
from sim.reference import StateDiff
from sim.rows import LATER, SCHEMA, table
from sim.scheduler import Scheduler
from sim.stores import SimBlob, SimConsensus
from sim.story import settings, version
from sim.weather import SOUND, CountingPlan, Exposure, Grid, SimClock, Weather

NAME = "collection"
WEATHERS = (
    SOUND,
    SOUND,
    Weather(error_rate=0.03),
    Weather(death_rate=0.01),
    Weather(slow_rate=0.06),
    Weather(error_rate=0.02, death_rate=0.005, slow_rate=0.03, sleep_rate=0.005),
)
STEPS = (1, 1, 3, 3, 4_000, 11_000)
"""How far a write goes; the promise is 10,000 ahead of one that moves it."""
FOREVER_S = 1e9


class CollectionWorld:
    """The stores, the processes, and what they were told."""

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
        self.auditor = Auditor(self.blob, 0, self._tell)
        self.grid = Grid(self.scheduler, None, self.auditor.power_lost)
        self.location_id = uuid.UUID(int=self.random.getrandbits(128))
        self.upper = 0
        """The greatest upper that anybody was told."""

    def run(self) -> None:
        """Let all processes do their work, then judge what they saw."""
        processes = [Process(self, f"p{number}") for number in range(self.random.randint(1, 4))]
        with seeded_ids(random.Random(self.random.getrandbits(64))):
            controller = StorageController(self.client(SOUND, None, "first")[0])
            controller.create_collection(CollectionSpec(NAME, NAME, SCHEMA, shards=self.shards))
            self.scheduler.run({process.name: process.main for process in processes})
            self.scheduler.land_all()
            self.grid.mend()
            self._judge()

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        return ["configuration", *settings(self.config), "weather", *settings(self.weather)]

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""
        return self.scheduler.met + self.history.met()

    def client(self, weather: Weather, plan: FaultPlan | None, who: str) -> tuple[PersistClient, Exposure]:
        """The location as one process has it."""
        clock = SimClock(self.scheduler)
        exposure = Exposure(self.grid, weather, clock)
        blob = SimBlob(self.blob, exposure, self.auditor)
        consensus = SimConsensus(self.consensus, exposure, self.auditor, who)
        location = Location(blob, consensus, self.location_id)
        if plan is not None:
            location = Location(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan), self.location_id)
        return PersistClient(location, config=self.config, clock=clock), exposure

    def _tell(self, diff: StateDiff) -> None:
        if self.scheduler.telling:
            self.scheduler.note(f"   {version(diff)}")

    def _judge(self) -> None:
        client, _ = self.client(SOUND, None, "judge")
        controller = StorageController(client)
        # What was begun is ended by whoever comes: the writer brings a tail that is missing.
        writer = controller.writer(NAME, purpose="judge")
        upper = writer.upper()
        if upper < self.upper:
            raise Violation(f"the upper is {upper}, and somebody was told {self.upper}")
        writer.seal(max(upper, 1) + 1)
        upper = writer.upper()
        reader = controller.reader(NAME, purpose="judge")
        since = reader.since()
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
        self.history.judge({NAME: final})
        if [each.held_to for each in info.held[:-1]] != seen[1:]:
            raise Violation(f"the times of the renditions have gaps: {info.held}")
        self._judge_end(controller)

    def _judge_end(self, controller: StorageController) -> None:
        """What is given up ends, and what nobody holds any more goes."""
        info = controller.describe(NAME)
        for each in info.live:
            if each.state is RenditionState.HYDRATING:
                controller.renditions.abort(NAME, each.id)
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


class Process:
    """One simulated process: it works, may die, and is started again until its work is done."""

    def __init__(self, world: CollectionWorld, name: str) -> None:
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
                self.world.scheduler.head("died")


class Follower:
    """A listen, and what it has given."""

    def __init__(self, listen: CollectionListen, who: str, lower: int, history: History) -> None:
        self.listen = listen
        self.followed = Followed(who, NAME, lower, lower, history.now())
        history.followed.append(self.followed)

    def follow(self, timeout: float | None) -> bool:
        """Take what comes next; whether there was anything."""
        followed = self.followed
        events = self.listen.next(timeout)
        for event in events:
            if isinstance(event, Progress):
                if event.frontier <= followed.frontier:
                    raise Violation(f"{followed.who}: progress from {followed.frontier} to {event.frontier}")
                followed.frontier = event.frontier
                continue
            columns = [event.table.column(name).to_pylist() for name in ("k", "v", "_time", "_diff")]
            for key, value, time, diff in zip(*columns, strict=True):
                if time < followed.frontier:
                    raise Violation(f"{followed.who}: an update at {time} after {followed.frontier}")
                followed.updates[key, value, time] += diff
        return bool(events)


class Incarnation:
    """A process between two deaths: its client and handles."""

    def __init__(self, world: CollectionWorld, process: Process) -> None:
        self.world, self.process, self.random = world, process, process.random
        self.history = world.history
        self.who = f"{process.name}.{process.incarnations}"
        weather = world.weather
        plan = SeededPlan(self.random.getrandbits(64), rate=weather.error_rate, death_rate=weather.death_rate)
        self.client, _ = world.client(weather, CountingPlan(plan, world.scheduler), self.who)
        self.controller = StorageController(self.client, who=self.who)
        self.writer: CollectionWriter | None = None
        self.readers: list[tuple[CollectionReader, int]] = []
        """Each with the time from which on it may read."""
        self.followers: list[Follower] = []

    def work(self) -> None:
        """Do what is left to do."""
        while self.process.left > 0:
            self.process.left -= 1
            actions = [each for each in ACTIONS if self.world.follows or each[1] is not follow]
            (action,) = self.random.choices([each for _, each in actions], [weight for weight, _ in actions])
            self.world.scheduler.head(action.__name__)
            try:
                action(self)
            except (Determinate, Indeterminate) as error:
                self.world.scheduler.note(f"-> {type(error).__name__}: {error}")
            except HandleExpired as error:
                if not self.world.leases_end:
                    raise
                self.world.scheduler.note(f"-> {error}")
                self.writer = None

    def told_upper(self, before: int, upper: int) -> None:
        """Refuse an upper that is less than somebody was told before."""
        if upper < before:
            raise Violation(f"{self.who}: the upper is {upper}, and {before} was told before")
        self.world.upper = max(self.world.upper, upper)


def write(me: Incarnation) -> None:
    if me.writer is None:
        me.writer = me.controller.writer(NAME, purpose=me.who)
    before = me.world.upper
    # Mostly what is true; now and then what was believed, or a guess.
    if me.random.random() < 0.7:
        lower = me.writer.upper()
        me.told_upper(before, lower)
    else:
        lower = max(0, before + me.random.choice([-1, 0, 0, 1]))
    upper = lower + me.random.choice(STEPS)
    updates = new_updates(me, lower, upper)
    done = me.history.begin([NAME], lower, upper, updates)
    before = me.world.upper
    try:
        me.writer.append(table(done.updates, me.writer.schema), lower, upper)
    except UpperMismatch as mismatch:
        me.history.end(done, Fate.REJECTED)
        me.told_upper(before, mismatch.actual)
        if mismatch.actual == lower:
            raise Violation(f"{mismatch} is no mismatch") from mismatch
    except (Indeterminate, HandleExpired):
        me.writer = None
    except Determinate:
        me.history.end(done, Fate.REJECTED)
        raise
    else:
        me.history.end(done, Fate.DONE)
        me.told_upper(before, upper)


def new_updates(me: Incarnation, lower: int, upper: int) -> list[Update]:
    """Some new rows, at the first and the last times above all, and retractions of old ones."""
    name = f"{len(me.history.writes)}"
    times = [lower, lower, upper - 1, me.random.randrange(lower, upper)]
    added = [
        (me.random.randint(0, 4), name, me.random.choice(times), me.random.choice([1, 1, 2]))
        for _ in range(me.random.randint(0, 3))
    ]
    earlier = [each for each in me.history.writes.values() if each.fate is Fate.DONE]
    if earlier:
        key, value, _, diff = me.random.choice(me.random.choice(earlier).updates)
        if key != MARKER:
            added.append((key, value, me.random.choice(times), -diff))
    return added


def read(me: Incarnation) -> None:
    reader, held = _reader(me)
    before, begun = me.world.upper, me.history.now()
    upper = reader.upper()
    me.told_upper(before, upper)
    if upper <= held:
        return
    newest = me.random.random() < 0.5
    as_of = upper - 1 if newest else me.random.randint(held, upper - 1)
    try:
        as_of, found = contents(reader, None if newest else as_of)
    except AsOfTooEarly:
        _refuse_too_early(me, as_of, held)
    else:
        me.history.read(me.who, NAME, as_of, found, begun, newest=newest)
    if not me.world.follows:
        me.readers.remove((reader, held))
        reader.close()


def follow(me: Incarnation) -> None:
    if not me.followers or me.random.random() < 0.2:
        reader, held = _reader(me)
        as_of = max(held, me.random.choice([held, me.world.upper - 1, me.world.upper + 1]))
        try:
            me.followers.append(Follower(reader.listen(as_of), me.who, as_of + 1, me.history))
        except AsOfTooEarly:
            _refuse_too_early(me, as_of, held)
        return
    follower = me.random.choice(me.followers)
    me.followers.remove(follower)  # One that failed has lost its place.
    try:
        while follower.follow(0):
            pass
    except AsOfTooEarly:
        if not me.world.leases_end:
            raise
        return
    me.followers.append(follower)


def let_go(me: Incarnation) -> None:
    if not me.readers:
        return
    reader, held = me.readers.pop(me.random.randrange(len(me.readers)))
    since = me.random.choice([held, me.world.upper, me.world.upper])
    # What was asked for may be done although the answer was lost.
    if all(each.followed.frontier > since for each in me.followers):
        reader.allow_compaction(since)
        me.readers.append((reader, max(held, since)))
    else:
        me.readers.append((reader, held))


def close(me: Incarnation) -> None:
    if me.readers and not me.followers:
        me.readers.pop()[0].close()


def stop_following(me: Incarnation) -> None:
    me.followers.clear()


def retain(me: Incarnation) -> None:
    upper = me.world.upper
    me.controller.set_retention_hold(NAME, me.random.choice([upper, upper, upper // 2]))
    drop_retired(me)


def make_rendition(me: Incarnation) -> None:
    if _hydrating(me) is None or me.random.random() < 0.2:
        me.controller.renditions.create(NAME, shards=me.random.randint(1, 3))


def _hydrating(me: Incarnation) -> str | None:
    live = me.controller.describe(NAME).live
    ids = [each.id for each in live if each.state is RenditionState.HYDRATING]
    return me.random.choice(ids) if ids else None


def catch_up(me: Incarnation) -> None:
    if rendition := _hydrating(me):
        try:
            if me.random.random() < 0.4:
                me.controller.hydrate(NAME, rendition)
            else:
                me.controller.renditions.catch_up(NAME, rendition)
        except Fenced:
            me.world.scheduler.meet("hydrations fenced")
        except BadInput as error:
            _refuse_unless_changed(me, rendition, error)


def hand_over(me: Incarnation) -> None:
    if rendition := _hydrating(me):
        at = me.random.choice([None, None, me.world.upper + 5])
        before = me.world.upper
        try:
            if me.random.random() < 0.5:
                me.controller.renditions.catch_up(NAME, rendition)
            held = me.controller.renditions.hand_over(NAME, rendition, at=at, max_lag_ms=20_000)
        except NotCaughtUp:
            return
        except BadInput as error:
            _refuse_unless_changed(me, rendition, error)
            return
        me.world.scheduler.meet("handovers", f"to {rendition} at {held.held_from}")
        me.told_upper(min(before, held.held_from), held.held_from)


def abort(me: Incarnation) -> None:
    if rendition := _hydrating(me):
        try:
            me.controller.renditions.abort(NAME, rendition)
        except BadInput as error:
            _refuse_unless_changed(me, rendition, error)
        else:
            me.world.scheduler.meet("renditions aborted")


def make_difference(me: Incarnation) -> None:
    if me.controller.renditions.make_difference(NAME) is not None:
        me.world.scheduler.meet("differences made or found")


def evolve(me: Incarnation) -> None:
    me.controller.evolve_collection(NAME, LATER)


def advance(me: Incarnation) -> None:
    for step in me.controller.advance(NAME).steps:
        me.world.scheduler.meet(f"advanced: {step.kind.value}")


def drop_retired(me: Incarnation) -> None:
    for rendition in me.controller.renditions.drop_retired(NAME):
        me.world.scheduler.meet("renditions dropped", rendition)


def maintain(me: Incarnation) -> None:
    info = me.controller.describe(NAME)
    shard = me.random.choice([info.metadata_shard, me.controller.shard_id, *info.data_shards])
    if not me.world.auditor.state(shard).finalized:
        me.client.maintain(shard)


ACTIONS: tuple[tuple[int, Callable[[Incarnation], None]], ...] = (
    (14, write),
    (8, read),
    (14, follow),
    (4, let_go),
    (3, close),
    (2, stop_following),
    (4, retain),
    (4, make_rendition),
    (4, catch_up),
    (8, hand_over),
    (1, abort),
    (3, drop_retired),
    (3, advance),
    (3, make_difference),
    (1, evolve),
    (2, maintain),
)


def _reader(me: Incarnation) -> tuple[CollectionReader, int]:
    """One that is open, or another one."""
    if not me.readers or me.random.random() < 0.1:
        reader = me.controller.reader(NAME, purpose=me.who)
        # It holds since where that was when it came, so since is that now.
        me.readers.append((reader, reader.since()))
    return me.random.choice(me.readers)


def _refuse_too_early(me: Incarnation, as_of: int, held: int) -> None:
    if as_of >= held and not me.world.leases_end:
        raise Violation(f"{me.who}: too early at {as_of} despite a hold at {held}")


def _refuse_unless_changed(me: Incarnation, rendition: str, error: BadInput) -> None:
    """A rendition may be another one's by now; else the refusal is wrong."""
    if me.controller.describe(NAME).rendition(rendition).state is RenditionState.HYDRATING:
        raise Violation(f"{me.who}: refused: {error}") from error


def contents(reader: CollectionReader, as_of: int | None) -> tuple[int, Counter[Row]]:
    """A time, the newest where none is given, and what a reader has then."""
    rows: Counter[Row] = Counter()
    snapshot = reader.snapshot(as_of)
    for batch in snapshot:
        columns = [batch.column(name).to_pylist() for name in ("k", "v", "_diff")]
        for key, value, diff in zip(*columns, strict=True):
            if (key, value) in rows or diff == 0:
                raise Violation(f"a snapshot is not consolidated: {key}, {value}")
            rows[key, value] = diff
    return snapshot.as_of, rows
