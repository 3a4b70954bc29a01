"""The objects of one type that a watch follows, such as the applications of Spark jobs.

Invariants
- An object never goes back: see `known`. What this process creates is there at once.
- Until the first list is complete, and after an error that a list must mend, nothing is known (`synced`).
- Only the fields that somebody reads are kept, because there may be ten thousand objects that are over.
- What belongs to one owner is found without a look at all others.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from holdfast_operator.engine.known import version_of
from holdfast_operator.engine.lists import unmanaged

Json = dict[str, Any]
Name = tuple[str, str]
"""A namespace and a name."""

Fields = Mapping[str, Any]
"""The fields of a JSON object to keep: for each name, the fields of its value, or None to keep all of it. For
a list, they are those of each element."""

EACH: Final = "*"
"""In `Fields`: every name."""
METADATA: Final[Fields] = {
    "name": None,
    "namespace": None,
    "uid": None,
    "resourceVersion": None,
    "creationTimestamp": None,
    "ownerReferences": {"apiVersion": None, "kind": None, "name": None, "uid": None},
}
"""The fields of the metadata that every followed object needs, besides its labels."""
_MOST_GONE: Final = 10_000
"""How many deletions are remembered, so that Events that expire take no memory for ever."""


class FollowedObjects:
    """Objects of one type with certain labels. For one event loop."""

    def __init__(
        self, selector: str, fields: Fields | None = None, owner_labels: Collection[str] = ()
    ) -> None:
        """`selector` is the label selector of the watch. `fields` None keeps whole objects.

        `owner_labels` are labels of which each names the owner of an object.
        """
        self.selector = selector
        self._fields = fields
        self._owner_labels = tuple(owner_labels)
        self.synced = False
        self.served = True
        """Whether the API server serves the type, as far as is known."""
        self._bodies: dict[Name, Json] = {}
        self._uids: dict[str, Name] = {}
        self._owned: defaultdict[tuple[str, str, str], dict[Name, None]] = defaultdict(dict)
        """The objects of an owner, by namespace and by the label that names it."""
        self._gone: dict[Name, int] = {}

    def covers(self, labels: str | None) -> bool:
        """Returns whether all objects that a label selector selects are among these."""
        return _parts(self.selector) <= _parts(labels or "")

    def select(self, namespace: str | None, labels: str | None) -> list[Json]:
        """Returns the objects of a namespace, or of all, that a label selector selects. Don't change them."""
        wanted = dict(part.split("=", 1) for part in _parts(labels or "") - _parts(self.selector))
        names: Iterable[Name] = self._bodies
        label = next((each for each in self._owner_labels if each in wanted), None)
        if namespace is not None and label is not None:
            names = self._owned.get((namespace, label, wanted[label]), ())
        return [
            self._bodies[name]
            for name in names
            if namespace in {None, name[0]} and wanted.items() <= _labels(self._bodies[name]).items()
        ]

    def with_uid(self, uid: str) -> Json | None:
        """Returns the object with a uid, or None."""
        name = self._uids.get(uid)
        return None if name is None else self._bodies[name]

    def kept(self, body: Json) -> Json:
        """Returns what is kept of an object. Of that, all is kept."""
        if self._fields is None:
            return unmanaged(body)
        return dict(only(body, self._fields))

    def put(self, body: Json) -> bool:
        """Records a state. Returns False if it isn't new."""
        name, version = _name(body), version_of(body)
        known = self._bodies.get(name)
        if version <= max(self._gone.get(name, 0), 0 if known is None else version_of(known)):
            return False
        self._forget(name)
        self._bodies[name] = kept = self.kept(body)
        self._uids[kept["metadata"]["uid"]] = name
        for place in self._places(kept):
            self._owned[place][name] = None
        return True

    def _places(self, body: Json) -> list[tuple[str, str, str]]:
        """Returns where an object is in `_owned`."""
        namespace, labels = body["metadata"]["namespace"], _labels(body)
        return [(namespace, label, labels[label]) for label in self._owner_labels if label in labels]

    def _forget(self, name: Name) -> Json | None:
        """Forgets an object. Returns what was kept of it, or None."""
        if (body := self._bodies.pop(name, None)) is None:
            return None
        self._uids.pop(body["metadata"]["uid"], None)
        for place in self._places(body):
            del self._owned[place][name]
            if not self._owned[place]:
                del self._owned[place]
        return body

    def drop(self, body: Json) -> bool:
        """Forgets an object whose deletion an event reports. Returns False if it was created again."""
        name = _name(body)
        known = self._bodies.get(name)
        if known is not None and version_of(known) > version_of(body):
            return False
        self._gone[name] = version_of(body)
        if len(self._gone) > _MOST_GONE:
            latest = sorted(self._gone.items(), key=lambda each: each[1])[_MOST_GONE // 2 :]
            self._gone = dict(latest)
        return self._forget(name) is not None

    def replace(self, listed: Iterable[Json], version: int, namespace: str | None, labels: str) -> list[Json]:
        """Records a complete list of what `labels` select, as of a version. Returns what is new or gone."""
        found = {_name(body): body for body in listed}
        changed = [body for body in found.values() if self.put(body)]
        others = [body for body in self.select(namespace, labels) if _name(body) not in found]
        for body in others:
            if version_of(body) <= version:
                self._forget(_name(body))
                changed.append(body)
        # A list shows all deletions before it.
        self._gone = {name: at for name, at in self._gone.items() if at > version}
        return changed


def versions(bodies: Iterable[Json]) -> Mapping[str, int]:
    """Returns the versions of objects by uid."""
    return {body["metadata"]["uid"]: version_of(body) for body in bodies}


def only(value: Any, fields: Fields | None) -> Any:
    """Returns a copy of JSON with these fields only."""
    if fields is None:
        return value
    if isinstance(value, list):
        return [only(each, fields) for each in value]
    if not isinstance(value, dict):
        return value
    if EACH in fields:
        return {name: only(part, fields[EACH]) for name, part in value.items()}
    # The names are shared by all copies.
    return {name: only(value[name], part) for name, part in fields.items() if name in value}


def _labels(body: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = body["metadata"].get("labels", {})
    return labels


def _name(body: Json) -> Name:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _parts(selector: str) -> set[str]:
    return {part for part in selector.split(",") if part}
