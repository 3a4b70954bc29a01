"""The store of a catalog's rows: what `handle` and `opening` need of any store.

`persist.CatalogShard` is the store on persist. A store knows rows and times, but not their meaning. Fencing,
memory, transactions and upgrades are implemented once, above it.

Invariants
- A commit at `upper` moves it to `upper + 1`, so all changes of one commit have one time. Only `advance`,
  which changes nothing, moves it further.
- A commit expects the upper that it was made for, and the fence token is a row like any other. So a commit
  that was made before another process's fence can't succeed after it.
- A restored store may reach any upper again. Its fence row, with the nonce of an open, shows that it has
  another history. A caller that passes the fence row that it read gets `OtherHistory` if the store has
  another one.
- A failover may lose a commit under the same fence row, and the writer may continue at the same upper. If
  this can happen to a store, a fence row read from it carries the last commit that was read (`FenceRow`).
  That commit is compared whenever the fence row is.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import pyarrow as pa

from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import Kind
from holdfast.persist import Prepared
from holdfast.stash import Past

RETAIN_VERSIONS = 1000
"""How many versions stay readable."""
RETENTION_STEP = 100
"""How many versions are released at a time. Each time is a separate commit."""

BATCH_ROWS = 8 * 1024

KEEP_VERSIONS = 10_000
"""For how many later versions the time before an upgrade is kept."""


class FenceRow(Row):
    """A fence row with the last commit at the time when it was read. None if the store doesn't compare it."""

    past: Past | None = None

    @classmethod
    def of(cls, row: Row | None, past: Past | None) -> Row | None:
        """The row with this past. The row itself if there is no row or no past."""
        if row is None or past is None:
            return row
        found = cls(*row)
        found.past = past
        return found


def past_of(fence: Row | None) -> Past | None:
    """The last commit at the time when the fence row was read. None if it is unknown."""
    return fence.past if isinstance(fence, FenceRow) else None


@dataclass(frozen=True, order=True)
class Kept:
    """A time before an upgrade, with the catalog at `version`, that is kept readable."""

    time: int
    version: int


_KEPT = re.compile(r"catalog at version (\d+)")


def kept_name(version: int) -> str:
    """The name of the hold on the time before the upgrade from a version."""
    return f"catalog at version {version}"


def kept_of(holds: Iterable[tuple[str, int]]) -> list[Kept]:
    """The kept times among named holds, in the order of time."""
    found = ((_KEPT.fullmatch(name), time) for name, time in holds)
    return sorted(Kept(time, int(name[1])) for name, time in found if name)


def let_go_of_old(store: "CatalogStore", kept: Iterable[Kept], upper: int) -> tuple[Kept, ...]:
    """Release the kept times that are `KEEP_VERSIONS` before `upper`. Returns the others."""
    younger = []
    for each in kept:
        if upper - each.time > KEEP_VERSIONS:
            store.let_go(each.version)
        else:
            younger.append(each)
    return tuple(younger)


class Feed(Protocol):
    """The changes of a store in order, each time once and complete. Not thread-safe."""

    @property
    def frontier(self) -> int:
        """All times below it were returned."""

    def next(self, timeout: float | None) -> list[tuple[int, list[RowUpdate]]]:
        """The next times with changes. May be empty, and is if `timeout` (s) runs out.

        Raises `AsOfTooEarly` if the store has released the next changes, and `OtherHistory`.
        """


