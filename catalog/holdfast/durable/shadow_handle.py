# ruff: noqa: D102 - the interfaces document their methods
"""An open catalog on two stores that must never differ: both for every call, the primary is the truth.

`shadow` opens it.

Compared are contents: after the open, after each commit and sync, and what is read. Not compared are what
each side has for itself: fence tokens, uppers, times, boot timestamps.

Invariants
- The primary answers. What the primary refuses is not written to the secondary; a secondary that fails after
  the primary has committed changes no answer: it is out of date until it is made anew.
- A writer is the only one that writes to either, so a difference at any time is one. A reader may see the
  two sides of one commit apart: it tells of a difference that stays from one sync to the next.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from holdfast.durable.codec import Object
from holdfast.durable.fence import FenceToken
from holdfast.durable.interfaces import (
    Catalog,
    ReadOnlyCatalog,
    Subscription,
)
from holdfast.durable.registry import FENCE_TOKENS, Collection, K, Kind, V
from holdfast.durable.shadow_side import COMPARED, ShadowSide, differing
from holdfast.durable.shadow_transaction import ShadowTransaction
from holdfast.durable.transaction import Transaction
from holdfast.errors import BadInput, HandleExpired, HoldfastError, Indeterminate, TransactionInProgress
from holdfast.persist import Prepared

T = TypeVar("T")
H = TypeVar("H", bound=ReadOnlyCatalog)


class ShadowReader(ReadOnlyCatalog, Generic[H]):
    """An open shadow that reads. Thread-safe."""

    def __init__(self, primary: H, side: ShadowSide[H]) -> None:
        self._lock = threading.RLock()
        self._primary = primary
        self._side = side
        # Where both sides stood when a reader last found them different.
        self._suspect: tuple[int, int] | None = None

    @property
    def diverged(self) -> Any:
        """The first difference that was found since the secondary was last made anew; None without one."""
        return self._side.diverged

    @property
    def out_of_date(self) -> str | None:
        """Why the secondary is not compared any more, when its store failed."""
        return self._side.out_of_date

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

    def objects(self, collection: Collection[K, V]) -> tuple[Object[K, V], ...]:
        if collection is FENCE_TOKENS:
            return self._primary.objects(collection)
        return self._read(f"{collection}", lambda catalog: catalog.objects(collection))

    def find(self, collection: Collection[K, V], like: V) -> Object[K, V] | None:
        return self._read(f"find of {collection}", lambda catalog: catalog.find(collection, like))

    def stream(self, collection: Collection[K, V]) -> Iterator[Object[K, V]]:
        if collection is FENCE_TOKENS or not self._side.strict:
            return self._primary.stream(collection)
        return iter(self._read(f"{collection}", lambda catalog: list(catalog.stream(collection))))

    def snapshot(self) -> Mapping[Kind, tuple[Object[Any, Any], ...]]:
        with self._lock:
            mine = self._primary.snapshot()
            for theirs in self._side.attempt("snapshot", lambda catalog: catalog.snapshot()):
                for collection in COMPARED:
                    if collection.cached and self._suspect is None:
                        self._side.compare(f"{collection}", mine[collection.kind], theirs[collection.kind])
            return mine

    def object_counts(self) -> dict[str, int]:
        return self._read(
            "the numbers of objects",
            lambda catalog: catalog.object_counts(),
            form=lambda counts: [item for item in counts.items() if item[0] != FENCE_TOKENS.name],
        )

    def sync(self) -> None:
        with self._lock:
            self._primary.sync()
            self._side.attempt("sync", lambda catalog: catalog.sync())
            self._compare_contents(whole=self._side.strict)

    def subscribe(self, since: int | None = None) -> Subscription:
        return self._primary.subscribe(since)

    def dump(self, as_of: int | None = None) -> str:
        return self._primary.dump(as_of)

    def compare(self) -> None:
        """Compare both sides as their stores have them, append-only objects included."""
        with self._lock:
            self._compare_contents(whole=True)

    def close(self) -> None:
        with self._lock:
            self._side.drop()
            self._primary.close()

    def _read(
        self, what: str, call: Callable[[H], T], *, form: Callable[[T], Any] = lambda found: found
    ) -> T:
        with self._lock:
            mine = call(self._primary)
            if self._suspect is None:
                for theirs in self._side.attempt(what, call):
                    self._side.compare(what, form(mine), form(theirs))
            return mine

    def _compare_contents(self, *, whole: bool) -> None:
        """Compare what both have in memory, or (`whole`) all that their stores have."""
        for collection in COMPARED:
            if whole or collection.cached:
                difference = self._difference(collection, whole=whole)
                if difference is not None:
                    self._differs(f"{collection}", *difference)
                    return
        self._suspect = None

    def _difference(self, collection: Collection[Any, Any], *, whole: bool) -> tuple[str, str] | None:
        def contents(catalog: ReadOnlyCatalog) -> list[Any]:
            return list(catalog.stream(collection) if whole else catalog.objects(collection))

        for theirs in self._side.attempt(f"{collection}", contents):
            return differing(contents(self._primary), theirs)
        return None

    def _differs(self, what: str, primary: str, secondary: str) -> None:
        for other in self._side.attempt("upper", lambda catalog: catalog.upper):
            now = self._primary.upper, other
            if self._suspect == now:
                self._side.report(what, primary, secondary)
            self._suspect = now


class ShadowCatalog(ShadowReader[Catalog], Catalog):
    """An open shadow that writes, or (`durable` false) a savepoint of one."""

    def __init__(
        self, primary: Catalog, side: ShadowSide[Catalog], attach: Callable[[Catalog], Catalog] | None
    ) -> None:
        super().__init__(primary, side)
        self.upgrade_report = primary.upgrade_report
        self._attach = attach
        self._tx: ShadowTransaction | None = None

    def resync(self) -> None:
        """Make the secondary anew from the primary, as an open does, and compare.

        Raises `TransactionInProgress`: an open transaction has its other half on the secondary of before.
        """
        with self._lock:
            if self._tx is not None and self._tx.is_open:
                raise TransactionInProgress("a transaction is open on this catalog: close it first")
            if self._attach is None:
                raise BadInput("the secondary of a savepoint is not made anew")
            self._side.drop()
            try:
                self._side.attach(self._attach(self._primary))
            except HoldfastError as error:
                self._side.failed("resync", error)
            self._compare_contents(whole=True)

    def transaction(self) -> Transaction:
        with self._lock:
            primary = self._primary.transaction()
            try:
                (secondary,) = self._side.attempt("transaction", lambda c: c.transaction()) or (None,)
            except BaseException:
                primary.close()
                raise
            self._tx = ShadowTransaction(primary, secondary, self._side)
            return self._tx

    def commit_transaction(self, tx: Transaction) -> None:
        with self._lock:
            if not isinstance(tx, ShadowTransaction) or tx is not self._tx:
                raise BadInput("the transaction is not open on this catalog")
            with tx:
                tx.updates()
                self._committing(lambda: self._primary.commit_transaction(tx.primary))
                secondary = tx.secondary
                if secondary is not None:
                    self._side.attempt("commit", lambda c: c.commit_transaction(secondary))
            self._after_commit()

    def in_transaction(self, change: Callable[[Transaction], T]) -> T:
        with self._lock, self.transaction() as tx:
            result = change(tx)
            self.commit_transaction(tx)
            return result

    def dangerous_edit(self, collection: Collection[K, V], key: K, value: V | None) -> V | None:
        with self._lock:
            mine = self._committing(lambda: self._primary.dangerous_edit(collection, key, value))
            for theirs in self._side.attempt("edit", lambda c: c.dangerous_edit(collection, key, value)):
                self._side.compare(f"edit of {collection}", mine, theirs)
            self._after_commit()
            return mine

    def confirm_leadership(self) -> None:
        with self._lock:
            self._primary.confirm_leadership()
            self._side.attempt("confirm leadership", lambda catalog: catalog.confirm_leadership())

    def fence_guard(self) -> Prepared:
        return self._primary.fence_guard()

    def _committing(self, commit: Callable[[], T]) -> T:
        try:
            return commit()
        except (Indeterminate, HandleExpired) as error:
            # It may have happened on the primary: nobody can say what the secondary should hold.
            if self._side.handle is not None:
                self._side.fall_behind(f"the primary does not know whether it committed: {error}")
            raise

    def _after_commit(self) -> None:
        if self._side.strict:
            self._compare_contents(whole=True)

    def _differs(self, what: str, primary: str, secondary: str) -> None:
        self._side.report(what, primary, secondary)
