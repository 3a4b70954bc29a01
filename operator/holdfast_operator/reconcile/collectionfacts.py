"""What catalog and storage say about one StorageCollection. Blocking; it only reads."""

import uuid
from typing import Final

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import ReadOnlyCatalog, format_id
from holdfast.durable.registry import DATABASES, ITEMS, SCHEMAS
from holdfast.errors import BadInput, CollectionNotFound
from holdfast.persist import PersistClient
from holdfast.storage import CollectionInfo, CollectionState, JobState, StorageController
from holdfast_operator.reconcile.facts import (
    CollectionFacts,
    ItemName,
    Look,
    NoSuchSchema,
    RenditionFacts,
)

SNAPSHOT: Final = "snapshot"
"""The kind of a snapshot's JobRecord."""


def collection_id(organization_id: str, item_id: str) -> str:
    """The id of the collection that an item of a catalog stands for."""
    return str(uuid.uuid5(uuid.UUID(organization_id), item_id))


def find_item(catalog: ReadOnlyCatalog, name: ItemName) -> str | None:
    """The id of a collection's item; None where there is none.

    Raises `NoSuchSchema` where database or schema are missing, `BadInput` where the name is another type's.
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
        raise BadInput(f"{name} is in the catalog already, but is not a collection")
    return format_id(item.key.id)


def look_at(
    client: PersistClient,
    controller: StorageController,
    organization_id: str,
    item_id: str | None,
    request_id: str | None,
) -> Look:
    """What there is of the collection of an item, and of the snapshot `request_id`."""
    if item_id is None:
        return Look()
    id_ = collection_id(organization_id, item_id)
    facts = _collection(client, controller, id_)
    if facts is None:
        return Look(item_id, id_)
    jobs = [job for job in controller.jobs(id_) if job.kind == SNAPSHOT]
    done = [job for job in jobs if job.state is JobState.DONE]
    return Look(
        item_id,
        id_,
        facts,
        job=next((job for job in jobs if job.slot == request_id), None),
        last_snapshot=max(done, key=lambda job: job.finished_ms, default=None),
        running=tuple(job for job in jobs if job.state is JobState.RUNNING),
    )


def _collection(client: PersistClient, controller: StorageController, id_: str) -> CollectionFacts | None:
    """What there is of a collection; None where it was never created."""
    try:
        info = controller.describe(id_)
    except CollectionNotFound:
        return None
    if info.dropped:
        # One whose drop waits for readers can't be opened any more, but its data is still there.
        gone = info.state is CollectionState.DROPPED
        return CollectionFacts(info.collection_id, info.name, info.schema, info.shards, dropped=gone)
    return _facts(client, controller, info)


def _facts(client: PersistClient, controller: StorageController, info: CollectionInfo) -> CollectionFacts:
    frontiers = controller.frontiers(info.collection_id)
    renditions = []
    for rendition in info.live:
        shards = [client.inspect(shard) for shard in rendition.shards]
        renditions.append(
            RenditionFacts(
                id=rendition.id,
                shards=len(shards),
                since=max(shard.since for shard in shards),
                upper=min(shard.upper for shard in shards),
                rows=sum(shard.rows for shard in shards),
                bytes=sum(shard.size_bytes for shard in shards),
            )
        )
    return CollectionFacts(
        collection_id=info.collection_id,
        name=info.name,
        schema=info.schema,
        shards=info.shards,
        dropped=False,
        since=frontiers.since,
        upper=frontiers.upper,
        active_rendition=info.holding.id,
        renditions=tuple(renditions),
    )
