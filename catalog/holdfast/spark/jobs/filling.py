"""The task of the hydration job: uploads one piece of a collection for the shards of a new rendition.

This is a separate module because the module of a job is the program, and executors can't import its
functions.
"""

from dataclasses import dataclass
from uuid import UUID

from holdfast.collections import CollectionPart, RenditionInfo
from holdfast.collections.uploads import upload_part
from holdfast.forks import kept_in_process
from holdfast.persist import Upload, UploadTicket
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


# Worker processes stay alive and run many tasks.
_kept_open = kept_in_process(most=8)(Place.open_to_write)
