"""What `spec.restoreFrom` of a StorageCollection asks for, and whether it is done. Pure.

Invariants
- A collection is restored from a value once: what does it is a rendition with an id made from the value, and
  an id is used once for ever. A status that is lost, a command that the history has forgotten, or a resource
  that is deleted and made again over data that stays does not give up what was written since.
- One that was given up before it took over has restored nothing: the next has another id.
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
from holdfast_operator.api.names import Reason
from holdfast_operator.api.rendition import CollectionRestoreStatus, RenditionPhase
from holdfast_operator.catalogs.facts import NotAllowed
from holdfast_operator.collections.facts import CollectionFacts, RenditionFacts
from holdfast_operator.engine.events import Note
from holdfast_operator.places.bounds import Bounds

SPEC_PREFIX: Final = "spec-"
"""How the ids of the renditions begin that are made because the spec asks for them."""
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
    """The rendition that is to have the contents of a snapshot, and what there is of it."""

    rendition_id: str
    snapshot: str
    there: RenditionFacts | None = None

    @property
    def done(self) -> bool:
        """Whether it took over, once; it may have retired since."""
        return self.there is not None and self.there.state is not RenditionState.HYDRATING


def restore_asked(facts: CollectionFacts, spec: StorageCollectionSpec) -> RestoreAsked | None:
    """What the spec asks to restore; None where it asks for nothing."""
    if spec.restore_from is None:
        return None
    snapshot = spec.restore_from.snapshot
    stem = _RESTORE_PREFIX + hashlib.sha256(snapshot.encode()).hexdigest()[:_DIGITS]
    tried = [each for each in facts.renditions if each.id == stem or each.id.startswith(f"{stem}-")]
    for each in tried:
        if each.state is not RenditionState.ABORTED:
            return RestoreAsked(each.id, snapshot, each)
    return RestoreAsked(f"{stem}-{len(tried) + 1}" if tried else stem, snapshot)


def restore_status(facts: CollectionFacts, spec: StorageCollectionSpec) -> CollectionRestoreStatus | None:
    """The restore that the spec asks for, once it is done."""
    asked = restore_asked(facts, spec)
    if asked is None or asked.there is None or not asked.done:
        return None
    return CollectionRestoreStatus(
        snapshot=asked.snapshot, rendition=asked.rendition_id, at=frontier(asked.there.held_from)
    )


def restore_notes(
    shown: Mapping[str, str], facts: CollectionFacts, spec: StorageCollectionSpec
) -> tuple[Note, ...]:
    """That it was restored, where the phases that are `shown` don't say so yet."""
    asked = restore_asked(facts, spec)
    if not shown or asked is None or asked.there is None or not asked.done:
        return ()
    if asked.there.gone or shown.get(asked.rendition_id) in _HELD:
        return ()
    at = frontier(asked.there.held_from)
    text = f"from {at} on the collection has what {asked.snapshot} has: rendition {asked.rendition_id}"
    return (Note(Reason.RESTORED, text),)


def open_snapshot(url: str, bounds: Bounds) -> SnapshotSource:
    """The snapshot in a folder, or in S3, within the `bounds`; and its manifest.

    Raises `NotAllowed`, `BadInput` where there is none or its bucket can't be read, `VersionTooNew`.
    """
    if why := bounds.refusal(url, source=True):
        raise NotAllowed(f"spec.restoreFrom.snapshot {why}")
    if url.startswith("s3://"):
        try:
            return SnapshotSource.open(url)
        except StorageError as error:
            # As it is, it would be about the store of the catalog.
            raise BadInput(str(error)) from error
    return SnapshotSource.open(local_folder(url))
