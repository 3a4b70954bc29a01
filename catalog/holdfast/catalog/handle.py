# ruff: noqa: D102 - the interfaces document their methods
"""Open catalogs on a store: one reads, one writes, and one writes only in memory.

Invariants
- Memory holds the contents of the store at `upper - 1`. It moves one time after the other. At each time the
  fence token is checked first, then config, then the rest. So a fenced process finds the fence before it
  meets rows that it can't decode.
- The handle also keeps the last commit that it read or made, and every read of the store compares it. After a
  failover a different commit may have the same time and the same token. A writer ends if its commit is lost.
- The token of a writer is kept separately from memory, so memory can be read again without a new epoch.
- An error in the middle of a change leaves memory in doubt. It is read again before the next use.
- A reader of a linked store returns only contents that were the catalog's. If the state in memory doesn't
  show that, the reader asks the other store. A writer is fenced in both stores before the source of truth
  changes. Either store may be restored to an older state, so readers and writers also ask the other store now
  and then. A reader that had to read everything again asks at once.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NoReturn, TypeVar

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import config
from holdfast.catalog.cache import APPEND_ONLY, Cache
from holdfast.catalog.contents import Contents, StoredContents, cached
from holdfast.catalog.dump import dump_json
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.interfaces import Catalog, ReadOnlyCatalog
from holdfast.catalog.objects.codec import Object, Row, RowUpdate, canonical_key, decode, encode_key
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, OBJECT_TYPES, K, Kind, ObjectType, V
from holdfast.catalog.stores.preamble import Preamble, at_latest
from holdfast.catalog.stores.standing import Alone, Standing
from holdfast.catalog.stores.store import CatalogStore, FenceRow, Kept, let_go_of_old, past_of
from holdfast.catalog.subscription import StoreSubscription
from holdfast.catalog.transaction import Transaction, not_open
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CatalogOutOfSync,
    Fenced,
    FenceRegressed,
    HandleExpired,
    HoldfastError,
    Indeterminate,
    LinkedElsewhere,
    LogRegressed,
    NotSourceOfTruth,
    OtherHistory,
    StorageError,
    TransactionInProgress,
    UpperMismatch,
)
from holdfast.forks import OwnerProcess
from holdfast.persist import Prepared
from holdfast.stash import Past

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ReadOnlyHandle(ReadOnlyCatalog):
    """A catalog that reads. Its cache holds the contents at `upper - 1`."""

    def __init__(
        self,
        store: CatalogStore,
        cache: Cache,
        *,
        upper: int,
        boot_ts: int,
        standing: Standing | None = None,
    ) -> None:
        self._owner = OwnerProcess()
        self._lock = threading.RLock()
        self._standing = standing or Alone()
        # True if it is not confirmed yet that the contents in memory were the catalog's.
        self._unconfirmed = False
        # True if everything was read again because of another history, and the other store was not asked
        # since then.
        self._anew = False
        self._store = store
        self._cache = cache
        self._upper = upper
        past = store.past
        # The last commit in memory, if the store knows it.
        self._past = past if past is not None and past.upper == upper else None
        # The upper after the last change of contents. Progress without contents doesn't move it.
        self._content = upper
        self._boot_ts = boot_ts
        self._in_doubt = False
        self._ended: HoldfastError | None = None

    @property
    def place(self) -> str:
        return self._store.place

    @property
    def upper(self) -> int:
        self._check_process()
        return self._upper

    @property
    def since(self) -> int:
        self._check_process()
        return max(self._store.since, self._truth_since)

    @property
    def catalog_version(self) -> int:
        with self._ready():
            version = self._config(config.USER_VERSION)
        if version is None:
            raise CatalogOutOfSync(
                f"the catalog in {self.place} has no format version any more: its row was removed",
                hint="restore the catalog from a dump or a backup",
            )
        return version

    def fence_token(self) -> FenceToken:
        with self._ready() as cache:
            value = cache.get(FENCE_TOKENS, pb.FenceTokenKey())
        if value is None:
            raise CatalogOutOfSync(
                f"the catalog in {self.place} has no fence token any more: its row was removed",
                hint="restore the catalog from a dump or a backup",
            )
        return FenceToken.from_proto(value)

    def boot_ts(self) -> int:
        return self._boot_ts

    def objects(self, collection: ObjectType[K, V]) -> tuple[Object[K, V], ...]:
        if not collection.cached:
            raise BadInput(f"{collection} is not kept in memory: use stream")
        with self._ready() as cache:
            return tuple(cache.objects(collection))

    def find(self, collection: ObjectType[K, V], like: V) -> Object[K, V] | None:
        with self._ready() as cache:
            return Transaction(cache).find(collection, like)

    def stream(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        with self._ready():
            upper = self._upper
        return self._decoded(collection, self._store.rows(upper - 1, (collection.kind,)))

    def _decoded(self, collection: ObjectType[K, V], rows: Iterable[Row]) -> Iterator[Object[K, V]]:
        for row in rows:
            yield decode(collection, row)
            self._check_process()

    def snapshot(self) -> Mapping[Kind, tuple[Object[Any, Any], ...]]:
        with self._ready() as cache:
            return {row.kind: tuple(cache.objects(row)) for row in OBJECT_TYPES.values() if row.cached}

    def object_counts(self) -> dict[str, int]:
        with self._ready() as cache:
            if not cache.has_counts:
                cache.set_counts(self._count_append_only())
            return cache.counts()

    def _count_append_only(self) -> Counter[Kind]:
        return self._store.count(self._upper - 1, APPEND_ONLY)

    def sync(self) -> None:
        with self._ready():
            self._sync_to(self._store.upper())
            self._confirm()

    def _floor(self, time: int) -> int:
        """The earliest time at which the store's contents are the catalog's, for a read at `time`."""
        # The state in memory doesn't show where the catalog was at later times.
        return self._standing.confirm(self._store) if time >= self._upper else self._truth_since

    def subscribe(self, since: int | None = None) -> StoreSubscription:
        with self._ready():
            lower = self._upper if since is None else since
            fence = self._fence if lower == self._upper else None
            floor = self._floor(lower - 1)
        store = self._store.another(purpose="catalog subscription")
        try:
            standing = self._standing.of_subscriber()
            return StoreSubscription(store, lower, fence, standing=standing, floor=floor)
        except BaseException:
            store.close()
            raise

    def dump(self, as_of: int | None = None) -> str:
        with self._ready():
            time = self._upper - 1 if as_of is None else as_of
            floor = self._floor(time)
            if time < floor:
                raise AsOfTooEarly(time, floor)
        return dump_json(self._store.rows(time))

    def close(self) -> None:
        """Release what the handle holds. Does nothing in a forked child: it belongs to the parent."""
        if self._owner.is_here:
            with self._lock:
                try:
                    self._store.close()
                finally:
                    self._standing.close()

    def _check_process(self) -> None:
        if not self._owner.is_here:
            self._owner.check(f"the catalog in {self.place}")

    def retire(self, error: HoldfastError) -> None:
        """Close the handle permanently. Every later use raises `error`."""
        with self._lock:
            self._ended = error
            self._store.close()

    def _config(self, key: str) -> int | None:
        found = self._cache.get(CONFIGS, pb.ConfigKey(key=key))
        return None if found is None else found.value

    @property
    def _truth_since(self) -> int:
        return self._config(config.TRUTH_SINCE) or 0

    def _confirm(self) -> None:
        """Confirm that the contents in memory are the catalog's. Ends the handle if they may not be."""
        self._unconfirmed = True
        while self._config(config.LINK) is not None and self._config(config.TRUTH) != 1:
            try:
                since = self._standing.confirm(self._store)
            except (NotSourceOfTruth, LinkedElsewhere) as error:
                self._end(error)
            if since < self._upper:
                break
            # The catalog was moved to the other store and back.
            self._sync_to(self._store.upper())
        if self._config(config.LINK) is not None:
            try:
                self._standing.confirm_reader(always=self._anew)
            except StorageError:
                raise
            except HoldfastError as error:
                self._end(error)
        self._unconfirmed = self._anew = False

    def _end(self, error: HoldfastError) -> NoReturn:
        self._ended = error
        raise error

    @contextmanager
    def _ready(self) -> Iterator[Cache]:
        """Take the lock, and bring memory up to a usable state. Raises the error that ended the handle."""
        self._check_process()
        with self._lock:
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            if self._in_doubt:
                self._reload()
                self._unconfirmed = True
            if self._unconfirmed:
                self._confirm()
            yield self._cache

    @property
    def _fence(self) -> Row | None:
        """The fence row, together with the last commit in memory."""
        return FenceRow.of(self._cache.fence_row, self._past)

    def _sync_to(self, target: int) -> None:
        if target < self._upper:
            self._reload()
            return
        try:
            found = self._store.changes(self._upper, target, fence=self._fence)
            past = self._store.past
            for time, updates in found:
                self._apply(time, updates)
        except (AsOfTooEarly, HandleExpired, OtherHistory):
            self._reload()
            return
        self._upper = target
        self._past = past
        try:
            self._store.release_before(target)
        except (StorageError, HandleExpired) as error:
            # The requested contents are here. The next sync releases again.
            _log.warning("can't release the past of %s: %s", self.place, error)

    def _apply(self, time: int, updates: Sequence[RowUpdate]) -> None:
        self._in_doubt = True
        self._cache.apply(updates)
        self._in_doubt = False
        self._upper = self._content = time + 1

    def _reload(self) -> None:
        """Read everything again, fence token and config first."""
        self._in_doubt = self._anew = True
        self._store.reopen()
        self._cache, self._upper, self._past = at_latest(self._store, self._loaded)
        self._content = self._upper
        self._in_doubt = False

    def _loaded(self, preamble: Preamble) -> tuple[Cache, int, Past | None]:
        self._check_reloaded(preamble)
        preamble.check_initialized(self.place)
        preamble.check_current()
        contents = StoredContents(self._store, preamble.upper)
        return cached(contents, preamble, self.place), preamble.upper, past_of(preamble.fence_row)

    def _check_reloaded(self, preamble: Preamble) -> None:
        """Raise unless this handle may continue with a state that it did not reach change by change."""


