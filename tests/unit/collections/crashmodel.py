"""The crash model of collections: a command breaks off at any durable operation, and somebody goes on.

The durable operations (commits of the consensus store, blobs) are recorded from an undisturbed run of a
command. Then each of them is broken: the process is gone before or right after it, or the store doesn't
answer, and it happened or not. A writer writes, a listener follows; then the same process goes on, or another
one with the same command, or with `advance` and then the command. In the end everything is as if nothing had
been broken: contents around all handovers, renditions, holds, shards; and nothing is retained for ever.

Blobs that a dead process uploaded for nothing are not looked at: the sweeper of persist takes them. States
that are left behind alike are gone on from once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.collections import (
    CollectionListen,
    CollectionState,
    CollectionWriter,
    Recipe,
    RenditionState,
    StorageController,
)
from holdfast.errors import CollectionNotFound, HandleExpired, HoldfastError, StorageError, UpperMismatch
from holdfast.persist import PersistClient, Progress
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.stores import MemoryBlob, MemoryConsensus
from holdfast.persist.upkeep.leases import drop_handles
from testbed.faults import Fault, FaultPlan, Operation, ProcessDeath
from unit.collections.stores import Row, Stores, counted

HOWS = {
    "killed before": Fault.DEATH_BEFORE,
    "killed after": Fault.DEATH_AFTER,
    "in doubt, did not happen": Fault.INDETERMINATE_BEFORE,
    "in doubt, happened": Fault.INDETERMINATE_AFTER,
}
GO_ON = ("the same", "another", "another that advances")
ANY_LAG = 1 << 40
FED_FROM = 4
"""Where pipelines begin."""
Shape = tuple[str, int]


class Recorder(FaultPlan):
    """Remembers the durable operations of one process, and breaks the one with this number."""

    def __init__(self, number: int = -1, fault: Fault = Fault.NONE) -> None:
        self.made: list[Shape] = []
        self.dead = False
        self._number = number
        self._fault = fault

    def decide(self, operation: Operation) -> Fault:
        if self.dead:
            return Fault.DEATH_BEFORE
        if not operation.writes:
            return Fault.NONE
        self.made.append((operation.name, len(operation.keys)))
        if len(self.made) - 1 != self._number:
            return Fault.NONE
        self.dead = self._fault in {Fault.DEATH_BEFORE, Fault.DEATH_AFTER}
        return self._fault


def copied(stores: Stores) -> Stores:
    """The same contents, to go on from apart."""
    copy = Stores.__new__(Stores)
    copy.clock = stores.clock
    copy.blob, copy.consensus = MemoryBlob(), MemoryConsensus()
    copy.blob._objects.update(stores.blob._objects)
    copy.consensus._logs.update({key: list(log) for key, log in stores.consensus._logs.items()})
    return copy


def opened(stores: Stores, plan: FaultPlan | None = None, *, uploads: bool = False) -> StorageController:
    """A new process, without threads. One that uploads puts all its updates into blobs."""
    inline = {"inline_max_bytes": 0} if uploads else {}
    # What persist keeps of each state is checked in its own models: it takes a fifth of the time here.
    client = stores.open(plan, builder_threads=False, debug_validate=False, hostname="h", **inline)
    return StorageController(client, who="model")


@dataclass
class Book:
    """What must be there: what was acknowledged, and when; what a restore has put in place of it."""

    written: list[tuple[Row, int]] = field(default_factory=list)
    restored: tuple[int, Counter[Row]] | None = None

    def contents(self, as_of: int) -> Counter[Row]:
        """The contents at a time."""
        start, base = self.restored if self.restored and self.restored[0] <= as_of else (0, Counter())
        return base + Counter(row for row, time in self.written if start <= time <= as_of)


def feed(
    controller: StorageController, written: Sequence[tuple[Row, int]], rendition_id: str, upto: int
) -> None:
    """Be the pipeline of a rendition: go on where it is, up to this time, with what was written."""
    pipeline = controller.rendition_writer("flights", rendition_id, purpose="pipeline")
    if (lower := pipeline.upper() or FED_FROM) < upto:
        rows = [
            {"id": id_, "name": name, "_time": time} for (id_, name), time in written if lower <= time < upto
        ]
        pipeline.append(rows, lower, upto)


class Cast:
    """Who goes on while a command breaks off: a writer and a listener that were there before it.

    One that is `late` opens what it writes with when it writes. Where pipelines feed renditions of the
    collection (`fed`) it is late, and they get the same rows at the same times.
    """

    def __init__(self, stores: Stores, book: Book, *, fed: bool = False, late: bool = False) -> None:
        self.book = book
        self._controller = opened(stores)
        self._reader = self._controller.reader("flights", purpose="listener")
        if self._reader.upper() == 0:
            self._controller.writer("flights", purpose="writer").seal(1)
        as_of = self._reader.upper() - 1
        self._heard = counted(self._reader.snapshot(as_of).to_table())
        assert self._heard == book.contents(as_of)
        self._listen: CollectionListen = self._reader.listen(as_of)
        self._fed = fed
        self._writer: CollectionWriter | None = None if fed or late else self._open()

    def _open(self) -> CollectionWriter:
        return self._controller.writer("flights", purpose="writer")

    def write(self, step: int) -> None:
        """Write a row, wherever it belongs now."""
        row = (100 + len(self.book.written), "written")
        if not self._fed:
            self.book.written.append((row, self._append(row, step)))
            return
        info = self._controller.describe("flights")
        sources = [each for each in info.live if each.recipe is Recipe.SOURCE]
        if info.holding.recipe is Recipe.SOURCE:
            uppers = self._controller.client.recent_uppers([each.shards[0] for each in sources])
            upper = max(info.holding.held_from, *uppers.values())
        else:
            upper = self._append(row, step)
        self.book.written.append((row, upper))
        for each in sources:
            feed(self._controller, self.book.written, each.id, min(upper + step, each.held_to))

    def _append(self, row: Row, step: int) -> int:
        self._writer = writer = self._writer or self._open()
        while True:
            upper = writer.upper()
            with suppress(UpperMismatch):
                writer.append([{"id": row[0], "name": row[1]}], upper, upper + step)
                return upper

    def hear(self) -> None:
        """Listen to all that is there: it adds up to what must be there, and so does a snapshot."""
        upper = self._reader.upper()
        self._heard.update(_changes(self._listen, upper))
        heard = _there(self._heard)
        expected = self.book.contents(upper - 1)
        assert heard == expected, f"heard {heard - expected} too much, {expected - heard} too little"
        found = counted(self._reader.snapshot(upper - 1).to_table())
        assert found == expected, f"read {found - expected} too much, {expected - found} too little"

    def close(self) -> None:
        """Give up the reader's hold."""
        self._reader.close()
        self._controller.close()


