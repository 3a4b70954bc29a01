"""Opening a catalog as its resource asks for it: the steps before this process writes to it. Blocking.

Invariants
- What is refused has changed nothing durable: each check comes before the first write.
"""

from holdfast.durable import Catalog, OpenMode, persist_catalog
from holdfast.errors import BadInput, UnusablePath
from holdfast.persist import PersistClient
from holdfast_operator.reconcile.facts import NothingThere, Opening, UnknownLocation
from holdfast_operator.reconcile.storage import Storage


def connect(storage: Storage) -> PersistClient:
    """A client of a location. Raises `UnknownLocation` for URLs without a meaning, `StoreUnreachable`."""
    try:
        return PersistClient.open(storage.url, blob=storage.blob, consensus=storage.consensus)
    except UnusablePath:
        raise
    except BadInput as error:
        raise UnknownLocation(str(error), hint=error.hint) from error


def take_over(client: PersistClient, opening: Opening) -> Catalog:
    """Open a catalog for writing, initializing it where it is new.

    Raises `NothingThere` where it is new and isn't to be made, `Fenced` where the durable deploy generation
    is greater.
    """
    closed = persist_catalog(client, opening.organization_id)
    if opening.existing_only and not closed.is_initialized():
        raise NothingThere(f"{opening.storage} has no catalog of {opening.organization_id}")
    return closed.open(
        OpenMode.WRITABLE,
        deploy_generation=opening.deploy_generation,
        holder=opening.holder,
        purpose=opening.purpose,
        bootstrap=opening.bootstrap,
    )


def preflight(opening: Opening) -> None:
    """Open a catalog in memory only, with a client of its own: nothing is changed, nobody is fenced.

    Raises what opening it for writing would.
    """
    with connect(opening.storage) as client:
        closed = persist_catalog(client, opening.organization_id)
        savepoint = closed.open(
            OpenMode.SAVEPOINT,
            deploy_generation=opening.deploy_generation,
            holder=opening.holder,
            purpose=f"preflight of the {opening.purpose}",
        )
        savepoint.close()
