"""What the resources of a cluster say about themselves: which are not ready, and why. Pure.

A location knows only what is stored. Whether a spec is valid, whether a store can be reached and whether a
source goes on is in the conditions of its resources, in the operator's words.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.console.facts.activity import ObjectName, name_of, shown_text
from holdfast.console.facts.overview import CollectionRow
from holdfast.console.facts.trouble import Level, Trouble

Json = Mapping[str, Any]

_SHORT: Final = {"Catalog": "catalog", "StorageCollection": "collection"}
_REMARKS: Final = frozenset(
    {
        ("ShadowDiverged", "True"),
        ("ShadowDiverged", "Unknown"),
        ("OverMaxBytes", "True"),
        ("SourceStalled", "True"),
        ("ScheduledIngestionCompleted", "False"),
        ("ConnectionPublished", "False"),
        ("ObjectsInStep", "False"),
        ("CompactionCompleted", "False"),
        ("ScheduledCompactionCompleted", "False"),
        ("ScheduledSnapshotCompleted", "False"),
    }
)
"""Other conditions that need attention. What is stored shows lag, bad records and suspect renditions."""


@dataclass(frozen=True, slots=True)
class ResourceTrouble:
    """A reason why a Catalog or a StorageCollection needs attention.

    `place` is the name of the location that its Catalog names, and `collection` the id of the collection, or
    empty if it was not created or if the resource is a Catalog.
    """

    about: ObjectName
    place: str
    collection: str
    trouble: Trouble


def resource_troubles(bodies: Iterable[Json]) -> list[ResourceTrouble]:
    """The reasons of all Catalogs and StorageCollections among these resources, worst first."""
    found = list[ResourceTrouble]()
    for body in bodies:
        about = name_of(body)
        if about.kind not in _SHORT:
            continue
        catalog = about.name
        if about.kind == "StorageCollection":
            catalog = str(body.get("spec", {}).get("catalogRef", {}).get("name", ""))
        command = f"kubectl holdfast status {_SHORT[about.kind]}/{about.name} --namespace {about.namespace}"
        id_ = str(body.get("status", {}).get("collectionId") or "")
        found += (
            ResourceTrouble(about, f"{about.namespace}.{catalog}", id_, Trouble(level, what, command))
            for level, what in _reasons(body)
        )
    return sorted(found, key=lambda each: (-each.trouble.level, each.about))


def with_resources(
    rows: Iterable[CollectionRow], troubles: Iterable[ResourceTrouble]
) -> Iterator[CollectionRow]:
    """The rows of collections with the reasons of their resources."""
    found: defaultdict[tuple[str, str], list[Trouble]] = defaultdict(list)
    for each in troubles:
        found[each.place, each.collection].append(each.trouble)
    for row in rows:
        own = found.get((row.place, row.id))
        if own is None:
            yield row
            continue
        every = sorted((*own, *row.troubles), key=lambda each: -each.level)
        yield replace(row, level=every[0].level, troubles=tuple(every))


def without_row(troubles: Sequence[ResourceTrouble], rows: Iterable[CollectionRow]) -> list[ResourceTrouble]:
    """The reasons of resources that have no row: of Catalogs, and of collections that are not stored."""
    known = {(each.place, each.id) for each in rows}
    return [each for each in troubles if (each.place, each.collection) not in known]


def _reasons(body: Json) -> Iterator[tuple[Level, str]]:
    metadata, status = body["metadata"], body.get("status", {})
    conditions = {str(each.get("type")): each for each in status.get("conditions", ())}
    ready, stalled = conditions.get("Ready"), conditions.get("Stalled")
    said = ""
    if ready is None:
        yield Level.WARNING, "No operator has reconciled it. Check that one runs and watches this namespace"
    else:
        said = _said(ready)
        if metadata.get("deletionTimestamp"):
            yield Level.BUSY, f"It is being deleted: {said}"
        elif ready.get("status") == "True":
            if status.get("observedGeneration", 0) < metadata.get("generation", 0):
                yield Level.BUSY, "The operator has not seen the last change of its spec yet"
        elif stalled is not None and stalled.get("status") == "True":
            said = _said(stalled)
            yield Level.BROKEN, said
        elif ready.get("reason") == "Suspended":
            yield Level.BUSY, said
        else:
            yield Level.BROKEN, said
    for type_, each in conditions.items():
        if (type_, each.get("status")) in _REMARKS and _said(each) != said:
            yield Level.WARNING, _said(each)


def _said(condition: Json) -> str:
    """What a condition says: its message, or its reason if it has none."""
    return shown_text(condition.get("message") or condition.get("reason"))
