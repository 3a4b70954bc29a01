"""What a durable catalog can do, in three tiers of which each takes a capability away from the one below it.

- `OpenableCatalog`: what is known before it is open, and before any upgrade of its format.
- `ReadOnlyCatalog`: getters from memory, which may be stale until `sync`; never fenced.
- `Catalog`: writes, under a fence token that only one process holds.
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
from holdfast.catalog.objects.registry import Collection, K, Kind, V
from holdfast.catalog.setters import TargetedSetters
from holdfast.catalog.stores.store import Kept
from holdfast.catalog.transaction import Transaction
from holdfast.catalog.upgrade_report import Size, UpgradeReport
from holdfast.persist import Prepared


class OpenMode(Enum):
    """How a catalog is opened."""

    WRITABLE = auto()
    """Takes over: raises the epoch, so that every other writer is fenced."""
    READ_ONLY = auto()
    """Neither raises the epoch nor is fenced."""
    SAVEPOINT = auto()
    """As WRITABLE, but only in memory: the store keeps its state and its epoch."""


@dataclass(frozen=True)
class ObjectChange:
    """A committed change of one object: added (`diff` +1) or retracted (-1) at `time`."""

    time: int
    collection: Collection[Any, Any]
    object: Object[Any, Any]
    diff: int


@dataclass(frozen=True)
class Loaded:
    """What a load did: the numbers of rows that it added and retracted, and the token that it wrote."""

    added: int
    retracted: int
    token: FenceToken


class Subscription(Protocol):
    """The committed changes of a catalog, in order, each exactly once. Not thread-safe."""

    @property
    def frontier(self) -> int:
        """All changes at times below it were given out: a later subscription goes on from here."""

    def next(self, timeout: float | None = None) -> list[ObjectChange]:
        """The changes of the next times at which something changed; empty when `timeout` (s) ran out.

        A time's changes come together: first the fence token's, then config, then the rest, retractions
        before additions. After an error the next call goes on where this one should have begun.

        Raises:
            AsOfTooEarly: the catalog has let go of what comes next: read it anew, and subscribe from there.
            OtherHistory: an older state of the store was restored: the same is to be done.
            VersionTooNew: the next change is the upgrade to a version that this Holdfast can't read.
        """

    def close(self) -> None:
        """Give up the hold on the past."""


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
        """Where the catalog is, as messages say it: on persist its shard."""

    @property
    @abstractmethod
    def upper(self) -> int:
        """The time of the next commit, as this handle knows it."""

    @property
    @abstractmethod
    def since(self) -> int:
        """The earliest time that can still be read."""

    @property
    @abstractmethod
    def catalog_version(self) -> int:
        """The version of its format."""

    @abstractmethod
    def fence_token(self) -> FenceToken:
        """The token of this handle; of a read-only one, the durable token as last seen."""

    @abstractmethod
    def boot_ts(self) -> int:
        """When the handle was opened, in milliseconds since the epoch."""

    @abstractmethod
    def find(self, collection: Collection[K, V], like: V) -> Object[K, V] | None:
        """The object that shares with `like` what is unique to its type; `BadInput` where nothing is."""

    @abstractmethod
    def snapshot(self) -> Mapping[Kind, tuple[Object[Any, Any], ...]]:
        """All objects in memory, of one time."""

    @abstractmethod
    def object_counts(self) -> dict[str, int]:
        """The number of objects by the name of their type, append-only ones included."""

    @abstractmethod
    def sync(self) -> None:
        """Bring the memory up to what was committed when this was called."""

    @abstractmethod
    def subscribe(self, since: int | None = None) -> Subscription:
        """The changes committed after what this handle has in memory, or those at times from `since` on.

        Who keeps the `frontier` of a subscription goes on from there after a restart; 0 is the beginning.
        Raises `AsOfTooEarly` when that past is gone, and `AsOfNotYetAvailable` for a time after the next
        commit's: the catalog was restored from an older state.
        """

    @abstractmethod
    def dump(self, as_of: int | None = None) -> str:
        """Everything as JSON, by object type, each with its key and its value; by default the latest.

        Raises `AsOfTooEarly` or `AsOfNotYetAvailable` for a time that can't be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what the handle holds; not needed for correctness."""