class WritableHandle(ReadOnlyHandle, Catalog):
    """A catalog that writes, while `token` is the durable one."""

    def __init__(
        self,
        store: CatalogStore,
        cache: Cache,
        *,
        upper: int,
        boot_ts: int,
        token: FenceToken,
        now_ms: Callable[[], int],
        kept: Sequence[Kept] = (),
        standing: Standing | None = None,
    ) -> None:
        super().__init__(store, cache, upper=upper, boot_ts=boot_ts, standing=standing)
        # The times kept for dumps. Only an open adds one, so a commit need not ask the store.
        self._kept = kept
        self.upgrade_report = None
        self._token = token
        self._now_ms = now_ms
        self._tx: Transaction | None = None

    @contextmanager
    def _ready(self) -> Iterator[Cache]:
        try:
            with super()._ready() as cache:
                yield cache
        except LogRegressed:
            # The token can't be read past what this process knows, but it is certainly no longer its own.
            epoch, is_linked = self._token.epoch, self._config(config.LINK) is not None
            hint = self._store.older_log_hint(epoch, linked=is_linked)
            self._end(FenceRegressed(self._token, "an older log", at_least=epoch, hint=hint))

    def fence_token(self) -> FenceToken:
        self._check_process()
        return self._token

    def transaction(self) -> Transaction:
        with self._ready() as cache:
            if self._tx is not None:
                raise TransactionInProgress(f"a transaction is already open on the catalog in {self.place}")
            self._tx = Transaction(
                cache, base=self._content, now_ms=self._now_ms(), on_close=self._forget_transaction
            )
            return self._tx

    def _forget_transaction(self) -> None:
        self._tx = None

    def commit_transaction(self, tx: Transaction) -> None:
        self._check_process()
        with self._lock:
            if tx is not self._tx:
                raise not_open(self.place)
            with tx, self._ready():
                updates = tx.updates()
                while updates:
                    if tx.base != self._content:
                        raise CatalogOutOfSync(
                            f"the catalog in {self.place} changed after the transaction began: nothing was"
                            " committed",
                            hint="sync, and repeat the transaction",
                        )
                    try:
                        self._commit(updates)
                        return
                    except UpperMismatch:
                        # The loop tries again only if the upper moved without a change of contents.
                        self._sync_to(self._store.upper())

    def confirm_leadership(self) -> None:
        with self._ready():
            before = self._content
            self._sync_to(self._store.upper())
            if self._content != before:
                raise CatalogOutOfSync(
                    f"another process changed the catalog in {self.place} without opening it for writing",
                    hint="find that process; then sync, or open the catalog again",
                )
            self._confirm_writer(always=True)

    def fence_guard(self) -> Prepared:
        with self._ready():
            self._sync_to(self._store.upper())
            self._confirm_writer(always=False)
            return self._store.expect(self._upper)

    def _confirm_writer(self, *, always: bool) -> None:
        """Ask the other store whether this process may write. Ends the handle if it may not."""
        try:
            self._standing.confirm_writer(always=always)
        except StorageError:
            raise
        except HoldfastError as error:
            self._end(error)

    def _confirm(self) -> None:
        """Do nothing: while its token is in the stores, the source of truth can't have moved."""
        self._unconfirmed = False

    def dangerous_edit(self, collection: ObjectType[K, V], key: K, value: V | None) -> V | None:
        if isinstance(key, pb.ConfigKey):
            self._check_not_of_link(key.key)

        def change(tx: Transaction) -> V | None:
            stored = self._stored_rows(collection, key)
            tx.dangerous_put(collection, key, value, stored=stored)
            return decode(collection, stored[0]).value if stored else None

        return self.in_transaction(change)

    def _check_not_of_link(self, key: str) -> None:
        if key in (config.LINK, config.STASH_LINKED, config.SETTLING):
            raise BadInput(
                f"config {key} would link the catalog with a store that has no record of it",
                hint="the first open of a linked catalog for writing links its two stores",
            )
        with self._ready():
            linked = self._config(config.LINK) is not None
        if linked and config.is_reserved(key) and key != config.USER_VERSION:
            raise BadInput(
                f"config {key} shows which of two linked stores is the source of truth, and can't be edited",
                hint="'holdfast migrate' moves the catalog or ends the link",
            )

    def _stored_rows(self, collection: ObjectType[K, V], key: K) -> Sequence[Row]:
        """The row of a key with its stored bytes. Several rows if an append-only type is damaged."""
        encoded = encode_key(collection, key)
        if collection.cached:
            row = self._cache.table(collection.kind).get(encoded)
            return () if row is None else (row,)
        return [
            row for row in self._appended(collection.kind) if canonical_key(collection, row.key) == encoded
        ]

    def _appended(self, kind: Kind) -> Iterator[Row]:
        return self._store.rows(self._upper - 1, (kind,))

    def in_transaction(self, change: Callable[[Transaction], T]) -> T:
        self._check_process()
        with self._lock, self.transaction() as tx:
            result = change(tx)
            self.commit_transaction(tx)
            return result

    def _commit(self, updates: Sequence[RowUpdate]) -> None:
        self._confirm_writer(always=False)
        try:
            self._store.append(updates, self._upper, fence=self._fence)
        except OtherHistory:
            # In most cases this finds that the process was fenced.
            self._reload()
            raise
        except (Indeterminate, HandleExpired):
            self._in_doubt = True
            raise
        super()._apply(self._upper, updates)
        self._past = self._store.past
        try:
            self._store.move_holds(self._upper)
            self._kept = let_go_of_old(self._store, self._kept, self._upper)
        except (StorageError, HandleExpired) as error:
            # The commit is done. The next commit moves the holds.
            _log.warning("can't move the holds on %s: %s", self.place, error)

    def _sync_to(self, target: int) -> None:
        before = self._content
        super()._sync_to(target)
        if self._content != before:
            # Contents changed without a new fence token. Another history, such as a restored store, may
            # contain a token that these changes don't show. So read everything.
            self._reload()

    def _apply(self, time: int, updates: Sequence[RowUpdate]) -> None:
        for update in updates:
            if update.row.key[:2] == Kind.FENCE_TOKEN.tag and update.diff == 1:
                self._check_token(FenceToken.from_proto(decode(FENCE_TOKENS, update.row).value))
        super()._apply(time, updates)

    def _check_reloaded(self, preamble: Preamble) -> None:
        self._check_token(preamble.token)
        if preamble.upper < self._upper:
            self._end(
                CatalogOutOfSync(
                    f"the catalog in {self.place} went back from upper {self._upper} to {preamble.upper}: its"
                    " store was restored from an older state",
                    hint="find the newest state of the store, and open the catalog again",
                )
            )
        if self._past is None:
            return
        # One read compares both the commit that this process knows and the one that it is about to read.
        try:
            self._store.changes(self._upper, preamble.upper, fence=self._fence)
        except OtherHistory as error:
            self._end(error)
        if self._store.past != past_of(preamble.fence_row):
            raise OtherHistory(self.place)

    def _check_token(self, durable: FenceToken | None) -> None:
        """End this handle unless the durable token is its own.

        A token of the same rank with another holder or nonce was written by a process that won the race.
        """
        if durable == self._token:
            return
        if durable is None or durable < self._token:
            self._end(FenceRegressed(self._token, durable, at_least=self._token.epoch))
        self._end(self._standing.explain(Fenced(self._token, durable)))


