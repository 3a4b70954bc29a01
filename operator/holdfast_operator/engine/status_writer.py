"""Computes and writes statuses.

Invariants
- `lastTransitionTime` of a condition changes only when its status changes.
- `observedGeneration` is in the status and in each of the operator's conditions.
- Conditions of others are left alone. A status that hasn't changed isn't written.
- A write contains the resourceVersion that it was computed from. A conflict (409) means "read again", never
  "overwrite".
- No message contains a secret.
- Texts have a maximum length, because the API server accepts no object of more than 1.5 MB.
- The API server drops status fields that the installed CRD doesn't know. This is logged once, and such fields
  aren't written again and again.
- A 422 is a bug (the CRD and the models differ). It is counted and raised, and never retried silently.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.text import cut
from holdfast_operator.api.names import ConditionType, Kind, Reason
from holdfast_operator.engine.health import Phase, WantedCondition
from holdfast_operator.engine.kube import Conflict, Gone, Invalid, Kube, ObjectKey
from holdfast_operator.engine.logging import redact
from holdfast_operator.engine.metrics import Metrics

Json = dict[str, Any]

log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 1024
_MAX_TEXT: Final = 4096
"""The maximum length of a text, in characters: more than the longest URL in a spec with subfolders."""
_OUTCOMES: Final = ("written", "conflict", "gone", "invalid", "left_out")
"""The outcomes of a write in metrics."""


def conditions(
    old: Sequence[Json], wanted: Sequence[WantedCondition], generation: int, now: datetime
) -> list[Json]:
    """Returns the conditions of a status: the wanted ones in order, then unchanged those of others."""
    before = {str(each.get("type")): each for each in old}
    ours = [_condition(before.get(condition.type.value), condition, generation, now) for condition in wanted]
    return ours + [each for each in old if each.get("type") not in set(ConditionType)]


def _condition(old: Json | None, condition: WantedCondition, generation: int, now: datetime) -> Json:
    moved = old is None or old.get("status") != condition.status
    return {
        "type": condition.type.value,
        "status": condition.status,
        "observedGeneration": generation,
        "lastTransitionTime": timestamp(now) if old is None or moved else old["lastTransitionTime"],
        "reason": condition.reason.value,
        "message": shown(condition.message),
    }


def shown(message: str) -> str:
    """Returns a message for the API server: first without secrets, and then cut to its maximum length."""
    return cut(redact(message), _MAX_MESSAGE)


def shown_with(message: str, end: str) -> str:
    """As `shown`, of a message and an end that is never cut."""
    return cut(redact(message), max(_MAX_MESSAGE - len(end), 0)) + end


def _bounded(value: Any) -> Any:
    """Returns the value with all texts, at any depth, cut to `_MAX_TEXT`."""
    match value:
        case str():
            return cut(value, _MAX_TEXT)
        case dict():
            return {name: _bounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_bounded(each) for each in value]
        case _:
            return value


def is_ready(status: Json) -> bool:
    """Returns whether the condition Ready of a status is True."""
    return any(
        (each.get("type"), each.get("status")) == (ConditionType.READY.value, "True")
        for each in status.get("conditions", ())
    )


def phase_of(status: Json) -> Phase:
    """Returns the phase that a status shows. An object without conditions is Reconciling."""
    said = {
        each.get("type"): (each.get("status"), each.get("reason")) for each in status.get("conditions", ())
    }
    if said.get(ConditionType.STALLED.value, ("",))[0] == "True":
        return Phase.STALLED
    if is_ready(status):
        return Phase.READY
    if said.get(ConditionType.READY.value) == ("False", Reason.SUSPENDED.value):
        return Phase.SUSPENDED
    return Phase.RECONCILING


def timestamp(moment: datetime) -> str:
    """Returns a time in the form of Kubernetes."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge_patch(old: Json, new: Json) -> Json:
    """Returns the JSON merge patch (RFC 7396) from `old` to `new`. Empty if they are equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif old[key] != value:
            patch[key] = value
    return patch


def next_status(
    old: Json, fields: Mapping[str, Any], wanted: Sequence[WantedCondition], generation: int, now: datetime
) -> Json:
    """Returns the whole status. `fields` are the fields of the kind. Fields that are not in it are removed.

    Texts are cut to their maximum length.
    """
    return {
        "observedGeneration": generation,
        **_bounded(dict(fields)),
        "conditions": conditions(old.get("conditions", []), wanted, generation, now),
    }


class StatusWriter:
    """Writes statuses through the `/status` subresource."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._left_out: dict[ObjectKey, tuple[str, Json]] = {}
        """By object: a version, and a patch of it that changed nothing."""
        for kind, outcome in itertools.product(Kind, _OUTCOMES):
            metrics.status_writes.labels(kind.value, outcome)

    async def write(self, key: ObjectKey, body: Json, status: Json) -> Json | None:
        """Writes the status of an object that was read as `body`. Returns the object, or None if unchanged.

        Raises `Conflict` if the object has changed since (reconcile it again), `Gone` if it doesn't exist any
        more, and `Invalid` if the API server rejects the status.
        """
        patch = merge_patch(body.get("status", {}), status)
        version = body["metadata"]["resourceVersion"]
        if not patch or self._left_out.get(key) == (version, patch):
            return None
        self._left_out.pop(key, None)
        metadata = {"resourceVersion": version, "uid": body["metadata"]["uid"]}
        try:
            written = await self._kube.patch_status(key, {"metadata": metadata, "status": patch})
        except Conflict:
            self._count(key.kind, "conflict")
            raise
        except Gone:
            self._count(key.kind, "gone")
            raise
        except Invalid:
            self._count(key.kind, "invalid")
            raise
        if written["metadata"]["resourceVersion"] == version:
            self._count(key.kind, "left_out")
            self._left_out[key] = version, patch
            log.warning("the CRD doesn't know all status fields (%s): upgrade the CRDs", ", ".join(patch))
            return None
        self._count(key.kind, "written")
        return written

    def _count(self, kind: Kind, outcome: str) -> None:
        self._metrics.status_writes.labels(kind.value, outcome).inc()
