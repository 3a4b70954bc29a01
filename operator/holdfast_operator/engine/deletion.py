"""Deletions whose store fails: how long it has failed, what the status shows, and when a deletion gives up.

Invariants
- Only the time during which an operator tried and failed counts. The status stores it, so a restart neither
  adds to it nor resets it. The time of an operator that is down or stopped doesn't count. Clocks of different
  hosts are never compared.
- A resource with deletionPolicy Delete never gives up by itself. A person abandons its data with the
  annotation `holdfast.dev/abandon`, whose value is the uid of the resource. So a copy of the annotation in
  Git has no effect on a later resource of that name. The annotation takes effect after at least one attempt.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast_operator.api.catalog import DeletionPolicy
from holdfast_operator.api.names import ANNOTATION_ABANDON, FINALIZER, ConditionType, Kind, Reason
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.events import Note, transitions
from holdfast_operator.engine.failures import RETRIES
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status_writer import shown, shown_with, timestamp
from holdfast_operator.engine.steps import Settle

Json = dict[str, Any]

LIMIT: Final = 600
"""Seconds of failure after which a deletion with policy Retain no longer waits."""
_GRAIN: Final = 30
"""The counted seconds are rounded down to a multiple of this, which limits how often the status is
written."""
_LONGEST_GAP: Final = 120.0
"""The most seconds between two attempts that count. A process that was stopped in between did not try."""
_NOUNS: Final = {
    Kind.CATALOG: "catalog",
    Kind.CATALOG_MIGRATION: "migration",
    Kind.STORAGE_COLLECTION: "collection",
    Kind.COLLECTION_SNAPSHOT: "snapshot",
}


@dataclass(frozen=True, slots=True)
class Deletion:
    """The progress of a deletion."""

    failed_seconds: int = 0
    last_failure: str = ""
    """Why the last attempt failed. Empty if none failed."""
    asked: bool = False
    """Whether the annotation abandons the data."""

    @property
    def overdue(self) -> bool:
        """Whether the store has failed for too long to wait if the data stays anyway."""
        return self.failed_seconds >= LIMIT

    @property
    def tried(self) -> bool:
        """Whether at least one attempt failed."""
        return bool(self.last_failure)

    @property
    def abandoned(self) -> bool:
        """Whether to leave the data where it is."""
        return self.asked and self.tried


NO_DELETION: Final = Deletion()
"""The value for a resource that isn't being deleted."""


def deletion_of(body: Json) -> Deletion:
    """Returns the progress of an object's deletion, from its status and its annotation."""
    metadata = body["metadata"]
    if not metadata.get("deletionTimestamp"):
        return NO_DELETION
    kept = body.get("status", {}).get("deletion") or {}
    asked = (metadata.get("annotations") or {}).get(ANNOTATION_ABANDON) == metadata["uid"]
    return Deletion(kept.get("storeFailedSeconds", 0), kept.get("lastFailure", ""), asked)


def asks_to_delete(body: Json) -> bool:
    """Returns whether the spec requests to delete the data. Works even if the rest of the spec is invalid."""
    return (body.get("spec") or {}).get("deletionPolicy") == DeletionPolicy.DELETE


def left(what: str, deletion: Deletion) -> Note:
    """Returns the Event about abandoned data."""
    # Nobody retries any more.
    failure = deletion.last_failure.partition(f"; {RETRIES}")[0]
    why = f"; the last attempt to delete failed: {failure}" if failure else ""
    text = f"abandoned by the annotation {ANNOTATION_ABANDON}: {what}{why}"
    return Note(Reason.DELETION_INCOMPLETE, text, warning=True)