@dataclass(frozen=True)
class Act:
    """A command: how the world is before it, what it does, and how it must be when it was done."""

    name: str
    prepare: Callable[[Stores, Book], None]
    do: Callable[[StorageController], object]
    states: tuple[str, ...] = ("HOLDING",)
    cast: bool = True
    late: bool = False
    fed: bool = False
    restores: Counter[Row] | None = None
    advances: bool = False
    uploads: bool = False
    keeps: frozenset[str] = frozenset()

    @property
    def is_due(self) -> bool:
        """Whether it may leave something that is due."""
        return self.advances or self.restores is not None or self.name.startswith(("hand over", "drop"))

    def __str__(self) -> str:
        return self.name


@dataclass
class Visited:
    """What was broken in which way, and how often somebody went on from it."""

    recorded: set[tuple[str, int, Shape]] = field(default_factory=set)
    broken: dict[str, set[tuple[str, int, Shape]]] = field(
        default_factory=lambda: {how: set() for how in HOWS}
    )
    stories: int = 0
    _known: set[object] = field(default_factory=set)

    def check_all(self) -> None:
        """Whether each recorded operation was broken in each way."""
        for how, broken in self.broken.items():
            missed = self.recorded - broken
            assert not missed, f"never {how}: {sorted(map(str, missed))}"
            assert broken == self.recorded

    def visit(self, act: Act) -> None:
        """Break the act everywhere, and go on in every way."""
        stores, book = Stores(), Book()
        act.prepare(stores, book)
        recorder = Recorder()
        act.do(opened(copied(stores), recorder, uploads=act.uploads))
        made = list(recorder.made)
        assert made, f"{act}: nothing durable was done"
        for number, shape in enumerate(made):
            self.recorded.add((act.name, number, shape))
            for how in HOWS:
                for go_on in filter(lambda go_on: self._goes_on(act, go_on), GO_ON):
                    self._story(act, stores, book, number, shape, how, go_on)

    @staticmethod
    def _goes_on(act: Act, go_on: str) -> bool:
        """Whether it makes a difference who goes on."""
        return not (go_on == "another" and act.advances) and (go_on != GO_ON[2] or act.is_due)

    def _story(
        self, act: Act, before: Stores, book: Book, number: int, shape: Shape, how: str, go_on: str
    ) -> None:
        killed = how.startswith("killed")
        if killed and go_on == "the same":
            return
        ended = _break(act, copied(before), number, shape, how)[1]
        self.broken[how].add((act.name, number, shape))
        left: object = number + (how == "killed after") if killed else ended or (number, how)
        if (act.name, go_on, killed, left) in self._known:
            return
        self._known.add((act.name, go_on, killed, left))
        self.stories += 1
        stores, book = copied(before), Book(list(book.written), book.restored)
        cast = Cast(stores, book, fed=act.fed, late=act.late) if act.cast else None
        process, _ = _break(act, stores, number, shape, how)
        try:
            _settle(act, stores, book, cast, process if go_on == "the same" else None, go_on)
        except (AssertionError, HoldfastError) as error:
            told = f"{act}: {how} {number} ({shape[0]} of {shape[1]}), then {go_on} goes on"
            raise AssertionError(f"{told}: {type(error).__name__}: {error}") from error


