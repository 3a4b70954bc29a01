"""The plan for `spec.objects`: what has to change in a catalog so that it has what is declared. Pure.

An object is known by its type and the path of its names. The operator knows what it made by a mark that the
catalog keeps beside the object and changes in the same transaction, so neither a lost status nor another
resource for the same catalog makes it forget.

Invariants
- What others made is never dropped. It is adopted where it is declared: its value is kept as declared, but it
  stays when it isn't declared any more.
- A mark says under which names, its parent's too, the operator left the object; of a system configuration,
  with which value. Where that doesn't hold any more somebody else has changed it, and it is theirs from then
  on, but for a system configuration that is declared.
- A cluster is managed, with so many replicas of one size, as long as it has exactly those: of another one
  nobody could tell what it should have. So it changes with its replicas.
- Parents are made before what is in them and dropped after it. What others use isn't dropped.
- A plan that was carried out leaves nothing to do.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from holdfast_operator.api.catalogobjects import CatalogObjects
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.engine.status import WantedCondition

V = TypeVar("V")


class DeclaredType(StrEnum):
    """What can be declared, parents first."""

    DATABASE = "database"
    SCHEMA = "schema"
    ROLE = "role"
    CLUSTER = "cluster"
    REPLICA = "cluster replica"
    CONFIGURATION = "system configuration"


UNMANAGED: Final = ""
"""The value of a cluster whose replicas are made and dropped one by one."""

_LISTED: Final = 3
_RANK: Final = {type_: rank for rank, type_ in enumerate(DeclaredType)}


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A type with the names of the object's parent, if it has one, and its own."""

    type: DeclaredType
    path: tuple[str, ...]

    @property
    def parent(self) -> "ObjectName | None":
        """What the object is in."""
        match self.type:
            case DeclaredType.SCHEMA:
                return ObjectName(DeclaredType.DATABASE, self.path[:-1])
            case DeclaredType.REPLICA:
                return ObjectName(DeclaredType.CLUSTER, self.path[:-1])
            case _:
                return None

    @property
    def rank(self) -> tuple[int, tuple[str, ...]]:
        """By which names are sorted: parents before what is in them."""
        return _RANK[self.type], self.path

    def __str__(self) -> str:
        return f"{self.type} {'.'.join(self.path)}"


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object of the catalog.

    `value` is what can be declared of it beside its name: the size of a replica, the text of a system
    configuration, of a cluster what `managed` gives, or `UNMANAGED`. `mark` is the operator's mark of it.
    `users` are those of others that need it, in words.
    """

    value: str = ""
    system: bool = False
    mark: str | None = None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectContents:
    """What a catalog has of the types that can be declared; `lost` are marks of objects that are gone."""

    objects: Mapping[ObjectName, FoundObject] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Make the object and mark it."""

    name: ObjectName
    value: str


@dataclass(frozen=True, slots=True)
class AlterObject:
    """Give the object its value; a system configuration with a mark keeps being the operator's."""

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
    """An object that should be dropped but is used, by what others made, in words."""

    name: ObjectName
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectsPlan:
    """What to change, in this order, and what is to be said.

    `adopted` is declared but was made by others; `taken` is declared but the system's own, and not touched.
    """

    changes: tuple[Change, ...] = ()
    kept: tuple[KeptObject, ...] = ()
    adopted: tuple[ObjectName, ...] = ()
    taken: tuple[ObjectName, ...] = ()
    declared: int = 0


NOTHING_DECLARED: Final = ObjectsPlan()


def declared_by(objects: CatalogObjects | None) -> Mapping[ObjectName, str]:
    """The names that a spec declares, each with its value."""
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
    """The value of a cluster that is managed."""
    return f"{replicas} x {size}"


def replicas_of(value: str) -> tuple[int, str] | None:
    """How many replicas of which size a managed cluster has; None for an unmanaged one."""
    if value == UNMANAGED:
        return None
    replicas, _, size = value.partition(" x ")
    return int(replicas), size


def mark_of(name: ObjectName, value: str) -> str:
    """What a mark says of the object while nobody else has changed it."""
    return value if name.type is DeclaredType.CONFIGURATION else json.dumps(name.path)


def is_made(name: ObjectName, found: FoundObject) -> bool:
    """Whether the operator made the object and nobody has changed it since."""
    return found.mark is not None and found.mark == mark_of(name, found.value)


def droppable(declared: Mapping[ObjectName, str], contents: ObjectContents) -> frozenset[ObjectName]:
    """What is to be dropped where nobody uses it: what the operator made and isn't declared any more."""
    return frozenset(
        name for name, found in contents.objects.items() if name not in declared and is_made(name, found)
    )


def plan_objects(declared: Mapping[ObjectName, str], contents: ObjectContents) -> ObjectsPlan:
    """What to change so that the catalog has what is declared."""
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
    """The values of the clusters that are declared, or that lose a replica, after the plan."""
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
    """What of the doomed can go, and what stays: it, or something in it, is used."""
    inside: dict[ObjectName, list[ObjectName]] = {}
    for name in contents.objects:
        if name.parent is not None:
            inside.setdefault(name.parent, []).append(name)
    dropped: set[ObjectName] = set()
    kept: list[KeptObject] = []
    # What is in them first: a parent goes only with all that is in it.
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
    """The condition that says how a catalog is in step with what is declared; none where nothing is."""
    if plan.kept:
        kept = [f"{each.name} (by {', '.join(each.users)})" for each in plan.kept]
        text = f"taken out of spec.objects, but used: {listed(kept)}; drop the users, or declare it again"
        return (WantedCondition(ConditionType.OBJECTS_IN_STEP, "False", Reason.OBJECTS_KEPT, text),)
    if plan.taken:
        text = f"not touched, because it is the system's: {listed(plan.taken)}"
        return (WantedCondition(ConditionType.OBJECTS_IN_STEP, "False", Reason.NAME_TAKEN, text),)
    if not plan.declared:
        return ()
    text = f"the catalog has all {plan.declared} declared objects"
    adopted = [name for name in plan.adopted if name.parent not in plan.adopted]
    if adopted:
        text += f"; made by others, so they stay when they are taken out: {listed(adopted)}"
    return (WantedCondition(ConditionType.OBJECTS_IN_STEP, "True", Reason.OBJECTS_DECLARED, text),)


def listed(names: Sequence[object]) -> str:
    """The first few, and how many more there are."""
    rest = len(names) - _LISTED
    return ", ".join(map(str, names[:_LISTED])) + (f" and {rest} more" if rest > 0 else "")
