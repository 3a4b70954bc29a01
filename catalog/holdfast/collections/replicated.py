"""Writers of which several, in any processes, give the same rows: what one lost, another has written.

The rules are those of `CollectionWriter` and `RenditionWriter`; how a lost append is compared is told in
`holdfast.collections.replication`.
"""

from collections.abc import Callable
from functools import partial

from holdfast.collections.appending import checked_updates
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.collections.rendition_writer import Begin, RenditionWriter
from holdfast.collections.replication import Compared, Suspect
from holdfast.collections.writer import CollectionWriter
from holdfast.persist import PersistClient


class ReplicatedWriter(CollectionWriter):
    """One of several identical writers of a collection; made by `StorageController.writer`."""

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        suspect: Suspect,
        *,
        purpose: str,
    ) -> None:
        # Before the upper is asked for: what is read there must not be compacted meanwhile.
        self._compared = Compared(client, info, describe, suspect, _holding_at, purpose=purpose)
        super().__init__(client, info, describe, purpose=purpose)

    def append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates`, or find that another writer has appended just these.

        As `CollectionWriter.append`, but `UpperMismatch` only where the collection has not come to
        `expected_upper`. Its times may be there in part, by appends with any borders: then the rest is
        appended. Raises `ConflictingWrite` where the rows that are there differ, which makes the rendition
        suspect; `Overtaken` where a handover took times before they were written; `NotComparable` where it
        can't be told.
        """
        batch = checked_updates(self.schema, updates, expected_upper, new_upper)
        self._compared.append(super().append, batch, expected_upper, new_upper)

    def close(self) -> None:
        """Give up what is held."""
        self._compared.close()


class ReplicatedRenditionWriter(RenditionWriter):
    """One of several identical pipelines of a rendition; made by `StorageController.rendition_writer`."""

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        begin: Begin,
        suspect: Suspect,
        *,
        rendition_id: str,
        purpose: str,
    ) -> None:
        pick = partial(_alive, rendition_id)
        self._compared = Compared(client, info, describe, suspect, pick, purpose=purpose)
        super().__init__(client, info, describe, begin, rendition_id=rendition_id, purpose=purpose)

    def append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates`, or find that another pipeline has appended just these.

        To `RenditionWriter.append` what `ReplicatedWriter.append` is to that of a `CollectionWriter`.
        """
        batch = checked_updates(self.schema, updates, expected_upper, new_upper)
        self._compared.append(super().append, batch, expected_upper, new_upper)

    def close(self) -> None:
        """Give up what is held."""
        self._compared.close()


def _holding_at(info: CollectionInfo, time: int) -> RenditionInfo | None:
    return next((each for each in info.held if each.holds_at(time)), None)


def _alive(rendition_id: str, info: CollectionInfo, _: int) -> RenditionInfo | None:
    known = info.find(rendition_id)
    return None if known is None or known.dropped else known
