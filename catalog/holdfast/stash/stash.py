"""The interface of a stash: collections of `(key, value, time, diff)` in one database.

Invariants of every engine
- All collections of a stash have one `since` and one `upper`. A commit at `upper` is one transaction: it
  inserts its updates and moves the upper to `upper + 1`, or does neither. For each upper at most one commit
  succeeds.
- A row's count at `as_of` in `[since, upper)` is the sum of the diffs of its updates at times up to `as_of`.
  Neither a commit nor a consolidation ever changes it.
- No statement is larger than `MAX_STATEMENT_BYTES`. A commit sends its updates in statements of up to
  `STATEMENT_BYTES`. A larger row gets a statement of its own, up to `MAX_ROW_BYTES`.
- Updates are read one by one, and rows are returned one by one. So memory does not grow with their number.
- A failover or a restored copy may lose a commit that others have seen, and another commit may then get the
  same upper. So each call compares the last commit that the caller knows, in its own snapshot or transaction
  (`KnownPast`). A stash in SQLite also compares the last commit that it has seen itself.

Times are integers from 0 to `MAX_TIME`. Diffs are int64 and never 0. Databases call this type bigint.
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
    UpperMismatch,
    VersionTooNew,
)
from holdfast.forks import OwnerProcess

MAX_STATEMENT_BYTES: Final = 16 << 20
MAX_ROW_BYTES: Final = MAX_STATEMENT_BYTES - (64 << 10)
"""The largest size of a row: the bytes of its key and its value together."""
STATEMENT_BYTES: Final = 4 << 20
"""The most bytes of updates in one statement, unless it has a single larger row."""
ROW_OVERHEAD_BYTES: Final = 64
"""The most bytes that the numbers and lengths of a row take in a statement."""
MAX_TIME: Final = (1 << 63) - 2
"""The latest time of a commit: the upper after it is the greatest bigint."""
MAX_COLLECTION: Final = (1 << 31) - 1

CONSOLIDATION_ROWS: Final = 1000
"""The most retractions that one transaction of a consolidation handles."""

INT64: Final = range(-(1 << 63), 1 << 63)


class StashUpdate(NamedTuple):
    """A change of a row's count in a collection. In the contents at a time, `diff` is the count itself."""

    collection: int
    key: bytes
    value: bytes
    diff: int


class Columns(NamedTuple):
    """Several updates as columns of equal length."""

    collections: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]
    diffs: Sequence[int]


class StashFrontiers(NamedTuple):
    """The times that can be read: from `since`, and below `upper`."""

    since: int
    upper: int


class Past(NamedTuple):
    """The last commit below `upper` that changed contents. `time` is -1 if there is none."""

    upper: int
    time: int
    digest: str


class KnownPast:
    """The past of a stash that a caller knows. Not thread-safe.

    A call compares `past`, and may set it to what it has read.

    `past` is None if the caller knows nothing, or if the stash no longer has the digest of the last commit.
    """

    def __init__(self, past: Past | None = None) -> None:
        self.past = past


