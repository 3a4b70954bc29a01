"""Writing a rendition with many processes: each uploads some of the rows, and one process appends them all.

- Rows go to the same shards as from a writer in this process. Uploads carry the ids of the writers that
  issued the tickets. Only these writers can commit them.
- If a rendition is being filled, no two pieces of the contents have rows in common. So the runs of the pieces
  together are the consolidated contents.
- Memory is bounded, as in one process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import pyarrow as pa

from holdfast.collections.bringing import at_time, builders_of
from holdfast.collections.record.spec import RenditionInfo
from holdfast.collections.snapshot import CollectionPart, read_collection_part
from holdfast.persist import PersistClient, Upload, UploadTicket

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
    contents = at_time(read_collection_part(client, part), part.as_of)
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

    `tickets` are as for `upload_part`. `meanwhile` is called between pieces of the upload. Raises what `rows`
    raises, `ShardFinalized` and `StorageError`. After an error, uploads are deleted as far as possible.
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


def _calling(meanwhile: Callable[[], None], pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        meanwhile()
        yield piece