def left_at_once(key: ObjectKey, body: Json) -> Note | None:
    """Returns an Event if a resource was deleted before it had a finalizer, so that its data stays, or None.

    This happens if its policy became Delete right before. A resource that had the finalizer has a
    deletionTimestamp at its end.
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
    """Counts, for objects that are being deleted, how long their stores have failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[ObjectKey, tuple[float, float]] = {}
        """The counted seconds, and when the last attempt failed."""
        self._since: dict[ObjectKey, str] = {}
        """When the store of an object began to fail. It is kept, so the text is the same at each attempt."""

    def forget(self, key: ObjectKey) -> None:
        """Forgets an object that is gone."""
        self._failing.pop(key, None)
        self._since.pop(key, None)

    def account(self, key: ObjectKey, body: Json, step: Settle) -> Settle:
        """Returns the step with the deletion's progress and, if needed, the command to abandon the data."""
        metadata = body["metadata"]
        if not metadata.get("deletionTimestamp") or FINALIZER not in metadata.get("finalizers", []):
            return step
        fails = step.health.phase is Phase.STALLED or step.health.reason is Reason.WAITING_FOR_CATALOG
        before = deletion_of(body)
        seconds = before.failed_seconds
        if fails:
            seconds = self._fail(key, before)
        else:
            self.forget(key)
        tried = step.health.phase is Phase.STALLED or step.retry
        failure = shown(step.health.message) if tried else before.last_failure
        kept = {"storeFailedSeconds": seconds, **({"lastFailure": failure} if failure else {})}
        if failure or seconds:
            step = replace(step, fields={**_fields(body, step), "deletion": kept})
        return self._with_way_out(key, body, step, seconds) if fails else step

    def _fail(self, key: ObjectKey, before: Deletion) -> int:
        now = self._clock.monotonic()
        counted, last = self._failing.get(key, (float(before.failed_seconds), now))
        counted += min(now - last, _LONGEST_GAP)
        self._failing[key] = counted, now
        return min(int(counted) // _GRAIN * _GRAIN, LIMIT)

    def _with_way_out(self, key: ObjectKey, body: Json, step: Settle, seconds: int) -> Settle:
        """Returns the step with a message that explains the wait and has the command to abandon the data.

        The message shows since when the store fails. An unreachable store may be back soon, so until `LIMIT`
        the message also says that the deletion continues then.
        """
        stalled = step.health.phase is Phase.STALLED
        if not stalled:
            self._since.pop(key, None)
        if key.kind is not Kind.CATALOG_MIGRATION and not asks_to_delete(body):
            return step
        how = f"kubectl holdfast abandon {_NOUNS[key.kind]}/{key.name} -n {key.namespace}"
        text = f"; to delete the resource and leave its data where it is, run: {how}"
        if step.health.reason is Reason.STORE_UNREACHABLE:
            since = self._since.setdefault(key, _stalled_since(body) or timestamp(self._clock.wall()))
            waits = "; the deletion continues when it responds" if seconds < LIMIT else ""
            text = f"; the deletion waits for the store, which has failed since {since}{waits}{text}"
        # Shorten the store's message if necessary, but always show the command.
        message = shown_with(step.health.message, text)
        health = replace(step.health, message=message)
        notes = step.notes
        known = body.get("status", {}).get("conditions", ())
        if stalled and not deletion_of(body).tried and not transitions(known, health, ()):
            # The object failed in the same way before its deletion, so no condition changes. Still report
            # that the deletion waits.
            notes = (*notes, Note(health.reason, message, warning=True))
        return replace(step, health=health, notes=notes)


def _stalled_since(body: Json) -> str:
    """Returns the time since which an object is Stalled, from its status, or empty if it isn't."""
    for each in body.get("status", {}).get("conditions", ()):
        if (each.get("type"), each.get("status")) == (ConditionType.STALLED.value, "True"):
            return str(each.get("lastTransitionTime", ""))
    return ""


def _fields(body: Json, step: Settle) -> Mapping[str, Any]:
    if step.fields is not None:
        return step.fields
    status = body.get("status", {})
    return {name: value for name, value in status.items() if name not in {"observedGeneration", "conditions"}}