def _break(act: Act, stores: Stores, number: int, shape: Shape, how: str) -> tuple[StorageController, bool]:
    """Do the act in a process that meets the fault; the process, and whether it told that all is done."""
    breaker = Recorder(number, HOWS[how])
    process = opened(stores, breaker, uploads=act.uploads)
    ended = True
    try:
        act.do(process)
    except (StorageError, HandleExpired, ProcessDeath):
        ended = False
    assert breaker.made[number] == shape, f"{act}: not what was recorded, but {breaker.made[number]}"
    return process, ended


def _settle(
    act: Act, stores: Stores, book: Book, cast: Cast | None, same: StorageController | None, go_on: str
) -> None:
    """Go on, and look at the end."""
    if cast is not None and act.restores is None:
        # A restore gives up what is written before it takes place; when that is, is known afterwards.
        cast.write(3)
    process = same or opened(stores)
    if go_on == "another that advances":
        with suppress(CollectionNotFound):  # It was never created.
            process.advance("flights")
        if cast is not None and act.restores is None:
            cast.write(20_000)
    if not (act.advances and go_on == "another that advances"):
        act.do(process)
    info = process.describe("c1")
    if act.restores is not None:
        book.restored = (info.holding.held_from, act.restores)
    states = tuple(each.state.name for each in info.renditions)
    assert states == act.states, f"renditions are {states}"
    if info.state is CollectionState.DROPPED:
        _check_shards(process.client, process, set())
        return
    cast = cast or Cast(stores, book, fed=act.fed)
    cast.write(20_000)
    for rendition in info.live:
        if rendition.state is RenditionState.HYDRATING:
            if rendition.recipe is Recipe.COPY:
                process.renditions.catch_up("flights", rendition.id)
            process.renditions.hand_over("flights", rendition.id, max_lag_ms=ANY_LAG)
    cast.write(3)
    cast.hear()
    cast.close()
    _check_end(act, stores, process, book)


def _check_end(act: Act, stores: Stores, process: StorageController, book: Book) -> None:
    client = process.client
    info = process.describe("flights")
    upper = process.frontiers("flights").upper
    # Each handover, just before and just after.
    with process.reader("flights", purpose="check") as reader:
        times = [time for each in info.held for time in (each.held_from - 1, each.held_from)]
        for time in {*times, upper - 1}:
            if reader.since() <= time < upper:
                assert counted(reader.snapshot(time).to_table()) == book.contents(time), f"at {time}"
        # And through all of them, with what differs from where that is.
        heard = counted(reader.snapshot(since := reader.since()).to_table())
        heard.update(_changes(reader.listen(since), upper))
        assert _there(heard) == book.contents(upper - 1), f"listening from {since} on"
    _expire(client)
    shards = [info.metadata_shard, *info.data_shards]
    for shard in shards:
        held = {hold.purpose for hold in client.inspect(shard).holds}
        wanted = {"retention"}
        if shard == info.metadata_shard:
            wanted |= {each for each in act.keeps if each.startswith("read: ")}
        assert held == wanted, f"{held} on {shard}"
    kept = {f"{'write' if each.writes else 'read'}: {each.purpose}" for each in info.holders}
    assert kept == act.keeps, f"{kept} on record"
    for hold in info.holders:
        release = process.release_write if hold.writes else process.release_hold
        release("flights", hold.purpose)
    process.set_retention_hold("flights", upper - 1)
    assert process.advance("flights").waits == ()
    info = process.describe("flights")
    assert [each.state for each in info.live] == [RenditionState.HOLDING]
    for shard in (info.metadata_shard, *info.holding.shards):
        assert client.inspect(shard).since == upper - 1, f"{shard} is retained"
    _check_shards(client, process, {info.metadata_shard, *info.data_shards})
    process.drop_collection("flights")
    _check_shards(client, process, set())


def _changes(listen: CollectionListen, upper: int) -> Counter[Row]:
    """What a listen tells until it has come to `upper`."""
    told: Counter[Row] = Counter()
    while listen.frontier < upper:
        for event in listen.next(60.0):
            if not isinstance(event, Progress):
                told.update(counted(event.table))
    return told


def _there(rows: Counter[Row]) -> Counter[Row]:
    return Counter({row: count for row, count in rows.items() if count})


def _check_shards(client: PersistClient, process: StorageController, wanted: set[str]) -> None:
    """No shard lives but these and the controller's."""
    live = {shard for shard in client.shards() if not client.inspect(shard).finalized}
    live.discard(process.shard_id)
    assert live == wanted, f"left over {live - wanted}, lacking {wanted - live}"


def _expire(client: PersistClient) -> None:
    """The leases of the dead end."""
    for shard in client.shards():
        machine = client.session.machine(shard)
        readers = machine.refresh().leased_readers.values()
        drop_handles(machine, ExpireHandles(tuple((each.id, each.heartbeats) for each in readers), ()))
