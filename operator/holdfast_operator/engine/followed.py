"""The objects of one type that a watch follows, such as the applications of Spark jobs.

Invariants
- An object never goes back: see `known`. What this process creates is there at once.
- Until the first list is complete, and after an error that a list must mend, nothing is known (`synced`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast_operator.engine.known import version_of

Json = dict[str, Any]
Name = tuple[str, str]
"""A namespace and a name."""

_MOST_GONE: Final = 10_000
"""How many deletions are remembered, so that Events that expire take no memory for ever."""


class FollowedObjects:
    """Objects of one type with certain labels. For one event loop."""

    def __init__(self, selector: str) -> None:
        """`selector` is the label selector of the watch."""
        self.selector = selector
        self.synced = False
        self.served = True
        """Whether the API server serves the type, as far as is known."""
        self._bodies: dict[Name, Json] = {}
        self._gone: dict[Name, int] = {}

    def covers(self, labels: str | None) -> bool:
        """Returns whether all objects that a label selector selects are among these."""
        return _parts(self.selector) <= _parts(labels or "")

    def select(self, namespace: str | None, labels: str | None) -> list[Json]:
        """Returns the objects of a namespace, or of all, that a label selector selects. Don't change them."""
        wanted = dict(part.split("=", 1) for part in _parts(labels or "") - _parts(self.selector))
        return [
            body
            for (there, _), body in self._bodies.items()
            if namespace in {None, there} and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]

    def with_uid(self, uid: str) -> Json | None:
        """Returns the object with a uid, or None."""
        return next((each for each in self._bodies.values() if each["metadata"]["uid"] == uid), None)

    def put(self, body: Json) -> bool:
        """Records a state. Returns False if it isn't new."""
        name, version = _name(body), version_of(body)
        known = self._bodies.get(name)
        if version <= max(self._gone.get(name, 0), 0 if known is None else version_of(known)):
            return False
        body["metadata"].pop("managedFields", None)
        self._bodies[name] = body
        return True

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
        return self._bodies.pop(name, None) is not None

    def replace(self, listed: Iterable[Json], version: int, namespace: str | None, labels: str) -> list[Json]:
        """Records a complete list of what `labels` select, as of a version. Returns what is new or gone."""
        found = {_name(body): body for body in listed}
        changed = [body for body in found.values() if self.put(body)]
        others = (body for body in self.select(namespace, labels) if _name(body) not in found)
        changed += [self._bodies.pop(_name(body)) for body in others if version_of(body) <= version]
        # A list shows all deletions before it.
        self._gone = {name: at for name, at in self._gone.items() if at > version}
        return changed


def versions(bodies: Iterable[Json]) -> Mapping[str, int]:
    """Returns the versions of objects by uid."""
    return {body["metadata"]["uid"]: version_of(body) for body in bodies}


def _name(body: Json) -> Name:
    return body["metadata"]["namespace"], body["metadata"]["name"]


def _parts(selector: str) -> set[str]:
    return {part for part in selector.split(",") if part}
