# ruff: noqa: D102 - the interfaces document their methods
"""An open catalog on two stores that must never differ. Every call goes to both; the primary is the truth.

`shadow` opens it.

Contents are compared: after the open, after each commit and sync, and when they are read. What each side has
for itself is not compared: fence tokens, uppers, times, boot timestamps.

Invariants
- Results come from the primary. What the primary refuses is not written to the secondary. If the secondary
  fails after the primary has committed, the result doesn't change: the secondary is out of date until a
  resync.
- A writer is the only one that writes to either store, so any difference is real. A reader may see the
  secondary lag. It reports a difference that no lag explains (see `shadow.lag`), and otherwise that the
  secondary is out of date for now. It compares contents first, and results only while the contents are equal.

Why these are two handles, and not one handle on a store that appends to both stores:
- A store sees rows. It could compare appended and read rows, but not what a side makes of them: its results
  from memory, the ids that it allocates, what it refuses. All of these are compared here, and none costs a
  read of the secondary.
- Such a store needs a map between the times of the two. A writer could keep one. A reader can't: it did not
  make the commits, each upper moves independently, and no store records which commit of the other one belongs
  to which. `shadow.lag` compares changes instead, and needs no map.
- The two may hold an object in different bytes, and a retraction carries the stored bytes. So the primary's
  changes can't be appended to the secondary as they are; each side makes its own.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.interfaces import (
    Catalog,
    ReadOnlyCatalog,
    Subscription,
)
from holdfast.catalog.objects.codec import Object
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, K, Kind, ObjectType, V
from holdfast.catalog.shadow.lag import Lag, difference_of
from holdfast.catalog.shadow.side import COMPARED, ShadowSide, differing
from holdfast.catalog.shadow.transaction import ShadowTransaction
from holdfast.catalog.transaction import Transaction, not_open
from holdfast.errors import BadInput, HandleExpired, HoldfastError, Indeterminate, TransactionInProgress
from holdfast.forks import OwnerProcess
from holdfast.persist import Prepared

# Each side has its own rows of these types, so they are not counted.
_EACH_ITS_OWN = (FENCE_TOKENS.name, CONFIGS.name)

T = TypeVar("T")
H = TypeVar("H", bound=ReadOnlyCatalog)


class ShadowReader(ReadOnlyCatalog, Generic[H]):
    """An open shadow that reads. Thread-safe."""

    def __init__(self, primary: H, side: ShadowSide[H]) -> None:
        self._owner = OwnerProcess()
        self._lock = threading.RLock()
        self._primary = primary
        self._side = side
        self._lag = Lag()

    @property
    def diverged(self) -> Any:
        """The first difference found since the last resync. None if there is none."""
        return self._side.diverged

    @property
    def out_of_date(self) -> str | None:
        """Why the secondary is not compared now: its store failed, or a reader found that it lags."""
        if self._side.handle is None:
            return self._side.out_of_date
        return self._side.past_gone or self._lag.why

    @property
    def place(self) -> str:
        return self._primary.place

    @property
    def upper(self) -> int:
        return self._primary.upper

    @property
    def since(self) -> int:
        return self._primary.since

    @property
    def catalog_version(self) -> int:
        return self._read("version", lambda catalog: catalog.catalog_version)

    def fence_token(self) -> FenceToken:
        return self._primary.fence_token()

    def boot_ts(self) -> int:
        return self._primary.boot_ts()

    def objects(self, collection: ObjectType[K, V]) -> tuple[Object[K, V], ...]:
        if collection is FENCE_TOKENS:
            return self._primary.objects(collection)
        return self._read(f"{collection}", lambda catalog: catalog.objects(collection))

    def find(self, collection: ObjectType[K, V], like: V) -> Object[K, V] | None:
        return self._read(f"find of {collection}", lambda catalog: catalog.find(collection, like))

    def stream(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        if collection is FENCE_TOKENS or not self._side.strict:
            return self._primary.stream(collection)
        return iter(self._read(f"{collection}", lambda catalog: list(catalog.stream(collection))))

    def snapshot(self) -> Mapping[Kind, tuple[Object[Any, Any], ...]]:
        with self._locked():
            mine = self._primary.snapshot()
            for theirs in self._side.attempt("snapshot", lambda catalog: catalog.snapshot()):
                for collection in COMPARED:
                    if collection.cached:
                        kind = collection.kind
                        self._compare_answer(f"{collection}", mine[kind], theirs[kind])
            return mine

    def object_counts(self) -> dict[str, int]:
        return self._read(
            "the numbers of objects",
            lambda catalog: catalog.object_counts(),
            form=lambda counts: [item for item in counts.items() if item[0] not in _EACH_ITS_OWN],
        )

    def sync(self) -> None:
        with self._locked():
            self._primary.sync()
            self._side.past_gone = None
            self._side.attempt("sync", lambda catalog: catalog.sync())
            if self._side.handle is not None:
                self._lag.saw(self._side.handle.upper, self._primary.upper)
            self._compare_contents(whole=self._side.strict)

    def subscribe(self, since: int | None = None) -> Subscription:
        return self._primary.subscribe(since)

    def dump(self, as_of: int | None = None) -> str:
        return self._primary.dump(as_of)

    def compare(self) -> None:
        """Compare both sides as their stores have them, including append-only objects.

        A reader that finds a difference syncs first, because the secondary may be ahead of the primary.
        """
        with self._locked():
            self._compare_contents(whole=True)

    def close(self) -> None:
        if not self._owner.is_here:
            return
        with self._lock:
            self._side.drop()
            self._primary.close()

    def _locked(self) -> threading.RLock:
        """The lock. Raises in a forked child, where another thread may hold it forever."""
        self._owner.check("this shadow catalog")
        return self._lock

    def _read(
        self, what: str, call: Callable[[H], T], *, form: Callable[[T], Any] = lambda found: found
    ) -> T:
        with self._locked():
            mine = call(self._primary)
            for theirs in self._side.attempt(what, call):
                self._compare_answer(what, form(mine), form(theirs))
            return mine

    def _compare_answer(self, what: str, primary: object, secondary: object) -> None:
        difference = differing(primary, secondary)
        if difference is None:
            return
        before = self._uppers()
        if self._compare_contents(whole=True) and self._uppers() == before:
            self._side.report(what, *difference)

    def _compare_contents(self, *, whole: bool) -> bool:
        """Compare the contents in memory, or (`whole`) in the stores. Returns whether they are equal."""
        handle = self._side.handle
        if handle is None or self._lag.is_known(handle.upper, _kinds(whole=whole)):
            return False
        if self._first_difference(whole=whole) is not None:
            self._judge(whole=whole)
            return False
        if self._side.handle is None or self._side.past_gone is not None:
            return False
        self._lag.in_step()
        return True

    def _judge(self, *, whole: bool) -> None:
        """Report the current difference, unless the secondary only lags."""
        handle = self._side.handle
        if handle is None:
            return
        at = handle.upper
        # The primary has already committed what the secondary has now.
        self._primary.sync()
        uppers = at, self._primary.upper
        difference: dict[Any, int] = {}
        first: tuple[str, str, str] | None = None
        for collection in _compared(whole=whole):
            for theirs in self._contents(collection, whole=whole):
                mine = _contents(self._primary, collection, whole=whole)
                difference.update(difference_of(collection.kind, mine, theirs))
                found = differing(mine, theirs) if first is None else None
                if found is not None:
                    first = f"{collection}", *found
        if self._side.handle is None or self._side.past_gone is not None or self._uppers() != uppers:
            # Part of it could not be read, or a side was read again meanwhile. The next sync compares again.
            return
        if first is None:
            self._lag.in_step()
        elif not self._lag.explains(difference, self._primary, at, _kinds(whole=whole)):
            self._side.report(*first)

    def _first_difference(self, *, whole: bool) -> tuple[str, str, str] | None:
        for collection in _compared(whole=whole):
            for theirs in self._contents(collection, whole=whole):
                found = differing(_contents(self._primary, collection, whole=whole), theirs)
                if found is not None:
                    return f"{collection}", *found
        return None

    def _contents(self, collection: ObjectType[Any, Any], *, whole: bool) -> list[list[Any]]:
        """The contents of a type in the secondary, like `ShadowSide.attempt`."""
        return self._side.attempt(f"{collection}", lambda side: _contents(side, collection, whole=whole))

    def _uppers(self) -> tuple[int, int]:
        handle = self._side.handle
        return -1 if handle is None else handle.upper, self._primary.upper


class ShadowCatalog(ShadowReader[Catalog], Catalog):
    """An open shadow that writes, or a savepoint of one. Thread-safe."""

    def __init__(
        self, primary: Catalog, side: ShadowSide[Catalog], attach: Callable[[Catalog], Catalog] | None
    ) -> None:
        super().__init__(primary, side)
        self.upgrade_report = primary.upgrade_report
        self._attach = attach
        self._tx: ShadowTransaction | None = None

    def resync(self) -> None:
        """Load the secondary from the primary again, as an open does, and compare.

        Raises `TransactionInProgress`, because an open transaction has its other half on the old secondary.
        """
        with self._locked():
            if self._tx is not None and self._tx.is_open:
                raise TransactionInProgress(
                    f"the shadow of {self.place} can't be loaded again while a transaction is open"
                )
            if self._attach is None:
                raise BadInput(
                    "the secondary of a savepoint can't be loaded again", hint="open another savepoint"
                )
            self._side.drop()
            try:
                self._side.attach(self._attach(self._primary))
            except HoldfastError as error:
                self._side.failed("resync", error)
            self._compare_contents(whole=True)

    def transaction(self) -> Transaction:
        with self._locked():
            primary = self._primary.transaction()
            try:
                (secondary,) = self._side.attempt("transaction", lambda c: c.transaction()) or (None,)
            except BaseException:
                primary.close()
                raise
            self._tx = ShadowTransaction(primary, secondary, self._side)
            return self._tx

    def commit_transaction(self, tx: Transaction) -> None:
        with self._locked():
            if not isinstance(tx, ShadowTransaction) or tx is not self._tx:
                raise not_open(self.place)
            with tx:
                tx.updates()
                self._committing(lambda: self._primary.commit_transaction(tx.primary))
                secondary = tx.secondary
                if secondary is not None:
                    self._side.attempt("commit", lambda c: c.commit_transaction(secondary))
            self._after_commit()

    def in_transaction(self, change: Callable[[Transaction], T]) -> T:
        with self._locked(), self.transaction() as tx:
            result = change(tx)
            self.commit_transaction(tx)
            return result

    def dangerous_edit(self, collection: ObjectType[K, V], key: K, value: V | None) -> V | None:
        with self._locked():
            mine = self._committing(lambda: self._primary.dangerous_edit(collection, key, value))
            for theirs in self._side.attempt("edit", lambda c: c.dangerous_edit(collection, key, value)):
                self._side.compare(f"edit of {collection}", mine, theirs)
            self._after_commit()
            return mine

    def confirm_leadership(self) -> None:
        with self._locked():
            self._primary.confirm_leadership()
            self._side.attempt("confirm leadership", lambda catalog: catalog.confirm_leadership())

    def fence_guard(self) -> Prepared:
        return self._primary.fence_guard()

    def _committing(self, commit: Callable[[], T]) -> T:
        try:
            return commit()
        except (Indeterminate, HandleExpired) as error:
            # It may have happened on the primary, so nobody knows what the secondary should contain.
            if self._side.handle is not None:
                self._side.fall_behind(f"the primary does not know whether it committed: {error}")
            raise

    def _after_commit(self) -> None:
        if self._side.strict:
            self._compare_contents(whole=True)

    def _compare_answer(self, what: str, primary: object, secondary: object) -> None:
        self._side.compare(what, primary, secondary)

    def _compare_contents(self, *, whole: bool) -> bool:
        found = self._first_difference(whole=whole)
        if found is not None:
            self._side.report(*found)
        return found is None


def _compared(*, whole: bool) -> list[ObjectType[Any, Any]]:
    return [collection for collection in COMPARED if whole or collection.cached]


def _kinds(*, whole: bool) -> frozenset[Kind]:
    return frozenset(collection.kind for collection in _compared(whole=whole))


def _contents(catalog: ReadOnlyCatalog, collection: ObjectType[Any, Any], *, whole: bool) -> list[Any]:
    return list(catalog.stream(collection) if whole else catalog.objects(collection))
