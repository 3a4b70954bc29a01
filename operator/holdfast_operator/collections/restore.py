"""The restore that `spec.restoreFrom` of a StorageCollection requests, and whether it is done. Pure.

Invariants
- Each value restores a collection once: a URL, or the name of a CollectionSnapshot, even if that is created
  again. The restore creates a rendition whose id is derived from the value, and an id is never used twice. So
  newer data isn't lost if the status is lost, if the command history is trimmed, or if the resource is
  deleted and created again over the same data.
- A rendition that was aborted before its handover has restored nothing. The next attempt uses another id.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.collections import RenditionState
from holdfast.collections import RestoreSource as SnapshotSource
from holdfast.collections.snapshots.locate import local_folder
from holdfast.errors import BadInput, StorageError
from holdfast_operator.api.base import frontier
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.rendition import CollectionRestoreStatus, RenditionPhase
from holdfast_operator.catalogs.facts import NotAllowed
from holdfast_operator.collections.facts import CollectionFacts, RenditionFacts, SnapshotPlace
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.kube import Json
from holdfast_operator.engine.resources import is_deleting
from holdfast_operator.engine.status_writer import is_ready
from holdfast_operator.places.bounds import Bounds

SPEC_PREFIX: Final = "spec-"
"""Prefix of the ids of renditions that the operator creates for a spec."""
_RESTORE_PREFIX: Final = f"{SPEC_PREFIX}restore-"
_DIGITS: Final = 12
_HELD: Final = {
    RenditionPhase.ACTIVE,
    RenditionPhase.RETIRING,
    RenditionPhase.DROPPED,
    RenditionPhase.SUSPECT,
}


@dataclass(frozen=True, slots=True)
class RestoreAsked:
    """The rendition that a restore creates. `there` is its current state, if it exists."""

    rendition_id: str
    snapshot: str
    """The value that requests the restore: a URL, or a CollectionSnapshot."""
    there: RenditionFacts | None = None

    @property
    def done(self) -> bool:
        """Whether the rendition took over. It may have retired since."""
        return self.there is not None and self.there.state is not RenditionState.HYDRATING


def restore_asked(facts: CollectionFacts, spec: StorageCollectionSpec) -> RestoreAsked | None:
    """Returns the restore that the spec requests, or None."""
    if spec.restore_from is None:
        return None
    snapshot = spec.restore_from.value
    stem = _RESTORE_PREFIX + hashlib.sha256(snapshot.encode()).hexdigest()[:_DIGITS]
    tried = [each for each in facts.renditions if each.id == stem or each.id.startswith(f"{stem}-")]
    for each in tried:
        if each.state is not RenditionState.ABORTED:
            return RestoreAsked(each.id, snapshot, each)
    return RestoreAsked(f"{stem}-{len(tried) + 1}" if tried else stem, snapshot)


def place_of(name: str, snapshot: Json | None) -> SnapshotPlace:
    """Returns where a CollectionSnapshot is. `snapshot` is None if it doesn't exist."""
    if snapshot is None:
        return SnapshotPlace(
            problem=f"there is no CollectionSnapshot '{name}' in this namespace; create it, or correct "
            "spec.restoreFrom.snapshotRef"
        )
    status = snapshot.get("status", {})
    if is_deleting(snapshot):
        return SnapshotPlace(problem=f"CollectionSnapshot '{name}' is being deleted; refer to another one")
    if not is_ready(status) or "location" not in status:
        marks = (each for each in status.get("conditions", ()) if each.get("type") == ConditionType.READY)
        why = next((f": {each['message']}" for each in marks), "")
        return SnapshotPlace(
            problem=f"CollectionSnapshot '{name}' is not Ready{why}; the restore starts when it is, or refer "
            "to another one"
        )
    if "table" in status:
        return SnapshotPlace(
            problem=f"CollectionSnapshot '{name}' is the Iceberg table {status['table']}, which can't be "
            "restored; refer to one with a destination"
        )
    return SnapshotPlace(str(status["location"]))


def begins_with_snapshot(facts: CollectionFacts, spec: StorageCollectionSpec) -> bool:
    """Returns whether an empty collection waits for the snapshot that it begins with."""
    asked = restore_asked(facts, spec)
    return facts.upper == 0 and asked is not None and not asked.done


def restore_status(facts: CollectionFacts, spec: StorageCollectionSpec) -> CollectionRestoreStatus | None:
    """Returns the status of the requested restore, or None if it isn't done."""
    asked = restore_asked(facts, spec)
    if asked is None or asked.there is None or not asked.done:
        return None
    return CollectionRestoreStatus(
        snapshot=asked.snapshot, rendition=asked.rendition_id, at=frontier(asked.there.held_from)
    )


def restore_notes(
    shown: Mapping[str, str], facts: CollectionFacts, spec: StorageCollectionSpec
) -> tuple[Note, ...]:
    """Returns an Event for a finished restore, unless the `shown` phases already include it."""
    asked = restore_asked(facts, spec)
    if not shown or asked is None or asked.there is None or not asked.done:
        return ()
    if asked.there.gone or shown.get(asked.rendition_id) in _HELD:
        return ()
    at = frontier(asked.there.held_from)
    text = f"the collection has the contents of {asked.snapshot} since {at}: rendition {asked.rendition_id}"
    return (Note(Reason.RESTORED, text),)


def open_snapshot(url: str, bounds: Bounds, credentials: Mapping[str, str] | None) -> SnapshotSource:
    """Opens the snapshot in a folder or in S3, with its manifest. `credentials` are for S3.

    Raises `NotAllowed` if it is outside the `bounds`, `BadInput` if it doesn't exist or its bucket can't be
    read, and `VersionTooNew`.
    """
    if why := bounds.refusal(url, source=True):
        raise NotAllowed(f"spec.restoreFrom.snapshot {why}")
    if url.startswith("s3://"):
        try:
            return SnapshotSource.open(url, credentials=credentials)
        except StorageError as error:
            # A `StorageError` would mean that the catalog's store failed.
            raise BadInput(str(error)) from error
    return SnapshotSource.open(local_folder(url))
