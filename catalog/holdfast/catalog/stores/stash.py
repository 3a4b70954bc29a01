# ruff: noqa: D102 - the store documents its methods
"""The catalog's store on a stash: rows and changes of rows, independent of their meaning.

Invariants
- The collection of a row is the tag of its key, and its key there is the rest. Nothing is stored twice.
- Nothing is created before the first commit. Reading leaves no tables behind.
- Readers hold nothing. The past stays readable because every writer moves the since after the upper at a
  distance.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter

import pyarrow as pa

from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.codec import TAG_BYTES, Row, RowUpdate
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind
from holdfast.catalog.stores.store import (
    BATCH_ROWS,
    RETAIN_VERSIONS,
    RETENTION_STEP,
    CatalogStore,
    Feed,
    FenceRow,
    Kept,
    columns_of,
    kept_name,
    kept_of,
    past_of,
)
from holdfast.errors import BadInput, NoLocation, NotWritable, OtherHistory
from holdfast.persist import Prepared
from holdfast.stash import (
    MAX_ROW_BYTES,
    KnownPast,
    Past,
    Stash,
    StashFrontiers,
    StashUpdate,
    check_url,
    open_stash,
)

POLL_S = 0.1
"""How often a subscriber asks for new commits, in seconds."""
FEED_VERSIONS = 100
"""The most versions that a subscriber receives at once."""
UPKEEP_BATCHES = 2
"""How many batches of a consolidation one commit waits for. They take about a tenth of a second."""

# Batches have about this many bytes, or slightly more.
_BATCH_BYTES = 4 << 20
_NAMES = {int(kind): collection.name for kind, collection in OBJECT_TYPES.items()}


class StashStore(CatalogStore):
    """A catalog's store on a stash."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._place = check_url(url)
        self._url = url
        self._read_only = read_only
        self._stash: Stash | None = None
        self._held: int | None = None
        self._consolidates = False
        self._past: Past | None = None

    @property
    def place(self) -> str:
        return self._place

    @property
    def writable(self) -> bool:
        return not self._read_only

    @property
    def max_row_bytes(self) -> int:
        # In a stash, the tag of the kind is not part of the key.
        return MAX_ROW_BYTES + TAG_BYTES

    def another(self, *, purpose: str) -> "StashStore":  # noqa: ARG002 - a stash has no list of its users
        return StashStore(self._url, read_only=self._read_only)

    def upper(self) -> int:
        return self._frontiers().upper

    @property
    def since(self) -> int:
        return self._frontiers().since

    @property
    def past(self) -> Past | None:
        return self._past

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        ids = [int(kind) for kind in kinds]
        if Kind.FENCE_TOKEN not in ids:
            yield from self._rows(self._open().rows(as_of, ids, history=self._history_at(as_of)))
            return
        history = KnownPast()
        for row in self._rows(self._open().rows(as_of, ids, history=history)):
            is_fence = row.key[:TAG_BYTES] == Kind.FENCE_TOKEN.tag
            yield (FenceRow.of(row, history.past) or row) if is_fence else row
        self._past = history.past

    def _history_at(self, as_of: int) -> KnownPast | None:
        """The known past up to `as_of`, if that was read last."""
        past = self._past
        return KnownPast(past) if past is not None and past.upper == as_of + 1 else None

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        tags = _Tags()
        keys: list[bytes] = []
        values: list[bytes] = []
        bytes_ = 0
        for some in self._open().columns(
            as_of, but=[int(kind) for kind in but], history=self._history_at(as_of)
        ):
            self._check_once(some.diffs)
            keys += [tags[id_] + key for id_, key in zip(some.collections, some.keys, strict=True)]
            values += some.values
            bytes_ += sum(map(len, some.keys)) + sum(map(len, some.values))
            if len(keys) >= BATCH_ROWS or bytes_ >= _BATCH_BYTES:
                yield columns_of(keys, values)
                keys, values, bytes_ = [], [], 0
        if keys:
            yield columns_of(keys, values)

    def count(self, as_of: int, kinds: Iterable[Kind]) -> Counter[Kind]:
        found = self._open().sizes(as_of)
        return Counter({kind: found.get(int(kind), 0) for kind in kinds})

    def changes(
        self, lower: int, upper: int, *, fence: Row | None = None
    ) -> list[tuple[int, list[RowUpdate]]]:
        """See the interface. With `fence`, the history is compared even if there are no changes."""
        if lower >= upper and fence is None:
            return []
        history = KnownPast(past_of(fence))
        found = _changes(self._open(), lower, upper, fence, history)
        self._past = history.past
        return found

    def feed(self, lower: int, *, fence: Row | None = None) -> "StashFeed":
        if fence is None and lower:
            fence = next(iter(list(self.rows(lower - 1, (Kind.FENCE_TOKEN,)))), None)
        return StashFeed(self._open(), lower, fence)

    def append(
        self,
        updates: Iterable[RowUpdate],
        at: int,
        *,
        fence: Row | None = None,
        take_hold: bool = False,  # noqa: ARG002 - there are none
    ) -> None:
        self._append(updates, at, fence, at + 1)

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:
        self._append((), at, fence, to)

    def _append(self, updates: Iterable[RowUpdate], at: int, fence: Row | None, upper: int) -> None:
        history = KnownPast(past_of(fence))
        stash = self._open(create=True)
        stash.append(map(_to_stash, updates), at, sole=_sole(fence), upper=upper, history=history)
        self._past = history.past

    def expect(self, upper: int) -> Prepared:  # noqa: ARG002 - it would be of no use
        raise BadInput(
            f"the catalog in {self._place} can't guard writes on persist, because it is in a stash",
            hint="use a catalog on persist for collections",
        )

    def move_holds(self, upper: int) -> None:
        stash = self._open()
        if self._held is None:
            self._held = stash.frontiers().since
        since = max(upper - RETAIN_VERSIONS, 0)
        if since - self._held >= RETENTION_STEP:
            stash.allow_compaction(since)
            self._held = since
            self._consolidates = True
        if self._consolidates:
            self._consolidates = not stash.consolidate(max_batches=UPKEEP_BATCHES)

    def keep(self, time: int, version: int) -> None:
        self._open().hold(kept_name(version), time)

    def kept(self) -> list[Kept]:
        try:
            return kept_of(self._open().holds().items())
        except NoLocation:
            return []

    def let_go(self, version: int) -> None:
        self._open().release(kept_name(version))

    def release_before(self, upper: int) -> None:
        """Do nothing: readers hold nothing."""

    def reopen(self) -> None:
        self.close()
        self._held = None

    def close(self) -> None:
        stash, self._stash = self._stash, None
        if stash is not None:
            stash.close()

    def _frontiers(self) -> StashFrontiers:
        try:
            return self._open().frontiers()
        except NoLocation:
            return StashFrontiers(0, 0)
        except OtherHistory:
            # The caller compares what it knows of the catalog. The open stash would raise this forever.
            self.reopen()
            return self._open().frontiers()

    def _open(self, *, create: bool = False) -> Stash:
        if self._stash is None:
            if create and self._read_only:
                raise NotWritable(
                    f"can't write to the catalog in {self._place}: its stash was opened only for reading",
                    hint="open the stash for writing",
                )
            self._stash = open_stash(self._url, create=create, read_only=self._read_only, names=_NAMES)
        return self._stash

    def _rows(self, found: Iterable[StashUpdate]) -> Iterator[Row]:
        tags = _Tags()
        for id_, key, value, diff in found:
            self._check_once((diff,))
            yield Row(tags[id_] + key, value)

    def _check_once(self, diffs: Sequence[int]) -> None:
        if diffs.count(1) != len(diffs):
            raise corrupt(f"the catalog in {self._place}", "each row once", "a row several times")


