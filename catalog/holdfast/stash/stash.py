"""What a stash is: collections of `(key, value, time, diff)` in one database, and what each engine promises.

Invariants, whatever the engine
- All collections of a stash have one `since` and one `upper`. A commit at `upper` is one transaction: it puts
  in its updates and moves the upper to `upper + 1`, or does neither. For each upper at most one succeeds.
- At `as_of` in `[since, upper)` a row occurs as often as the diffs of its updates at times up to `as_of` add
  up to. Neither a commit nor a consolidation ever changes that.
- No statement carries more than `MAX_STATEMENT_BYTES`, whatever is committed: updates go in statements of
  `STATEMENT_BYTES`, counted in bytes, and a row that needs more has one of its own, up to `MAX_ROW_BYTES`.
- Updates are taken one by one and rows given one by one: memory does not grow with the size of either.
- A failover may lose a commit that others have seen, and its writer may go on at the same upper. So a caller
  compares the last commit that it knows, in the snapshot or transaction of each call (`KnownPast`).

Times are integers from 0 to `MAX_TIME` and diffs are not 0 and within int64: what a database calls bigint.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    Deprecated,
    OtherHistory,
    VersionTooNew,
)
from holdfast.forks import OwnerProcess

LAYOUT_VERSION: Final = 1
"""The version of the tables; every one from 1 on is still read."""

MAX_STATEMENT_BYTES: Final = 16 << 20
MAX_ROW_BYTES: Final = MAX_STATEMENT_BYTES - (64 << 10)
"""The most bytes of a key and its value together."""
STATEMENT_BYTES: Final = 4 << 20
"""How many bytes of updates go into one statement, a single larger row apart."""
ROW_OVERHEAD_BYTES: Final = 64
"""What numbers and lengths of a row take in a statement, at most."""
MAX_TIME: Final = (1 << 63) - 2
"""The last time of a commit: the upper after it is the greatest bigint."""
MAX_COLLECTION: Final = (1 << 31) - 1

CONSOLIDATION_ROWS: Final = 1000
"""The most rows that one transaction of a consolidation looks at."""

INT64: Final = range(-(1 << 63), 1 << 63)


class StashUpdate(NamedTuple):
    """A change of how often a row occurs in a collection; or, read at a time, how often it occurs."""

    collection: int
    key: bytes
    value: bytes
    diff: int


class Columns(NamedTuple):
    """Some updates, field by field: the same number of each."""

    collections: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]
    diffs: Sequence[int]


class StashFrontiers(NamedTuple):
    """What can be read: times from `since` on, below `upper`."""

    since: int
    upper: int


class Past(NamedTuple):
    """The last commit below `upper` that changed something; `time` is -1 where there is none."""

    upper: int
    time: int
    digest: str


class KnownPast:
    """What a caller knows of a stash: a call compares `past`, and may replace it by what it has read.

    None: the caller knows nothing, or the stash never loses a commit that others have seen.
    """

    def __init__(self, past: Past | None = None) -> None:
        self.past = past


class Stash(ABC):
    """An open stash. Thread-safe, but for an append from within the updates of another.

    In a forked child every call raises `UsedAfterFork`, and so do open streams; `close` does nothing.

    Every call that asks the database raises `StoreUnreachable` when it can't be reached, `Determinate` when
    it refuses, and `CorruptBlob` for a file that is damaged; none of them has changed anything. Every call
    that changes something raises `Indeterminate` when the connection is lost in the commit, or when the
    synchronous standby may lack it: it may have happened.
    """

    def __init__(self) -> None:
        self._owner: Final = OwnerProcess()

    @property
    @abstractmethod
    def description(self) -> str:
        """Where it is, for messages; without user and password."""

    @abstractmethod
    def frontiers(self, *, history: KnownPast | None = None) -> StashFrontiers:
        """Since and upper, linearized; `OtherHistory` where the stash does not go on from `history`."""

    @abstractmethod
    def append(
        self,
        updates: Iterable[StashUpdate],
        at: int,
        *,
        sole: StashUpdate | None = None,
        upper: int | None = None,
        history: KnownPast | None = None,
    ) -> None:
        """Commit updates at time `at`, all or none, and make `upper` the upper: `at + 1` if it isn't given.

        With `sole`, only where its collection holds this row, as often as `diff` says, and no other. With
        `history`, only where the stash goes on from it; it is then the one after the commit.

        The updates may come from an iterator, which is read once; what it raises ends the append, of which
        nothing is kept. It may read the stash.

        Raises:
            UpperMismatch: `at` isn't the upper.
            OtherHistory: the collection of `sole` holds something else, or `history` is another one.
            BadInput: an update that a stash can't hold, such as a row of more than `MAX_ROW_BYTES`.
            NotWritable: the stash was opened for reading.
            Indeterminate: it may have happened.
        """

    @abstractmethod
    def rows(
        self,
        as_of: int,
        collections: Collection[int] = (),
        *,
        but: Collection[int] = (),
        history: KnownPast | None = None,
    ) -> Iterator[StashUpdate]:
        """The rows at `as_of`, of the given collections or of all, `but` for those of some; consolidated.

        In no particular order. A `history` that knows nothing is the one up to `as_of` from the first row on;
        `OtherHistory` where the stash does not go on from what it knows.

        Raises `AsOfTooEarly` and `AsOfNotYetAvailable`, and `DiffOverflow` where the diffs of a row add up
        to what int64 doesn't hold; all with the first row.
        """

    def columns(
        self, as_of: int, *, but: Collection[int] = (), history: KnownPast | None = None
    ) -> Iterator[Columns]:
        """The rows at `as_of`, some at a time, of `STATEMENT_BYTES` or one. See `rows`."""
        batch: list[StashUpdate] = []
        bytes_ = 0
        for update in self.rows(as_of, but=but, history=history):
            more = len(update.key) + len(update.value) + ROW_OVERHEAD_BYTES
            if batch and bytes_ + more > STATEMENT_BYTES:
                yield Columns(*zip(*batch, strict=True))
                batch, bytes_ = [], 0
            batch.append(update)
            bytes_ += more
        if batch:
            yield Columns(*zip(*batch, strict=True))

    @abstractmethod
    def sizes(self, as_of: int) -> dict[int, int]:
        """How many rows the collections have at `as_of`, each row as often as it occurs. Raises as `rows`."""

    @abstractmethod
    def changes(
        self,
        lower: int,
        upper: int | None = None,
        *,
        sole: StashUpdate | None = None,
        history: KnownPast | None = None,
    ) -> Iterator[tuple[int, StashUpdate]]:
        """The updates at times in `[lower, upper)`, below the stash's own upper, by time, consolidated.

        With `sole`, which is what its collection held before `lower`, `OtherHistory` where it held something
        else, or where the stash's upper is below one of the two times: an older stash was restored. The same
        where the stash does not go on from `history`; it is then the one up to the last of the times.

        Raises `AsOfTooEarly` when `lower - 1` is before `since`: what is not forgotten yet might be soon. At
        time 0 everything is a change. Raises with the first update.
        """

    @abstractmethod
    def allow_compaction(self, since: int) -> None:
        """Let the distinction of times before `since` be forgotten, as far as no hold needs it.

        Never moves back.

        Raises `BadInput` for a time at or above the upper, but for 0.
        """

    @abstractmethod
    def hold(self, name: str, time: int) -> None:
        """Keep what is at `time` readable until the hold of this name is released or put at another time.

        Raises `AsOfTooEarly` for a time before `since`.
        """

    @abstractmethod
    def holds(self) -> dict[str, int]:
        """The times that are held, by the names of the holds."""

    @abstractmethod
    def release(self, name: str) -> None:
        """End a hold; nothing to do where there is none of that name."""

    @abstractmethod
    def consolidate(self, *, max_batches: int | None = None) -> bool:
        """Remove retractions at times up to `since` with what they cancel; whether it got to the end.

        Each batch is a transaction of at most `CONSOLIDATION_ROWS` of them, after which readers see what they
        saw before it: a crash between two of them is of no consequence, and the next call goes on. It ends
        early where another process is at it.
        """

    @abstractmethod
    def close(self) -> None:
        """Close its connections; a stream of rows that is being read may end with an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def in_statements(updates: Iterable[StashUpdate], names: Mapping[int, str]) -> Iterator[list[StashUpdate]]:
    """The updates, checked, in batches of which each fits one statement; `BadInput` for one that never would.

    `names` are for messages.
    """
    batch: list[StashUpdate] = []
    size = 0
    for update in updates:
        bytes_ = _check_update(update, names)
        if batch and size + bytes_ > STATEMENT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(update)
        size += bytes_
    if batch:
        yield batch


