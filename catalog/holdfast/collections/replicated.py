"""Writers for active replication: several processes write the same rows, and each finds the others' appends.

The rules are those of `CollectionWriter` and `RenditionWriter`. `holdfast.collections.replication` explains
how an append that lost a race is compared.
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
    """One of several identical writers of a collection. See `StorageController.writer`."""

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        suspect: Suspect,
        *,
        purpose: str,
    ) -> None:
        # Hold the times before reading the upper, so that they are not compacted meanwhile.
        self._compared = Compared(client, info, describe, suspect, _holding_at, purpose=purpose)
        super().__init__(client, info, describe, purpose=purpose)

    def append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates`, or find that another writer has appended the same ones.

        Like `CollectionWriter.append`, but raises `UpperMismatch` only if the collection has not reached
        `expected_upper`. If some of its times were already written, by appends with any borders, only the
        rest is appended. Raises `ConflictingWrite` if the existing rows differ, which makes the rendition
        suspect; `Overtaken` if a handover sealed times before they were written; `NotComparable` if it can't
        compare.
        """
        batch = checked_updates(self.schema, updates, expected_upper, new_upper)
        self._compared.append(super().append, batch, expected_upper, new_upper)

    def close(self) -> None:
        """Release the holds."""
        self._compared.close()


class ReplicatedRenditionWriter(RenditionWriter):
    """One of several identical pipelines of a rendition. See `StorageController.rendition_writer`."""

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
        """Append `updates`, or find that another pipeline has appended the same ones.

        It differs from `RenditionWriter.append` as `ReplicatedWriter.append` differs from
        `CollectionWriter.append`.
        """
        batch = checked_updates(self.schema, updates, expected_upper, new_upper)
        self._compared.append(super().append, batch, expected_upper, new_upper)

    def close(self) -> None:
        """Release the holds."""
        self._compared.close()


def _holding_at(info: CollectionInfo, time: int) -> RenditionInfo | None:
    return next((each for each in info.held if each.holds_at(time)), None)


def _alive(rendition_id: str, info: CollectionInfo, _: int) -> RenditionInfo | None:
    known = info.find(rendition_id)
    return None if known is None or known.dropped else known