class _Tags(dict[int, bytes]):
    """The tags of kinds, each created once."""

    def __missing__(self, kind: int) -> bytes:
        tag = self[kind] = kind.to_bytes(TAG_BYTES, "big")
        return tag


class StashFeed(Feed):
    """The changes of a stash as they are committed. Asks the stash every `POLL_S` seconds.

    `fence` is the fence row before `lower`. Each read compares the last commit that it carries.
    """

    def __init__(self, stash: Stash, lower: int, fence: Row | None) -> None:
        self._stash = stash
        self._frontier = lower
        self._fence = fence

    @property
    def frontier(self) -> int:
        return self._frontier

    def next(self, timeout: float | None) -> list[tuple[int, list[RowUpdate]]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        history = KnownPast(past_of(self._fence))
        while (upper := self._stash.frontiers(history=history).upper) <= self._frontier:
            if upper < self._frontier:
                raise OtherHistory(self._stash.description)
            wait_s = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if wait_s <= 0:
                return []
            time.sleep(wait_s)
        until = min(upper, self._frontier + FEED_VERSIONS)
        found = _changes(self._stash, self._frontier, until, self._fence, history)
        for row, diff in chain.from_iterable(updates for _, updates in found):
            if diff == 1 and row.key[:TAG_BYTES] == Kind.FENCE_TOKEN.tag:
                self._fence = row
        self._fence = FenceRow.of(self._fence, history.past)
        self._frontier = until
        return found


def _changes(
    stash: Stash, lower: int, upper: int, fence: Row | None, history: KnownPast
) -> list[tuple[int, list[RowUpdate]]]:
    found = stash.changes(lower, upper, sole=_sole(fence), history=history)
    return [
        (time_, [_of_stash(update) for _, update in group]) for time_, group in groupby(found, itemgetter(0))
    ]


def _sole(fence: Row | None) -> StashUpdate | None:
    return None if fence is None else _to_stash(RowUpdate(fence, 1))


def _to_stash(update: RowUpdate) -> StashUpdate:
    (key, value), diff = update
    return StashUpdate(int.from_bytes(key[:TAG_BYTES], "big"), key[TAG_BYTES:], value, diff)


def _of_stash(update: StashUpdate) -> RowUpdate:
    return RowUpdate(
        Row(update.collection.to_bytes(TAG_BYTES, "big") + update.key, update.value), update.diff
    )
