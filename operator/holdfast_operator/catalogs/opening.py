"""Opens a catalog as its resource requests: the steps before this process writes to it. Blocking.

Invariants
- If the open is refused, it has changed nothing in the store: each check comes before the first write.
- If another Catalog writes to the store, or observes a database process that does, the catalog is not taken
  over from it, even if the URLs of the two Catalogs differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.catalog import (
    CATALOG_VERSION,
    MIN_VERSION,
    Catalog,
    FenceToken,
    OpenableCatalog,
    OpenMode,
    catalog_shard_id,
    persist_catalog,
)
from holdfast.catalog.config import LINK, USER_VERSION
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.upgrade_check import check_upgrade
from holdfast.errors import CorruptBlob, HoldfastError, NoLocation, ShardFinalized, StorageError
from holdfast.persist import PersistClient
from holdfast_operator.api.names import ANNOTATION_APPROVE_UPGRADE
from holdfast_operator.catalogs.facts import (
    Durable,
    EpochWentBack,
    NothingThere,
    ObservedByAnother,
    Opening,
    OwnedByAnother,
    OwnerUnknown,
    Start,
    UpgradePending,
    owner_of,
)
from holdfast_operator.catalogs.linking import InTwo, closed_catalog, connect, in_two, linked_by
from holdfast_operator.catalogs.restore import commit, prepare
from holdfast_operator.places.credentials import NO_CREDENTIALS, Credentials
from holdfast_operator.places.storage import CatalogSource

HasCatalog = Callable[[str, str], bool]
"""Returns whether the Catalog `namespace/name` exists and names this organization."""


def no_others(_catalog: str, _organization_id: str) -> bool:
    """A `HasCatalog` that knows no other Catalogs."""
    return False


@dataclass(frozen=True, slots=True)
class Observer:
    """An Observed Catalog of the same organization, and how it opens its store."""

    opening: Opening
    credentials: Credentials = field(default=NO_CREDENTIALS, repr=False)
    older: bool = True
    """Whether it is older than the Catalog that is being opened."""

    @property
    def name(self) -> str:
        """The Catalog as `namespace/name`."""
        return str(owner_of(self.opening.purpose))


def check_owner(
    client: PersistClient,
    closed: OpenableCatalog,
    opening: Opening,
    has_catalog: HasCatalog = no_others,
    observers: Sequence[Observer] = (),
) -> None:
    """Checks that no other Catalog writes or observes this store.

    Raises `OwnedByAnother` if a stored token belongs to another Catalog that still exists. Two Catalogs can
    name the same store by different URLs, for example by an alias of a host or a symbolic link. So only the
    store can show that they are the same.

    A catalog without a token of this Catalog may belong to a database process. So each of `observers` is
    checked: raises `ObservedByAnother` if it reads the same store, and `OwnerUnknown` if its store can't be
    reached and this store already has a token.
    """
    tokens = _tokens(closed)
    owners = {owner_of(token.purpose) for token in tokens}
    if owners == {owner_of(opening.purpose)}:
        return
    for owner in owners - {None, owner_of(opening.purpose)}:
        if owner is not None and has_catalog(owner, opening.organization_id):
            raise OwnedByAnother(owner)
    for observer in observers:
        if not tokens and not observer.older:
            continue  # Nobody has written anything yet, and the older Catalog takes precedence.
        try:
            is_same = _looks_at(observer, client, tokens if opening.stash is not None else frozenset())
        except StorageError as error:
            if tokens:
                raise OwnerUnknown(observer.name) from error
            continue
        if is_same:
            raise ObservedByAnother(observer.name)


def _looks_at(observer: Observer, client: PersistClient, tokens: frozenset[FenceToken]) -> bool:
    """Returns whether an observer has the location of `client`, or a stash with one of `tokens`.

    Raises `StorageError` if its store fails. If it can't open the store for another reason, it doesn't
    observe it.
    """
    try:
        with connect(observer.opening.storage, observer.credentials, mode="read") as theirs:
            if theirs.location_id == client.location_id:
                return True
            if observer.opening.stash is None or not tokens:
                return False
            closed = closed_catalog(theirs, observer.opening, observer.credentials, read_only=True)
            return not tokens.isdisjoint(_tokens(closed))
    except NoLocation:
        return False
    except StorageError:
        raise
    except HoldfastError:
        return False


def _tokens(closed: OpenableCatalog) -> frozenset[FenceToken]:
    """Returns the stored tokens of a catalog: two if its stores aren't linked or if one was opened alone."""
    parts = [closed.of(each) for each in Backend] if isinstance(closed, LinkedCatalog) else [closed]
    return frozenset(token for each in parts if (token := each.fence_token()) is not None)


