"""The interface of a catalog, in three levels.

- `OpenableCatalog`: what you can ask before the catalog is open, and before any upgrade of its format.
- `ReadOnlyCatalog`: reads from memory, which may be stale until `sync`. It is never fenced.
- `Catalog`: also writes, under a fence token that only one process holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Any, Literal, Protocol, Self, overload

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.getters import Getters
from holdfast.catalog.initialize import Bootstrap
from holdfast.catalog.objects.codec import Object, Row
from holdfast.catalog.objects.registry import K, Kind, ObjectType, V
from holdfast.catalog.setters import TargetedSetters
from holdfast.catalog.stores.store import Kept
from holdfast.catalog.transaction import Transaction
from holdfast.catalog.upgrade_report import Size, UpgradeReport
from holdfast.persist import Prepared


class OpenMode(Enum):
    """How a catalog is opened."""

    WRITABLE = auto()
    """Takes over: raises the epoch, which fences every other writer."""
    READ_ONLY = auto()
    """Doesn't raise the epoch, and is not fenced."""
    SAVEPOINT = auto()
    """Like WRITABLE, but only in memory. The store keeps its contents and its epoch."""


@dataclass(frozen=True)
class ObjectChange:
    """A committed change of one object: added (`diff` +1) or retracted (-1) at `time`."""

    time: int
    collection: ObjectType[Any, Any]
    object: Object[Any, Any]
    diff: int


@dataclass(frozen=True)
class Loaded:
    """The result of a load: the numbers of rows added and retracted, and the token that it wrote."""

    added: int
    retracted: int
    token: FenceToken


class Subscription(Protocol):
    """The committed changes of a catalog, in order, each exactly once. Not thread-safe."""

    @property
    def frontier(self) -> int:
        """All changes at times below this were returned. A later subscription can continue from here."""

    def next(self, timeout: float | None = None) -> list[ObjectChange]:
        """Return the changes of the next times at which something changed. Empty if `timeout` (s) runs out.

        The changes of one time are returned together: first the fence token's, then config, then the rest,
        retractions before additions. After an error, the next call returns what this one should have
        returned.

        Raises:
            AsOfTooEarly: the next changes are no longer readable. Read the catalog again, and subscribe from
                there.
            OtherHistory: an older state of the store was restored. Do the same.
            VersionTooNew: the next change is an upgrade to a version that this Holdfast can't read.
        """

    def close(self) -> None:
        """Release the hold on the past."""


class ReadOnlyCatalog(Getters):
    """An open catalog. Thread-safe. Messages that it returns belong to the caller."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def place(self) -> str:
        """The place of the catalog, as messages show it. On persist, its shard."""

    @property
    @abstractmethod
    def upper(self) -> int:
        """The time of the next commit, as far as this handle knows."""

    @property
    @abstractmethod
    def since(self) -> int:
        """The earliest time that you can still read."""

    @property
    @abstractmethod
    def catalog_version(self) -> int:
        """The version of the catalog's format."""

    @abstractmethod
    def fence_token(self) -> FenceToken:
        """The token of this handle. For a read-only handle, the durable token as last seen."""

    @abstractmethod
    def boot_ts(self) -> int:
        """The time at which the handle was opened, in milliseconds since 1970."""

    @abstractmethod
    def find(self, collection: ObjectType[K, V], like: V) -> Object[K, V] | None:
        """The object with the same unique value as `like`. Raises `BadInput` if the type has none."""

    @abstractmethod
    def snapshot(self) -> Mapping[Kind, tuple[Object[Any, Any], ...]]:
        """All objects in memory, at one time."""

    @abstractmethod
    def object_counts(self) -> dict[str, int]:
        """The number of objects by type name, including append-only types."""

    @abstractmethod
    def sync(self) -> None:
        """Bring the memory up to what was committed before this call."""

    @abstractmethod
    def subscribe(self, since: int | None = None) -> Subscription:
        """Subscribe to the changes after what this handle has in memory, or at times from `since` on.

        To continue after a restart, keep the `frontier` of a subscription and pass it as `since`. 0 is the
        beginning. Raises `AsOfTooEarly` if that past is gone. Raises `AsOfNotYetAvailable` for a time after
        the next commit's, which means that the catalog was restored from an older state.
        """

    @abstractmethod
    def dump(self, as_of: int | None = None) -> str:
        """The whole catalog as JSON, by object type, each object with its key and value. Default: the latest
        time.

        Raises `AsOfTooEarly` or `AsOfNotYetAvailable` for a time that can't be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the handle holds. Not needed for correctness."""


