"""One append to a collection, at one time, of data that other processes uploaded.

The uploads were made with tickets of one rendition.

- It succeeds while that rendition is current and the collection is not complete past that time. Writes of
  others don't matter, because every try can use the same uploads.
- Otherwise the uploads can't be used as they are. You can read them back for another append, and give them
  up.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from holdfast.collections.appending import Position, PreparedAppend
from holdfast.collections.bulk import Complete
from holdfast.persist import PersistClient, Prepared, Upload, UploadTicket, WriteHandle
from holdfast.persist.rows.schema import TIME


class UploadedAppend:
    """Uploads to be appended once. Not thread-safe. See `CollectionWriter.uploaded`."""

    def __init__(
        self,
        client: PersistClient,
        rendition_id: str,
        tickets: Sequence[UploadTicket],
        uploads: Iterable[Sequence[Upload]],
        complete: Complete,
        *,
        purpose: str,
    ) -> None:
        self._client = client
        self._rendition_id = rendition_id
        self._tickets = tickets
        self._of_shards: list[list[Upload]] = [[] for _ in tickets]
        for of_task in uploads:
            for of_shard, each in zip(self._of_shards, of_task, strict=True):
                of_shard.append(each)
        self._complete = complete
        self._purpose = purpose
        self._writers: list[WriteHandle] = []
        self.rows = sum(each.rows for of_shard in self._of_shards for each in of_shard)

    def fits(self, position: Position, time: int) -> bool:
        """Whether uploads at this time can be appended from this position."""
        return position.route.rendition.id == self._rendition_id and position.upper <= time

    def prepare(self, position: Position, new_upper: int) -> PreparedAppend:
        """Prepare the append from a position that it fits, like `CollectionWriter.prepare`. Its steps are
        kept.

        Raises `HandleExpired` if the uploads may be gone.
        """
        if not self._writers:
            self._writers = [
                self._client.writer_of(ticket, purpose=self._purpose) for ticket in self._tickets
            ]
        appends: list[Prepared] = [
            writer.prepare_uploads(uploads, position.upper, new_upper).keep()
            for writer, uploads in zip(self._writers, self._of_shards, strict=True)
        ]
        return self._complete(appends, position.route, new_upper)

    def updates(self) -> Iterator[pa.Table]:
        """Read the uploads back, without times. Raises `StorageError` and `CorruptBlob`."""
        for uploads in self._of_shards:
            for each in uploads:
                for table in self._client.uploaded(each):
                    yield table.drop_columns([TIME])

    def give_up(self) -> None:
        """End the writers. Uploads that are not appended yet can't be appended any more, and are deleted."""
        for ticket, uploads in zip(self._tickets, self._of_shards, strict=True):
            self._client.give_up(ticket, uploads)

    def close(self) -> None:
        """Close the writers after the append."""
        for writer in self._writers:
            writer.close()
