"""A deletion whose store fails: for how long it failed, what is shown, and who may give up.

Invariants
- Only the time during which this process tried and failed counts. It is kept in the status, so a restart adds
  nothing and forgets nothing. The time of an operator that is down or stopped, and the clock of another host,
  don't count.
- A resource with deletionPolicy Delete never gives up by itself. Somebody abandons its data: the annotation
  `holdfast.dev/abandon` has the uid of the resource, so that a copy in Git does nothing to the next one of
  that name. It is heard after at least one try.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast_operator.api.catalog import DeletionPolicy
from holdfast_operator.api.names import ANNOTATION_ABANDON, FINALIZER, ConditionType, Kind, Reason
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.events import Note, transitions
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status import Phase, shown, shown_with, timestamp
from holdfast_operator.engine.steps import Settle

Json = dict[str, Any]

LIMIT: Final = 600
"""Seconds of failure after which a deletion that leaves the data anyway waits no more."""
_GRAIN: Final = 30
"""Seconds; the status is written that often."""
_LONGEST_GAP: Final = 120.0
"""Between two tries; a process that was stopped in between didn't try."""
_NOUNS: Final = {
    Kind.CATALOG: "catalog",
    Kind.CATALOG_MIGRATION: "migration",
    Kind.STORAGE_COLLECTION: "collection",
}


@dataclass(frozen=True, slots=True)
class Deletion:
    """How far a deletion is."""

    failed_seconds: int = 0
    last_failure: str = ""
    """Why the last try failed; empty where none did."""
    asked: bool = False
    """Whether somebody abandoned the data."""

    @property
    def overdue(self) -> bool:
        """Whether the store failed for longer than anybody should wait for who leaves the data anyway."""
        return self.failed_seconds >= LIMIT

    @property
    def tried(self) -> bool:
        """Whether it was tried at least once."""
        return bool(self.last_failure)

    @property
    def abandoned(self) -> bool:
        """Whether the data is left where it is."""
        return self.asked and self.tried


NO_DELETION: Final = Deletion()
"""Of a resource that isn't being deleted."""


def deletion_of(body: Json) -> Deletion:
    """How far the deletion of an object is, by its status and its annotation."""
    metadata = body["metadata"]
    if not metadata.get("deletionTimestamp"):
        return NO_DELETION
    kept = body.get("status", {}).get("deletion") or {}
    asked = (metadata.get("annotations") or {}).get(ANNOTATION_ABANDON) == metadata["uid"]
    return Deletion(kept.get("storeFailedSeconds", 0), kept.get("lastFailure", ""), asked)


def asks_to_delete(body: Json) -> bool:
    """Whether the spec asks to delete the data, also where nothing else of it is understood."""
    return (body.get("spec") or {}).get("deletionPolicy") == DeletionPolicy.DELETE


def abandon_command(kind: Kind, name: str, namespace: str = "") -> str:
    """The command that abandons the data of a resource."""
    where = f" -n {namespace}" if namespace else ""
    return f"kubectl holdfast abandon {_NOUNS[kind]}/{name}{where}"


def left(what: str, deletion: Deletion) -> Note:
    """The Event about data that somebody abandoned."""
    why = f"; the last try failed: {deletion.last_failure}" if deletion.last_failure else ""
    text = f"abandoned by the annotation {ANNOTATION_ABANDON}: {what}{why}"
    return Note(Reason.DELETION_INCOMPLETE, text, warning=True)


def left_at_once(key: ObjectKey, body: Json) -> Note | None:
    """The Event about the data of a resource that went before it had a finalizer; None where all is well.

    Its policy became Delete right before. Whatever our finalizer kept has a deletionTimestamp at its end.
    """
    status = body.get("status", {})
    made = "shardId" in status or "collectionId" in status
    if body["metadata"].get("deletionTimestamp") or not made or not asks_to_delete(body):
        return None
    text = (
        f"{key} was deleted right after its deletionPolicy became Delete: its data stays; to delete it, "
        "create the resource again, wait until it is Ready, and delete that"
    )
    return Note(Reason.DELETION_INCOMPLETE, text, warning=True)