class Catalog(ReadOnlyCatalog, TargetedSetters):
    """A catalog open for writing. Thread-safe.

    After `Fenced`, every call raises it: the process must stop.
    """

    upgrade_report: UpgradeReport | None = None
    """What this open did to upgrade the catalog. None if no upgrade was needed."""

    @abstractmethod
    def transaction(self) -> Transaction:
        """Begin a transaction on the contents in memory. Raises `TransactionInProgress` if one is open."""

    @abstractmethod
    def commit_transaction(self, tx: Transaction) -> None:
        """Make the changes durable and visible, all or none. The transaction is closed in either case.

        Raises:
            Fenced: another process has taken over.
            FenceRegressed: the store was restored from an older state.
            CatalogOutOfSync: the contents changed since the transaction began. Sync and do it again.
            UniquenessViolation: two objects would have the same unique value. Nothing is changed.
            Indeterminate: it is unknown whether the commit happened. The next call reads the store again.
        """

    @abstractmethod
    def confirm_leadership(self) -> None:
        """Ask the store whether this process may still write.

        Raises `Fenced`, `FenceRegressed`, or `CatalogOutOfSync` if somebody changed the contents without
        taking over.
        """

    @abstractmethod
    def fence_guard(self) -> Prepared:
        """The condition that this process may still write, for a `multi_write` on other shards.

        It holds for the catalog's current upper. If the multi-write raises `UpperMismatch` for the catalog's
        shard, somebody has committed since, and that may be a fence: call this again. Raises like
        `confirm_leadership`, but accepts contents that others changed.
        """

    @abstractmethod
    def dangerous_edit(self, collection: ObjectType[K, V], key: K, value: V | None) -> V | None:
        """Insert, replace or (`value` None) delete any object except the fence token, in one commit.

        This is for repairs by hand (`debug`). It also changes append-only objects and reserved config.
        Returns the value before, or None if there was none.
        """


