"""A store that passes each call through a test. The test may record it, end its process, or switch."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from holdfast.catalog.objects.codec import Row, RowUpdate, kind_of
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores.store import CatalogStore, Feed, Kept
from holdfast.errors import HoldfastError
from holdfast.persist import Prepared

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One call of a store, `durable` where it may change what is stored."""

    store: str
    what: str
    durable: bool = False

    def __str__(self) -> str:
        return f"{self.store}: {self.what}"


class Calls(Protocol):
    """What becomes of the calls of one process."""

    def __call__(self, call: Call, effect: Callable[[], T]) -> T: ...


def straight(call: Call, effect: Callable[[], T]) -> T:
    """As if nobody watched."""
    return effect()


class Killed(BaseException):
    """The process ended: nothing that it does after this has an effect."""


class WatchedStore(CatalogStore):
    """The calls of one process to `inner`, the store with that name."""

    def __init__(self, inner: CatalogStore, name: str, calls: Calls) -> None:
        self._inner = inner
        self._name = name
        self._calls = calls

    @property
    def place(self) -> str:
        return self._inner.place

    @property
    def writable(self) -> bool:
        return self._inner.writable

    @property
    def max_row_bytes(self) -> int | None:
        return self._inner.max_row_bytes

    def another(self, *, purpose: str) -> "WatchedStore":
        return WatchedStore(self._inner.another(purpose=purpose), self._name, self._calls)

    def _read(self, what: str, effect: Callable[[], T]) -> T:
        return self._calls(Call(self._name, what), effect)

    def _write(self, what: str, effect: Callable[[], T]) -> T:
        return self._calls(Call(self._name, what, durable=True), effect)

    def upper(self) -> int:
        return self._read("upper", self._inner.upper)

    @property
    def since(self) -> int:
        return self._read("since", lambda: self._inner.since)

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        wanted = tuple(kinds)
        return iter(self._read("rows", lambda: list(self._inner.rows(as_of, wanted))))

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        return iter(self._read("batches", lambda: list(self._inner.batches(as_of, but=but))))

    def count(self, as_of: int, kinds: Iterable[Kind]) -> Counter[Kind]:
        return self._read("count", lambda: self._inner.count(as_of, kinds))

    def changes(
        self, lower: int, upper: int, *, fence: Row | None = None
    ) -> list[tuple[int, list[RowUpdate]]]:
        return self._read("changes", lambda: self._inner.changes(lower, upper, fence=fence))

    def feed(self, lower: int, *, fence: Row | None = None) -> "WatchedFeed":
        return WatchedFeed(self._read("feed", lambda: self._inner.feed(lower, fence=fence)), self._read)

    def append(
        self, updates: Iterable[RowUpdate], at: int, *, fence: Row | None = None, take_hold: bool = False
    ) -> None:
        # What it reads to make them are calls of their own, before this one.
        made = list(updates)
        self._write(
            f"append {_told(made)}", lambda: self._inner.append(made, at, fence=fence, take_hold=take_hold)
        )

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:
        self._write("advance", lambda: self._inner.advance(at, to, fence=fence))

    def expect(self, upper: int) -> Prepared:
        return self._inner.expect(upper)

    def move_holds(self, upper: int) -> None:
        self._write("move holds", lambda: self._inner.move_holds(upper))

    def release_before(self, upper: int) -> None:
        self._inner.release_before(upper)

    def keep(self, time: int, version: int) -> None:
        self._write(f"keep version {version}", lambda: self._inner.keep(time, version))

    def kept(self) -> list[Kept]:
        return self._read("kept", self._inner.kept)

    def let_go(self, version: int) -> None:
        self._write(f"let go of version {version}", lambda: self._inner.let_go(version))

    def reopen(self) -> None:
        self._inner.reopen()

    def close(self) -> None:
        self._inner.close()


class WatchedFeed(Feed):
    """The feed of a watched store."""

    def __init__(self, inner: Feed, read: Callable[[str, Callable[[], T]], T]) -> None:
        self._inner = inner
        self._read = read

    @property
    def frontier(self) -> int:
        return self._inner.frontier

    def next(self, timeout: float | None) -> list[tuple[int, list[RowUpdate]]]:
        return self._read("next of a feed", lambda: self._inner.next(timeout))


def _told(updates: list[RowUpdate]) -> str:
    """The kinds of what is changed, and how the config is."""
    kinds = []
    for row, diff in updates:
        try:
            kind = kind_of(row.key)
        except HoldfastError:
            kinds.append("?")
            continue
        if kind is Kind.CONFIG:
            key = row.key[4:].decode(errors="replace")
            # Ids of links are random.
            kinds.append(f"{'+' if diff > 0 else '-'}{key}")
        else:
            kinds.append(kind.name.lower())
    return " ".join(sorted(set(kinds))) or "nothing"
