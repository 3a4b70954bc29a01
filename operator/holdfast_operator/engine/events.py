"""Events: one for each transition, none while nothing changes, and one object for repetitions.

Invariants
- A transition is a change of (status, reason) of Ready compared with the status in the API server. So a
  restarted operator doesn't repeat the Events of its predecessor.
- If this process repeats an Event of the same object, it increases the count of the existing Event.
- Events are in the order in which they were posted, even within a second: by `eventTime`, and for one object
  by name. kubectl sorts Events with the same `lastTimestamp` by name.
- No Event contains a secret.
- A lost Event never fails a reconciliation.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast_operator.api.names import API_VERSION, FIELD_MANAGER, ConditionType, Reason
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.health import Health, Phase, WantedCondition
from holdfast_operator.engine.kube import EVENTS, Gone, Kube, KubeError, ObjectKey
from holdfast_operator.engine.status_writer import shown, timestamp

Json = dict[str, Any]

log = logging.getLogger(__name__)

_MAX_NAME: Final = 200
_MAX_INSTANCE: Final = 128
"""The API server rejects longer names."""
_REMEMBERED: Final = 4096
"""The number of latest Events whose count can be increased."""
_TICK: Final = timedelta(microseconds=1)
_ACTION: Final = "Reconcile"
"""The API server requires an action for an Event that has an `eventTime`."""
_TOLD_BY_READY: Final = frozenset(
    {
        ConditionType.PROGRESSING,
        ConditionType.VERIFIED,
        ConditionType.COMPLETED,
        ConditionType.ROLLED_BACK,
    }
)
"""Conditions of a CatalogMigration that need no Event, because Ready shows the same."""
_RETRYING: Final = frozenset({Reason.SNAPSHOT_RETRYING, Reason.COMPACTION_RETRYING})
_QUIET_AT_FIRST: Final = frozenset(
    {Reason.WITHIN_MAX_BYTES, Reason.NO_BAD_RECORDS, Reason.SOURCE_CURRENT, Reason.INGESTION_RUNNING}
)
"""Reasons of conditions that are no news when the condition appears."""
_BAD_IF_TRUE: Final = frozenset(
    {
        ConditionType.SHADOW_DIVERGED,
        ConditionType.OVER_MAX_BYTES,
        ConditionType.RENDITION_SUSPECT,
        ConditionType.TIME_AHEAD,
        ConditionType.SOURCE_STALLED,
        ConditionType.LAGGING,
        ConditionType.ERRORS_COLLECTED,
    }
)


@dataclass(frozen=True, slots=True)
class Note:
    """The contents of an Event."""

    reason: Reason
    message: str
    warning: bool = False


def transitions(old: Sequence[Json], health: Health, others: Sequence[WantedCondition]) -> list[Note]:
    """Returns the Events for a change of conditions from `old` to a health and other conditions."""
    before = {each.get("type"): (each.get("status"), each.get("reason")) for each in old}
    notes = []
    ready = "True" if health.phase is Phase.READY else "False"
    if health.phase is not Phase.RECONCILING and before.get(ConditionType.READY.value) != (
        ready,
        health.reason.value,
    ):
        notes.append(Note(health.reason, health.message, warning=health.phase is Phase.STALLED))
    said = {each.get("type"): each.get("message") for each in old}
    for condition in others:
        if condition.type in _TOLD_BY_READY:
            continue
        same = before.get(condition.type.value) == (condition.status, condition.reason.value)
        # Each failed attempt gets an Event, even if the status never showed a running attempt in between.
        if same and (
            condition.reason not in _RETRYING or said[condition.type.value] == shown(condition.message)
        ):
            continue
        if condition.reason in _QUIET_AT_FIRST and condition.type.value not in before:
            continue
        bad = "True" if condition.type in _BAD_IF_TRUE else "False"
        note = Note(condition.reason, condition.message, warning=condition.status == bad)
        # If Ready has the same reason and message, post only one Event.
        notes = [each for each in notes if (each.reason, each.message) != (note.reason, note.message)]
        notes.append(note)
    return notes


@dataclass(slots=True)
class _Posted:
    name: str
    count: int = 1


class EventSink:
    """Posts Events about Holdfast's resources."""

    def __init__(self, kube: Kube, clock: Clock, instance: str = FIELD_MANAGER) -> None:
        """Creates a sink. `instance` is the name of this process, such as the name of its pod."""
        self._instance = instance[:_MAX_INSTANCE]
        self._kube = kube
        self._clock = clock
        self._posted: OrderedDict[str, _Posted] = OrderedDict()
        """By a hash of their contents. The latest is last."""
        self._last = datetime.min.replace(tzinfo=UTC)

    async def post(self, key: ObjectKey, uid: str, note: Note) -> None:
        """Posts `note` about an object. A failure is only logged."""
        said, now = _said(uid, note), self._moment()
        try:
            posted = self._posted.get(said)
            if posted is None or not await self._count_up(key.namespace, posted, now):
                posted = _Posted(event_name(key, now))
                body = event(key, uid, note, posted.name, now, self._instance)
                await self._kube.create(EVENTS, key.namespace, body)
        except KubeError as error:
            log.warning("can't post an Event: %s", error)
            return
        self._posted[said] = posted
        self._posted.move_to_end(said)
        if len(self._posted) > _REMEMBERED:
            self._posted.popitem(last=False)

    async def _count_up(self, namespace: str, posted: _Posted, now: datetime) -> bool:
        """Increases the count of an Event. Returns False if the Event doesn't exist any more."""
        count = posted.count + 1
        again = {
            "count": count,
            "lastTimestamp": timestamp(now),
            "series": {"count": count, "lastObservedTime": _precise(now)},
        }
        try:
            await self._kube.patch(EVENTS, namespace, posted.name, again)
        except Gone:
            return False
        posted.count = count
        return True

    def _moment(self) -> datetime:
        """Returns now, or the next microsecond after the last Event. So no two Events have the same time."""
        now = self._clock.wall()
        if now <= self._last < now + timedelta(seconds=1):
            now = self._last + _TICK
        self._last = now
        return now


def event_name(key: ObjectKey, moment: datetime) -> str:
    """Returns the name of an Event. The names of one object's Events sort by time."""
    return f"{key.name[:_MAX_NAME].rstrip('-.')}.{round(moment.timestamp() * 1_000_000) * 1000:016x}"


def event(key: ObjectKey, uid: str, note: Note, name: str, moment: datetime, instance: str) -> Json:
    """Returns the Event object."""
    now = timestamp(moment)
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
        "action": _ACTION,
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": instance,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "eventTime": _precise(moment),
        "count": 1,
    }


def _said(uid: str, note: Note) -> str:
    """Returns a hash that is equal for Events with the same contents about the same object."""
    return hashlib.sha256(f"{uid}\0{note.reason}\0{shown(note.message)}".encode()).hexdigest()[:16]


def _precise(moment: datetime) -> str:
    """Returns a time with microseconds in the form of Kubernetes."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