class OpenableCatalog(ABC):
    """A catalog that is not open. Thread-safe. Its methods work at any version of its format."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The place where the catalog is or will be, as messages show it. On persist, its shard."""

    @abstractmethod
    def is_initialized(self) -> bool:
        """Whether the catalog has ever been opened for writing."""

    @abstractmethod
    def fence_token(self) -> FenceToken | None:
        """The durable token. None before the first open."""

    def epoch(self) -> int | None:
        """The durable epoch. None before the first open."""
        token = self.fence_token()
        return None if token is None else token.epoch

    def deploy_generation(self) -> int | None:
        """The durable deploy generation. None before the first open."""
        token = self.fence_token()
        return None if token is None else token.deploy_generation

    @abstractmethod
    def config(self, key: str) -> int | None:
        """A value of the config, or None."""

    @abstractmethod
    def dump(self, as_of: int | None = None) -> str:
        """Like `ReadOnlyCatalog.dump`. Raises `Uninitialized` if there is no catalog."""

    def dump_lines(self, as_of: int | None = None) -> Iterator[str]:
        """`dump` in pieces, for a large catalog. Raises the errors of `dump` when the pieces are read."""
        yield self.dump(as_of)

    @abstractmethod
    def check_open(self) -> None:
        """Check that `open` would succeed. Changes nothing. Raises like `open`, and `Uninitialized`."""

    @abstractmethod
    def check_takeover(self) -> None:
        """Check for reasons to refuse an open for writing that don't depend on the contents. Changes nothing.

        Raises `LinkedElsewhere`, `LinkConflict`, `NeedsPersist`, `NotSourceOfTruth`, `MigrationInProgress`.
        """

    @abstractmethod
    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        """Write the initial objects. Returns False if the catalog is already initialized. Fences nobody."""

    @abstractmethod
    def raise_fence(
        self, at_least: int, *, deploy_generation: int | None = None, holder: str, purpose: str
    ) -> FenceToken:
        """Raise the durable epoch to `at_least`, and the deploy generation if it is given. Lowers neither.

        Use this after you restored an older state of the store (`FenceRegressed`), so that no process that
        ran before the restore can continue. Works at any version of the format. Returns the durable token. A
        token that is high enough stays as it is. Raises `Uninitialized`.
        """

    @abstractmethod
    def load(
        self,
        rows: Iterable[Row],
        *,
        deploy_generation: int | None = None,
        holder: str = "",
        purpose: str = "",
        exact: bool = False,
        only_new: bool = False,
        rehearse: bool = False,
    ) -> Loaded:
        """Load contents into the catalog, with one append of the differences and a new fence token.

        A catalog that isn't initialized holds exactly `rows` afterwards. With `exact`, any catalog does,
        whatever its version was. Otherwise some values never go back: append-only objects are only added, id
        allocators and timestamps keep the greater value, and reserved config stays. Fence tokens in `rows`
        are ignored. `deploy_generation` is the durable one by default. With `rehearse` nothing is written,
        and neither holder nor purpose is needed.

        Raises `BadInput`, with nothing changed, if `rows` aren't a complete catalog, or contain an
        append-only object that exists with another value. With `only_new`, raises `CatalogOutOfSync` if the
        catalog is initialized, perhaps by another process during this call.
        """

    @abstractmethod
    def sizes(self) -> Mapping[str, Size]:
        """The numbers of rows and bytes by object type name, at any version. Reads the whole catalog."""

    @abstractmethod
    def kept_dumps(self) -> list[Kept]:
        """The times before upgrades that are kept readable, each with its version.

        `dump(as_of=time)` returns the catalog as a Holdfast of that version dumps it, and can load it.
        """

    @abstractmethod
    def release_dump(self, version: int) -> None:
        """Release the kept time of a version. Raises `BadInput` if there is none."""

    @overload
    def open(
        self,
        mode: Literal[OpenMode.READ_ONLY],
        *,
        deploy_generation: int = ...,
        holder: str = ...,
        purpose: str = ...,
        bootstrap: Bootstrap | None = ...,
    ) -> ReadOnlyCatalog: ...

    @overload
    def open(
        self,
        mode: Literal[OpenMode.WRITABLE, OpenMode.SAVEPOINT],
        *,
        deploy_generation: int = ...,
        holder: str = ...,
        purpose: str = ...,
        bootstrap: Bootstrap | None = ...,
    ) -> Catalog: ...

    @abstractmethod
    def open(
        self,
        mode: OpenMode,
        *,
        deploy_generation: int = 0,
        holder: str = "",
        purpose: str = "",
        bootstrap: Bootstrap | None = None,
    ) -> ReadOnlyCatalog:
        """Open the catalog. `holder` and `purpose` show people who writes and why. WRITABLE needs both.

        Only the first WRITABLE open uses `bootstrap`. WRITABLE upgrades a catalog of an older version, and
        SAVEPOINT upgrades it in memory. READ_ONLY raises `Uninitialized` and `UpgradeNeeded`. Raises `Fenced`
        for a deploy generation below the durable one, `VersionTooNew` and `Deprecated`. Raises `CorruptBlob`
        or `UniquenessViolation` if the catalog can't be upgraded, before anything is changed.
        """
