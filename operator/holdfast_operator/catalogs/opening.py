"""Opening a catalog as its resource asks for it: the steps before this process writes to it. Blocking.

Invariants
- What is refused has changed nothing durable: each check comes before the first write.
- A store that another Catalog writes, or whose database process another Catalog observes, isn't taken over
  from it, whatever its URLs are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

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
from holdfast.catalog.upgradecheck import check_upgrade
from holdfast.errors import CorruptBlob, HoldfastError, NoLocation, StorageError
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

Credentials = Mapping[str, str]
_NO_CREDENTIALS: Credentials = MappingProxyType({})
HasCatalog = Callable[[str, str], bool]
"""Whether a Catalog of this name, `namespace/name`, asks for the catalog of this organization."""


def no_others(_catalog: str, _organization_id: str) -> bool:
    """For whoever knows of no other Catalogs."""
    return False


@dataclass(frozen=True, slots=True)
class Observer:
    """An Observed Catalog of the same organization, and how it looks at its store."""

    opening: Opening
    credentials: Credentials = field(default_factory=dict, repr=False)
    older: bool = True
    """Whether it is older than who asks."""

    @property
    def name(self) -> str:
        """It as `namespace/name`."""
        return str(owner_of(self.opening.purpose))


def check_owner(
    client: PersistClient,
    closed: OpenableCatalog,
    opening: Opening,
    has_catalog: HasCatalog = no_others,
    observers: Sequence[Observer] = (),
) -> None:
    """Raise `OwnedByAnother` where a durable token is another Catalog's that is still there.

    Its URLs may name the same store in ways that only the store can tell: other names of a host, links. What
    isn't ours by its tokens may be a database process's: `observers` are asked whether they look at the same
    store. Raises `ObservedByAnother` where one does, `OwnerUnknown` where that can't be told of what somebody
    wrote.
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
            continue  # Nobody wrote anything yet: the older one is to.
        try:
            is_same = _looks_at(observer, client, tokens if opening.stash is not None else frozenset())
        except StorageError as error:
            if tokens:
                raise OwnerUnknown(observer.name) from error
            continue
        if is_same:
            raise ObservedByAnother(observer.name)


def _looks_at(observer: Observer, client: PersistClient, tokens: frozenset[FenceToken]) -> bool:
    """Whether an observer has the location of `client`, or a stash with one of `tokens`.

    What it can't open for another reason than that its store fails, it doesn't observe.
    """
    try:
        with connect(observer.opening.storage, mode="read") as theirs:
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
    """The durable tokens of a catalog: two where its stores aren't linked, or one was opened alone."""
    parts = [closed.of(each) for each in Backend] if isinstance(closed, LinkedCatalog) else [closed]
    return frozenset(token for each in parts if (token := each.fence_token()) is not None)


def is_initialized(opening: Opening, credentials: Credentials = _NO_CREDENTIALS) -> bool:
    """Whether there is a catalog; nothing is made to find out."""
    try:
        client = connect(opening.storage, mode="read")
    except NoLocation:
        if opening.stash is None:
            return False
        # It may be in the stash, which is asked together with a location that is made for it.
        client = connect(opening.storage)
    with client:
        return closed_catalog(client, opening, credentials, read_only=True).is_initialized()


def _check_epoch(opening: Opening, credentials: Credentials) -> None:
    """Raise `EpochWentBack` where the epoch is below one that it had; nothing is made to find out."""
    if not opening.least_epoch:
        return
    try:
        found = durable_state(opening, credentials)
    except NoLocation:
        if opening.stash is not None:
            return  # The other store is asked whether this one may be missing.
        found = nothing_durable(opening)
    if found.epoch is None and opening.existing_only:
        return
    if (found.epoch or 0) < opening.least_epoch:
        raise EpochWentBack(found, opening.least_epoch)


def open_writable(
    opening: Opening,
    credentials: Credentials = _NO_CREDENTIALS,
    has_catalog: HasCatalog = no_others,
    observers: Sequence[Observer] = (),
) -> tuple[PersistClient, Catalog, Start, InTwo | None]:
    """Open a catalog for writing; a new one is initialized first, or filled with what is to be restored.

    `credentials` are those of its stash; `has_catalog` and `observers` are asked for others that may have it.

    Raises `NothingThere` where it is new and isn't to be made, `UnknownLocation` for storage that has no
    meaning, `StoreUnreachable`, `RestoreFailed`, `Fenced` where the durable deploy generation is greater,
    `EpochWentBack`; as `check_owner`.
    """
    _check_epoch(opening, credentials)
    rows = None
    if opening.restore is not None and not opening.existing_only and not is_initialized(opening, credentials):
        rows = prepare(opening.restore, opening.organization_id, opening.holder)
    client = connect(opening.storage)
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
        # One that was just restored isn't anybody's yet: what it was made from is kept where it is.
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
        # The token is in both stores: where the truth is now it stays as long as the handle isn't fenced.
        link = in_two(closed)
    except BaseException:
        client.close()
        raise
    return client, catalog, start, link


def _check_current(closed: OpenableCatalog) -> None:
    """Raise `UpgradePending` where opening it would upgrade it."""
    version = closed.config(USER_VERSION)
    if version is None or not MIN_VERSION <= version < CATALOG_VERSION:
        return
    raise UpgradePending(
        f"the catalog has format version {version}, this operator writes version {CATALOG_VERSION}",
        hint=f'to upgrade it set the annotation {ANNOTATION_APPROVE_UPGRADE} to "{CATALOG_VERSION}", or '
        "spec.upgradePolicy to Automatic",
    )


def try_upgrade(opening: Opening, credentials: Credentials = _NO_CREDENTIALS) -> str:
    """What an upgrade-check of a catalog says, for people: it is upgraded in memory, and read whole.

    Raises `StorageError` where the store fails, which says nothing about the catalog.
    """
    with connect(opening.storage, mode="read") as client:
        try:
            found = check_upgrade(closed_catalog(client, opening, credentials, read_only=True))
        except HoldfastError as error:
            if isinstance(error, StorageError) and not isinstance(error, CorruptBlob):
                raise
            return f"an upgrade-check refuses it: {error}"
    return f"an upgrade-check of its {found.objects} objects passes"


def durable_state(opening: Opening, credentials: Credentials = _NO_CREDENTIALS) -> Durable:
    """What is known of a catalog that can't be opened."""
    with connect(opening.storage, mode="read") as client:
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
    """What is known of a catalog whose location isn't there."""
    return Durable(opening.organization_id, catalog_shard_id(opening.organization_id), None, None, None)


def is_linked(opening: Opening) -> bool:
    """Whether what is on persist says that it is one of two stores."""
    with connect(opening.storage, mode="read") as client:
        return persist_catalog(client, opening.organization_id).config(LINK) is not None


def preflight(opening: Opening, credentials: Credentials = _NO_CREDENTIALS) -> None:
    """Open a catalog in memory only, with a client of its own: nothing is changed, nobody is fenced.

    Raises what opening it for writing would.
    """
    with connect(opening.storage) as client:
        closed = closed_catalog(client, opening, credentials)
        savepoint = closed.open(
            OpenMode.SAVEPOINT,
            deploy_generation=opening.deploy_generation,
            holder=opening.holder,
            purpose=f"preflight of the {opening.purpose}",
        )
        savepoint.close()