class Stash(ABC):
    """An open stash. Thread-safe, but the updates of an append must not append themselves.

    In a forked child every call raises `UsedAfterFork`, and so do open streams. `close` does nothing there.

    Every call that uses the database raises `StoreUnreachable` if the database can't be reached,
    `Determinate` if it refuses, and `CorruptBlob` if the file is damaged. After these errors nothing has
    changed. Every call that changes something raises `Indeterminate` if the connection is lost during the
    commit, or if the synchronous standby may not have the commit. Then the change may have happened. On
    SQLite, every call raises `OtherHistory` if an older state of the file was restored since an earlier call.
    """

    def __init__(self) -> None:
        self._owner: Final = OwnerProcess()

    @property
    @abstractmethod
    def description(self) -> str:
        """The place of the stash, as messages show it, without user and password."""

    @abstractmethod
    def frontiers(self, *, history: KnownPast | None = None) -> StashFrontiers:
        """Since and upper, linearized. Raises `OtherHistory` if the stash does not continue `history`."""

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
        """Commit updates at time `at`, all or none, and move the upper to `upper`, by default `at + 1`.

        With `sole`, commits only if its collection holds exactly this row with the count `diff`, and no other
        row. With `history`, commits only if the stash continues it. `history` then includes the commit.

        The updates may be an iterator, which is read once and may read the stash. If it raises an error, the
        append raises that error and changes nothing.

        Raises:
            UpperMismatch: `at` isn't the upper.
            OtherHistory: the collection of `sole` has other contents, or the stash does not continue
                `history`.
            BadInput: a stash can't hold an update, such as a row of more than `MAX_ROW_BYTES`.
            NotWritable: the stash was opened for reading.
            Indeterminate: the commit may have happened.
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
        """The consolidated rows at `as_of`, in any order.

        Returns the rows of the given collections, or of all if none are given, except those in `but`. If
        `history` knows nothing yet, it is set to the past up to `as_of` before the first row is returned.

        Requesting the first row raises `AsOfTooEarly`, `AsOfNotYetAvailable`, `OtherHistory` if the stash
        does not continue `history`, and `DiffOverflow` if the diffs of a row add up to more than an int64
        holds.
        """

    def columns(
        self, as_of: int, *, but: Collection[int] = (), history: KnownPast | None = None
    ) -> Iterator[Columns]:
        """The rows at `as_of`, in pieces of up to `STATEMENT_BYTES` or of one larger row. See `rows`."""
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
        """The number of rows of each collection at `as_of`, counting duplicates. Raises like `rows`."""

    @abstractmethod
    def changes(
        self,
        lower: int,
        upper: int | None = None,
        *,
        sole: StashUpdate | None = None,
        history: KnownPast | None = None,
    ) -> Iterator[tuple[int, StashUpdate]]:
        """The consolidated updates at times in `[lower, upper)`, below the stash's upper, in order of time.

        `sole` is the only row that its collection had before `lower`. With `sole`, raises `OtherHistory` if
        the collection had other contents, or if the stash's upper is below `lower` or `upper`: an older stash
        was restored. Also raises `OtherHistory` if the stash does not continue `history`. Otherwise `history`
        is set to the past up to the end of the updates.

        Raises `AsOfTooEarly` if `lower - 1` is before `since`, because compaction may already have merged
        these updates. If both are 0, everything that was ever written counts as a change. Requesting the
        first update raises these errors.
        """

    @abstractmethod
    def allow_compaction(self, since: int) -> None:
        """Allow compaction of the times before `since`, except those that a hold needs.

        Never moves the since back.

        Raises `BadInput` for a time at or above the upper, except 0.
        """

    @abstractmethod
    def hold(self, name: str, time: int) -> None:
        """Keep `time` readable until the hold with this name is released or moved to another time.

        Raises `AsOfTooEarly` for a time before `since`.
        """

    @abstractmethod
    def holds(self) -> dict[str, int]:
        """The held times, by the names of the holds."""

    @abstractmethod
    def release(self, name: str) -> None:
        """End a hold. Does nothing if there is no hold with that name."""

    @abstractmethod
    def consolidate(self, *, max_batches: int | None = None) -> bool:
        """Cancel retractions at times up to `since` against the rows that they retract.

        Returns whether it reached the end. It stops early after `max_batches`, or if another process
        consolidates.

        Each batch is a transaction with at most `CONSOLIDATION_ROWS` retractions. It doesn't change what
        readers see, so a crash between two batches does no harm, and the next call continues.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections. A stream of rows that is still open may end with an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def in_statements(updates: Iterable[StashUpdate], names: Mapping[int, str]) -> Iterator[list[StashUpdate]]:
    """Check the updates, and return them in batches that fit one statement each.

    Raises `BadInput` for an update that a stash can't hold. `names` are used in messages.
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
    """Check an update, and return the bytes that it takes in a statement."""
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
    """Batches of distinct rows, one for each transaction of a consolidation."""
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
    """The name of a collection, as messages show it."""
    return names.get(collection, f"collection {collection}")


def check_commit_time(at: int, upper: int | None) -> int:
    """The upper after a commit at `at`. Raises `BadInput` for an invalid time, or an upper not after it."""
    if not 0 <= at <= MAX_TIME:
        raise BadInput(f"a commit at time {at}: times are from 0 to {MAX_TIME}")
    after = at + 1 if upper is None else upper
    if not at < after <= MAX_TIME + 1:
        raise BadInput(
            f"a commit at time {at} can't move the upper to {after}: the new upper must be from {at + 1} to"
            f" {MAX_TIME + 1}"
        )
    return after


def check_upper(at: int, upper: int, where: str) -> None:
    """Raise `UpperMismatch` if the time of a commit is not the upper."""
    if at == upper:
        return
    if at < upper:
        why = f"so time {at} is complete"
        hint = f"read the upper again; if the commit still makes sense, commit it at {upper}"
    else:
        why = "and a commit is at the upper"
        hint = f"commit at {upper}; if the stash was at {at} before, an older state of it was restored"
    raise UpperMismatch(
        at,
        upper,
        shard_id=f"the {where}",
        message=f"can't commit to the {where} at time {at}: its upper is {upper}, {why}",
        hint=hint,
    )


def check_as_of(as_of: int, frontiers: StashFrontiers) -> None:
    """Raise `AsOfTooEarly` or `AsOfNotYetAvailable` for a time that can't be read."""
    if as_of < frontiers.since:
        raise AsOfTooEarly(as_of, frontiers.since)
    if as_of >= frontiers.upper:
        raise AsOfNotYetAvailable(as_of, frontiers.upper)


