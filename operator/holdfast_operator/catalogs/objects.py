"""The plan for `spec.objects`: the changes after which a catalog has the declared objects. Pure.

An object is identified by its type and the path of its names. The catalog stores a mark for each object that
the operator created, and changes it in the same transaction as the object. So the operator recognizes its
objects even if the status is lost or another resource manages the same catalog.

Invariants
- An object that others created is never dropped. If it is declared, the operator adopts it: it keeps the
  value as declared, but the object stays when it is no longer declared.
- A mark records the names under which the operator left the object, including the parent's name. For a system
  configuration it records the value. If they no longer match, somebody else has changed the object, and the
  operator no longer owns it. A declared system configuration is an exception: the operator sets it back.
- A cluster is managed, with a number of replicas of one size, as long as it has exactly these replicas.
  Otherwise its intended replicas would be unclear. So a cluster's value changes together with its replicas.
- Parents are created before their contents and dropped after them. An object that others use isn't dropped.
- After a plan is carried out, the next plan is empty.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from holdfast_operator.api.catalog_objects import CatalogObjects
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.engine.health import WantedCondition

V = TypeVar("V")


class DeclaredType(StrEnum):
    """The types that can be declared, parents first."""

    DATABASE = "database"
    SCHEMA = "schema"
    ROLE = "role"
    CLUSTER = "cluster"
    REPLICA = "cluster replica"
    CONFIGURATION = "system configuration"


UNMANAGED: Final = ""
"""The value of a cluster whose replicas are created and dropped one by one."""

_LISTED: Final = 3
_RANK: Final = {type_: rank for rank, type_ in enumerate(DeclaredType)}


@dataclass(frozen=True, slots=True)
class ObjectName:
    """The type of an object, and its path: the name of its parent, if it has one, and its own name."""

    type: DeclaredType
    path: tuple[str, ...]

    @property
    def parent(self) -> "ObjectName | None":
        """The object that contains this one, if any."""
        match self.type:
            case DeclaredType.SCHEMA:
                return ObjectName(DeclaredType.DATABASE, self.path[:-1])
            case DeclaredType.REPLICA:
                return ObjectName(DeclaredType.CLUSTER, self.path[:-1])
            case _:
                return None

    @property
    def rank(self) -> tuple[int, tuple[str, ...]]:
        """The sort key: parents come before their contents."""
        return _RANK[self.type], self.path

    def __str__(self) -> str:
        return f"{self.type} {'.'.join(self.path)}"


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object of the catalog.

    `value` is what can be declared in addition to the name: the size of a replica, the text of a system
    configuration, and for a cluster the result of `managed`, or `UNMANAGED`. `mark` is the operator's mark.
    `users` describes objects of others that need this one.
    """

    value: str = ""
    system: bool = False
    mark: str | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectContents:
    """A catalog's objects of the types that can be declared. `lost` are marks of objects that are gone."""

    objects: Mapping[ObjectName, FoundObject] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create the object and its mark."""

    name: ObjectName
    value: str


@dataclass(frozen=True, slots=True)
class AlterObject:
    """Set the object's value. The mark of a system configuration follows, so the operator still owns it."""

    name: ObjectName
    value: str


@dataclass(frozen=True, slots=True)
class DropObject:
    """Remove the object and its mark."""

    name: ObjectName


@dataclass(frozen=True, slots=True)
class UnmarkObject:
    """Remove the mark of an object that others have changed."""

    name: ObjectName


@dataclass(frozen=True, slots=True)
class ForgetObject:
    """Remove a mark whose object is gone."""

    mark: str


Change = CreateObject | AlterObject | DropObject | UnmarkObject | ForgetObject


