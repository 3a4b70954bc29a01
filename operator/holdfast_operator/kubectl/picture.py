"""Short descriptions of Holdfast's objects: their state, and what they wait for. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_operator.api.names import OPERATORS, Kind

Json = dict[str, Any]

_EARLIEST_MS: Final = 978_307_200_000
"""The year 2001. Smaller times of a collection are counters, not moments."""
_NOBODY: Final = (
    "no operator has reconciled it; check that one runs and watches this namespace: "
    f"kubectl get deployments -A -l {OPERATORS}"
)


@dataclass(frozen=True)
class State:
    """The state of an object: one word, the reason, and the message of its condition."""

    word: str
    reason: str
    message: str

    @property
    def well(self) -> bool:
        """Whether there is nothing to wait for and nothing to do."""
        return self.word in {"Ready", "Suspended"}


def state_of(body: Json) -> State:
    """Returns the state of an object at the current generation of its spec."""
    status = body.get("status", {})
    ready = condition(body, "Ready")
    if ready is None:
        return State("New", "NotSeen", _NOBODY)
    reason, message = ready["reason"], ready["message"]
    if body["metadata"].get("deletionTimestamp"):
        return State("Deleting", reason, message)
    if status.get("observedGeneration", 0) < body["metadata"].get("generation", 0):
        return State(
            "Behind", reason, f"the operator hasn't seen the last change yet; before that: {message}"
        )
    if ready["status"] == "True":
        return State("Ready", reason, message)
    stalled = condition(body, "Stalled")
    if stalled is not None and stalled["status"] == "True":
        return State("Stalled", stalled["reason"], stalled["message"])
    if reason == "Suspended":
        return State("Suspended", reason, message)
    return State("Reconciling", reason, message)


def condition(body: Json, type_: str) -> Json | None:
    """Returns the condition of this type, or None."""
    found = body.get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == type_), None)


def remarks(body: Json) -> list[Json]:
    """Returns the conditions other than Ready, Reconciling and Stalled that need attention."""
    bad = {
        *(("ShadowDiverged", status) for status in ("True", "Unknown")),
        *((type_, "True") for type_ in ("OverMaxBytes", "RenditionSuspect", "TimeAhead")),
        *((type_, "True") for type_ in ("SourceStalled", "Lagging", "ErrorsCollected")),
        ("ScheduledIngestionCompleted", "False"),
        *((type_, "False") for type_ in ("ConnectionPublished", "ObjectsInStep")),
        *((type_, "False") for type_ in ("CompactionCompleted", "ScheduledCompactionCompleted")),
        ("ScheduledSnapshotCompleted", "False"),
    }
    state = state_of(body)
    found = body.get("status", {}).get("conditions", ())
    return [
        each for each in found if (each["type"], each["status"]) in bad and each["message"] != state.message
    ]


def kind_of(body: Json) -> Kind:
    """Returns the kind of an object."""
    return Kind(body["kind"])


def catalog_of(body: Json) -> str:
    """Returns the name of the Catalog that an object refers to."""
    return str(body["spec"].get("catalogRef", {}).get("name", ""))


def moment(frontier: object) -> str:
    """Returns a frontier as text: a date and time if it can be one, otherwise a number."""
    if isinstance(frontier, int) and frontier >= _EARLIEST_MS:
        return datetime.fromtimestamp(frontier / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "-" if frontier is None else str(frontier)


def lag(upper: object, now_ms: float) -> str:
    """Returns how far a collection's upper is behind the clock, or `-` if its times are counters."""
    if not isinstance(upper, int) or upper < _EARLIEST_MS:
        return "-"
    return span((now_ms - upper) / 1000) if upper <= now_ms else "0 s"


def age(body: Json, now: datetime) -> str:
    """Returns the age of an object as text."""
    return since(body["metadata"].get("creationTimestamp"), now)


def since(time: str | None, now: datetime) -> str:
    """Returns how long ago a time was, as text."""
    return "-" if time is None else span(max(0.0, (now - datetime.fromisoformat(time)).total_seconds()))


def span(seconds: float) -> str:
    """Returns a duration in a suitable unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(number: int | None) -> str:
    """Returns a number of bytes in a suitable unit."""
    if number is None:
        return "-"
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def summary(body: Json) -> Json:
    """Returns one object for JSON output: the contents of the tables, and its conditions and status."""
    state = state_of(body)
    metadata = body["metadata"]
    return {
        "kind": body["kind"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "state": state.word,
        "reason": state.reason,
        "message": state.message,
        "remarks": [
            {name: each[name] for name in ("type", "status", "reason", "message")} for each in remarks(body)
        ],
        "status": body.get("status", {}),
    }


def by_kind(bodies: Sequence[Json]) -> Mapping[Kind, list[Json]]:
    """Returns the objects by kind, each list in the order of their names."""
    ordered = sorted(bodies, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))
    return {kind: [each for each in ordered if each["kind"] == kind.value] for kind in Kind}


def compaction_text(last: Json) -> str:
    """Describes what a compaction did, from the status."""
    rows = f": {last['rowsBefore']:,} stored rows are {last['rows']:,}" if last.get("compacted") else ""
    left = f", {last['left']} compacted by others" if last.get("left") else ""
    return f"{last.get('compacted', 0)} of {last.get('shards', 0)} shards{left}{rows}"