class CatalogStore(ABC):
    """Reads and appends rows. While it is open for reading, it holds the past from where it last was.

    Every method that asks the store raises `StorageError`, and `Indeterminate` if the outcome is unknown.
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """The place of the catalog, as messages show it. Contains no secrets."""

    @property
    def location(self) -> str:
        """The place, with its location if `place` doesn't contain that."""
        return self.place

    def older_log_hint(self, epoch: int, *, linked: bool) -> str:  # noqa: ARG002 - see CatalogShard
        """Return what to do after `LogRegressed`, with commands; "" if the store has no log.

        `epoch` is that of the process that met the older log.
        """
        return ""

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether it was opened for writing."""

    @property
    def max_row_bytes(self) -> int | None:
        """The most bytes of the key and the value of a row together. None: no limit."""
        return None

    @abstractmethod
    def another(self, *, purpose: str) -> "CatalogStore":
        """The same store with its own handles."""

    @abstractmethod
    def upper(self) -> int:
        """The time of the next commit (linearized). 0 if there is nothing."""

    @property
    @abstractmethod
    def since(self) -> int:
        """The earliest time that you can read."""

    @property
    def past(self) -> Past | None:
        """The last commit below the upper at which the fence row or changes were last read, or a commit made.

        None for a store in which no failover can lose a commit that others have seen without the store
        noticing.
        """
        return None

    @abstractmethod
    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """The rows at `as_of`, of the given kinds or of all. They are streamed, in no particular order.

        Raises `AsOfTooEarly`, `AsOfNotYetAvailable`, and `CorruptBlob` for a row that doesn't occur exactly
        once. Raises `OtherHistory` if the fence row was read at that time before, and the store has another
        history now. A read of the fence row itself doesn't raise that. It sets the history to compare with.
        """

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        """The rows at `as_of` except some kinds: columns `key` and `value` (binary), in any order.

        Streamed. Raises like `rows`. A row of an unknown kind may be included, or raise `CorruptBlob`.
        """
        wanted = (row for row in self.rows(as_of) if not but or row.kind not in but)
        while rows := list(islice(wanted, BATCH_ROWS)):
            yield batch_of(rows)

    def count(self, as_of: int, kinds: Iterable[Kind]) -> Counter[Kind]:
        """The number of rows of each of these kinds at `as_of`. Raises like `rows`."""
        return Counter(row.kind for row in self.rows(as_of, kinds))

    @abstractmethod
    def changes(
        self, lower: int, upper: int, *, fence: Row | None = None
    ) -> list[tuple[int, list[RowUpdate]]]:
        """The changes at times in `[lower, upper)`, by time. Raises `AsOfTooEarly` if that past is gone.

        `fence` is the fence row at `lower - 1` as the caller read it. `upper` is an upper that the caller
        saw.
        """

    @abstractmethod
    def feed(self, lower: int, *, fence: Row | None = None) -> Feed:
        """All changes at times from `lower` on, including future ones. `fence` is as for `changes`."""

    @abstractmethod
    def append(
        self, updates: Iterable[RowUpdate], at: int, *, fence: Row | None = None, take_hold: bool = False
    ) -> None:
        """Commit changes at time `at`, all or none. With `take_hold`, also hold the last versions.

        `fence` is the fence row under which the changes were made.

        `updates` are a stream in any order, and memory is bounded for any number of them. A row may be both
        retracted and added among them, which cancels out.

        Raises `UpperMismatch` if `at` isn't the upper, and `OtherHistory`. Nothing is changed then.
        """

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:
        """Move the upper from `at` to `to`, which must be later, without a change. Raises like `append`.

        An interrupted call may have moved it part of the way.
        """
        for upper in range(at, to):
            self.append((), upper, fence=fence)

    @abstractmethod
    def expect(self, upper: int) -> Prepared:
        """The condition that this is the upper, for a multi-write on shards.

        Raises `BadInput` if unsupported.
        """

    @abstractmethod
    def move_holds(self, upper: int) -> None:
        """Keep the last `RETAIN_VERSIONS` versions readable, and release older ones now and then."""

    @abstractmethod
    def release_before(self, upper: int) -> None:
        """Release the times before `upper - 1` of this reader, now and then."""

    @abstractmethod
    def keep(self, time: int, version: int) -> None:
        """Keep `time`, with the catalog at `version`, readable until it is released.

        There is one such time for each version. A later one replaces it.
        """

    @abstractmethod
    def kept(self) -> list[Kept]:
        """The times that `keep` keeps, in the order of time."""

    @abstractmethod
    def let_go(self, version: int) -> None:
        """Release the kept time of a version. Does nothing if there is none."""

    @abstractmethod
    def reopen(self) -> None:
        """Replace handles that are lost or expired, at the next use."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Rows as columns."""
    columns = list(zip(*rows, strict=True)) or [(), ()]
    return columns_of(*columns)


def columns_of(keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """The columns `key` and `value`."""
    columns = [pa.array(column, pa.binary()) for column in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, ["key", "value"])