@dataclass(frozen=True, slots=True)
class KeptObject:
    """An object that should be dropped, but is still used. `users` describes the objects that use it."""

    name: ObjectName
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectsPlan:
    """The changes to make, in order, and what the condition shows.

    `adopted` are declared objects that others created. `taken` are declared names of the system's own
    objects, which are not touched.
    """

    changes: tuple[Change, ...] = ()
    kept: tuple[KeptObject, ...] = ()
    adopted: tuple[ObjectName, ...] = ()
    taken: tuple[ObjectName, ...] = ()
    declared: int = 0


NOTHING_DECLARED: Final = ObjectsPlan()


def declared_by(objects: CatalogObjects | None) -> Mapping[ObjectName, str]:
    """Returns the names that a spec declares, each with its value."""
    return {} if objects is None else dict(_declared(objects))


def _declared(objects: CatalogObjects) -> Iterator[tuple[ObjectName, str]]:
    for database in objects.databases:
        yield ObjectName(DeclaredType.DATABASE, (database.name,)), ""
        for schema in database.schemas:
            yield ObjectName(DeclaredType.SCHEMA, (database.name, schema.name)), ""
    for role in objects.roles:
        yield ObjectName(DeclaredType.ROLE, (role.name,)), ""
    for cluster in objects.clusters:
        yield ObjectName(DeclaredType.CLUSTER, (cluster.name,)), managed(cluster.replicas, cluster.size)
        for number in range(1, cluster.replicas + 1):
            yield ObjectName(DeclaredType.REPLICA, (cluster.name, f"r{number}")), cluster.size
    for name, value in objects.system_configurations.items():
        yield ObjectName(DeclaredType.CONFIGURATION, (name,)), value


def managed(replicas: int, size: str) -> str:
    """Returns the value of a managed cluster."""
    return f"{replicas} x {size}"


def replicas_of(value: str) -> tuple[int, str] | None:
    """Returns the number and the size of a managed cluster's replicas, or None for an unmanaged cluster."""
    if value == UNMANAGED:
        return None
    replicas, _, size = value.partition(" x ")
    return int(replicas), size


def mark_of(name: ObjectName, value: str) -> str:
    """Returns the mark that the object has while nobody else has changed it."""
    return value if name.type is DeclaredType.CONFIGURATION else json.dumps(name.path)


def is_made(name: ObjectName, found: FoundObject) -> bool:
    """Returns whether the operator created the object and nobody else has changed it."""
    return found.mark is not None and found.mark == mark_of(name, found.value)


def droppable(declared: Mapping[ObjectName, str], contents: ObjectContents) -> frozenset[ObjectName]:
    """Returns the objects to drop if nobody uses them: the operator's own that are no longer declared."""
    return frozenset(
        name for name, found in contents.objects.items() if name not in declared and is_made(name, found)
    )


def plan_objects(declared: Mapping[ObjectName, str], contents: ObjectContents) -> ObjectsPlan:
    """Returns the changes after which the catalog has the declared objects."""
    taken = frozenset(name for name in declared if _is_system(name, contents))
    wanted = {name: value for name, value in _sorted(declared) if name not in taken}
    dropped, kept = _drops(droppable(declared, contents), contents)
    there = contents.objects
    values = dict(_sorted(wanted | _cluster_values(wanted, dropped, there)))
    changes: list[Change] = [
        CreateObject(name, value) if name not in there else AlterObject(name, value)
        for name, value in values.items()
        if name not in there or there[name].value != value
    ]
    changes += map(DropObject, sorted(dropped, key=lambda name: name.rank, reverse=True))
    mended = {
        change.name
        for change in changes
        if isinstance(change, AlterObject) and change.name.type is DeclaredType.CONFIGURATION
    }
    changes += (
        UnmarkObject(name)
        for name, found in _sorted(there)
        if found.mark is not None and not is_made(name, found) and name not in mended
    )
    changes += map(ForgetObject, sorted(contents.lost))
    return ObjectsPlan(
        changes=tuple(changes),
        kept=kept,
        adopted=tuple(name for name in wanted if name in there and not is_made(name, there[name])),
        taken=tuple(name for name, _ in _sorted(declared) if name in taken),
        declared=len(declared),
    )


