"""The task of the hydration job: one piece of a collection, uploaded for the shards of a new rendition.

It is a module of its own because that of a job is the program, whose functions executors could not import.
"""

from dataclasses import dataclass
from uuid import UUID

from holdfast.collections import CollectionPart, RenditionInfo
from holdfast.collections.uploading import upload_part
from holdfast.forks import kept_in_process
from holdfast.persist import Upload, UploadTicket
from holdfast.spark.place import Place


@dataclass(frozen=True, slots=True)
class Filling:
    """What every task needs beside its piece: where to, and for whom."""

    place: Place
    location_id: UUID
    rendition: RenditionInfo
    tickets: tuple[UploadTicket, ...]


def fill_task(part: CollectionPart, *, filling: Filling) -> tuple[Upload, ...]:
    """Upload what a piece becomes, one upload for each shard; runs in an executor."""
    client = _kept_open(filling.place, filling.location_id)
    return upload_part(client, part, filling.rendition, filling.tickets)


# Worker processes live on and do many tasks.
_kept_open = kept_in_process(most=8)(Place.open_to_write)
