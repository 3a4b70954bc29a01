"""Upkeep by hand: does now what upkeep does by itself, and reports it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.persist.ids import new_id
from holdfast.persist.state.command import Handle
from holdfast.persist.state.divergence import why_keep
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import ShardState
from holdfast.persist.upkeep.compaction import all_batches, claim_compaction, compact, install, merge_task
from holdfast.persist.upkeep.garbage import cover_and_collect
from holdfast.persist.upkeep.pending import merge_pending

if TYPE_CHECKING:
    from holdfast.persist.client import PersistClient


@dataclass(frozen=True, slots=True)
class Collected:
    """The results of a garbage collection: deleted blobs, blobs that still wait, versions cut off the log.

    `kept` says why nothing of the shard may be deleted. "" if it may.
    """

    shard_id: str
    deleted: int
    waiting: int
    versions: int
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The results of a compaction: batches, stored updates and stored bytes before and after."""

    shard_id: str
    batches_before: int
    batches: int
    rows_before: int
    rows: int
    bytes_before: int
    size_bytes: int


def collect(client: "PersistClient", shard_id: str) -> Collected:
    """Delete garbage that nobody needs any more, and cut the log. Garbage in its grace time stays.

    Raises:
        BadInput: the shard does not exist.
    """
    client.session.check_writable()
    machine = client.session.existing(shard_id)
    before = machine.state
    cover_and_collect(machine)
    after = machine.state
    deleted = len(before.garbage.keys() - after.garbage.keys())
    return Collected(
        shard_id, deleted, len(after.garbage), after.gc_seqno - before.gc_seqno, why_keep(machine)
    )


def compact_now(client: "PersistClient", shard_id: str, *, full: bool = False) -> Compacted:
    """Run the compactions that are due; with `full`, merge all batches into one.

    Raises:
        BadInput: the shard does not exist, or, with `full`, another process is compacting it.
    """
    client.session.check_writable()
    machine = client.session.existing(shard_id)
    before = machine.state
    config = client.config
    writer = Handle(new_id("w"), "compaction by hand", config.hostname, int(config.lease_s * 1000))
    if not before.finalized:
        while merge_pending(machine, writer):
            pass
        if full:
            _compact_fully(machine, writer)
        else:
            while compact(machine, writer):
                pass
    after = machine.state
    return Compacted(
        shard_id,
        len(before.batches),
        len(after.batches),
        _rows(before),
        _rows(after),
        _bytes(before),
        _bytes(after),
    )


def _compact_fully(machine: Machine, writer: Handle) -> None:
    batches = all_batches(machine.state)
    if not batches:
        return
    task = claim_compaction(machine, writer, batches)
    if task is None:
        raise BadInput(
            f"shard {machine.shard_id} is being compacted by another process",
            hint="try again when that is done; the claim of that process ends with its lease",
        )
    install(machine, task, merge_task(machine, task))


def _rows(state: ShardState) -> int:
    return sum(batch.rows for batch in state.batches)


def _bytes(state: ShardState) -> int:
    return sum(batch.size_bytes for batch in state.batches)