def is_initialized(opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> bool:
    """Returns whether the catalog exists. Creates nothing but the location of a catalog that has a stash."""
    try:
        client = connect(opening.storage, credentials, mode="read")
    except NoLocation:
        if opening.stash is None:
            return False
        # The catalog may be in the stash. Reading that needs a location too, so this creates one.
        client = connect(opening.storage, credentials)
    with client:
        return closed_catalog(client, opening, credentials, read_only=True).is_initialized()


def _check_epoch(opening: Opening, credentials: Credentials) -> None:
    """Raises `EpochWentBack` if the stored epoch is below an earlier one. Creates nothing."""
    if not opening.least_epoch:
        return
    try:
        found = durable_state(opening, credentials)
    except NoLocation:
        if opening.stash is not None:
            return  # The stash knows whether the location may be missing.
        found = nothing_durable(opening)
    if found.epoch is None and opening.existing_only:
        return
    if (found.epoch or 0) < opening.least_epoch:
        raise EpochWentBack(found, opening.least_epoch)


def open_writable(
    opening: Opening,
    credentials: Credentials = NO_CREDENTIALS,
    has_catalog: HasCatalog = no_others,
    observers: Sequence[Observer] = (),
) -> tuple[PersistClient, Catalog, Start, InTwo | None]:
    """Opens a catalog for writing. A new catalog is initialized first, or filled from `opening.restore`.

    `has_catalog` and `observers` find other Catalogs that may own it.

    Raises `NothingThere` if the catalog doesn't exist and must not be created, `UnknownLocation` if the
    storage can't be opened at all, `StoreUnreachable`, `RestoreFailed`, `Fenced` if the stored deploy
    generation is greater, `EpochWentBack`, and everything that `check_owner` raises.
    """
    _check_epoch(opening, credentials)
    rows = None
    if opening.restore is not None and not opening.existing_only and not is_initialized(opening, credentials):
        # A dump has no credentials of its own. It is read with those of the Catalog.
        theirs = credentials.source if isinstance(opening.restore, CatalogSource) else credentials.storage
        rows = prepare(opening.restore, opening.organization_id, opening.holder, theirs)
    client = connect(opening.storage, credentials)
    try:
        closed = closed_catalog(client, opening, credentials)
        start = Start()
        check_owner(client, closed, opening, has_catalog, observers)
        if opening.existing_only and not closed.is_initialized():
            raise NothingThere(f"{opening.storage} has no catalog of {opening.organization_id}")
        if rows is not None and commit(
            closed, rows, deploy_generation=opening.deploy_generation, holder=opening.holder
        ):
            start = Start(restored=f"{len(rows)} rows of {opening.restore}")
        # A catalog that was just restored needs no approval: its source still has the old format.
        if not opening.upgrade and not start.restored:
            _check_current(closed)
        catalog = closed.open(
            OpenMode.WRITABLE,
            deploy_generation=opening.deploy_generation,
            holder=opening.holder,
            purpose=opening.purpose,
            bootstrap=opening.bootstrap,
        )
        if (report := catalog.upgrade_report) is not None:
            kept = next((each for each in closed.kept_dumps() if each.version == report.source), None)
            start = replace(start, upgraded=report, kept=kept)
        # The token is in both stores, so the source of truth can't move unless this handle is fenced.
        link = in_two(closed)
    except ShardFinalized:
        with client:
            # The deletion of this catalog may have been interrupted before its data was deleted.
            if opening.existing_only:
                client.erase(catalog_shard_id(opening.organization_id))
        raise
    except BaseException:
        client.close()
        raise
    return client, catalog, start, link


def _check_current(closed: OpenableCatalog) -> None:
    """Raises `UpgradePending` if opening the catalog would upgrade it."""
    version = closed.config(USER_VERSION)
    if version is None or not MIN_VERSION <= version < CATALOG_VERSION:
        return
    raise UpgradePending(
        f"the catalog has format version {version}, this operator writes version {CATALOG_VERSION}",
        hint=f'to upgrade it, set the annotation {ANNOTATION_APPROVE_UPGRADE} to "{CATALOG_VERSION}", or '
        "spec.upgradePolicy to Automatic",
    )


def try_upgrade(opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> str:
    """Upgrades and reads the whole catalog in memory, and returns the result as a sentence.

    Raises `StorageError` if the store fails, because then nothing is known about the catalog.
    """
    with connect(opening.storage, credentials, mode="read") as client:
        try:
            found = check_upgrade(closed_catalog(client, opening, credentials, read_only=True))
        except HoldfastError as error:
            if isinstance(error, StorageError) and not isinstance(error, CorruptBlob):
                raise
            return f"an upgrade check fails: {error}"
    return f"an upgrade check of its {found.objects} objects passes"


def durable_state(opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> Durable:
    """Returns what can be read of a catalog without opening it."""
    with connect(opening.storage, credentials, mode="read") as client:
        closed = closed_catalog(client, opening, credentials, read_only=True)
        return Durable(
            opening.organization_id,
            catalog_shard_id(opening.organization_id),
            closed.config(USER_VERSION),
            closed.epoch(),
            closed.deploy_generation(),
            **linked_by(closed),
        )


def nothing_durable(opening: Opening) -> Durable:
    """Returns the state of a catalog whose location doesn't exist."""
    return Durable(opening.organization_id, catalog_shard_id(opening.organization_id), None, None, None)


def is_linked(opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> bool:
    """Returns whether the persist store records that it is linked to a stash."""
    with connect(opening.storage, credentials, mode="read") as client:
        return persist_catalog(client, opening.organization_id).config(LINK) is not None


def preflight(opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> None:
    """Opens a catalog in memory, with its own client. It changes nothing and fences nobody.

    Raises the errors that opening it for writing would raise.
    """
    with connect(opening.storage, credentials) as client:
        closed = closed_catalog(client, opening, credentials)
        savepoint = closed.open(
            OpenMode.SAVEPOINT,
            deploy_generation=opening.deploy_generation,
            holder=opening.holder,
            purpose=f"preflight of the {opening.purpose}",
        )
        savepoint.close()
