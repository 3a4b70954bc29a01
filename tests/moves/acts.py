"""The acts that the crash model interrupts: the whole work of a process, and the stores that it uses."""

from dataclasses import dataclass
from functools import cache

from holdfast.catalog import OpenMode
from holdfast.catalog.move.migration import Verify
from holdfast.catalog.move.truth import STEPS, Backend, Strategy
from moves.actors import Book, abandon, add, end_link, migrate, migration, write
from moves.world import Process, World, aged

STARTS = ("new", "linked", "unlinked", "older", "older, unlinked")
ENDS_LINK = ("detach", "detach, stash lost")
GIVES_UP = ("abandon", "abandon the way back")


@dataclass(frozen=True)
class Act:
    """A move, its way back, the end of either in the middle, the first open of a link, or its end.

    A move goes to `target`, as does a way back; who gives up or ends a link leaves the catalog in the other
    store.
    """

    kind: str
    strategy: Strategy
    target: Backend
    start: str
    verify: Verify = Verify.NONE

    def __str__(self) -> str:
        strategy = "one" if self.strategy is Strategy.ONE_TOMBSTONE else "two"
        if self.kind in ENDS_LINK:
            return f"{self.kind}, {strategy}, from {self.start}"
        return f"{self.kind} to {self.target.value}, {strategy}, from {self.start}, {self.verify.value}"

    @property
    def is_back(self) -> bool:
        """Whether it is about the way back of a migration."""
        return self.kind in ("roll back", "abandon the way back")

    @property
    def is_move(self) -> bool:
        """Whether it is about a migration."""
        return self.kind in ("migrate", "roll back", *GIVES_UP)

    @property
    def migrates_to(self) -> Backend:
        """The target of the migration whose way, or way back, it is."""
        return self.target.other if self.is_back else self.target

    @property
    def ends_in(self) -> Backend | None:
        """Where the catalog is after it."""
        if self.kind == "open":
            return None
        return self.target.other if self.kind in (*GIVES_UP, *ENDS_LINK) else self.target

    def do(self, process: Process, book: Book) -> None:
        """Do it all; whoever is refused has failed, as nobody disturbs."""
        match self.kind:
            case "open":
                done = write(process, book, "x")
            case "detach" | "detach, stash lost":
                done = end_link(process, book, stash_lost=self.kind != "detach")
            case "abandon" | "abandon the way back":
                done = abandon(process, book, self.migrates_to, rollback=self.is_back)
            case _:
                done = migrate(process, book, self.migrates_to, rollback=self.is_back, verify=self.verify)
        assert done, book.told

    def begun(self) -> tuple[World, Book]:
        """A world for it to happen in."""
        return begun(self.kind, self.strategy, self.target, self.start)


def begun(kind: str, strategy: Strategy, target: Backend, start: str) -> tuple[World, Book]:
    """A world of one's own where the catalog is in the store that is not `target`, and what was written."""
    world, book = _begun(kind, strategy, target, start)
    return world.copy(), book.copy()


@cache
def _begun(kind: str, strategy: Strategy, target: Backend, start: str) -> tuple[World, Book]:
    world, book = World(strategy=strategy), Book()
    process = world.process()
    source = target.other
    is_back = kind in ("roll back", "abandon the way back")
    if start == "new":
        return world, book
    if is_back or start == "moved":
        # First there, so that it may come back to `target`.
        _filled(world, book, target, linked=True)
        assert migrate(process, book, source)
        assert write(process, book, "b")
    else:
        _filled(world, book, source, linked="unlinked" not in start)
    if kind in GIVES_UP:
        # Whoever took these steps is dead.
        moving = migration(process, source if is_back else target, rollback=is_back, verify=Verify.COMPARE)
        for _ in range(int(start.removeprefix("step "))):
            assert moving.advance() is not None
    if "older" in start:
        disk = world.stash if source is Backend.STASH else world.persist
        disk.stored = aged(disk.stored)
    return world, book


def _filled(world: World, book: Book, backend: Backend, *, linked: bool) -> None:
    process = world.process()
    openable = process.linked(backend=backend) if linked else process.alone(backend)
    with openable.open(OpenMode.WRITABLE, holder="the first", purpose="a start") as catalog:
        assert add(catalog, book, "a")


def given_up(kind: str, strategy: Strategy, target: Backend) -> list[Act]:
    """Migrations that are given up after the first step, and before the truth moves; one between."""
    steps = len(STEPS[strategy, target])
    after = {1, steps - 1} | ({3} if strategy is Strategy.TWO_TOMBSTONES else set())
    return [Act(kind, strategy, target, f"step {number}", Verify.COMPARE) for number in sorted(after)]
