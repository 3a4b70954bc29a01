"""Two concurrent processes, in all schedules of their store calls with up to two preemptions.

Both run the real code on the same two disks. At the end, every acknowledged write is exactly once in exactly
one catalog, and no refused write is. A read returns every write that was acknowledged before the read began.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.catalog import OpenMode
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.migration import Verify
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.objects.registry import ROLES
from holdfast.errors import AsOfTooEarly, HoldfastError, NeedsPersist
from moves.actors import (
    OTHER,
    SHUT_OUT,
    TIMEOUT_S,
    Book,
    add,
    migrate,
    names,
    opened,
    read_again,
    settle,
    write,
)
from moves.acts import begun
from moves.explorer import Explored, Race, explore
from moves.world import Process

Work = Callable[[], object]
Ready = Callable[[Process, Book], Work]
"""Makes a process ready, before the other one is there, and gives what it then does."""

_SETTLED: set[object] = set()
"""The ends that were looked at, of all meetings."""

LATE_MS = int(TIMEOUT_S * 1000) + 1
"""So far is a clock ahead that shows the time of any migration to be over."""


def writes(name: str) -> Ready:
    """Opens the catalog and writes."""
    return lambda process, book: lambda: write(process, book, name)


def wrote_before(name: str) -> Ready:
    """Has the catalog open, and writes."""

    def ready(process: Process, book: Book) -> Work:
        catalog = opened(process.linked(), book)
        assert catalog is not None
        return lambda: add(catalog, book, name)

    return ready


def moves(target: Backend, *, then: str = "", **options: object) -> Ready:
    """Migrates or rolls back, and then opens the catalog and writes if it is to."""

    def ready(process: Process, book: Book) -> Work:
        def work() -> None:
            migrate(process, book, target, **options)
            if then:
                write(process, book, then)

        return work

    return ready


def writes_in_emergency(name: str) -> Ready:
    """Opens the stash alone, as persist can't be reached."""

    def ready(process: Process, book: Book) -> Work:
        def work() -> None:
            try:
                catalog = opened(emergency_catalog(process.alone(Backend.STASH)), book)
            except NeedsPersist:
                book.told.append("emergency refused: NeedsPersist")
                return
            if catalog is not None:
                add(catalog, book, name)

        process.world.emergency = True
        return work

    return ready


def syncs(alone: Backend | None = None) -> Ready:
    """Has the catalog open for reading, and reads again and again; through one store alone, if so."""

    def ready(process: Process, book: Book) -> Work:
        openable = process.linked() if alone is None else process.alone(alone)
        reader = openable.open(OpenMode.READ_ONLY)

        def work() -> None:
            seen = names(reader)
            for _ in range(3):
                if not read_again(reader, book):
                    return
                found = names(reader)
                assert seen <= found, f"gone back: {seen - found}"
                seen = found

        return work

    return ready


def follows() -> Ready:
    """Has a subscription, and asks it again and again: it has all that there was, or says why not."""

    def ready(process: Process, book: Book) -> Work:
        reader = process.linked().open(OpenMode.READ_ONLY)
        subscription = reader.subscribe()
        found = names(reader)

        def work() -> None:
            for _ in range(3):
                known = set(book.acked)
                try:
                    changes = subscription.next(0)
                except (*SHUT_OUT, AsOfTooEarly) as error:
                    book.told.append(f"subscription: {type(error).__name__}")
                    return
                for change in changes:
                    if change.collection is ROLES and len(change.object.value.name) == 1:
                        name = change.object.value.name
                        assert (name in found) is (change.diff < 0), f"{name} came twice"
                        found.symmetric_difference_update({name})
                book.check(found, least=known)

        return work

    return ready


@dataclass(frozen=True)
class Meeting:
    """Two processes that meet; those that are `late` have a clock that is far ahead."""

    name: str
    strategy: Strategy
    truth: Backend
    works: tuple[Ready, Ready]
    start: str = "linked"
    late: frozenset[int] = frozenset()
    done: bool = False
    """Whether the truth is where a migration has brought it."""

    def __str__(self) -> str:
        strategy = "one" if self.strategy is Strategy.ONE_TOMBSTONE else "two"
        return f"{self.name}, {strategy}, {self.start}, in {self.truth.value}"

    def explore(self) -> Explored:
        """Let them meet in every way."""
        return explore(self.run)

    def run(self, plan: Sequence[tuple[int, int | None]]) -> Race:
        """Let them meet in one way."""
        world, book = begun(
            "roll back" if self.done else "migrate", self.strategy, self.truth.other, self.start
        )
        race = Race(plan, lambda: (world.stash.stored, world.persist.stored))
        try:
            works = [
                make(
                    world.process(
                        race.calls(who),
                        lambda _, who=who: race.sleep(who),
                        ahead_ms=LATE_MS if who in self.late else 0,
                    ),
                    book,
                )
                for who, make in enumerate(self.works)
            ]
            race.run(works)
            settle(world, book, _SETTLED)
        except (AssertionError, HoldfastError) as error:
            steps = "\n".join(
                f"  {made.who} {made.call}{' *' if made.changed else ''}" for made in race.trace
            )
            raise AssertionError(
                f"{self}, schedule {list(plan)}: {type(error).__name__}: {error}\n{book.told}\n{steps}"
            ) from error
        return race


def meetings() -> Iterator[Meeting]:
    """All that are explored."""
    for strategy in Strategy:
        for truth in Backend:
            yield from _meetings(partial(Meeting, strategy=strategy, truth=truth), truth)
        yield Meeting(
            "emergency || migrate", strategy, Backend.STASH,
            (writes_in_emergency("x"), moves(Backend.PERSIST)), late=frozenset({0}),
        )  # fmt: skip
        for start in ("unlinked", "new"):
            yield Meeting("link || link", strategy, Backend.PERSIST, (writes("x"), writes("y")), start=start)
        yield Meeting("link || link", strategy, Backend.STASH, (writes("x"), writes("y")), start="unlinked")


def _meetings(meeting: Callable[..., Meeting], truth: Backend) -> Iterator[Meeting]:
    target = truth.other
    late = frozenset({0})
    yield meeting("open || open", works=(writes("x"), writes("y")))
    yield meeting("open + write || migrate", works=(writes("x"), moves(target)))
    yield meeting("open + write || migrate, late", works=(writes("x"), moves(target)), late=late)
    yield meeting("write || migrate", works=(wrote_before("x"), moves(target)))
    yield meeting("migrate || rollback", works=(moves(target), moves(target, rollback=True)))
    both = (moves(truth, rollback=True), moves(truth, rollback=True, verify=Verify.COMPARE))
    yield meeting("rollback || rollback", works=both, done=True)
    yield meeting("migrate || migrate, same id", works=(moves(target), moves(target)))
    yield meeting("migrate || migrate, other id", works=(moves(target), moves(target, migration_id=OTHER)))
    yield meeting("open + write || rollback", works=(writes("x"), moves(truth, rollback=True)), done=True)
    yield meeting(
        "open + write || rollback, late",
        works=(writes("x"), moves(truth, rollback=True)),
        late=late,
        done=True,
    )
    yield meeting("sync || migrate + write", works=(syncs(), moves(target, then="x")))
    yield meeting("sync alone || migrate + write", works=(syncs(truth), moves(target, then="x")))
    yield meeting("subscribe || migrate + write", works=(follows(), moves(target, then="x")))
