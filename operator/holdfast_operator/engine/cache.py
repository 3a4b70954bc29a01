"""What the informer has seen: who refers to whom, and who asks for the same thing twice.

Invariants
- It only says whom to look at; what is decided is decided on objects that are read fresh, and on the age
  of the objects, which doesn't change.
- An object that can't be parsed has no claim: it can't shut out one that can. Nor has a Catalog that may not
  be where it asks to be.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast_operator.api.catalog import Access, CatalogSpec
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.migration import CatalogMigrationSpec
from holdfast_operator.api.names import FINALIZER, Kind, Reason
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.engine.status import Phase, phase_of
from holdfast_operator.places.storage import Refused, Storage, names_files, resolve

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an object asks for."""

    claim: Hashable = None
    storage: Storage | None = None
    catalog: ObjectKey | None = None
    """The one that it refers to."""
    organization_id: str = ""
    """Whose catalog a Catalog asks for that may be where it asks to be."""
    observes: bool = False
    """Whether it only looks."""


@dataclass(frozen=True, slots=True)
class _Seen:
    version: str
    age: tuple[str, str, str]
    asked: _Asked
    phase: Phase
    held: bool
    """Whether our finalizer keeps it."""


G = TypeVar("G", bound=Hashable)


def _named(dependent: ObjectKey, body: Json) -> ObjectKey | None:
    """The Catalog that a resource names whose spec isn't understood: it must outlive that one too."""
    name = body["spec"].get("catalogRef", {}).get("name")
    return ObjectKey(Kind.CATALOG, dependent.namespace, name) if isinstance(name, str) else None


def _discard(groups: dict[G, set[ObjectKey]], group: G, key: ObjectKey) -> None:
    groups[group].discard(key)
    if not groups[group]:
        del groups[group]


