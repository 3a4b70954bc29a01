"""One append of what other processes uploaded for a collection, with tickets of one rendition at one time.

- It takes place where that rendition still holds and the collection is not complete past that time, however
  often others write meanwhile: what was uploaded serves every try.
- Else it can't be named as it is. It can be read back, for another append, and is given up then.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from holdfast.collections.appending import Position, PreparedAppend
from holdfast.collections.bulk import Complete
from holdfast.persist import PersistClient, Prepared, Upload, UploadTicket, WriteHandle
from holdfast.persist.rows.schema import TIME


class UploadedAppend:
    """What was uploaded, to be appended once. Not thread-safe; made by `CollectionWriter.uploaded`."""

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
        """Whether what was uploaded at this time can be appended from a position."""
        return position.route.rendition.id == self._rendition_id and position.upper <= time

    def prepare(self, position: Position, new_upper: int) -> PreparedAppend:
        """The append from a position that it fits, as `CollectionWriter.prepare`; its steps are kept.

        Raises `HandleExpired` where what was uploaded may be gone.
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
        """What was uploaded, read back, without times. Raises `StorageError`, `CorruptBlob`."""
        for uploads in self._of_shards:
            for each in uploads:
                for table in self._client.uploaded(each):
                    yield table.drop_columns([TIME])

    def give_up(self) -> None:
        """End the writers: what is not appended yet never will be, and goes."""
        for ticket, uploads in zip(self._tickets, self._of_shards, strict=True):
            self._client.give_up(ticket, uploads)

    def close(self) -> None:
        """Note that it is appended."""
        for writer in self._writers:
            writer.close()
