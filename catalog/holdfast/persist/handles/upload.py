"""Uploads by many processes for one append: one process writes, and others upload for it.

- The writer gives out a ticket. Whoever has it, wherever, uploads parts that carry the writer's id; they are
  told of in a few bytes, which travel back to the writer, and it appends all of them in one step.
- So they are protected exactly as what it uploads itself: as long as its entry is in the state, and it says
  with `keep_alive` that it lives, no sweeper takes them. Where it died or is done without having named them,
  they are orphans.
- Nobody but the writer commits anything. What was uploaded twice, or by a process that nobody waits for any
  more, is not named by the append.
- A writer may be handed on (`WriteHandle.hand_on`): no process has it then, those that upload say that it
  lives, and another one appends as it (`PersistClient.writer_of`) or gives it up. Its entry is made once, and
  nobody makes it anew when it is gone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import HandleExpired
from holdfast.persist.parts.partstore import PartGone, delete_parts, read_updates
from holdfast.persist.parts.runwriter import write_run
from holdfast.persist.rows.canonical import Rows
from holdfast.persist.rows.schema import Schema
from holdfast.persist.session import Session
from holdfast.persist.state.command import CondemnOrphans, ExpireHandles, Handle, RegisterWriter
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Part


@dataclass(frozen=True, slots=True)
class UploadTicket:
    """What a process needs to upload for a writer: `WriteHandle.upload_ticket`. Picklable."""

    shard_id: str
    writer_id: str
    schema: Schema
    schema_id: int


@dataclass(frozen=True, slots=True)
class Upload:
    """What was uploaded with a ticket: one run of parts, none where there were no rows. Picklable."""

    shard_id: str
    writer_id: str
    run: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """How many updates it has."""
        return sum(part.rows for part in self.run)

    @property
    def size_bytes(self) -> int:
        """How many bytes were uploaded."""
        return sum(part.size_bytes for part in self.run)


def upload(machine: Machine, ticket: UploadTicket, pieces: Iterable[Rows]) -> Upload:
    """Upload prepared updates that follow each other in the total order; none of them goes into the state.

    Raises what `pieces` raises, and `StorageError`; then what was uploaded is deleted, as far as that goes.
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
    """Delete uploads that nobody has been told of; one that can't be deleted now is left to a sweeper."""
    for each in uploads:
        delete_parts(session.machine(each.shard_id), each.run)


def uploaded(machine: Machine, upload: Upload) -> Iterator[pa.Table]:
    """The updates of an upload, a part at a time."""
    for part in upload.run:
        try:
            yield read_updates(machine, machine.schema_of(part), part, from_time=0)
        except PartGone:
            raise HandleExpired(
                f"what was uploaded for writer {upload.writer_id} of {upload.shard_id} is gone"
            ) from None


def keep_alive(machine: Machine, ticket: UploadTicket, purpose: str) -> None:
    """Say that the writer of a ticket lives. Raises `HandleExpired` where it was silent for too long."""
    known = machine.refresh().writers.get(ticket.writer_id)
    # Nothing but the id and the beat of one that is known is recorded.
    writer = Handle(ticket.writer_id, purpose, machine.config.hostname, 0, registered=True)
    commit([(machine, RegisterWriter(writer, ticket.schema, heartbeat=known.heartbeats + 1 if known else 1))])


def give_up(machine: Machine, ticket: UploadTicket, uploads: Iterable[Upload]) -> None:
    """End the writer of a ticket; what was uploaded for it is garbage, but for what it has appended.

    From then on it can't append any more, wherever somebody tries.
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
