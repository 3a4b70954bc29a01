"""How often other processes took a catalog from this operator, and when it stops taking it back. Pure.

Invariants
- What counts is kept in the Catalog's status, because without a Lease the process ends with each fence that
  it meets.
- Only fences of one `metadata.generation` and one value of the annotation count together: a change of either
  is somebody's word to try again.
- Who it was, and the annotation, are others' texts: they are cut to what the status takes, so that no text
  keeps a fence from being counted.
- Once it has stopped it stays so: time is looked at when a fence is recorded and never again, so all
  operators that read the object decide alike, and none goes on while another rests.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from holdfast.text import cut
from holdfast_operator.api.catalog import MAX_FENCE_TEXT, CatalogFence
from holdfast_operator.api.names import ANNOTATION_REOPEN, Reason
from holdfast_operator.engine.status import Health
from holdfast_operator.engine.steps import reconciling, stalled

MOST: Final = 3
"""So many fences within `WINDOW` are a fight and no handover."""
WINDOW: Final = timedelta(minutes=10)

Json = dict[str, Any]


def fences_of(body: Json) -> tuple[CatalogFence, ...]:
    """The recorded fences that count for the resource as it is asked for now; oldest first."""
    try:
        recorded = [CatalogFence.model_validate(each) for each in body.get("status", {}).get("fencedBy", [])]
    except ValidationError:
        # The status of another version of the operator: nothing that could be counted.
        return ()
    now = _asked(body)
    return tuple(each for each in recorded if (each.generation, each.reopen) == now)


def with_fence(body: Json, holder: str, epoch: int, now: datetime) -> tuple[CatalogFence, ...]:
    """The fences that count, with one more: those that are `WINDOW` older than it are left out."""
    generation, reopen = _asked(body)
    now = now.replace(microsecond=0)
    recent = [each for each in fences_of(body) if now - each.time <= WINDOW]
    fence = CatalogFence(
        time=now, holder=cut(holder, MAX_FENCE_TEXT), epoch=epoch, generation=generation, reopen=reopen
    )
    return (*recent, fence)[-MOST:]


def has_stopped(fences: Sequence[CatalogFence]) -> bool:
    """Whether the catalog isn't taken back any more."""
    return len(fences) >= MOST


def health(fences: Sequence[CatalogFence]) -> Health:
    """What a Catalog shows after its last fence."""
    last = fences[-1]
    by = f"{last.holder} (epoch {last.epoch})"
    if not has_stopped(fences):
        return reconciling(
            Reason.FENCED_BY_OTHER, f"{by} took the catalog over; the operator takes it back by itself"
        )
    return stalled(
        Reason.FENCED_BY_OTHER,
        f"fenced out {MOST} times within {WINDOW.seconds // 60} minutes, last by {by}; let only one process "
        f"write to the catalog, then set the annotation {ANNOTATION_REOPEN} to a new value",
    )


def health_of_move(fences: Sequence[CatalogFence]) -> Health:
    """What a CatalogMigration shows after another operator took it over that conducts it too."""
    last = fences[-1]
    by = f"{last.holder} (epoch {last.epoch})"
    if not has_stopped(fences):
        return reconciling(
            Reason.FENCED_BY_OTHER,
            f"{by} took the migration over; the operator goes on with it by itself",
        )
    return stalled(
        Reason.FENCED_BY_OTHER,
        f"fenced out {MOST} times within {WINDOW.seconds // 60} minutes, last by {by}: no further step is "
        f"taken; let one operator conduct it, then set the annotation {ANNOTATION_REOPEN} to a new value",
    )


def _asked(body: Json) -> tuple[int, str]:
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    reopen = cut(str(annotations.get(ANNOTATION_REOPEN, "")), MAX_FENCE_TEXT)
    return int(metadata.get("generation", 0)), reopen
