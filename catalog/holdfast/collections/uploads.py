"""Appends of data that many processes uploaded: each uploads some of the rows, and one process commits them.

- Rows go to the same shards as from a writer in this process. Uploads carry the ids of the writers that
  issued the tickets. Only these writers can commit them. All tickets are of one rendition.
- An `UploadedAppend` succeeds while that rendition is current and the collection is not complete past its
  time. Writes of others don't matter, because every try can use the same uploads. Otherwise the uploads can't
  be used as they are. You can read them back for another append, and give them up.
- If a rendition is being filled, no two pieces of the contents have rows in common. So the runs of the pieces
  together are the consolidated contents.
- Memory is bounded, as in one process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import pyarrow as pa

from holdfast.collections.bulk import Complete
from holdfast.collections.collection_snapshot import CollectionPart, read_collection_part
from holdfast.collections.record.column_names import PLAIN_NAMES
from holdfast.collections.record.spec import RenditionInfo
from holdfast.collections.rendition_copy import at_time, builders_of
from holdfast.collections.sharded_append import Position, PreparedAppend
from holdfast.persist import PersistClient, Prepared, Upload, UploadTicket, WriteHandle
from holdfast.persist.rows.schema import TIME

_MEMORY_BYTES: Final = 128 << 20
"""Memory for sorting a piece, for all shards together. A machine processes several pieces at once."""


def upload_part(
    client: PersistClient, part: CollectionPart, rendition: RenditionInfo, tickets: Sequence[UploadTicket]
) -> tuple[Upload, ...]:
    """Upload the contents of a piece, at its time, for the shards of a rendition. Returns one upload per
    shard.

    `tickets` are of writers of the shards, in their order, whose schema is the piece's or a later one. Raises
    like `read_collection_part`, `ShardFinalized` if the rendition was aborted, and `StorageError`. After an
    error, what was uploaded of the piece is deleted as far as possible.
    """
    stored = replace(part, names=PLAIN_NAMES)
    contents = at_time(read_collection_part(client, stored), part.as_of)
    return upload_rows(client, contents, rendition, tickets)


def upload_rows(
    client: PersistClient,
    rows: Iterable[pa.RecordBatch],
    rendition: RenditionInfo,
    tickets: Sequence[UploadTicket],
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[Upload, ...]:
    """Upload updates, in any order, for the shards of a rendition. Returns one upload for each shard.

    `tickets` are as for `upload_part`. `meanwhile` is called between pieces of the upload. Raises the errors
    of `rows`, `ShardFinalized` and `StorageError`. After an error, uploads are deleted as far as possible.
    """
    purpose = f"upload for rendition {rendition.id}"
    done: list[Upload] = []
    with ExitStack() as stack:
        writers = [client.writer(each.shard_id, each.schema, purpose=purpose) for each in tickets]
        builders = builders_of(stack, rendition, writers, rows, memory_bytes=_MEMORY_BYTES)
        try:
            for ticket, builder in zip(tickets, builders, strict=True):
                done.append(client.upload(ticket, _calling(meanwhile, builder.updates())))
        except BaseException:
            client.discard(done)
            raise
    return tuple(done)


def upload_updates(
    client: PersistClient,
    updates: Iterable[pa.RecordBatch],
    ticket: UploadTicket,
    *,
    memory_bytes: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> Upload:
    """Upload updates, in any order, for one shard, with about `memory_bytes`. Raises like `upload_rows`."""
    with (
        client.writer(ticket.shard_id, ticket.schema, purpose="upload") as writer,
        writer.batch_builder(memory_bytes=memory_bytes) as builder,
    ):
        for each in updates:
            meanwhile()
            builder.add(each)
        return client.upload(ticket, _calling(meanwhile, builder.updates()))


def _calling(meanwhile: Callable[[], None], pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        meanwhile()
        yield piece


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
