"""The crash model: an act ends at each of its durable operations, and another process continues.

The durable operations are recorded from an undisturbed run of the act. The process is killed before and after
each of them. The outcome of each is also unknown once, both if it happened and if it did not. From every
resulting state, another process may act. Then the act is resumed or rolled back, or somebody opens the
catalog and writes, or begins another migration. States that differ only in times, nonces and numbers are
continued once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.catalog import OpenMode
from holdfast.catalog.move.migration import Verify
from holdfast.catalog.move.truth import Backend
from holdfast.errors import HoldfastError, Indeterminate
from moves.actors import (
    MOVE,
    OTHER,
    TIMEOUT_S,
    Book,
    abandon,
    end_link,
    migrate,
    read_again,
    roles_of,
    settle,
    write,
)
from moves.acts import ENDS_LINK, GIVES_UP, Act
from moves.watched import Call, Killed
from moves.world import Process, World

T = TypeVar("T")


class Recorder:
    """Makes all calls, and remembers the durable ones."""

    def __init__(self) -> None:
        self.made: list[Call] = []

    def __call__(self, call: Call, effect: Callable[[], T]) -> T:
        if call.durable:
            self.made.append(call)
        return effect()


HOWS = ("killed before", "killed after", "in doubt, did not happen", "in doubt, happened")


class Breaker(Recorder):
    """Does something at the durable operation with this number."""

    def __init__(self, number: int, how: str) -> None:
        super().__init__()
        self._number = number
        self._how = how
        self._dead = False
        self.broke: Call | None = None

    def __call__(self, call: Call, effect: Callable[[], T]) -> T:
        if self._dead:
            raise Killed
        if not call.durable:
            return effect()
        self.made.append(call)
        if len(self.made) - 1 != self._number:
            return effect()
        self.broke = call
        self._dead = self._how.startswith("killed")
        if self._how in ("killed after", "in doubt, happened"):
            effect()
        if self._dead:
            raise Killed
        raise Indeterminate("no answer came")


def recorded(act: Act) -> list[Call]:
    """The durable operations of an undisturbed run, which ends as it should."""
    world, book = act.begun()
    recorder = Recorder()
    act.do(world.process(recorder), book)
    # Not what its handles do later.
    made = list(recorder.made)
    assert act.ends_in in (None, world.disks.truth)
    assert "migration again" not in book.told, book.told
    if act.kind in GIVES_UP:
        assert write(world.process(), book, _free(book)), f"given up, but still shut out: {book.told}"
    settle(world, book, set())
    return made


NEXT = ("resume", "roll back", "open", "other id", "abandon")


def go_on(what: str, act: Act, world: World, book: Book) -> None:
    """Somebody does something with what is left behind."""
    moves_to = act.migrates_to
    process = world.process()
    match what:
        case "resume":
            if act.kind == "open":
                write(process, book, _free(book))
            elif act.kind in ENDS_LINK:
                end_link(process, book, stash_lost=act.kind != "detach")
            elif act.kind in GIVES_UP:
                abandon(process, book, moves_to, rollback=act.is_back)
            else:
                _again(process, book, moves_to, rollback=act.is_back, verify=act.verify)
        case "roll back":
            migrate(process, book, moves_to, rollback=True, verify=act.verify)
        case "open":
            if not write(process, book, _free(book)):
                world.now_ms += int(TIMEOUT_S * 1000) + 1
                assert write(process, book, _free(book)), f"shut out for ever: {book.told}"
        case "other id":
            migrate(process, book, world_truth_other(world), migration_id=OTHER, verify=act.verify)
        case "abandon" if act.is_move:
            abandon(process, book, moves_to, rollback=act.is_back)


def _again(process: Process, book: Book, target: Backend, *, rollback: bool, verify: Verify) -> None:
    done = migrate(process, book, target, rollback=rollback, verify=verify)
    if done and "nothing to roll back" not in book.told[-1:] and not _was_undone(process.world):
        wanted = target.other if rollback else target
        assert process.world.disks.truth is wanted, f"resumed, but the truth is not {wanted}"


def _was_undone(world: World) -> bool:
    return world.disks.record(MOVE) == 4 or world.disks.record(OTHER) is not None


def world_truth_other(world: World) -> Backend:
    """Where a new migration would go."""
    truth = world.disks.truth
    return Backend.PERSIST if truth is None else truth.other


def _free(book: Book) -> str:
    used = book.acked | book.doubtful
    return next(name for name in "cdefghijkl" if name not in used)


@dataclass
class Visited:
    """What the model has seen: each durable operation of each act, broken in each way, and what came then."""

    recorded: set[tuple[str, int, Call]] = field(default_factory=set)
    broken: dict[str, set[tuple[str, int, Call]]] = field(
        default_factory=lambda: {how: set() for how in HOWS}
    )
    ends: int = 0
    stories: int = 0
    _known: set[object] = field(default_factory=set)
    _settled: set[object] = field(default_factory=set)

    def check_all(self) -> None:
        """Whether each recorded operation was a crash point in each way."""
        for how, broken in self.broken.items():
            missed = self.recorded - broken
            assert not missed, f"never {how}: {sorted(map(str, missed))}"
            assert broken == self.recorded

    def visit(self, act: Act, *, others: Iterable[str | None] = (None, *NEXT)) -> None:
        """Break the act everywhere, and go on in every way."""
        operations = recorded(act)
        assert operations
        for number, call in enumerate(operations):
            self.recorded.add((str(act), number, call))
            for how in HOWS:
                self._break(act, number, call, how, tuple(others))

    def _break(self, act: Act, number: int, call: Call, how: str, others: tuple[str | None, ...]) -> None:
        told = f"{act}: {how} {number} ({call})"
        try:
            world, book = act.begun()
            breaker = Breaker(number, how)
            with_reader = _Old(world, book)
            try:
                act.do(world.process(breaker), book)
            except (Killed, Indeterminate):
                pass
            except AssertionError as error:
                # What is in doubt is told so by the write itself.
                if not (how.startswith("in doubt") and "in doubt" in str(error)):
                    raise
            assert breaker.broke == call, f"not what was recorded, but {breaker.broke}"
            self.broken[how].add((str(act), number, call))
            world.disks.check()
            if how.startswith("killed"):
                # Handles of the dead one do nothing any more.
                book.handles.clear()
            book.resolve(roles_of(world))
            left, left_book = world.copy(), book.copy()
            go_on("resume", act, world, book)
            with_reader.check(book)
            self._settle(world, book)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{told}, then resumed: {type(error).__name__}: {error}") from error
        for other in others:
            self._then(told, act, left, left_book, [other] if other else [])

    def _then(self, told: str, act: Act, world: World, book: Book, done: list[str]) -> None:
        """Go on from a state: with what somebody does first, then with everything that can follow."""
        world, book = world.copy(), book.copy()
        before = told = ", then ".join([told, *done])
        try:
            for what in done:
                if not self._is_new(act, world, book, what):
                    return
                go_on(what, act, world, book)
            for what in NEXT:
                if self._is_new(act, world, book, what):
                    self.stories += 1
                    then, then_book = world.copy(), book.copy()
                    told = f"{before}, then {what}"
                    go_on(what, act, then, then_book)
                    self._settle(then, then_book)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"{told}: {type(error).__name__}: {error}") from error

    def _is_new(self, act: Act, world: World, book: Book, what: str) -> bool:
        key = (
            act.kind,
            act.target,
            act.strategy,
            act.verify,
            what,
            world.disks.fingerprint,
            frozenset(book.acked),
        )
        known = key in self._known
        self._known.add(key)
        return not known

    def _settle(self, world: World, book: Book) -> None:
        self.ends += 1
        settle(world, book, self._settled)


class _Old:
    """Who had the catalog open before the act: a writer, readers."""

    def __init__(self, world: World, book: Book) -> None:
        process = world.process()
        self._readers = []
        if world.disks.truth is None:
            return
        for openable in (process.linked(), process.alone(Backend.STASH), process.alone(Backend.PERSIST)):
            try:
                self._readers.append(openable.open(OpenMode.READ_ONLY))
            except HoldfastError:
                # Not everybody may; who may is for `settle`.
                continue

    def check(self, book: Book) -> None:
        """A reader is never behind after a sync, or says why."""
        for reader in self._readers:
            read_again(reader, book)
