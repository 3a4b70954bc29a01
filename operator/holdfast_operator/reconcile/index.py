"""What the informer has seen: who refers to whom, and who asks for the same thing twice.

Invariants
- It only says whom to look at; what is decided is decided on objects that are read fresh, and on the age
  of the objects, which doesn't change.
- An object that can't be parsed has no claim: it can't shut out one that can.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.migration import CatalogMigrationSpec
from holdfast_operator.api.names import Kind
from holdfast_operator.reconcile.specs import parse_spec
from holdfast_operator.reconcile.storage import Storage, resolve
from holdfast_operator.runtime.kube import ObjectKey
from holdfast_operator.runtime.status import Phase, phase_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Seen:
    version: str
    age: tuple[str, str, str]
    claim: Hashable
    storage: Storage | None
    catalog: ObjectKey | None
    phase: Phase


G = TypeVar("G", bound=Hashable)


def _discard(groups: dict[G, set[ObjectKey]], group: G, key: ObjectKey) -> None:
    groups[group].discard(key)
    if not groups[group]:
        del groups[group]


class Index:
    """All of our objects that were seen and not yet gone."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._seen: dict[ObjectKey, _Seen] = {}
        self._claims: defaultdict[Hashable, set[ObjectKey]] = defaultdict(set)
        self._dependents: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(tuple(self._seen))

    def phases(self) -> Counter[tuple[Kind, Phase]]:
        """How many objects of each kind are in which phase."""
        return Counter((key.kind, seen.phase) for key, seen in self._seen.items())

    def knows(self, key: ObjectKey) -> bool:
        """Whether the object was seen and isn't gone."""
        return key in self._seen

    def has(self, key: ObjectKey, body: Json) -> bool:
        """Whether the object was seen exactly like this last."""
        seen = self._seen.get(key)
        return seen is not None and seen.version == body["metadata"].get("resourceVersion")

    def put(self, key: ObjectKey, body: Json) -> tuple[ObjectKey, ...]:
        """Take note of an object as it is now; those that it is no rival of any more."""
        before = self.rivals_of(key)
        self.drop(key)
        metadata = body["metadata"]
        age = (str(metadata.get("creationTimestamp", "")), key.namespace, key.name)
        claim, storage, catalog = self._parse(key, body)
        version = str(metadata.get("resourceVersion", ""))
        self._seen[key] = _Seen(version, age, claim, storage, catalog, phase_of(body.get("status", {})))
        if claim is not None:
            self._claims[claim].add(key)
        if catalog is not None:
            self._dependents[catalog].add(key)
        return tuple(sorted(set(before) - set(self.rivals_of(key))))

    def drop(self, key: ObjectKey) -> None:
        """Forget an object that is gone."""
        seen = self._seen.pop(key, None)
        if seen is None:
            return
        if seen.claim is not None:
            _discard(self._claims, seen.claim, key)
        if seen.catalog is not None:
            _discard(self._dependents, seen.catalog, key)

    def dependents_of(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """The StorageCollections and CatalogMigrations that refer to a Catalog."""
        return tuple(sorted(self._dependents.get(catalog, ())))

    def catalog_of(self, dependent: ObjectKey) -> ObjectKey | None:
        """The Catalog that a StorageCollection or a CatalogMigration refers to."""
        seen = self._seen.get(dependent)
        return seen.catalog if seen else None

    def asks_for(self, catalog: str, organization_id: str) -> bool:
        """Whether there is a Catalog `namespace/name` for the catalog of an organization. From any thread."""
        namespace, _, name = catalog.partition("/")
        seen = self._seen.get(ObjectKey(Kind.CATALOG, namespace, name))
        return seen is not None and isinstance(seen.claim, tuple) and seen.claim[-1] == organization_id

    def storage_of(self, key: ObjectKey) -> Storage | None:
        """Where the catalog of an object is; None where that isn't known."""
        seen = self._seen.get(key)
        if seen is not None and seen.catalog is not None:
            seen = self._seen.get(seen.catalog)
        return seen.storage if seen else None

    def rivals_of(self, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """The others that ask for the same thing."""
        seen = self._seen.get(key)
        if seen is None or seen.claim is None:
            return ()
        return tuple(sorted(self._claims.get(seen.claim, set()) - {key}))

    def older_rival(self, key: ObjectKey) -> ObjectKey | None:
        """The oldest object that asks for the same thing, if it is older than this one."""
        rivals = self.rivals_of(key)
        oldest = min(rivals, key=lambda other: self._seen[other].age, default=None)
        if oldest is None or self._seen[oldest].age > self._seen[key].age:
            return None
        return oldest

    def _parse(self, key: ObjectKey, body: Json) -> tuple[Hashable, Storage | None, ObjectKey | None]:
        """What an object asks for, where that is, and the Catalog that it refers to."""
        match key.kind:
            case Kind.CATALOG:
                asked, _ = parse_spec(CatalogSpec, body)
                if asked is None:
                    return None, None, None
                storage = resolve(asked, key.namespace, self._data_dir, follow=False)
                if not isinstance(storage, Storage):
                    return None, None, None
                return (storage.stores, asked.organization_id), storage, None
            case Kind.STORAGE_COLLECTION:
                wanted, _ = parse_spec(StorageCollectionSpec, body)
                if wanted is None:
                    return None, None, None
                catalog = ObjectKey(Kind.CATALOG, key.namespace, wanted.catalog_ref.name)
                name = wanted.name or key.name
                return (catalog, wanted.database, wanted.schema_name, name), None, catalog
            case Kind.CATALOG_MIGRATION:
                move, _ = parse_spec(CatalogMigrationSpec, body)
                if move is None:
                    return None, None, None
                return None, None, ObjectKey(Kind.CATALOG, key.namespace, move.catalog_ref.name)