def _check_update(update: StashUpdate, names: Mapping[int, str]) -> int:
    """The bytes that it takes in a statement."""
    collection, key, value, diff = update
    if type(key) is not bytes or type(value) is not bytes:
        raise BadInput(f"key and value of a row are bytes, not {type(key).__name__}, {type(value).__name__}")
    if not 0 <= collection <= MAX_COLLECTION:
        raise BadInput(f"collection {collection} is not in [0, {MAX_COLLECTION}]")
    if not diff or diff not in INT64:
        raise BadInput(f"a diff is an int64 and not 0, not {diff}")
    size = len(key) + len(value)
    if size > MAX_ROW_BYTES:
        raise BadInput(
            f"a row of {name_of(collection, names)} has {size:,} bytes, a stash takes {MAX_ROW_BYTES:,}",
            hint="make the object smaller",
        )
    return size + ROW_OVERHEAD_BYTES


def in_batches(rows: Iterable[StashUpdate], size: int) -> Iterator[list[StashUpdate]]:
    """Different rows, for one transaction of a consolidation each."""
    batch: dict[tuple[int, bytes, bytes], StashUpdate] = {}
    bytes_ = 0
    for row in rows:
        more = len(row.key) + len(row.value) + ROW_OVERHEAD_BYTES
        if batch and (len(batch) >= size or bytes_ + more > STATEMENT_BYTES):
            yield list(batch.values())
            batch, bytes_ = {}, 0
        batch[row[:3]] = row
        bytes_ += more
    if batch:
        yield list(batch.values())


