"""What the informer has seen: who refers to whom, and who asks for the same thing twice.

Invariants
- It only says whom to look at; what is decided is decided on objects that are read fresh, and on the age
  of the objects, which doesn't change.
- An object that can't be parsed has no claim: it can't shut out one that can. Nor has a Catalog that may not
  be where it asks to be.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast_operator.api.names import FINALIZER, Kind
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status import Phase, phase_of

Json = dict[str, Any]


class CatalogLocation(Protocol):
    """Where the catalog of an object is."""

    @property
    def stores(self) -> Hashable:
        """Equal for all that are in the same stores."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an object asks for."""

    unique: Hashable = None
    """What only one object may have; None where it asks for nothing of the kind."""
    storage: CatalogLocation | None = None
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
    asked: Claim
    phase: Phase
    held: bool
    """Whether our finalizer keeps it."""


G = TypeVar("G", bound=Hashable)


def _discard(groups: dict[G, set[ObjectKey]], group: G, key: ObjectKey) -> None:
    groups[group].discard(key)
    if not groups[group]:
        del groups[group]


class ObjectCache:
    """All of our objects that were seen and not yet gone."""

    def __init__(self, claim_of: Callable[[ObjectKey, Json], Claim]) -> None:
        """`claim_of` reads what an object asks for."""
        self._claim_of = claim_of
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
        asked = self._claim_of(key, body)
        self._ungroup(key)
        # Replaced, never missing: threads ask for it.
        held = FINALIZER in metadata.get("finalizers", [])
        self._seen[key] = _Seen(version, age, asked, phase_of(body.get("status", {})), held)
        if asked.unique is not None:
            self._claims[asked.unique].add(key)
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

    def storage_of(self, key: ObjectKey) -> CatalogLocation | None:
        """Where the catalog of an object is; None where that isn't known."""
        seen = self._seen.get(key)
        if seen is not None and seen.asked.catalog is not None:
            seen = self._seen.get(seen.asked.catalog)
        return seen.asked.storage if seen else None

    def rivals_of(self, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """The others that ask for the same thing."""
        seen = self._seen.get(key)
        if seen is None or seen.asked.unique is None:
            return ()
        return tuple(sorted(self._claims.get(seen.asked.unique, set()) - {key}))

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
        if seen.asked.unique is not None:
            _discard(self._claims, seen.asked.unique, key)
        if seen.asked.catalog is not None:
            _discard(self._dependents, seen.asked.catalog, key)
        if seen.asked.observes:
            _discard(self._observers, seen.asked.organization_id, key)