class Catalog(ReadOnlyCatalog, TargetedSetters):
    """A catalog open for writing. After `Fenced` it answers nothing else: the process must stop."""

    upgrade_report: UpgradeReport | None = None
    """What this open did to upgrade the catalog; None where there was nothing to upgrade."""

    @abstractmethod
    def transaction(self) -> Transaction:
        """A transaction on what is in memory; `TransactionInProgress` when one is open."""

    @abstractmethod
    def commit_transaction(self, tx: Transaction) -> None:
        """Make the changes durable and visible, all or none; the transaction is closed either way.

        Raises:
            Fenced: another process has taken over.
            FenceRegressed: the store was restored from an older state.
            CatalogOutOfSync: the contents changed since the transaction began; sync and do it again.
            UniquenessViolation: two objects would share what must be unique; nothing happened.
            Indeterminate: whether it happened is unknown; the next call finds out what the store holds.
        """

    @abstractmethod
    def confirm_leadership(self) -> None:
        """Ask the store whether this process may still write.

        Raises `Fenced`, `FenceRegressed`, or `CatalogOutOfSync` when somebody changed the contents without
        taking over.
        """

    @abstractmethod
    def fence_guard(self) -> Prepared:
        """The condition that this process may still write, for a `multi_write` on other shards.

        It holds for the catalog's upper as it is now: `UpperMismatch` of the catalog's shard says that
        somebody committed since, which may be a fence: ask again. Raises as `confirm_leadership`, but takes
        contents that others changed as they are.
        """

    @abstractmethod
    def dangerous_edit(self, collection: Collection[K, V], key: K, value: V | None) -> V | None:
        """Insert, replace or (`value` None) delete any object but the fence token, in one commit.

        For repairs by hand (`debug`): it also changes what is append-only, and reserved config. Gives the
        value that was there, None where there was none.
        """


class OpenableCatalog(ABC):
    """A catalog that is not open: what can be asked of it at any version of its format."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the catalog is, or will be, as messages say it: on persist its shard."""

    @abstractmethod
    def is_initialized(self) -> bool:
        """Whether it has ever been opened for writing."""

    @abstractmethod
    def fence_token(self) -> FenceToken | None:
        """The durable token; None before the first open."""

    def epoch(self) -> int | None:
        """The durable epoch; None before the first open."""
        token = self.fence_token()
        return None if token is None else token.epoch

    def deploy_generation(self) -> int | None:
        """The durable deploy generation; None before the first open."""
        token = self.fence_token()
        return None if token is None else token.deploy_generation

    @abstractmethod
    def config(self, key: str) -> int | None:
        """A value of the config."""

    @abstractmethod
    def dump(self, as_of: int | None = None) -> str:
        """As `ReadOnlyCatalog.dump`; `Uninitialized` when there is nothing."""

    def dump_lines(self, as_of: int | None = None) -> Iterator[str]:
        """`dump` piece by piece, for one that is big; raises what `dump` does, when it is read."""
        yield self.dump(as_of)

    @abstractmethod
    def check_open(self) -> None:
        """Whether `open` would succeed, changing nothing; raises what it would, and `Uninitialized`."""

    @abstractmethod
    def check_takeover(self) -> None:
        """Whether an open for writing would be refused whatever the contents are, changing nothing.

        Raises `LinkedElsewhere`, `LinkConflict`, `NeedsPersist`, `NotSourceOfTruth`, `MigrationInProgress`.
        """

    @abstractmethod
    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        """Write the initial objects if there are none; False when there are. Fences nobody."""

    @abstractmethod
    def raise_fence(
        self, at_least: int, *, deploy_generation: int | None = None, holder: str, purpose: str
    ) -> FenceToken:
        """Make the durable epoch `at_least`, and the deploy generation, if it is given; neither is lowered.

        After a restore of an older store (`FenceRegressed`), so that no process that ran before it can go on.
        At any version of the format. Gives the durable token; one that is high enough stays as it is. Raises
        `Uninitialized`.
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
        """Put contents into the catalog by one append of the differences and a new fence token.

        A catalog that isn't initialized holds exactly `rows` afterwards; so does any with `exact`, at
        whatever version it was. Otherwise nothing goes back that must not: append-only objects are only
        added, id allocators and timestamps keep the greater value, reserved config stays. Fence tokens among
        `rows` are ignored. `deploy_generation` is by default the durable one. With
        `rehearse` nothing is written, and neither holder nor purpose are needed.

        Raises `BadInput` and changes nothing when `rows` aren't a whole catalog, or hold an append-only
        object that is there with another value. With `only_new`, `CatalogOutOfSync` where the catalog is
        initialized, perhaps by somebody who was faster.
        """

    @abstractmethod
    def sizes(self) -> Mapping[str, Size]:
        """How many rows and bytes there are by the name of the object type, at any version; read in full."""

    @abstractmethod
    def kept_dumps(self) -> list[Kept]:
        """The times before upgrades that are kept readable, each with its version.

        `dump(as_of=time)` gives the catalog as a Holdfast of that version dumps it, and can load it.
        """

    @abstractmethod
    def release_dump(self, version: int) -> None:
        """Let go of what is kept for a version; `BadInput` where there is nothing."""

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
        """Open it. `holder` and `purpose` tell people who writes and why; WRITABLE needs both.

        `bootstrap` is used by the first WRITABLE open only. A catalog of an older version is upgraded by
        WRITABLE, in memory by SAVEPOINT. Raises `Uninitialized` and `UpgradeNeeded` (READ_ONLY), `Fenced`
        for a deploy generation below the durable one, `VersionTooNew`, `Deprecated`, and for what can't be
        upgraded `CorruptBlob` and `UniquenessViolation`, before anything is changed.
        """
