"""Counts how often others fence this operator, and decides when it stops taking a catalog back. Pure.

What the process does when it is fenced, such as to exit with 0, is in `app`.

Invariants
- The fences are recorded in the Catalog's status, because without a Lease the process ends at each fence.
- Only fences with the same `metadata.generation` and the same value of the annotation count together. If you
  change either of them, the operator tries again.
- The holder and the annotation are texts of others. They are cut to the length that the status allows, so
  that no text can keep a fence from being recorded.
- A stop is final until the resource changes. The clock is read only when a fence is recorded. So all
  operators that read the object make the same decision, and none continues while another has stopped.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from holdfast.text import cut
from holdfast_operator.api.catalog import MAX_FENCE_TEXT, CatalogFence
from holdfast_operator.api.names import ANNOTATION_REOPEN, Reason
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.steps import reconciling, stalled

MOST: Final = 3
"""This many fences within `WINDOW` mean that two processes compete, and that it is not a takeover."""
WINDOW: Final = timedelta(minutes=10)

Json = dict[str, Any]


def fences_of(body: Json) -> tuple[CatalogFence, ...]:
    """Returns the recorded fences that count for the current generation and annotation, oldest first."""
    try:
        recorded = [CatalogFence.model_validate(each) for each in body.get("status", {}).get("fencedBy", [])]
    except ValidationError:
        # Another version of the operator wrote this status. It can't be counted.
        return ()
    now = _asked(body)
    return tuple(each for each in recorded if (each.generation, each.reopen) == now)


def with_fence(body: Json, holder: str, epoch: int, now: datetime) -> tuple[CatalogFence, ...]:
    """Returns the fences that count plus a new one, without those that are more than `WINDOW` older."""
    generation, reopen = _asked(body)
    now = now.replace(microsecond=0)
    recent = [each for each in fences_of(body) if now - each.time <= WINDOW]
    fence = CatalogFence(
        time=now, holder=cut(holder, MAX_FENCE_TEXT), epoch=epoch, generation=generation, reopen=reopen
    )
    return (*recent, fence)[-MOST:]


def has_stopped(fences: Sequence[CatalogFence]) -> bool:
    """Returns whether the operator no longer takes the catalog back."""
    return len(fences) >= MOST


def health(fences: Sequence[CatalogFence]) -> Health:
    """Returns the health of a Catalog after its last fence."""
    last = fences[-1]
    by = f"{last.holder} (epoch {last.epoch})"
    if not has_stopped(fences):
        return reconciling(
            Reason.FENCED_BY_OTHER, f"{by} took the catalog over; the operator takes it back by itself"
        )
    return stalled(
        Reason.FENCED_BY_OTHER,
        f"fenced {MOST} times within {WINDOW.seconds // 60} minutes, last by {by}; let only one process "
        f"write to the catalog, then set the annotation {ANNOTATION_REOPEN} to a new value",
    )


def health_of_move(fences: Sequence[CatalogFence]) -> Health:
    """Returns the health of a CatalogMigration after another operator took it over."""
    last = fences[-1]
    by = f"{last.holder} (epoch {last.epoch})"
    if not has_stopped(fences):
        return reconciling(
            Reason.FENCED_BY_OTHER,
            f"{by} took the migration over; the operator continues it by itself",
        )
    return stalled(
        Reason.FENCED_BY_OTHER,
        f"fenced {MOST} times within {WINDOW.seconds // 60} minutes, last by {by}: no further step runs; "
        f"let one operator run the migration, then set the annotation {ANNOTATION_REOPEN} to a new value",
    )


def health_without_shadow(fences: Sequence[CatalogFence]) -> Health:
    """Returns the health of a CatalogMigration whose Catalog may not be open in both stores."""
    last = fences[-1]
    return stalled(
        Reason.FENCED_BY_OTHER,
        f"its Catalog was fenced {MOST} times within {WINDOW.seconds // 60} minutes, last by {last.holder} "
        f"(epoch {last.epoch}), so it can't be open in both stores; let only one process write to the "
        f"catalog, then set the annotation {ANNOTATION_REOPEN} of the Catalog to a new value",
    )


def _asked(body: Json) -> tuple[int, str]:
    metadata = body["metadata"]
    annotations = metadata.get("annotations") or {}
    reopen = cut(str(annotations.get(ANNOTATION_REOPEN, "")), MAX_FENCE_TEXT)
    return int(metadata.get("generation", 0)), reopen
