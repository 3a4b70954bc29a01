"""Pairs every moment of a story with every older copy of one of the two stores, and opens each pair.

A story moves a catalog, back, and away again, and writes in between. Its moments are the states of both
stores after each commit. A pair is *silent* if it is itself a moment, or if only contents were committed
since the copy. Then the stores show no trace of the loss, and nobody can refuse the pair. Every other pair is
refused, or opens with everything that was committed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TypeVar

from holdfast.catalog import Catalog, OpenMode
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.migration import Verify
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.errors import HoldfastError, Uninitialized
from moves.actors import TIMEOUT_S, Book, add, free, migrate, names, opened, roles_of, write
from moves.memorystore import Stored
from moves.olderclient import as_older
from moves.watched import Call, Calls
from moves.world import Disks, World, config_of, fence_of

T = TypeVar("T")

ACTS = 7
"""The acts of a story."""

Held = frozenset[str] | HoldfastError
"""The roles that somebody found in the catalog, or why he was refused."""


@dataclass(frozen=True)
class Story:
    """What happens to a catalog that begins in the store that is not `target`."""

    strategy: Strategy
    target: Backend
    verify: Verify
    writers: str = "plain"
    """How it is written: `plain`, to both stores (`shadow`), or to the stash alone (`emergency`)."""

    def __str__(self) -> str:
        strategy = "one" if self.strategy is Strategy.ONE_TOMBSTONE else "two"
        writers = "" if self.writers == "plain" else f", {self.writers}"
        return f"to {self.target.value} and back, {strategy}, {self.verify.value}{writers}"


def stories(writers: str = "plain") -> Iterator[Story]:
    """All stories that are written so."""
    for strategy, target, verify in product(Strategy, Backend, Verify):
        yield Story(strategy, target, verify, writers)


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


def moments_of(
    world: World, moments: list[Moment], moving: Callable[[], Moving | None] = lambda: None
) -> Calls:
    """Makes all calls, and adds the moment after each that changed something."""

    def call(call: Call, effect: Callable[[], T]) -> T:
        try:
            return effect()
        finally:
            disks = world.disks
            if not moments or disks != moments[-1].disks:
                moments.append(Moment(disks, frozenset(roles_of(world)), moving(), call))

    return call


class Told:
    """Tells a story, and has its moments; an older Holdfast does the acts whose numbers are in `older`."""

    def __init__(self, story: Story, *, older: Collection[int] = ()) -> None:
        self.story = story
        self._older = older
        self.world = World(strategy=story.strategy)
        self.book = Book()
        self.moments: list[Moment] = []
        self.handles: list[tuple[int, Catalog]] = []
        """Those that were opened to write, each with the number of the last moment of its writes."""
        self._moving: Moving | None = None
        self._calls = moments_of(self.world, self.moments, lambda: self._moving)
        self._tell()

    def _tell(self) -> None:
        source, target, verify = self.story.target.other, self.story.target, self.story.verify
        acts: list[Callable[[], None]] = [
            lambda: self._write("a", "b", backend=source),
            lambda: self._move(Moving("first", target, verify, rollback=False)),
            lambda: self._write("c", "d"),
            lambda: self._move(Moving("first", target, verify, rollback=True)),
            lambda: self._write("e", "f"),
            lambda: self._move(Moving("second", target, verify, rollback=False)),
            lambda: self._write("g", "h"),
        ]
        assert len(acts) == ACTS
        for number, act in enumerate(acts):
            with as_older() if number in self._older else nullcontext():
                act()

    def _write(self, *wanted: str, **options: object) -> None:
        first, *rest = wanted
        if self.story.writers == "shadow":
            options["shadow"] = True
        assert write(self.world.process(self._calls), self.book, first, **options), self.book.told
        if self.story.writers == "emergency" and self._is_certain_alone:
            self._write_in_emergency(*rest)
            return
        for name in rest:
            assert add(self.book.handles[-1], self.book, name)
        self.handles.append((len(self.moments) - 1, self.book.handles[-1]))

    @property
    def _is_certain_alone(self) -> bool:
        config = config_of(self.world.stash.stored)
        is_one = self.story.strategy is Strategy.ONE_TOMBSTONE
        return not config.get("tombstone") if is_one else "tombstone" not in config

    def _write_in_emergency(self, *wanted: str) -> None:
        """Write to the stash alone; an emergency comes twice, so that its epoch passes that of persist."""
        self.world.emergency = True
        for name in wanted:
            for _ in range(2):
                process = self.world.process(self._calls)
                catalog = opened(emergency_catalog(process.alone(Backend.STASH)), self.book)
                assert catalog is not None, self.book.told
            assert add(catalog, self.book, name), self.book.told
        self.world.emergency = False

    def _move(self, moving: Moving) -> None:
        self._moving = moving
        assert migrate(
            self.world.process(self._calls),
            self.book,
            moving.target,
            migration_id=moving.migration_id,
            rollback=moving.rollback,
            verify=moving.verify,
        ), self.book.told


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
    for at, now in enumerate(moments):
        for restored in Backend:
            seen = {id(now.disks.of(restored))}
            for number in range(at - 1, -1, -1):
                then = moments[number]
                if id(then.disks.of(restored)) not in seen:
                    seen.add(id(then.disks.of(restored)))
                    silent = shows_nothing(moments, number, at, restored)
                    yield Pair(now, restored, then, silent, (at, number))


def shows_nothing(moments: Sequence[Moment], then: int, now: int, restored: Backend) -> bool:
    """Whether a store of one moment and the other one of a later moment show no trace of what was between."""
    copy, other = moments[then].disks.of(restored), moments[now].disks.of(restored.other)
    # A writer of both stores commits contents to the other one, which show no more than its own commits.
    if any(
        each.disks.of(restored) is copy and _preamble(each.disks.of(restored.other)) == _preamble(other)
        for each in moments
    ):
        return True
    # Nobody took over meanwhile, nor changed what a store says of itself.
    between = moments[then : now + 1]
    return all(len({_preamble(each.disks.of(backend)) for each in between}) == 1 for backend in Backend)


@lru_cache(maxsize=2_000)
def _preamble(stored: Stored) -> tuple[object, ...]:
    return fence_of(stored), frozenset(config_of(stored).items())


def _key(disks: Disks) -> tuple[int, int]:
    return id(disks.stash), id(disks.persist)


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
        known: dict[object, Held] = {}
        for number, moment in enumerate(told.moments):
            for way in WAYS:
                held = self._tried(known, story, moment.disks, moment, way)
                self.count_moment(
                    held, moment.roles, where=f"{story}: moment {number} ({moment.call}), {way}"
                )
        for pair in pairs(told.moments):
            for way in WAYS:
                held = self._tried(known, story, pair.disks, pair.now, way)
                self.count(held, pair.now.roles, silent=pair.is_silent, where=f"{story}: {pair}, {way}")

    def visit_moments(self, story: Story, *, older: Collection[int]) -> None:
        """Try all moments of a story of which an older Holdfast does a part."""
        known: dict[object, Held] = {}
        for number, moment in enumerate(Told(story, older=older).moments):
            for way in WAYS:
                held = self._tried(known, story, moment.disks, moment, way)
                where = f"{story}: older {sorted(older)}, moment {number} ({moment.call}), {way}"
                self.count_moment(held, moment.roles, where=where)

    def count_moment(self, held: Held, roles: frozenset[str], *, where: str) -> None:
        """Count what became of stores that are as they were at one time: nobody may be refused."""
        self.counts["moments"] += 1
        if isinstance(held, Uninitialized) and not roles:
            return
        if isinstance(held, HoldfastError) or not roles <= held:
            self.refused.append(f"{where}: {held!r}")

    def count(self, held: Held, roles: frozenset[str], *, silent: bool, where: str) -> None:
        """Count what became of stores of which one is older, where `roles` were committed."""
        self.counts["pairs"] += 1
        if isinstance(held, HoldfastError):
            self.counts["refused"] += 1
            self.reasons[type(held).__name__] += 1
        elif roles <= held:
            self.counts["right"] += 1
        elif silent:
            self.counts["silent"] += 1
        else:
            self.counts["wrong"] += 1
            self.wrong.append(f"{where}: {sorted(roles - held)} is lost")

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
        known: dict[object, Held],
        story: Story,
        disks: Disks,
        moment: Moment,
        way: str,
    ) -> Held:
        moving = moment.moving if way == "resume" else None
        key = (*_key(disks), way if moving is not None else "open" if way == "resume" else way, moving)
        if key not in known:
            known[key] = tried(story, disks, moving, way)
        return known[key]


def tried(story: Story, disks: Disks, moving: Moving | None, way: str) -> Held:
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
