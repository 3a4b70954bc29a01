"""A catalog's store in memory that keeps the promises of `CatalogStore` and can be copied at any moment.

The contents are a chain of immutable commits, so a copy of a disk is one reference. A state in which a
process died is created once, and many runs continue from it. `test_memory_store.py` compares this store with
the real ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores.store import CatalogStore, Feed, Kept
from holdfast.errors import AsOfNotYetAvailable, BadInput, OtherHistory, UpperMismatch
from holdfast.persist import Prepared

_FENCE = Kind.FENCE_TOKEN.tag


@dataclass(frozen=True, eq=False)
class Stored:
    """All that a disk holds: the last commit and, through it, those before; `rows` is what they make."""

    upper: int = 0
    time: int = -1
    updates: tuple[RowUpdate, ...] = ()
    rows: Mapping[Row, None] = field(default_factory=dict)
    before: "Stored | None" = None
    kept: Mapping[int, int] = field(default_factory=dict)
    fences: frozenset[Row] = frozenset()
    """All fence rows that there ever were."""

    def at(self, time: int) -> "Stored":
        """What there was at a time."""
        found = self
        while found.time > time:
            assert found.before is not None
            found = found.before
        return found

    def since(self, time: int) -> list["Stored"]:
        """The commits at times from `time` on, in order."""
        found, commits = self, []
        while found.time >= time and found.before is not None:
            commits.append(found)
            found = found.before
        return commits[::-1]


@dataclass(eq=False)
class Disk:
    """Where a store's contents are, whoever has it open."""

    name: str
    stored: Stored = field(default_factory=Stored)


class MemoryStore(CatalogStore):
    """A store on a disk; `checks_history` as one in a stash does, and one on persist doesn't."""

    def __init__(self, disk: Disk, *, checks_history: bool) -> None:
        self._disk = disk
        self._checks_history = checks_history

    @property
    def place(self) -> str:
        return self._disk.name

    @property
    def writable(self) -> bool:
        return True

    def another(self, *, purpose: str) -> "MemoryStore":
        return MemoryStore(self._disk, checks_history=self._checks_history)

    def upper(self) -> int:
        return self._disk.stored.upper

    @property
    def since(self) -> int:
        return 0

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        stored = self._disk.stored
        if as_of >= stored.upper:
            raise AsOfNotYetAvailable(as_of, stored.upper)
        tags = {kind.tag for kind in kinds}
        return iter([row for row in stored.at(as_of).rows if not tags or row.key[:2] in tags])

    def changes(
        self, lower: int, upper: int, *, fence: Row | None = None
    ) -> list[tuple[int, list[RowUpdate]]]:
        self._check_history(fence, lower)
        return [
            (each.time, list(each.updates))
            for each in self._disk.stored.since(lower)
            if each.time < upper and each.updates
        ]

    def feed(self, lower: int, *, fence: Row | None = None) -> "MemoryFeed":
        self._check_history(fence, lower)
        return MemoryFeed(self, lower, fence)

    def append(
        self, updates: Iterable[RowUpdate], at: int, *, fence: Row | None = None, take_hold: bool = False
    ) -> None:
        self._commit(tuple(updates), at, at + 1, fence)

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:
        self._commit((), at, to, fence)

    def _commit(self, updates: tuple[RowUpdate, ...], at: int, to: int, fence: Row | None) -> None:
        stored = self._disk.stored
        if at != stored.upper:
            raise UpperMismatch(at, stored.upper, shard_id=self.place)
        self._check_history(fence, at)
        net: dict[Row, int] = {}
        for row, diff in updates:
            net[row] = net.get(row, 0) + diff
        rows = dict(stored.rows)
        for row, diff in net.items():
            if diff:
                # The stores would tell it to the next one who reads: here it is told at once.
                assert diff == (-1 if row in rows else 1), f"{self.place}: a row {diff:+} times: {row}"
                if diff > 0:
                    rows[row] = None
                else:
                    del rows[row]
        kept = tuple(RowUpdate(row, diff) for row, diff in net.items() if diff)
        fences = stored.fences | {row for row in net if row.key[:2] == _FENCE}
        self._disk.stored = Stored(to, at, kept, rows, stored, stored.kept, fences)

    def _check_history(self, fence: Row | None, at: int) -> None:
        if self._checks_history and fence is not None:
            stored = self._disk.stored.at(at - 1)
            if [row for row in stored.rows if row.key[:2] == _FENCE] != [fence]:
                raise OtherHistory(self.place)

    def expect(self, upper: int) -> Prepared:
        raise BadInput("no shard")

    def move_holds(self, upper: int) -> None:
        """Nothing: all is kept."""

    def release_before(self, upper: int) -> None:
        """Nothing: readers hold nothing."""

    def keep(self, time: int, version: int) -> None:
        self._keep(lambda kept: {**kept, version: time})

    def kept(self) -> list[Kept]:
        return sorted(Kept(time, version) for version, time in self._disk.stored.kept.items())

    def let_go(self, version: int) -> None:
        if version in self._disk.stored.kept:
            self._keep(lambda kept: {each: time for each, time in kept.items() if each != version})

    def _keep(self, change: Callable[[Mapping[int, int]], Mapping[int, int]]) -> None:
        self._disk.stored = replace(self._disk.stored, kept=change(self._disk.stored.kept))

    def reopen(self) -> None:
        """Nothing: no handle is ever lost."""

    def close(self) -> None:
        """Nothing is held."""


class MemoryFeed(Feed):
    """The changes as they are; it never waits."""

    def __init__(self, store: MemoryStore, lower: int, fence: Row | None) -> None:
        self._store = store
        self._frontier = lower
        self._fence = fence

    @property
    def frontier(self) -> int:
        return self._frontier

    def next(self, timeout: float | None) -> list[tuple[int, list[RowUpdate]]]:
        upper = self._store.upper()
        if upper < self._frontier:
            raise OtherHistory(self._store.place)
        found = self._store.changes(self._frontier, upper, fence=self._fence)
        for row, diff in (update for _, updates in found for update in updates):
            if diff == 1 and row.key[:2] == _FENCE:
                self._fence = row
        self._frontier = upper
        return found
