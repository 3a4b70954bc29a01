"""Reads what catalog and storage hold of a StorageCollection. Blocking. Writes nothing."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import ReadOnlyCatalog, format_id
from holdfast.catalog.objects.registry import DATABASES, ITEMS, SCHEMAS
from holdfast.collections import CollectionInfo, CollectionState, JobRecord, RenditionInfo, StorageController
from holdfast.collections.capabilities import CollectionHold
from holdfast.collections.due_steps import Situation, StepKind, due
from holdfast.collections.frontiers import look_together
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.errors import CLOSED, BadInput, CollectionNotFound
from holdfast.persist import PersistClient
from holdfast.persist.state.inspect import ShardInfo
from holdfast_operator.collections.facts import (
    Basis,
    CollectionFacts,
    CollectionLook,
    FoundItem,
    HoldFacts,
    ItemName,
    NoSuchSchema,
    RenditionFacts,
    watched_shards,
)

K = TypeVar("K")


def collection_id(organization_id: str, item_id: str) -> str:
    """Returns the id of the collection that belongs to a catalog's item."""
    return str(uuid.uuid5(uuid.UUID(organization_id), item_id))


def find_item(catalog: ReadOnlyCatalog, name: ItemName) -> FoundItem | None:
    """Returns a collection's item, or None if it doesn't exist.

    Raises `NoSuchSchema` if the database or schema is missing, and `BadInput` if an item of another type has
    the name.
    """
    database = catalog.find(DATABASES, pb.DatabaseValue(name=name.database))
    if database is None:
        raise NoSuchSchema(f"the catalog has no database '{name.database}'")
    schema = catalog.find(SCHEMAS, pb.SchemaValue(database_id=database.key.id, name=name.schema))
    if schema is None:
        raise NoSuchSchema(f"the catalog has no schema '{name.schema}' in database '{name.database}'")
    item = catalog.find(ITEMS, pb.ItemValue(schema_id=schema.key.id, name=name.name))
    if item is None:
        return None
    if item.value.type != pb.ObjectType.OBJECT_TYPE_COLLECTION:
        raise BadInput(f"{name} exists in the catalog, but is not a collection")
    return FoundItem(format_id(item.key.id), item.value.definition)


def look_at(
    client: PersistClient,
    controller: StorageController,
    organization_id: str,
    item: FoundItem | None,
) -> CollectionLook:
    """Returns what storage holds of an item's collection."""
    if item is None:
        return CollectionLook()
    id_ = collection_id(organization_id, item.id)
    while True:
        try:
            info, jobs, uppers = controller.read_together(id_)
        except CollectionNotFound:
            return CollectionLook(item.id, id_, definition=item.definition)
        gone = info.state is CollectionState.DROPPED
        shards = {} if gone else {shard: _known(client, shard) for shard in watched_shards(info)}
        # If another thread has read a newer version since, the basis would hide what these uppers miss.
        if all(known.upper == uppers[shard] for shard, known in shards.items()):
            break
    basis = _basis(info, jobs, shards)
    facts = _collection(controller, info, uppers, shards)
    return CollectionLook(item.id, id_, facts, item.definition, jobs=jobs, basis=basis)


def changed(
    client: PersistClient, controller: StorageController, looks: Mapping[K, Basis]
) -> tuple[tuple[K, ...], Mapping[K, Basis]]:
    """Returns the keys of the collections that have changed in the store since their basis was read.

    Also returns the new basis of each collection whose shards have new versions that change nothing. The next
    call needn't look into these versions again.
    """
    infos = {info.collection_id: info for info in controller.list_collections()}
    jobs = defaultdict[str, list[JobRecord]](list)
    for job in controller.jobs():
        jobs[job.object_id].append(job)
    shards = {key: basis.shards for key, basis in looks.items()}
    versions = client.versions([shard for each in shards.values() for shard in each])
    new, same = list[K](), dict[K, Basis]()
    for key, basis in looks.items():
        id_, info = basis.collection_id, infos.get(basis.collection_id)
        now = tuple(versions[shard] for shard in shards[key])
        if (info is not basis.info and info != basis.info) or tuple(jobs.get(id_, ())) != basis.jobs:
            new.append(key)
        elif now != basis.versions:
            if tuple(_seen(client.known(shard)) for shard in shards[key]) != basis.seen:
                new.append(key)
            else:
                same[key] = replace(basis, versions=now)
    return tuple(new), same


def changed_items(catalog: ReadOnlyCatalog, looks: Mapping[K, tuple[ItemName, FoundItem]]) -> tuple[K, ...]:
    """Returns the keys of the collections whose items in the catalog have changed, or are gone."""

    def is_same(name: ItemName, before: FoundItem) -> bool:
        try:
            return find_item(catalog, name) == before
        except BadInput:
            return False

    return tuple(key for key, (name, before) in looks.items() if not is_same(name, before))