def _cluster_values(
    wanted: Mapping[ObjectName, str], dropped: set[ObjectName], there: Mapping[ObjectName, FoundObject]
) -> dict[ObjectName, str]:
    """Returns the values, after the plan, of the clusters that are declared or that lose a replica."""
    before = {name: found.value for name, found in there.items() if name not in dropped}
    sizes: dict[ObjectName | None, dict[str, str]] = {}
    for name, size in {**before, **wanted}.items():
        if name.type is DeclaredType.REPLICA:
            sizes.setdefault(name.parent, {})[name.path[-1]] = size
    losing = {name.parent for name in dropped if name.type is DeclaredType.REPLICA} - dropped
    values = {}
    for cluster in (*wanted, *losing):
        if cluster is None or cluster.type is not DeclaredType.CLUSTER:
            continue
        replicas = sizes.get(cluster, {})
        as_managed = wanted.get(cluster) or managed(len(replicas), min(replicas.values(), default=""))
        count, size = replicas_of(as_managed) or (0, "")
        exact = replicas == {f"r{number}": size for number in range(1, count + 1)}
        values[cluster] = as_managed if exact and size else UNMANAGED
    return values


def _is_system(name: ObjectName, contents: ObjectContents) -> bool:
    found = contents.objects.get(name)
    if found is not None and found.system:
        return True
    return name.parent is not None and _is_system(name.parent, contents)


def _drops(
    doomed: frozenset[ObjectName], contents: ObjectContents
) -> tuple[set[ObjectName], tuple[KeptObject, ...]]:
    """Divides the doomed objects into those to drop, and those that are used or contain used objects."""
    inside: dict[ObjectName, list[ObjectName]] = {}
    for name in contents.objects:
        if name.parent is not None:
            inside.setdefault(name.parent, []).append(name)
    dropped: set[ObjectName] = set()
    kept: list[KeptObject] = []
    # Contents first: a parent can be dropped only together with everything in it.
    for name in sorted(doomed, key=lambda name: name.rank, reverse=True):
        staying = sorted(
            (each for each in inside.get(name, ()) if each not in dropped), key=lambda name: name.rank
        )
        users = (*map(str, staying), *contents.objects[name].users)
        if users:
            kept.append(KeptObject(name, users))
        else:
            dropped.add(name)
    return dropped, tuple(reversed(kept))


def _sorted(names: Mapping[ObjectName, V]) -> Iterable[tuple[ObjectName, V]]:
    return sorted(names.items(), key=lambda item: item[0].rank)


def objects_condition(plan: ObjectsPlan) -> tuple[WantedCondition, ...]:
    """Returns the condition for the declared objects of a catalog, or nothing if there are none."""
    if plan.kept:
        kept = [f"{each.name} (by {', '.join(each.users)})" for each in plan.kept]
        text = (
            f"removed from spec.objects, but still used: {listed(kept)}; drop its users, or declare it again"
        )
        return (WantedCondition(ConditionType.OBJECTS_IN_STEP, "False", Reason.OBJECTS_KEPT, text),)
    if plan.taken:
        text = f"not changed, because it belongs to the system: {listed(plan.taken)}"
        return (WantedCondition(ConditionType.OBJECTS_IN_STEP, "False", Reason.NAME_TAKEN, text),)
    if not plan.declared:
        return ()
    text = f"the catalog has all {plan.declared} declared objects"
    adopted = [name for name in plan.adopted if name.parent not in plan.adopted]
    if adopted:
        text += f"; created by others, so they stay if you remove them from the spec: {listed(adopted)}"
    return (WantedCondition(ConditionType.OBJECTS_IN_STEP, "True", Reason.OBJECTS_DECLARED, text),)


def listed(names: Sequence[object]) -> str:
    """Returns the first few names, and the number of the others."""
    rest = len(names) - _LISTED
    return ", ".join(map(str, names[:_LISTED])) + (f" and {rest} more" if rest > 0 else "")
