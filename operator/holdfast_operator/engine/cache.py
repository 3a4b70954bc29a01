"""The objects that the informer has seen: which ones refer to each other, and which ones claim the same.

Invariants
- The cache only selects objects to reconcile. Decisions use objects that are read from the API server, and
  the age of objects, which doesn't change.
- An object that can't be parsed claims nothing, so it can't block one that can. The same holds for a Catalog
  whose location isn't allowed.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from holdfast_operator.api.names import Kind
from holdfast_operator.engine.deletion import asks_to_delete
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.resources import has_finalizer, is_deleting
from holdfast_operator.engine.status_writer import phase_of

Json = dict[str, Any]


class CatalogLocation(Protocol):
    """The location of an object's catalog."""

    @property
    def stores(self) -> Hashable:
        """A value that is equal for all locations in the same stores."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an object claims."""

    unique: Hashable = None
    """A value that only one object may claim. None if it claims nothing like this."""
    storage: CatalogLocation | None = None
    catalog: ObjectKey | None = None
    """The Catalog that it refers to."""
    organization_id: str = ""
    """The organization of a Catalog whose location is allowed."""
    observes: bool = False
    """Whether it is an Observed Catalog."""


@dataclass(frozen=True, slots=True)
class _Seen:
    version: str
    age: tuple[str, str, str]
    asked: Claim
    phase: Phase
    needs_catalog: bool
    """Whether its Catalog must outlive it: it has the operator's finalizer, its spec asks for that, or it is
    about to start a job."""


G = TypeVar("G", bound=Hashable)


def _discard(groups: dict[G, set[ObjectKey]], group: G, key: ObjectKey) -> None:
    groups[group].discard(key)
    if not groups[group]:
        del groups[group]


class ObjectCache:
    """All Holdfast objects that were seen and still exist."""

    def __init__(self, claim_of: Callable[[ObjectKey, Json], Claim]) -> None:
        """Creates an empty cache. `claim_of` returns what an object claims."""
        self._claim_of = claim_of
        self._seen: dict[ObjectKey, _Seen] = {}
        self._claims: defaultdict[Hashable, set[ObjectKey]] = defaultdict(set)
        self._observers: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._dependents: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._freeing: dict[ObjectKey, asyncio.Event] = {}

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(tuple(self._seen))

    def phases(self) -> Counter[tuple[Kind, Phase]]:
        """Returns the number of objects by kind and phase."""
        return Counter((key.kind, seen.phase) for key, seen in self._seen.items())

    def knows(self, key: ObjectKey) -> bool:
        """Returns whether the object was seen and still exists."""
        return key in self._seen

    def has(self, key: ObjectKey, body: Json) -> bool:
        """Returns whether the object was last seen with exactly this version."""
        seen = self._seen.get(key)
        return seen is not None and seen.version == body["metadata"].get("resourceVersion")

    def put(self, key: ObjectKey, body: Json) -> tuple[ObjectKey, ...]:
        """Records an object as it is now. Returns the objects that are no longer its rivals."""
        metadata = body["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        seen = self._seen.get(key)
        if version and seen is not None and seen.version == version:
            return ()
        before = self.rivals_of(key)
        age = (str(metadata.get("creationTimestamp", "")), key.namespace, key.name)
        asked = self._claim_of(key, body)
        self._ungroup(key)
        # The entry is replaced and never missing, because threads read it.
        needs = has_finalizer(body) or (asks_to_delete(body) and not is_deleting(body))
        self._seen[key] = _Seen(version, age, asked, phase_of(body.get("status", {})), needs)
        if asked.unique is not None:
            self._claims[asked.unique].add(key)
        if asked.catalog is not None:
            self._dependents[asked.catalog].add(key)
        if asked.observes:
            self._observers[asked.organization_id].add(key)
        return tuple(sorted(set(before) - set(self.rivals_of(key))))

    def drop(self, key: ObjectKey) -> None:
        """Forgets an object that is gone."""
        self._ungroup(key)
        self._seen.pop(key, None)

    def dependents_of(self, catalog: ObjectKey) -> tuple[ObjectKey, ...]:
        """Returns the StorageCollections and CatalogMigrations that refer to a Catalog."""
        return tuple(sorted(self._dependents.get(catalog, ())))

    def need_catalog(self, key: ObjectKey) -> None:
        """Records that the Catalog of a resource must outlive it from now on, until the resource changes."""
        seen = self._seen.get(key)
        if seen is not None:
            self._seen[key] = replace(seen, needs_catalog=True)

    def is_needed(self, catalog: ObjectKey) -> bool:
        """Returns whether a Catalog must outlive one of its dependents."""
        dependents = self._dependents.get(catalog, ())
        return any(self._seen[each].needs_catalog for each in dependents if each in self._seen)

    @contextmanager
    def freeing(self, catalog: ObjectKey) -> Iterator[None]:
        """Use it while the finalizer of a Catalog is being removed. Only one task at a time does that."""
        end = self._freeing[catalog] = asyncio.Event()
        try:
            yield
        finally:
            del self._freeing[catalog]
            end.set()

    async def freed(self, catalog: ObjectKey) -> None:
        """Waits until no task is removing the finalizer of a Catalog."""
        while (end := self._freeing.get(catalog)) is not None:
            await end.wait()

    def catalog_of(self, dependent: ObjectKey) -> ObjectKey | None:
        """Returns the Catalog that a StorageCollection or a CatalogMigration refers to."""
        seen = self._seen.get(dependent)
        return seen.asked.catalog if seen else None

    def asks_for(self, catalog: str, organization_id: str) -> bool:
        """Returns whether the Catalog `namespace/name` exists and names this organization. For any thread."""
        namespace, _, name = catalog.partition("/")
        seen = self._seen.get(ObjectKey(Kind.CATALOG, namespace, name))
        return seen is not None and seen.asked.organization_id == organization_id

    def observers_of(self, key: ObjectKey) -> Mapping[ObjectKey, bool]:
        """Returns the other Observed Catalogs of the same organization, and whether each is older."""
        seen = self._seen.get(key)
        if seen is None:
            return {}
        others = self._observers.get(seen.asked.organization_id, set()) - {key}
        return {each: self._seen[each].age < seen.age for each in sorted(others)}

    def storage_of(self, key: ObjectKey) -> CatalogLocation | None:
        """Returns the location of an object's catalog, or None if it is unknown."""
        seen = self._seen.get(key)
        if seen is not None and seen.asked.catalog is not None:
            seen = self._seen.get(seen.asked.catalog)
        return seen.asked.storage if seen else None

    def rivals_of(self, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """Returns the other objects that claim the same."""
        seen = self._seen.get(key)
        if seen is None or seen.asked.unique is None:
            return ()
        return tuple(sorted(self._claims.get(seen.asked.unique, set()) - {key}))

    def older_rival(self, key: ObjectKey) -> ObjectKey | None:
        """Returns the oldest object that claims the same, if it is older than this one."""
        rivals = self.rivals_of(key)
        oldest = min(rivals, key=lambda other: self._seen[other].age, default=None)
        if oldest is None or self._seen[oldest].age > self._seen[key].age:
            return None
        return oldest

    def _ungroup(self, key: ObjectKey) -> None:
        seen = self._seen.get(key)
        if seen is None:
            return
        if seen.asked.unique is not None:
            _discard(self._claims, seen.asked.unique, key)
        if seen.asked.catalog is not None:
            _discard(self._dependents, seen.asked.catalog, key)
        if seen.asked.observes:
            _discard(self._observers, seen.asked.organization_id, key)
