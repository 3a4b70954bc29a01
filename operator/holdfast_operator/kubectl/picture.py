"""What our objects say of themselves, in few words: their state, and what they wait for. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_operator.api.names import OPERATORS, Kind

Json = dict[str, Any]

_EARLIEST_MS: Final = 978_307_200_000
"""The year 2001: lesser times of a collection are counters, not moments."""
_NOBODY: Final = (
    "no operator has looked at it; see whether one runs and looks after this namespace: "
    f"kubectl get deployments -A -l {OPERATORS}"
)


@dataclass(frozen=True)
class State:
    """How an object is, in a word, why, and what it says itself."""

    word: str
    reason: str
    message: str

    @property
    def well(self) -> bool:
        """Whether there is nothing to wait for, and nothing to be done."""
        return self.word in {"Ready", "Suspended"}


def state_of(body: Json) -> State:
    """The state of an object, of the generation of its spec that is there now."""
    status = body.get("status", {})
    ready = condition(body, "Ready")
    if ready is None:
        return State("New", "NotSeen", _NOBODY)
    reason, message = ready["reason"], ready["message"]
    if body["metadata"].get("deletionTimestamp"):
        return State("Deleting", reason, message)
    if status.get("observedGeneration", 0) < body["metadata"].get("generation", 0):
        return State("Behind", reason, f"the operator hasn't seen the last change yet; before it: {message}")
    if ready["status"] == "True":
        return State("Ready", reason, message)
    stalled = condition(body, "Stalled")
    if stalled is not None and stalled["status"] == "True":
        return State("Stalled", stalled["reason"], stalled["message"])
    if reason == "Suspended":
        return State("Suspended", reason, message)
    return State("Reconciling", reason, message)


def condition(body: Json, type_: str) -> Json | None:
    """A condition of an object; None where it has none of that type."""
    found = body.get("status", {}).get("conditions", ())
    return next((each for each in found if each["type"] == type_), None)


def remarks(body: Json) -> list[Json]:
    """The conditions beside Ready, Reconciling and Stalled that somebody should know of."""
    bad = {
        *(("ShadowDiverged", status) for status in ("True", "Unknown")),
        *((type_, "True") for type_ in ("OverMaxBytes", "RenditionSuspect")),
        *((type_, "False") for type_ in ("ConnectionPublished", "ObjectsInStep", "SnapshotCompleted")),
        *((type_, "False") for type_ in ("CompactionCompleted", "ScheduledCompactionCompleted")),
        ("ScheduledSnapshotCompleted", "False"),
    }
    state = state_of(body)
    found = body.get("status", {}).get("conditions", ())
    return [
        each for each in found if (each["type"], each["status"]) in bad and each["message"] != state.message
    ]


def kind_of(body: Json) -> Kind:
    """The kind of an object."""
    return Kind(body["kind"])


def catalog_of(body: Json) -> str:
    """The Catalog that an object refers to."""
    return str(body["spec"].get("catalogRef", {}).get("name", ""))


def moment(frontier: object) -> str:
    """A frontier for people: a moment where it can be one, a number else."""
    if isinstance(frontier, int) and frontier >= _EARLIEST_MS:
        return datetime.fromtimestamp(frontier / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return "-" if frontier is None else str(frontier)


def lag(upper: object, now_ms: float) -> str:
    """How far a collection's upper is behind the clock, where it counts moments."""
    if not isinstance(upper, int) or upper < _EARLIEST_MS:
        return "-"
    return span((now_ms - upper) / 1000) if upper <= now_ms else "0 s"


def age(body: Json, now: datetime) -> str:
    """How long ago an object was made."""
    return since(body["metadata"].get("creationTimestamp"), now)


def since(time: str | None, now: datetime) -> str:
    """How long ago a moment was."""
    return "-" if time is None else span(max(0.0, (now - datetime.fromisoformat(time)).total_seconds()))


def span(seconds: float) -> str:
    """A span of time in a unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(number: int | None) -> str:
    """Bytes in a unit that fits."""
    if number is None:
        return "-"
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def summary(body: Json) -> Json:
    """One object for programs: what the tables show, with its conditions and its status as they are."""
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
    """The objects of each kind, in the order of their names."""
    ordered = sorted(bodies, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))
    return {kind: [each for each in ordered if each["kind"] == kind.value] for kind in Kind}


def compaction_text(last: Json) -> str:
    """What a compaction did, from the status."""
    rows = f": {last['rowsBefore']:,} stored rows are {last['rows']:,}" if last.get("compacted") else ""
    left = f", {last['left']} left to others" if last.get("left") else ""
    return f"{last.get('compacted', 0)} of {last.get('shards', 0)} shards{left}{rows}"