class Deletions:
    """Counts for how long the stores failed of the objects that are being deleted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[ObjectKey, tuple[float, float]] = {}
        """Seconds that count, and when the last try failed."""
        self._since: dict[ObjectKey, str] = {}
        """Since when the store of an object fails, kept so that the text stays the same at each try."""

    def forget(self, key: ObjectKey) -> None:
        """The object is gone."""
        self._failing.pop(key, None)
        self._since.pop(key, None)

    def account(self, key: ObjectKey, body: Json, step: Settle) -> Settle:
        """The same with what its status keeps of the deletion, and with the way out where it needs one."""
        metadata = body["metadata"]
        if not metadata.get("deletionTimestamp") or FINALIZER not in metadata.get("finalizers", []):
            return step
        fails = step.health.phase is Phase.STALLED or step.health.reason is Reason.WAITING_FOR_CATALOG
        before = deletion_of(body)
        seconds = before.failed_seconds
        if fails:
            seconds = self._fail(key, before)
        else:
            self._failing.pop(key, None)
        tried = step.health.phase is Phase.STALLED or step.retry
        failure = shown(step.health.message) if tried else before.last_failure
        kept = {"storeFailedSeconds": seconds, **({"lastFailure": failure} if failure else {})}
        if failure or seconds:
            step = replace(step, fields={**_fields(body, step), "deletion": kept})
        return self._with_way_out(key, body, step, seconds)

    def _fail(self, key: ObjectKey, before: Deletion) -> int:
        now = self._clock.monotonic()
        counted, last = self._failing.get(key, (float(before.failed_seconds), now))
        counted += min(now - last, _LONGEST_GAP)
        self._failing[key] = counted, now
        return min(int(counted) // _GRAIN * _GRAIN, LIMIT)

    def _with_way_out(self, key: ObjectKey, body: Json, step: Settle, seconds: int) -> Settle:
        """Why it waits, since when it fails, and how somebody ends that: from the first try that failed.

        A store that doesn't answer may be back soon: until `LIMIT` the text says that it goes on then.
        """
        if step.health.phase is not Phase.STALLED:
            self._since.pop(key, None)
            return step
        if key.kind is not Kind.CATALOG_MIGRATION and not asks_to_delete(body):
            return step
        how = abandon_command(key.kind, key.name, key.namespace)
        text = f"; to delete the resource and leave its data where it is, run: {how}"
        if step.health.reason is Reason.STORE_UNREACHABLE:
            since = self._since.setdefault(key, _stalled_since(body) or timestamp(self._clock.wall()))
            waits = "; the deletion goes on when it answers" if seconds < LIMIT else ""
            text = f"; the deletion waits for the store, which fails since {since}{waits}{text}"
        # The command is what somebody needs, however much a store says.
        message = shown_with(step.health.message, text)
        health = replace(step.health, message=message)
        notes = step.notes
        known = body.get("status", {}).get("conditions", ())
        if not deletion_of(body).tried and not transitions(known, health, ()):
            # It failed so before it was to be deleted: no condition changes, and that it waits is news.
            notes = (*notes, Note(health.reason, message, warning=True))
        return replace(step, health=health, notes=notes)


def _stalled_since(body: Json) -> str:
    """Since when an object is Stalled, by its status; empty where it isn't."""
    for each in body.get("status", {}).get("conditions", ()):
        if (each.get("type"), each.get("status")) == (ConditionType.STALLED.value, "True"):
            return str(each.get("lastTransitionTime", ""))
    return ""


def _fields(body: Json, step: Settle) -> Mapping[str, Any]:
    if step.fields is not None:
        return step.fields
    status = body.get("status", {})
    return {name: value for name, value in status.items() if name not in {"observedGeneration", "conditions"}}