def name_of(collection: int, names: Mapping[int, str]) -> str:
    """What people call a collection."""
    return names.get(collection, f"collection {collection}")


def check_commit_time(at: int, upper: int | None) -> int:
    """The upper after a commit at `at`; `BadInput` for a time that none can have, or one not after it."""
    if not 0 <= at <= MAX_TIME:
        raise BadInput(f"time {at} is not in [0, {MAX_TIME}]")
    after = at + 1 if upper is None else upper
    if not at < after <= MAX_TIME + 1:
        raise BadInput(f"upper {after} is not in [{at + 1}, {MAX_TIME + 1}]")
    return after


def check_as_of(as_of: int, frontiers: StashFrontiers) -> None:
    """Raise `AsOfTooEarly` or `AsOfNotYetAvailable` for a time that can't be read."""
    if as_of < frontiers.since:
        raise AsOfTooEarly(as_of, frontiers.since)
    if as_of >= frontiers.upper:
        raise AsOfNotYetAvailable(as_of, frontiers.upper)


def check_lower(lower: int, frontiers: StashFrontiers) -> None:
    """Raise `AsOfTooEarly` when changes from `lower` on may be forgotten."""
    if lower <= frontiers.since and (lower, frontiers.since) != (0, 0):
        raise AsOfTooEarly(lower - 1, frontiers.since)


def check_reached(time: int, frontiers: StashFrontiers, where: str) -> None:
    """Raise `OtherHistory` for an upper that is known to be reached, and isn't."""
    if frontiers.upper < time:
        raise OtherHistory(where)


def check_past(known: Past, found: Past | None, where: str) -> None:
    """Raise `OtherHistory` where another commit is found than the one that is known."""
    if found != known:
        raise OtherHistory(where)


def check_sole(found: Iterable[tuple[int, bytes, bytes, int]], sole: StashUpdate, where: str) -> None:
    """Raise `OtherHistory` unless `sole` is all that was found in its collection."""
    if list(found) != [tuple(sole)]:
        raise OtherHistory(where)


def check_since(since: int, frontiers: StashFrontiers) -> None:
    """Raise `BadInput` for a since after which nothing could be read."""
    if not 0 <= since < max(frontiers.upper, 1):
        raise BadInput(f"since {since} is not in [0, {max(frontiers.upper, 1)}), below the upper")


def check_held(time: int, since: int) -> None:
    """Raise `AsOfTooEarly` for a time that can't be kept readable any more."""
    if time < since:
        raise AsOfTooEarly(time, since)


def check_layout(version: int, where: str) -> None:
    """Raise `VersionTooNew` or `Deprecated` for tables that this version doesn't know."""
    if version > LAYOUT_VERSION:
        raise VersionTooNew(f"{where} has layout {version}, this Holdfast reads up to {LAYOUT_VERSION}")
    if version < 1:
        raise Deprecated(f"{where} has layout {version}, this Holdfast reads from 1 on")
