"""Uploads by several processes for one append: one process writes, and others upload for it.

- The writer issues a ticket. Any process with the ticket uploads parts that carry the writer's id. Each
  process describes its parts in a few bytes and sends them back to the writer, which appends all parts in one
  step.
- The parts are protected like the writer's own uploads. While its entry is in the state, and it calls
  `keep_alive`, no sweeper takes them. If the writer dies or ends without appending them, they are orphans.
- Only the writer commits. A part that was uploaded twice, or by a process that nobody waits for any more, is
  not named by the append.
- A writer may be handed on (`WriteHandle.hand_on`). Then no process owns it: the processes that upload renew
  its lease, and another process appends as this writer (`PersistClient.writer_of`) or gives it up. Its entry
  is made once. If it is gone, nobody makes it again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import HandleExpired
from holdfast.persist.parts.part_store import PartGone, delete_parts, read_updates
from holdfast.persist.parts.run_writer import write_run
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.values import Rows
from holdfast.persist.session import Session
from holdfast.persist.state.command import CondemnOrphans, ExpireHandles, Handle, RegisterWriter
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Part


@dataclass(frozen=True, slots=True)
class UploadTicket:
    """What a process needs to upload for a writer; see `WriteHandle.upload_ticket`. Picklable."""

    shard_id: str
    writer_id: str
    schema: Schema
    schema_id: int


@dataclass(frozen=True, slots=True)
class Upload:
    """The parts that were uploaded with a ticket: one run, empty if there were no rows. Picklable."""

    shard_id: str
    writer_id: str
    run: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The number of updates."""
        return sum(part.rows for part in self.run)

    @property
    def size_bytes(self) -> int:
        """The number of uploaded bytes."""
        return sum(part.size_bytes for part in self.run)


def upload(machine: Machine, ticket: UploadTicket, pieces: Iterable[Rows]) -> Upload:
    """Upload prepared updates that are sorted as a whole. No updates are stored inline in the state.

    Raises the errors that `pieces` raises, and `StorageError`. The uploads are then deleted, as far as
    possible.
    """
    run = write_run(
        machine,
        writer_id=ticket.writer_id,
        schema=ticket.schema,
        schema_id=ticket.schema_id,
        pieces=pieces,
        inline=False,
        ahead=machine.config.builder_threads,
    )
    return Upload(ticket.shard_id, ticket.writer_id, run)


def discard(session: Session, uploads: Iterable[Upload]) -> None:
    """Delete uploads that nobody else knows of. A sweeper deletes those that can't be deleted now."""
    for each in uploads:
        delete_parts(session.machine(each.shard_id), each.run)


def uploaded(machine: Machine, upload: Upload) -> Iterator[pa.Table]:
    """Yield the updates of an upload, one part at a time."""
    for part in upload.run:
        try:
            yield read_updates(machine, machine.schema_of(part), part, from_time=0)
        except PartGone:
            raise HandleExpired(
                f"the upload for writer {upload.writer_id} of {upload.shard_id} was deleted",
                hint="upload the rows again",
            ) from None


def keep_alive(machine: Machine, ticket: UploadTicket, purpose: str) -> None:
    """Renew the lease of a ticket's writer. Raises `HandleExpired` if it sent no heartbeat for too long."""
    known = machine.refresh().writers.get(ticket.writer_id)
    # Of a known writer, only the id and the heartbeat are used.
    writer = Handle(ticket.writer_id, purpose, machine.config.hostname, 0, registered=True)
    commit([(machine, RegisterWriter(writer, ticket.schema, heartbeat=known.heartbeats + 1 if known else 1))])


def give_up(machine: Machine, ticket: UploadTicket, uploads: Iterable[Upload]) -> None:
    """End the writer of a ticket. What was uploaded for it becomes garbage, unless it has appended it.

    Afterwards no process can append as this writer.
    """
    while (known := machine.refresh().writers.get(ticket.writer_id)) is not None:
        commit([(machine, ExpireHandles((), ((known.id, known.heartbeats),)))])
    parts = [part for each in uploads for part in each.run]
    if machine.state.finalized:
        delete_parts(machine, parts)
        return
    now_ms = machine.clock.wall_ms()
    keys = tuple((part.blob_key, now_ms) for part in parts if part.blob_key is not None)
    if keys:
        commit([(machine, CondemnOrphans(keys))])
