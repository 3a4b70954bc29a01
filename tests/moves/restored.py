"""Every moment of a story, paired with every older copy of one of the two stores, and what opens the pair.

A story moves a catalog, back, and away again, and writes in between. Its moments are the states of both
stores after each commit. A pair is *silent* where it is a moment too, or where nothing but contents was
committed since the copy: then the stores show no trace of what is lost, and nobody can refuse it. Every other
pair is refused, or opens with all that was committed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from holdfast.durable import OpenMode
from holdfast.durable.backend_migration.migration import Verify
from holdfast.durable.backend_migration.truth import Backend, Strategy
from holdfast.errors import HoldfastError, Uninitialized
from moves.actors import TIMEOUT_S, Book, add, free, migrate, names, write
from moves.watched import Call
from moves.world import Disks, World, config_of, fence_of

T = TypeVar("T")


@dataclass(frozen=True)
class Story:
    """What happens to a catalog that begins in the store that is not `target`."""

    strategy: Strategy
    target: Backend
    verify: Verify
    start: str = "linked"

    def __str__(self) -> str:
        strategy = "one" if self.strategy is Strategy.ONE_TOMBSTONE else "two"
        return f"to {self.target.value} and back, {strategy}, {self.verify.value}"


def stories() -> Iterator[Story]:
    """All stories."""
    for strategy, target, verify in product(Strategy, Backend, Verify):
        yield Story(strategy, target, verify)


@dataclass(frozen=True)
class Moving:
    """A migration that has begun."""

    migration_id: str
    target: Backend
    verify: Verify
    rollback: bool

    def resume(self, world: World, book: Book) -> bool:
        """Run it to its end, in another process."""
        return migrate(
            world.process(),
            book,
            self.target,
            migration_id=self.migration_id,
            rollback=self.rollback,
            verify=self.verify,
        )


@dataclass(frozen=True)
class Moment:
    """The stores after a commit, the contents of the catalog then, and the last migration that had begun."""

    disks: Disks
    roles: frozenset[str]
    moving: Moving | None
    call: Call | None


class Told:
    """Tells a story, and has its moments."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.world = World(strategy=story.strategy)
        self.book = Book()
        self.moments: list[Moment] = []
        self._moving: Moving | None = None
        self._tell()

    def _tell(self) -> None:
        source, target, verify = self.story.target.other, self.story.target, self.story.verify
        self._write("a", "b", backend=source)
        self._move(Moving("first", target, verify, rollback=False))
        self._write("c", "d")
        self._move(Moving("first", target, verify, rollback=True))
        self._write("e", "f")
        self._move(Moving("second", target, verify, rollback=False))
        self._write("g", "h")

    def _call(self, call: Call, effect: Callable[[], T]) -> T:
        try:
            return effect()
        finally:
            disks = self.world.disks
            if not self.moments or disks != self.moments[-1].disks:
                self.moments.append(Moment(disks, _roles(self.world), self._moving, call))

    def _write(self, *wanted: str, **options: object) -> None:
        first, *rest = wanted
        assert write(self.world.process(self._call), self.book, first, **options), self.book.told
        for name in rest:
            assert add(self.book.handles[-1], self.book, name)

    def _move(self, moving: Moving) -> None:
        self._moving = moving
        assert migrate(
            self.world.process(self._call),
            self.book,
            moving.target,
            migration_id=moving.migration_id,
            rollback=moving.rollback,
            verify=moving.verify,
        ), self.book.told


def _roles(world: World) -> frozenset[str]:
    from moves.actors import roles_of

    return frozenset(roles_of(world))


@dataclass(frozen=True)
class Pair:
    """The stores of a moment, of which one is as it was at an earlier one."""

    now: Moment
    restored: Backend
    then: Moment
    is_silent: bool
    at: tuple[int, int]

    @property
    def disks(self) -> Disks:
        """What is stored."""
        if self.restored is Backend.STASH:
            return Disks(self.then.disks.stash, self.now.disks.persist)
        return Disks(self.now.disks.stash, self.then.disks.persist)

    def __str__(self) -> str:
        now, then = self.at
        calls = f"{self.now.call}; {self.then.call}"
        return f"moment {now} with the {self.restored.value} of moment {then} ({calls})"


def pairs(moments: Sequence[Moment]) -> Iterator[Pair]:
    """All pairs; those whose copy is the same are there once for each moment."""
    known = {_key(moment.disks) for moment in moments}
    for at, now in enumerate(moments):
        for restored in Backend:
            seen = {id(now.disks.of(restored))}
            for number in range(at - 1, -1, -1):
                then = moments[number]
                if id(then.disks.of(restored)) in seen:
                    continue
                seen.add(id(then.disks.of(restored)))
                pair = Pair(now, restored, then, False, (at, number))
                silent = _key(pair.disks) in known or _only_contents(moments[number : at + 1])
                yield Pair(now, restored, then, silent, (at, number))


