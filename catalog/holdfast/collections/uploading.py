"""Writing a rendition by many processes: each uploads what some of the rows become, and one appends it all.

- Rows go to the shards of the rendition as a writer in this process would send them. What is
  uploaded carries the ids of the writers that gave the tickets; they commit it, or nobody does.
- Where a rendition is filled, rows of a piece of the contents are in no other one, so that the pieces' runs
  side by side are the consolidated contents.
- Memory is bounded, as for what is brought in one process.
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
"""What a piece sorts in memory, of all shards together: several are done side by side on one machine."""


def upload_part(
    client: PersistClient, part: CollectionPart, rendition: RenditionInfo, tickets: Sequence[UploadTicket]
) -> tuple[Upload, ...]:
    """Upload the contents of a piece, at its time, for the shards of a rendition; one upload for each.

    `tickets` are those of writers of the shards, in their order, with a schema that the piece's leads to.
    Raises as `read_collection_part`, `ShardFinalized` where the rendition was given up, `StorageError`: then
    nothing of the piece is left, as far as that goes.
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
    """Upload updates, in any order, for the shards of a rendition; one upload for each.

    `tickets` as for `upload_part`; `meanwhile` is called between pieces of what is uploaded. Raises what
    `rows` raises, `ShardFinalized`, `StorageError`: then nothing of it is left, as far as that goes.
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