class SavepointHandle(WritableHandle):
    """A catalog that writes only in memory: the contents at the open, and the changes since.

    `contents` are the contents at the open, upgraded if they were of an older version. They stay readable
    while the handle is open.
    """

    def __init__(
        self,
        store: CatalogStore,
        cache: Cache,
        *,
        durable_upper: int,
        boot_ts: int,
        token: FenceToken,
        opening: Sequence[RowUpdate],
        now_ms: Callable[[], int],
        contents: Contents,
        on_close: Callable[[], None],
    ) -> None:
        upper = durable_upper + 1
        super().__init__(store, cache, upper=upper, boot_ts=boot_ts, token=token, now_ms=now_ms)
        self._contents, self._on_close = contents, on_close
        # Append-only rows that were added in memory, and rows of the contents that were removed in memory.
        self._added: dict[Row, None] = {}
        self._removed: set[Row] = set()
        self._remember(opening)

    def stream(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        if collection.cached:
            return iter(self.objects(collection))
        with self._ready():
            rows = self._appended(collection.kind)
        return self._decoded(collection, rows)

    def sync(self) -> None:
        """Do nothing: commits of others are not part of this savepoint."""

    def confirm_leadership(self) -> None:
        """Do nothing: nobody else writes to this savepoint."""

    def fence_guard(self) -> Prepared:
        raise BadInput(
            "a savepoint has no fence guard: its token is only in memory",
            hint="open the catalog for writing",
        )

    def subscribe(self, since: int | None = None) -> StoreSubscription:  # noqa: ARG002
        raise BadInput(
            "a savepoint can't be subscribed to: nothing in it is committed", hint="subscribe to the catalog"
        )

    def dump(self, as_of: int | None = None) -> str:
        with self._ready() as cache:
            if as_of not in (None, self._upper - 1):
                raise BadInput(
                    f"a savepoint has only its latest state, not the state as of {as_of}",
                    hint="leave as_of out, or dump the catalog",
                )
            return dump_json(chain(cache.rows(), *map(self._appended, APPEND_ONLY)))

    def _count_append_only(self) -> Counter[Kind]:
        counts = Counter(row.kind for row in self._added) + self._contents.count(APPEND_ONLY)
        return counts - Counter(row.kind for row in self._removed)

    def _appended(self, kind: Kind) -> Iterator[Row]:
        removed = frozenset(self._removed)
        kept = (row for row in self._contents.rows((kind,)) if row not in removed)
        return chain(kept, [row for row in self._added if row.kind is kind])

    def close(self) -> None:
        if self._owner.is_here:
            with self._lock:
                self._on_close()
        super().close()

    def _commit(self, updates: Sequence[RowUpdate]) -> None:
        self._apply(self._upper, updates)
        self._remember(updates)

    def _remember(self, updates: Iterable[RowUpdate]) -> None:
        for row, diff in updates:
            if OBJECT_TYPES[row.kind].cached:
                continue
            if diff == 1 and row in self._removed:
                self._removed.remove(row)
            elif diff == 1:
                self._added[row] = None
            elif row in self._added:
                del self._added[row]
            else:
                self._removed.add(row)

    def _reload(self) -> None:
        raise CatalogOutOfSync("the savepoint can't be used after an error", hint="open another one")