def check_lower(lower: int, frontiers: StashFrontiers) -> None:
    """Raise `AsOfTooEarly` if compaction may have merged changes from `lower` on."""
    if lower <= frontiers.since and (lower, frontiers.since) != (0, 0):
        since = frontiers.since
        raise AsOfTooEarly(
            lower - 1,
            since,
            message=f"changes from time {lower} on are not readable: since is {since}, and compaction may"
            " have merged earlier times",
            hint=f"read the changes from {since + 1 if since else 0} on, or the rows at {since} or later",
        )


def check_reached(time: int, frontiers: StashFrontiers, where: str) -> None:
    """Raise `OtherHistory` if the upper is below `time`, a time that it reached before."""
    if frontiers.upper < time:
        raise OtherHistory(where)


def check_past(known: Past, found: Past | None, where: str) -> None:
    """Raise `OtherHistory` if the commit found is not the known one."""
    if found != known:
        raise OtherHistory(where)


def check_sole(found: Iterable[tuple[int, bytes, bytes, int]], sole: StashUpdate, where: str) -> None:
    """Raise `OtherHistory` unless `sole` is the only row found in its collection."""
    if list(found) != [tuple(sole)]:
        raise OtherHistory(where)


def check_since(since: int, frontiers: StashFrontiers) -> None:
    """Raise `BadInput` for a since that would leave no time readable."""
    end = max(frontiers.upper, 1)
    if not 0 <= since < end:
        raise BadInput(
            f"since can't move to {since}: the upper is {frontiers.upper}",
            hint=f"give a time from 0 to {end - 1}",
        )


def check_held(time: int, since: int) -> None:
    """Raise `AsOfTooEarly` for a time that is already unreadable."""
    if time < since:
        raise AsOfTooEarly(
            time,
            since,
            message=f"time {time} can't be held: since is {since}, and earlier times are no longer readable",
            hint=f"hold {since} or later",
        )


def check_layout(version: int, newest: int, where: str) -> None:
    """Raise `VersionTooNew` or `Deprecated` for a version of the tables that this Holdfast can't read."""
    if version > newest:
        raise VersionTooNew(f"{where} has layout {version}, this Holdfast reads up to {newest}")
    if version < 1:
        raise Deprecated(f"{where} has layout {version}, this Holdfast reads from 1 on")
