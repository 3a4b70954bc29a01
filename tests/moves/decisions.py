"""Decisions by hand about which of two stores counts.

They are interrupted at each durable operation, and run concurrently with other processes.

The model begins in states in which nothing shows the truth any more, or in which the stores show the wrong
one. Each side has the writes that its writers got acknowledged. The model checks that, until a decision is
complete, nobody can open the catalog except in an emergency, and either side may still be chosen. After that
the catalog has the contents of the chosen side, and nobody who opened a store before can write any more.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product

from holdfast.catalog import Catalog, OpenMode
from holdfast.catalog.move.decision import decide, decision
from holdfast.catalog.move.detach import detach
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.objects.codec import decode
from holdfast.catalog.objects.registry import ROLES, Kind
from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    HoldfastError,
    Indeterminate,
    LinkConflict,
    LinkedElsewhere,
    NeedsPersist,
)
from moves.actors import SHUT_OUT, Book, add, migrate, settle, write
from moves.acts import begun
from moves.crashes import HOWS, Breaker, Recorder
from moves.explorer import Explored, Race, explore
from moves.memorystore import Disk, Stored
from moves.watched import Call, Killed
from moves.world import Process, World

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES
STARTS = {
    "both noted": ONE,
    "two tombstones restored": TWO,
    "stash behind": ONE,
    "another stash": TWO,
    "told, one": ONE,
    "told, two": TWO,
    "stash lost": ONE,
}
"""What there is to decide about, and how the two are linked."""


@dataclass(frozen=True)
class Choice:
    """The decision that `truth` counts, from a start."""

    start: str
    truth: Backend

    def __str__(self) -> str:
        return f"decide for {self.truth.value}, {self.start}"

    @property
    def is_alone(self) -> bool:
        """Whether it is made with persist alone, as the stash is lost."""
        return self.start == "stash lost"

    def begun(self) -> World:
        """A world for it to happen in."""
        return _begun(self.start).copy()

    def do(self, process: Process) -> None:
        """Look at what it would mean, and decide."""
        if self.is_alone:
            alone = process.alone(Backend.PERSIST)
            try:
                detach(alone, stash_lost=True, accept_loss=True, holder="somebody", purpose="a decision")
            except BadInput as error:
                # It has ended already.
                if "not linked" not in str(error):
                    raise
            return
        linked = process.linked()
        found = decision(linked, self.truth)
        if found.gives_up:
            decide(linked, found, holder="somebody", purpose="a decision", sleep=process.sleep)


def choices() -> list[Choice]:
    """Each start, decided for each store for which there is anything to decide."""
    there = [Choice(*each) for each in product(STARTS, Backend)]
    kept = [each for each in there if not (each.start.startswith("told") and each.truth is Backend.PERSIST)]
    return [each for each in kept if not (each.is_alone and each.truth is Backend.STASH)]


@cache
def _begun(start: str) -> World:
    strategy = STARTS[start]
    if start in ("another stash", "stash lost"):
        world, book = begun("roll back", strategy, Backend.STASH, "linked")
        assert migrate(world.process(), book, Backend.PERSIST, rollback=True)
        assert write(world.process(), book, "l")
        world.is_watched = False
        world.stash = Disk("the stash")
        if start == "another stash":
            _written(world.process().alone(Backend.STASH), "c")
    else:
        world, book = begun("migrate", strategy, Backend.PERSIST, "linked")
        backup = world.stash.stored
        assert migrate(world.process(), book, Backend.PERSIST)
        assert write(world.process(), book, "b")
        world.is_watched = False
        if start == "two tombstones restored":
            assert migrate(world.process(), book, Backend.STASH, migration_id="back")
        if not start.startswith("told"):
            world.stash = Disk("the stash", backup)
        if start in ("both noted", "two tombstones restored"):
            emergency = emergency_catalog(world.process().alone(Backend.STASH))
            _written(emergency, "c")
            emergency.raise_fence(50, holder="me", purpose="restored")
    world.decides = {backend: world.disks.of(backend).upper for backend in Backend}
    world.is_watched = True
    return world


def _written(openable: object, name: str) -> None:
    with openable.open(OpenMode.WRITABLE, holder="somebody", purpose="a write") as catalog:  # type: ignore[attr-defined]
        assert add(catalog, Book(), name)


def names_in(stored: Stored) -> set[str]:
    """The roles that the writers here made, in a store."""
    rows = [row for row in stored.rows if row.key[:2] == Kind.ROLE.tag]
    return {name for name in (decode(ROLES, row).value.name for row in rows) if len(name) == 1}


NEXT = ("again", "other", "open", "migrate", "emergency")


@dataclass
class Decisions:
    """What the model has seen."""

    recorded: set[tuple[str, int, Call]] = field(default_factory=set)
    broken: dict[str, set[tuple[str, int, Call]]] = field(
        default_factory=lambda: {how: set() for how in HOWS}
    )
    stories: int = 0
    _known: set[object] = field(default_factory=set)
    _settled: set[object] = field(default_factory=set)

    def visit(self, choice: Choice) -> None:
        """Break a decision off everywhere, and go on in every way."""
        world = choice.begun()
        olds, recorder = _opened_before(world), Recorder()
        choice.do(world.process(recorder))
        made = list(recorder.made)
        self._end(world, choice, olds)
        for number, call in enumerate(made):
            self.recorded.add((str(choice), number, call))
            for how in HOWS:
                for writes in (False, True):
                    self._break(choice, number, call, how, writes=writes)

    def check_all(self) -> None:
        """Whether each recorded operation was a crash point in each way."""
        for how, broken in self.broken.items():
            assert broken == self.recorded, f"never {how}: {sorted(map(str, self.recorded - broken))}"

    def _break(self, choice: Choice, number: int, call: Call, how: str, *, writes: bool) -> None:
        told = f"{choice}: {how} {number} ({call})"
        try:
            world = choice.begun()
            begin, breaker = world.disks, Breaker(number, how)
            olds = _opened_before(world)
            with suppress(Killed, Indeterminate):
                choice.do(world.process(breaker))
            assert breaker.broke == call, f"not what was recorded, but {breaker.broke}"
            self.broken[how].add((str(choice), number, call))
            if writes:
                told += ", then who had it open writes"
                _try_all(world, olds)
            if world.disks.persist is not begin.persist:
                _check_closed(world)
            for what in NEXT:
                key = choice.start, choice.truth, writes, what, world.disks.fingerprint, _held(world)
                if key in self._known or (choice.is_alone and what in ("other", "emergency")):
                    continue
                self._known.add(key)
                self.stories += 1
                then = world.copy()
                try:
                    self._go_on(what, choice, then)
                except (AssertionError, HoldfastError) as error:
                    raise AssertionError(f"then {what}: {type(error).__name__}: {error}") from error
            choice.do(world.process())
            self._end(world, choice, olds)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{told}, {type(error).__name__}: {error}") from error

    def _go_on(self, what: str, choice: Choice, world: World) -> None:
        process = world.process()
        match what:
            case "other":
                choice = Choice(choice.start, choice.truth.other)
            case "open" | "migrate":
                before, was_told = world.disks, world.disks.is_told
                book = Book(acked=names_in(before.of(before.truth or Backend.PERSIST)))
                try:
                    if what == "open":
                        write(process, book, "x")
                    else:
                        migrate(process, book, choice.truth.other)
                except LinkConflict:
                    assert not was_told, "the stores tell the truth, and it can't be opened"
                    assert world.disks == before, "who was refused has changed something"
                else:
                    assert was_told, "opened, but nothing tells the truth"
                    if what == "migrate" or choice.is_alone:
                        settle(world, book, self._settled)
                        return
            case "emergency":
                world.emergency = True
                with suppress(NeedsPersist, LinkedElsewhere):
                    _written(emergency_catalog(process.alone(Backend.STASH)), "e")
        choice.do(world.process())
        self._end(world, choice, [])

    def _end(self, world: World, choice: Choice, olds: Sequence[Catalog]) -> None:
        """A decision is complete: the catalog is what its store has, and nobody of before writes to it."""
        disks = world.disks
        assert disks.is_told, "decided, but nothing tells the truth"
        assert disks.truth is choice.truth, f"decided for {choice.truth}, but the truth is {disks.truth}"
        assert not _try_all(world, olds), "somebody who had it open before has written"
        settle(world, Book(acked=names_in(disks.of(choice.truth))), self._settled)


def _held(world: World) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(names_in(world.disks.of(backend))) for backend in Backend)


def _opened_before(world: World) -> list[Catalog]:
    """Whoever can open one of the stores for writing, or both, before anything is decided."""
    process, opened = world.process(), []
    # Who comes later fences those of before, but for who has another store.
    for openable in (
        process.linked(),
        process.alone(Backend.PERSIST),
        emergency_catalog(process.alone(Backend.STASH)),
    ):
        try:
            opened.append(openable.open(OpenMode.WRITABLE, holder="before", purpose="a write"))
        except (LinkConflict, LinkedElsewhere, NeedsPersist):
            continue
    return opened


def _wrote(catalog: Catalog, book: Book, name: str) -> bool:
    try:
        return add(catalog, book, name)
    except CatalogOutOfSync:
        # The mark came in between: it goes on with that.
        return add(catalog, book, name)


def _try_all(world: World, olds: Sequence[Catalog]) -> int:
    """How many of those that had it open can write; whoever does, his write is in his store."""
    done = 0
    for number, catalog in enumerate(olds):
        book = Book()
        free_name = "uvw"[number]
        if any(free_name in names_in(world.disks.of(backend)) for backend in Backend):
            free_name = "xyz"[number]
        if _wrote(catalog, book, free_name):
            done += 1
            held = [free_name in names_in(world.disks.of(backend)) for backend in Backend]
            assert held.count(True) == 1, "told that it is there, but it isn't"
    return done


def _check_closed(world: World) -> None:
    """While a decision is made nobody reads or writes through persist, nor through both."""
    if world.disks.is_told:
        return
    process, before = world.process(), world.disks
    for openable, mode in product(
        (process.linked(), process.alone(Backend.PERSIST)), (OpenMode.WRITABLE, OpenMode.READ_ONLY)
    ):
        try:
            openable.open(mode, holder="late", purpose="a try").close()
        except (LinkConflict, LinkedElsewhere):
            continue
        raise AssertionError(f"{openable.place} was opened ({mode.name}) while it is being decided")
    assert world.disks == before, "who was refused has changed something"


Work = Callable[[Process, Book], None]


def decides(truth: Backend) -> Work:
    """Decides, if nobody else does."""

    def work(process: Process, book: Book) -> None:
        try:
            Choice("told, one", truth).do(process)
        except (*SHUT_OUT, LinkConflict) as error:
            book.told.append(f"decision for {truth.value} refused: {error}")
        else:
            book.told.append(f"decided for {truth.value}")

    return work


def writes(name: str) -> Work:
    """Opens the catalog and writes, if somebody tells where it is."""

    def work(process: Process, book: Book) -> None:
        try:
            catalog = process.linked().open(OpenMode.WRITABLE, holder="somebody", purpose="a write")
        except (*SHUT_OUT, LinkConflict) as error:
            book.told.append(f"open refused: {type(error).__name__}")
            return
        book.handles.append(catalog)
        _wrote(catalog, book, name)

    return work


MEETINGS = {
    "decide || decide the other way, both noted": (
        "both noted",
        (decides(Backend.STASH), decides(Backend.PERSIST)),
    ),
    "decide || open + write, told": ("told, one", (decides(Backend.STASH), writes("x"))),
}
"""Two processes that meet over a decision."""


def meet(name: str) -> Explored:
    """Let the two meet in every way."""
    start, works = MEETINGS[name]
    settled: set[object] = set()

    def run(plan: Sequence[tuple[int, int | None]]) -> Race:
        world, book = _begun(start).copy(), Book()
        race = Race(plan, lambda: (world.stash.stored, world.persist.stored))
        book.acked = _held_by_any(world)
        try:
            processes = [
                world.process(race.calls(who), lambda _, who=who: race.sleep(who)) for who in range(2)
            ]
            race.run([lambda who=who: works[who](processes[who], book) for who in range(2)])  # type: ignore[misc]
            _check_met(start, world, book, settled)
        except (AssertionError, HoldfastError) as error:
            steps = "\n".join(
                f"  {made.who} {made.call}{' *' if made.changed else ''}" for made in race.trace
            )
            raise AssertionError(
                f"{name}, schedule {list(plan)}: {type(error).__name__}: {error}\n{book.told}\n{steps}"
            ) from error
        return race

    return explore(run)


def _held_by_any(world: World) -> set[str]:
    return set().union(*(names_in(world.disks.of(backend)) for backend in Backend))


def _check_met(start: str, world: World, book: Book, settled: set[object]) -> None:
    disks = world.disks
    assert disks.is_told, "nobody has decided"
    truth = disks.truth
    assert truth is not None
    decided = [line for line in book.told if line.startswith("decided for")]
    if decided:
        assert f"decided for {truth.value}" in decided
    else:
        # Somebody else took over between the look and the mark.
        assert _begun(start).disks.is_told, "every decision was refused"
        assert truth is _begun(start).disks.truth, "no decision, but the truth has moved"
    held = names_in(disks.of(truth))
    assert held <= book.acked | book.doubtful, "there, but refused"
    # What was written to the other one before it was given up is lost, and only that.
    assert book.acked <= _held_by_any(world), "lost in both"
    settle(world, Book(acked=held, handles=book.handles), settled)
