"""Events: one on a transition, none while nothing changes, one object for the same thing said again.

Invariants
- A transition is a change of (status, reason) of Ready against the status that the API server had before, so
  a restarted operator doesn't repeat what its predecessor said.
- The name of an Event is derived from what it says: saying it again counts up the one that is there.
- No Event holds a secret.
- Losing an Event never fails a reconcile.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast_operator.api.names import API_VERSION, FIELD_MANAGER, ConditionType, Reason
from holdfast_operator.runtime.clock import Clock
from holdfast_operator.runtime.kube import EVENTS, Exists, Gone, Kube, KubeError, ObjectKey
from holdfast_operator.runtime.status import Health, Mark, Phase, shown, timestamp

Json = dict[str, Any]

log = logging.getLogger(__name__)

_MAX_NAME: Final = 200
_TOLD_BY_READY: Final = frozenset(
    {
        ConditionType.PROGRESSING,
        ConditionType.VERIFIED,
        ConditionType.COMPLETED,
        ConditionType.ROLLED_BACK,
    }
)
"""What a CatalogMigration's other conditions tell, Ready tells too."""
_BAD_IF_TRUE: Final = frozenset(
    {ConditionType.SHADOW_DIVERGED, ConditionType.OVER_MAX_BYTES, ConditionType.RENDITION_SUSPECT}
)


@dataclass(frozen=True, slots=True)
class Note:
    """What an Event says."""

    reason: Reason
    message: str
    warning: bool = False


def transitions(old: Sequence[Json], health: Health, others: Sequence[Mark]) -> list[Note]:
    """What to tell when conditions go from `old` to a health and some other conditions."""
    before = {each.get("type"): (each.get("status"), each.get("reason")) for each in old}
    notes = []
    ready = "True" if health.phase is Phase.READY else "False"
    if health.phase is not Phase.RECONCILING and before.get(ConditionType.READY.value) != (
        ready,
        health.reason.value,
    ):
        notes.append(Note(health.reason, health.message, warning=health.phase is Phase.STALLED))
    said = {each.get("type"): each.get("message") for each in old}
    for mark in others:
        if mark.type in _TOLD_BY_READY:
            continue
        same = before.get(mark.type.value) == (mark.status, mark.reason.value)
        # Each failed attempt is told, also where nobody saw the one between two of them run.
        if same and (
            mark.reason is not Reason.SNAPSHOT_RETRYING or said[mark.type.value] == shown(mark.message)
        ):
            continue
        if mark.reason is Reason.WITHIN_MAX_BYTES and mark.type.value not in before:
            continue
        bad = "True" if mark.type in _BAD_IF_TRUE else "False"
        notes.append(Note(mark.reason, mark.message, warning=mark.status == bad))
    return notes


class EventSink:
    """Posts Events about our resources."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def post(self, key: ObjectKey, uid: str, note: Note) -> None:
        """Tell `note` about an object."""
        name = event_name(key, uid, note)
        now = timestamp(self._clock.wall())
        try:
            await self._kube.create(EVENTS, key.namespace, event(key, uid, note, name, now))
        except Exists:
            await self._count_up(key.namespace, name, now)
        except KubeError as error:
            log.warning("an Event could not be posted: %s", error)

    async def _count_up(self, namespace: str, name: str, now: str) -> None:
        try:
            there = await self._kube.get_of(EVENTS, namespace, name)
            count = int(there.get("count") or 1) + 1
            await self._kube.patch(EVENTS, namespace, name, {"count": count, "lastTimestamp": now})
        except Gone:
            pass
        except KubeError as error:
            log.warning("an Event could not be counted up: %s", error)


def event_name(key: ObjectKey, uid: str, note: Note) -> str:
    """The name under which the same thing said of the same object is found again."""
    digest = hashlib.sha256(f"{uid}\0{note.reason}\0{shown(note.message)}".encode()).hexdigest()[:16]
    return f"{key.name[:_MAX_NAME]}.{digest}"


def event(key: ObjectKey, uid: str, note: Note, name: str, now: str) -> Json:
    """The Event object."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": key.kind.value,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
        "type": "Warning" if note.warning else "Normal",
        "reason": note.reason.value,
        "message": shown(note.message),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