class Index:
    """All of our objects that were seen and not yet gone."""

    def __init__(self, data_dir: Path | None, places: Sequence[str] = ()) -> None:
        """`data_dir` and `places` are where catalogs may be, as `resolve` is told."""
        self._data_dir = data_dir
        self._places = tuple(places)
        self._seen: dict[ObjectKey, _Seen] = {}
        self._claims: defaultdict[Hashable, set[ObjectKey]] = defaultdict(set)
        self._observers: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._dependents: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._freeing: dict[ObjectKey, asyncio.Event] = {}

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
        metadata = body["metadata"]
        age = (str(metadata.get("creationTimestamp", "")), key.namespace, key.name)
        version = str(metadata.get("resourceVersion", ""))
        asked = self._parse(key, body)
        self._ungroup(key)
        # Replaced, never missing: threads ask for it.
        held = FINALIZER in metadata.get("finalizers", [])
        self._seen[key] = _Seen(version, age, asked, phase_of(body.get("status", {})), held)
        if asked.claim is not None:
            self._claims[asked.claim].add(key)
        if asked.catalog is not None:
            self._dependents[asked.catalog].add(key)
        if asked.observes:
            self._observers[asked.organization_id].add(key)
        return tuple(sorted(set(before) - set(self.rivals_of(key))))

    def drop(self, key: ObjectKey) -> None:
        """Forget an object that is gone."""
        self._ungroup(key)
        self._seen.pop(key, None)

    def dependents_of(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """The StorageCollections and CatalogMigrations that refer to a Catalog."""
        return tuple(sorted(self._dependents.get(catalog, ())))

    def has_held_dependents(self, catalog: ObjectKey) -> bool:
        """Whether our finalizer keeps one that refers to a Catalog: that one must outlive it."""
        return any(self._seen[each].held for each in self._dependents.get(catalog, ()) if each in self._seen)

    @contextmanager
    def freeing(self, catalog: ObjectKey) -> Iterator[None]:
        """While our finalizer is taken off a Catalog; only one task at a time does that."""
        end = self._freeing[catalog] = asyncio.Event()
        try:
            yield
        finally:
            del self._freeing[catalog]
            end.set()

    async def freed(self, catalog: ObjectKey) -> None:
        """Wait until nothing takes our finalizer off a Catalog."""
        while (end := self._freeing.get(catalog)) is not None:
            await end.wait()

    def catalog_of(self, dependent: ObjectKey) -> ObjectKey | None:
        """The Catalog that a StorageCollection or a CatalogMigration refers to."""
        seen = self._seen.get(dependent)
        return seen.asked.catalog if seen else None

    def asks_for(self, catalog: str, organization_id: str) -> bool:
        """Whether there is a Catalog `namespace/name` for the catalog of an organization. From any thread."""
        namespace, _, name = catalog.partition("/")
        seen = self._seen.get(ObjectKey(Kind.CATALOG, namespace, name))
        return seen is not None and seen.asked.organization_id == organization_id

    def observers_of(self, key: ObjectKey) -> Mapping[ObjectKey, bool]:
        """The other Observed Catalogs of the same organization, and whether each is older."""
        seen = self._seen.get(key)
        if seen is None:
            return {}
        others = self._observers.get(seen.asked.organization_id, set()) - {key}
        return {each: self._seen[each].age < seen.age for each in sorted(others)}

    def storage_of(self, key: ObjectKey) -> Storage | None:
        """Where the catalog of an object is; None where that isn't known."""
        seen = self._seen.get(key)
        if seen is not None and seen.asked.catalog is not None:
            seen = self._seen.get(seen.asked.catalog)
        return seen.asked.storage if seen else None

    def rivals_of(self, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """The others that ask for the same thing."""
        seen = self._seen.get(key)
        if seen is None or seen.asked.claim is None:
            return ()
        return tuple(sorted(self._claims.get(seen.asked.claim, set()) - {key}))

    def older_rival(self, key: ObjectKey) -> ObjectKey | None:
        """The oldest object that asks for the same thing, if it is older than this one."""
        rivals = self.rivals_of(key)
        oldest = min(rivals, key=lambda other: self._seen[other].age, default=None)
        if oldest is None or self._seen[oldest].age > self._seen[key].age:
            return None
        return oldest

    def _ungroup(self, key: ObjectKey) -> None:
        seen = self._seen.get(key)
        if seen is None:
            return
        if seen.asked.claim is not None:
            _discard(self._claims, seen.asked.claim, key)
        if seen.asked.catalog is not None:
            _discard(self._dependents, seen.asked.catalog, key)
        if seen.asked.observes:
            _discard(self._observers, seen.asked.organization_id, key)

    def _parse(self, key: ObjectKey, body: Json) -> _Asked:
        match key.kind:
            case Kind.CATALOG:
                asked, _ = parse_spec(CatalogSpec, body)
                return _Asked() if asked is None else self._asked(asked, key.namespace)
            case Kind.STORAGE_COLLECTION:
                wanted, _ = parse_spec(StorageCollectionSpec, body)
                if wanted is None:
                    return _Asked(catalog=_named(key, body))
                catalog = ObjectKey(Kind.CATALOG, key.namespace, wanted.catalog_ref.name)
                name = wanted.name or key.name
                return _Asked((catalog, wanted.database, wanted.schema_name, name), catalog=catalog)
            case Kind.CATALOG_MIGRATION:
                move, _ = parse_spec(CatalogMigrationSpec, body)
                if move is None:
                    return _Asked(catalog=_named(key, body))
                return _Asked(catalog=ObjectKey(Kind.CATALOG, key.namespace, move.catalog_ref.name))

    def resolve(self, spec: CatalogSpec, namespace: str, *, follow: bool = True) -> Storage | Refused:
        """Where a Catalog is, as `storage.resolve` says. From any thread."""
        return resolve(spec, namespace, self._data_dir, self._places, follow=follow)

    def _asked(self, spec: CatalogSpec, namespace: str) -> _Asked:
        organization, observes = spec.organization_id, spec.access == Access.OBSERVED
        storage = self.resolve(spec, namespace, follow=False)
        if isinstance(storage, Storage):
            claim = storage.stores, organization
            return _Asked(claim, storage, organization_id=organization, observes=observes)
        if storage.reason is Reason.LOCATION_NOT_ALLOWED and names_files(spec):
            # Only the file system knows where it really is: it shuts nobody out, and isn't taken from.
            return _Asked(organization_id=organization, observes=observes)
        return _Asked()