def _known(client: PersistClient, shard: str) -> ShardInfo:
    """Returns the version of a shard that was just read. Reads it again only if it didn't exist."""
    return client.known(shard) or client.inspect(shard)


def _basis(info: CollectionInfo, jobs: tuple[JobRecord, ...], shards: Mapping[str, ShardInfo]) -> Basis:
    versions = tuple(shard.seqno for shard in shards.values())
    shown = info if shards else None
    return Basis(info.collection_id, shown, jobs, versions, tuple(map(_seen, shards.values())))


def _seen(shard: ShardInfo | None) -> int:
    """Returns a hash of what is shown of a shard. Upkeep and heartbeats don't change the hash."""
    if shard is None:
        return 0
    holds = sorted((hold.kind, hold.purpose, hold.since, hold.hostname) for hold in shard.holds)
    frontiers = shard.since, shard.upper, shard.finalized
    return hash((frontiers, shard.rows, shard.size_bytes, shard.schemas, tuple(holds)))


def _collection(
    controller: StorageController,
    info: CollectionInfo,
    uppers: Mapping[str, int],
    shards: Mapping[str, ShardInfo],
) -> CollectionFacts:
    """Returns what storage holds of a collection."""
    if info.dropped:
        # A collection whose drop waits for readers can't be opened, but its data still exists.
        id_, gone = info.collection_id, info.state is CollectionState.DROPPED
        erased = gone and controller.is_erased(id_)
        return CollectionFacts(id_, info.name, info.schema, info.shards, dropped=gone, erased=erased)
    return _facts(controller, info, uppers, shards)


def _facts(
    controller: StorageController,
    info: CollectionInfo,
    uppers: Mapping[str, int],
    shards: Mapping[str, ShardInfo],
) -> CollectionFacts:
    view = look_together(info, uppers)
    found = tuple(_rendition(info, each, shards) for each in info.renditions)
    metadata = shards[info.metadata_shard]
    since = metadata.since
    holds: tuple[CollectionHold, ...] = ()
    # A collection that has always had one rendition has no upkeep due and no kept renditions.
    if info.holding.held_from > 0:
        holds = controller.holds(info.collection_id)
    filled = {each.id: each.upper for each in found if not each.gone}
    steps = due(Situation(info, {**filled, **view.uppers}, since, view.upper, holds)).steps
    return CollectionFacts(
        collection_id=info.collection_id,
        name=info.name,
        schema=info.schema,
        shards=len(info.holding.shards),
        dropped=False,
        comments=info.comments,
        since=since,
        upper=view.upper,
        needed=_needed([metadata]),
        active_rendition=info.holding.id,
        renditions=found,
        holds=tuple(_hold(info, each) for each in holds if each.keeps and not each.own),
        fed=info.holding.pipeline is not None,
        due=tuple(str(step) for step in steps if step.kind is not StepKind.DIFFERENCE),
        lacks_difference=any(step.kind is StepKind.DIFFERENCE for step in steps),
    )


def _rendition(
    info: CollectionInfo, rendition: RenditionInfo, known: Mapping[str, ShardInfo]
) -> RenditionFacts:
    shards = [] if rendition.dropped else [known[shard] for shard in rendition.shards]
    return RenditionFacts(
        id=rendition.id,
        shards=len(shards),
        since=max((shard.since for shard in shards), default=0),
        upper=min((shard.upper for shard in shards), default=0),
        rows=sum(shard.rows for shard in shards),
        bytes=sum(shard.size_bytes + shard.pending_size_bytes for shard in shards),
        state=rendition.state,
        recipe=rendition.recipe,
        is_fed=rendition.is_fed,
        made_from=rendition.made_from,
        hash_columns=info.names.shown_columns(rendition.hash_columns),
        held_from=rendition.held_from,
        held_to=rendition.held_to,
        suspect=rendition.suspect,
        start=rendition.start,
        oldest=min((shard.since for shard in shards), default=CLOSED),
        needed=_needed(shards),
        staged=min((shard.pending for shard in shards), default=0),
    )


def _needed(shards: Sequence[ShardInfo]) -> int:
    """Returns the earliest time at which something other than the retention holds the shards."""
    holds = (hold for shard in shards for hold in shard.holds)
    return min(
        (hold.since for hold in holds if (hold.kind, hold.purpose) != ("critical", RETENTION_PURPOSE)),
        default=CLOSED,
    )


def _hold(info: CollectionInfo, hold: CollectionHold) -> HoldFacts:
    # Use the recorded time instead of an age, which would differ at each reconciliation.
    taken = [each.acquired_ms for each in info.holders if each.purpose == hold.purpose and not each.writes]
    return HoldFacts(
        purpose=hold.purpose,
        since=hold.since or 0,
        keeps=hold.keeps,
        durable=hold.durable,
        who=hold.who,
        host=hold.host,
        taken_ms=taken[0] if taken and hold.durable else 0,
    )
