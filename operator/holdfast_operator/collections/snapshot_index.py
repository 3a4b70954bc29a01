"""Which CollectionSnapshots belong to which StorageCollection.

They are reconciled when it changes, and its schedule counts its own. Before an irreversible step, the API
server confirms what the schedule depends on.
"""

from collections import defaultdict

from holdfast_operator.api.names import Kind
from holdfast_operator.collections.snapshot_schedule import ScheduledSnapshot, scheduled_snapshot
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import Json, ObjectKey
from holdfast_operator.engine.status_writer import phase_of


class SnapshotIndex:
    """The CollectionSnapshots that were seen and still exist, by StorageCollection."""

    def __init__(self) -> None:
        self._collections: dict[ObjectKey, ObjectKey] = {}
        self._waiting: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._scheduled: defaultdict[ObjectKey, dict[ObjectKey, ScheduledSnapshot]] = defaultdict(dict)

    def put(self, key: ObjectKey, body: Json) -> None:
        """Records an object as it is now. Ignores objects of other kinds."""
        if key.kind is not Kind.COLLECTION_SNAPSHOT:
            return
        self.drop(key)
        name = (body["spec"].get("collectionRef") or {}).get("name")
        if isinstance(name, str):
            collection = ObjectKey(Kind.STORAGE_COLLECTION, key.namespace, name)
            self._collections[key] = collection
            if phase_of(body.get("status", {})) is not Phase.READY:
                self._waiting[collection].add(key)
            if (scheduled := scheduled_snapshot(name, body)) is not None:
                self._scheduled[collection][key] = scheduled

    def drop(self, key: ObjectKey) -> None:
        """Forgets an object that is gone."""
        collection = self._collections.pop(key, None)
        if collection is not None:
            self._waiting[collection].discard(key)
            if not self._waiting[collection]:
                del self._waiting[collection]
            self._scheduled[collection].pop(key, None)
            if not self._scheduled[collection]:
                del self._scheduled[collection]

    def collection_of(self, key: ObjectKey) -> ObjectKey | None:
        """Returns the StorageCollection of a CollectionSnapshot, or None for any other object."""
        return self._collections.get(key)

    def waiting_for(self, collection: ObjectKey) -> tuple[ObjectKey, ...]:
        """Returns the CollectionSnapshots of a StorageCollection that are not Ready."""
        return tuple(sorted(self._waiting.get(collection, ())))

    def scheduled(self, collection: ObjectKey) -> tuple[ScheduledSnapshot, ...]:
        """Returns those that the schedule of a StorageCollection created, in the order of their times.

        Leaves out those that are being deleted.
        """
        found = self._scheduled.get(collection, {}).values()
        return tuple(sorted(found, key=lambda each: (each.time, each.name)))
