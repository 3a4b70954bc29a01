"""Where the rows of one catalog are: what `handle` and `opening` need of a store, whatever it is.

`persist.CatalogShard` is the one on persist. A store knows rows and times, not what they mean: fencing,
memory, transactions and upgrades are written once, above it.

Invariants
- A commit at `upper` moves it to `upper + 1`: all changes of one commit have one time. Only `advance`, which
  changes nothing, moves it further.
- A commit is conditional on the upper that it was made for, and the fence token is a row like any other: no
  commit that was made before a foreign fence can succeed after it.
- A restored store may reach any upper again. Its fence row, with the nonce of an open, tells that it has
  another history: who says the fence row that it read gets `OtherHistory` where the store has another.
- A failover may lose a commit under the same fence row, and its writer may go on at the same upper. A fence
  row that was read from a store that this can happen to carries the last commit that was read (`FenceRow`).
  That one is compared wherever the fence row is.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import pyarrow as pa

from holdfast.catalog.objects.codec import Row, Update
from holdfast.catalog.objects.registry import Kind
from holdfast.persist import Prepared
from holdfast.stash import Past

RETAIN_VERSIONS = 1000
"""How many versions stay readable."""
RETENTION_STEP = 100
"""How many versions are let go at a time: each time is a commit of its own."""

BATCH_ROWS = 8 * 1024

KEEP_VERSIONS = 10_000
"""How many later versions the time before an upgrade is kept for."""


class FenceRow(Row):
    """A fence row with the last commit that was there when it was read; None where no store looks at it."""

    past: Past | None = None

    @classmethod
    def of(cls, row: Row | None, past: Past | None) -> Row | None:
        """The row with this past; as it is where there is no row, or no past."""
        if row is None or past is None:
            return row
        found = cls(*row)
        found.past = past
        return found


def past_of(fence: Row | None) -> Past | None:
    """The last commit that was there when the fence row was read; None where that is not known."""
    return fence.past if isinstance(fence, FenceRow) else None


@dataclass(frozen=True, order=True)
class Kept:
    """A time before an upgrade, when the catalog was at `version`, that is kept readable."""

    time: int
    version: int


_KEPT = re.compile(r"catalog at version (\d+)")


def kept_name(version: int) -> str:
    """The name of the hold on the time before the upgrade from a version."""
    return f"catalog at version {version}"


def kept_of(holds: Iterable[tuple[str, int]]) -> list[Kept]:
    """The times that are kept among holds, each with its name, in the order of time."""
    found = ((_KEPT.fullmatch(name), time) for name, time in holds)
    return sorted(Kept(time, int(name[1])) for name, time in found if name)


def let_go_of_old(store: "CatalogStore", kept: Iterable[Kept], upper: int) -> tuple[Kept, ...]:
    """Let go of those of the kept times that are `KEEP_VERSIONS` before `upper`; the others."""
    younger = []
    for each in kept:
        if upper - each.time > KEEP_VERSIONS:
            store.let_go(each.version)
        else:
            younger.append(each)
    return tuple(younger)


class Feed(Protocol):
    """The changes of a store in order, each time once and whole. Not thread-safe."""

    @property
    def frontier(self) -> int:
        """All times below it are out."""

    def next(self, timeout: float | None) -> list[tuple[int, list[Update]]]:
        """The next times with changes; may be empty, and is when `timeout` (s) ran out.

        Raises `AsOfTooEarly` when the store has let go of what comes next, and `OtherHistory`.
        """


class CatalogStore(ABC):
    """Reads and appends rows; while it is open for reading it holds the past from where it last was.

    Raises `StorageError` from every call that asks the store, `Indeterminate` where it may have happened.
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the catalog is, as messages say it; no secrets."""

    @property
    def location(self) -> str:
        """The same, with where that is if `place` doesn't tell it."""
        return self.place

    @property
    @abstractmethod
    def writable(self) -> bool:
        """Whether it was opened for writing too."""

    @property
    def max_row_bytes(self) -> int | None:
        """How many bytes the key and the value of a row may have together; None: as many as there are."""
        return None

    @abstractmethod
    def another(self, *, purpose: str) -> "CatalogStore":
        """The same store with handles of its own."""

    @abstractmethod
    def upper(self) -> int:
        """The time of the next commit, linearized; 0 where there is nothing."""

    @property
    @abstractmethod
    def since(self) -> int:
        """The earliest time that can be read."""

    @property
    def past(self) -> Past | None:
        """The last commit below the upper that the fence row, changes or a commit was read or made at last.

        None where no failover loses a commit that others have seen unless the store finds it by itself.
        """
        return None

    @abstractmethod
    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """The rows at `as_of`, of the given kinds only, or of all; streamed, in no particular order.

        Raises `AsOfTooEarly`, `AsOfNotYetAvailable`, and `CorruptBlob` for a row that isn't there once; and
        `OtherHistory` where the fence row was read at that time before, and the store has another history
        now. Who reads the fence row begins anew.
        """

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        """The rows at `as_of` but for those of some kinds: columns `key` and `value` (binary), any order.

        Streamed; raises as `rows`. A row of an unknown kind may be among them, or be a `CorruptBlob` here.
        """
        wanted = (row for row in self.rows(as_of) if not but or row.kind not in but)
        while rows := list(islice(wanted, BATCH_ROWS)):
            yield batch_of(rows)

    def count(self, as_of: int, kinds: Iterable[Kind]) -> Counter[Kind]:
        """How many rows there are of these kinds at `as_of`. Raises as `rows`."""
        return Counter(row.kind for row in self.rows(as_of, kinds))

    @abstractmethod
    def changes(self, lower: int, upper: int, *, fence: Row | None = None) -> list[tuple[int, list[Update]]]:
        """The changes at times in `[lower, upper)`, by time; `AsOfTooEarly` when that past is gone.

        `fence` is the fence row at `lower - 1` as the caller read it, `upper` one that it saw.
        """

    @abstractmethod
    def feed(self, lower: int, *, fence: Row | None = None) -> Feed:
        """All changes at times from `lower` on, and those to come; `fence` as for `changes`."""

    @abstractmethod
    def append(
        self, updates: Iterable[Update], at: int, *, fence: Row | None = None, take_hold: bool = False
    ) -> None:
        """Commit changes at time `at`, all or none; with `take_hold`, what keeps the last versions readable.

        `fence` is the fence row that the changes were made under.

        `updates` are taken as a stream in no order, with bounded memory however many they are. A row may be
        both retracted and added among them, which comes to nothing.

        Raises `UpperMismatch` when `at` isn't the upper, and `OtherHistory`: nothing happened.
        """

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:
        """Move the upper from `at` to `to`, which is after it, without a change. Raises as `append`.

        What broke off half way may have moved it a part of the way.
        """
        for upper in range(at, to):
            self.append((), upper, fence=fence)

    @abstractmethod
    def expect(self, upper: int) -> Prepared:
        """The condition, for a multi-write on shards, that this is the upper; else `BadInput`."""

    @abstractmethod
    def move_holds(self, upper: int) -> None:
        """Keep the last `RETAIN_VERSIONS` versions readable, and let go of older ones now and then."""

    @abstractmethod
    def release_before(self, upper: int) -> None:
        """Say that this reader needs no time before `upper - 1`, now and then."""

    @abstractmethod
    def keep(self, time: int, version: int) -> None:
        """Keep `time` readable, when the catalog was at `version`, until it is let go of.

        There is one such time for each version; a later one takes its place.
        """

    @abstractmethod
    def kept(self) -> list[Kept]:
        """What `keep` keeps, in the order of time."""

    @abstractmethod
    def let_go(self, version: int) -> None:
        """Let go of the time that is kept for a version; nothing to do where there is none."""

    @abstractmethod
    def reopen(self) -> None:
        """Take new handles in place of those that are lost or spent, from the next use on."""

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds."""


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Rows as columns."""
    columns = list(zip(*rows, strict=True)) or [(), ()]
    return columns_of(*columns)


def columns_of(keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """The columns `key` and `value`."""
    columns = [pa.array(column, pa.binary()) for column in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, ["key", "value"])
