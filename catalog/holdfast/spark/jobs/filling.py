"""The tasks of the hydration job: each uploads a piece of a collection for the shards of a new rendition.

This is a separate module because the module of a job is the program, and executors can't import its
functions.
"""

from dataclasses import dataclass
from uuid import UUID

from holdfast.collections import CollectionPart, RenditionInfo
from holdfast.collections.changes import ChangesPart, read_changes
from holdfast.collections.rendition_copy import at_time
from holdfast.collections.uploads import upload_part, upload_rows
from holdfast.forks import kept_in_process
from holdfast.persist import Upload, UploadTicket
from holdfast.persist.rows.schema import TIME
from holdfast.spark.place import Place


@dataclass(frozen=True, slots=True)
class Filling:
    """What every task needs in addition to its piece: the location, the rendition and the tickets."""

    place: Place
    location_id: UUID
    rendition: RenditionInfo
    tickets: tuple[UploadTicket, ...]


def fill_task(part: CollectionPart, *, filling: Filling) -> tuple[Upload, ...]:
    """Upload a piece, one upload for each shard. Runs in an executor."""
    client = _kept_open(filling.place, filling.location_id)
    return upload_part(client, part, filling.rendition, filling.tickets)


def fill_changes(part: ChangesPart, *, filling: Filling, time: int) -> tuple[Upload, ...]:
    """Upload a piece of the changes, all of them at one time. Runs in an executor."""
    client = _kept_open(filling.place, filling.location_id)
    updates = (
        batch
        for table in read_changes(client, part, stored=True)
        for batch in table.drop_columns([TIME]).to_batches()
    )
    return upload_rows(client, at_time(updates, time), filling.rendition, filling.tickets)


# Worker processes stay alive and run many tasks.
_kept_open = kept_in_process(most=8)(Place.open_to_write)
