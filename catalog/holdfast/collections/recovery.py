"""What a recovery leaves of the collections of a location, and how to make them usable again.

Each shard comes back at a version of its own. So the shards of a collection may have different uppers, which
no reader accepts. `mend` seals the shards that lag, without updates, up to the greatest upper. So no row that
came back is given up, and the times in between lack the rows that other shards lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.catalog.stores.persist import SCHEMA as CATALOG_SCHEMA
from holdfast.collections.controller import StorageController
from holdfast.collections.metadata import holder
from holdfast.collections.record.codec import controller_shard_id
from holdfast.collections.record.spec import CollectionInfo, CollectionState
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, Prepared
from holdfast.persist.handles.names import names_shard_id
from holdfast.persist.handles.read import ReadHandle

UNNAMED_CATALOG = "a catalog"
"""What a catalog's shard is for. The shard does not contain the id of its organization."""

_PURPOSE = "recovery"


@dataclass(frozen=True, slots=True)
class RecoveredCollection:
    """A collection as its recovered shards contain it.

    It is complete below `complete_to`. Some of its shards have updates below `upper`, the greatest upper of
    all. So the times from `complete_to` up to `upper` lack the rows that the other shards lost. What was
    written at `upper` and later is lost, if there was anything. `lagging` are the shards that `mend` seals.
    `problem` says why the collection can't be used; then nothing is sealed. `shards` are the metadata shard
    and the data shards of the current rendition.
    """

    name: str
    collection_id: str
    complete_to: int
    upper: int
    lagging: tuple[str, ...] = ()
    problem: str = ""
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recovered:
    """The collections of a location by name, and the purpose of each shard."""

    collections: tuple[RecoveredCollection, ...]
    shards: dict[str, str]
    problem: str = ""


def look_at_recovered(client: PersistClient) -> Recovered:
    """Read all collections and names. `problem` says why they can't be read. Writes nothing."""
    infos, shards, problem = _recorded(client)
    found = tuple(_look_at(client, info) for info in infos if info.state is CollectionState.ACTIVE)
    return Recovered(found, shards, problem)


def purposes(client: PersistClient) -> dict[str, str]:
    """Return what each shard is for, as far as the records and names can be read. Writes nothing."""
    return _recorded(client)[1]


def _recorded(client: PersistClient) -> tuple[Sequence[CollectionInfo], dict[str, str], str]:
    """Return the recorded collections, what each shard is for, and why something can't be read."""
    shards = {
        controller_shard_id(client.location_id): "records of collections",
        names_shard_id(client.location_id): "names of shards",
    }
    problems: list[str] = []
    try:
        shards |= {shard: f"shard {name}" for name, shard in client.names().items()}
    except HoldfastError as error:
        problems.append(f"the names of shards can't be read: {error}")
    infos: Sequence[CollectionInfo] = ()
    try:
        with StorageController(client, who=_PURPOSE) as controller:
            infos = controller.list_collections()
    except HoldfastError as error:
        problems.append(f"the records of collections can't be read: {error}")
    for info in infos:
        shards |= _purposes(info)
    for shard in client.shards():
        if shard not in shards and _is_catalog(client, shard):
            shards[shard] = UNNAMED_CATALOG
    return infos, shards, "; ".join(problems)


def _is_catalog(client: PersistClient, shard: str) -> bool:
    try:
        schemas = client.session.machine(shard).refresh().schemas.values()
    except HoldfastError:
        return False
    return any(schema.codec == CATALOG_SCHEMA.codec for schema in schemas)


def mend(client: PersistClient, found: RecoveredCollection) -> None:
    """Seal the lagging shards of a collection up to its upper, in one commit.

    Raises:
        UpperMismatch: somebody wrote to the collection meanwhile. Call `look_at_recovered` again.
    """
    seals: list[Prepared] = []
    for shard in found.lagging:
        state = client.session.existing(shard).state
        writer = client.writer(shard, state.schema, purpose=_PURPOSE)
        seals.append(writer.prepare_append(None, state.upper, found.upper))
    if seals and not found.problem:
        client.multi_write(seals)


def _purposes(info: CollectionInfo) -> dict[str, str]:
    purposes = {info.metadata_shard: f"{info.name}: metadata"}
    for rendition in info.live:
        count = len(rendition.shards)
        for number, shard in enumerate(rendition.shards, 1):
            purposes[shard] = f"{info.name}: {rendition.id}, {number} of {count}"
        if rendition.pipeline is not None:
            purposes[rendition.pipeline.remap] = f"{info.name}: {rendition.id}, remap"
            purposes[rendition.pipeline.errors] = f"{info.name}: {rendition.id}, errors"
        if rendition.difference_shard:
            purposes[rendition.difference_shard] = f"{info.name}: {rendition.id}, difference"
    return purposes


def _look_at(client: PersistClient, info: CollectionInfo) -> RecoveredCollection:
    data = info.holding.written_shards
    uppers = client.recent_uppers([info.metadata_shard, *data])
    lost = [shard for shard in uppers if not client.session.machine(shard).state.exists]
    complete_to, upper = (pick(uppers[shard] for shard in data) for pick in (min, max))
    if lost:
        problem = f"{len(lost)} of its {len(uppers)} shards can't be recovered, such as {lost[0]}"
        return RecoveredCollection(info.name, info.collection_id, 0, upper, (), problem, tuple(uppers))
    problem = _other_holder(client, info, uppers[info.metadata_shard])
    if not problem and complete_to < upper and info.holding.pipeline is not None:
        problem = (
            f"its shards came back at different times ({complete_to} to {upper}), and its pipeline can't tell"
            " what is missing: create a rendition of recipe SOURCE, and hand the collection over to it"
        )
    lagging = [shard for shard in (info.metadata_shard, *data) if uppers[shard] < upper]
    return RecoveredCollection(
        info.name, info.collection_id, complete_to, upper, tuple(lagging), problem, tuple(uppers)
    )


def _other_holder(client: PersistClient, info: CollectionInfo, upper: int) -> str:
    """How the metadata shard contradicts the record: only one of the two knows of a handover. Or empty."""
    machine = client.session.machine(info.metadata_shard)
    try:
        held = (
            holder(info, ReadHandle(client.session, machine, None).snapshot(upper - 1).to_table())
            if upper
            else ""
        )
    except HoldfastError as error:
        return f"its metadata can't be read: {error}"
    if held != info.holding.id:
        return (
            f"its record says that rendition {info.holding.id} is current, its metadata shard says"
            f" {held or 'none'}"
        )
    return ""