def _key(disks: Disks) -> tuple[int, int]:
    return id(disks.stash), id(disks.persist)


def _only_contents(moments: Sequence[Moment]) -> bool:
    """Whether nobody took over meanwhile, nor changed what the stores say of themselves."""
    told = {
        (fence_of(stored), frozenset(config_of(stored).items()))
        for moment in moments
        for stored in (moment.disks.stash,)
    }
    theirs = {
        (fence_of(stored), frozenset(config_of(stored).items()))
        for moment in moments
        for stored in (moment.disks.persist,)
    }
    return len(told) == len(theirs) == 1


WAYS = ("read", "open", "resume")


@dataclass
class Found:
    """What became of pairs and of moments."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def visit(self, story: Story) -> None:
        """Try all pairs of a story, and all of its moments."""
        told = Told(story)
        known: dict[object, frozenset[str] | HoldfastError] = {}
        for number, moment in enumerate(told.moments):
            for way in WAYS:
                found = self._tried(known, story, moment.disks, moment, way)
                self.counts["moments"] += 1
                if isinstance(found, Uninitialized) and not moment.roles:
                    continue
                if isinstance(found, HoldfastError) or not moment.roles <= found:
                    self.refused.append(f"{story}: moment {number} ({moment.call}), {way}: {found!r}")
        for pair in pairs(told.moments):
            for way in WAYS:
                found = self._tried(known, story, pair.disks, pair.now, way)
                self.counts["pairs"] += 1
                if isinstance(found, HoldfastError):
                    self.counts["refused"] += 1
                    self.reasons[type(found).__name__] += 1
                    if pair.is_silent and not (isinstance(found, Uninitialized) and not pair.now.roles):
                        self.refused.append(f"{story}: {pair}, {way}: {found!r}")
                elif pair.now.roles <= found:
                    self.counts["right"] += 1
                elif pair.is_silent:
                    self.counts["silent"] += 1
                else:
                    self.counts["wrong"] += 1
                    self.wrong.append(f"{story}: {pair}, {way}: {sorted(pair.now.roles - found)} is lost")

    def add(self, other: "Found") -> None:
        """Add what another one has found."""
        self.counts += other.counts
        self.reasons += other.reasons
        self.wrong += other.wrong
        self.refused += other.refused

    def told(self) -> list[str]:
        """The counts."""
        count = self.counts
        tried = f"{count['moments']:,} moments and {count['pairs']:,} pairs with an older copy"
        wrong = f"{count['wrong']} silently wrong, {len(self.refused)} wrongly refused"
        rest = (
            f"{count['refused']:,} refused, {count['right']:,} right, {count['silent']:,} that nothing shows"
        )
        return [f"restored stores: {tried}: {wrong}, {rest}"]

    def _tried(
        self,
        known: dict[object, frozenset[str] | HoldfastError],
        story: Story,
        disks: Disks,
        moment: Moment,
        way: str,
    ) -> frozenset[str] | HoldfastError:
        moving = moment.moving if way == "resume" else None
        key = (*_key(disks), way if moving is not None else "open" if way == "resume" else way, moving)
        if key not in known:
            known[key] = tried(story, disks, moving, way)
        return known[key]


def tried(story: Story, disks: Disks, moving: Moving | None, way: str) -> frozenset[str] | HoldfastError:
    """The contents that somebody gets who opens the stores, after a resumed migration if so; or the error."""
    world = World(strategy=story.strategy, is_watched=False)
    world.stash.stored, world.persist.stored = disks.stash, disks.persist
    world.now_ms += int(2 * TIMEOUT_S * 1000)
    openable = world.process().linked
    try:
        if way == "read":
            with openable().open(OpenMode.READ_ONLY) as reader:
                return frozenset(names(reader))
        if moving is not None:
            book = Book()
            book.acked = set("abcdefgh")
            moving.resume(world, _Unchecked())
        catalog = openable().open(OpenMode.WRITABLE, holder="somebody", purpose="a write")
        found = names(catalog)
        written = Book(acked=set(found))
        assert add(catalog, written, free(written)), written.told
        with openable().open(OpenMode.READ_ONLY) as reader:
            assert names(reader) == written.acked
    except HoldfastError as error:
        return error
    return frozenset(found)


class _Unchecked(Book):
    """The book of somebody who knows nothing."""

    def check(self, found: set[str], *, least: set[str] | None = None) -> None:
        """Nothing is known."""
        self.acked |= found
