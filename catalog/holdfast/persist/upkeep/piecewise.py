"""A compaction in pieces by key: several processes merge one claim, and the result is one run.

- The pieces are ranges of the first column that tile all of it, wherever the cuts are, planned once: with the
  schema of the version that they were planned on, and the since of the claim. So the runs of the pieces, in
  their order, are the run that one process would have made, but for where parts end.
- Whoever merges a piece uploads for the writer of the claim, which whoever has the claim renews. Nobody but
  that one installs. What was uploaded twice, or by a process that nobody waits for any more, is not named by
  the result and is swept once the writer's entry is gone, which it is with the result.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.errors import CLOSED
from holdfast.persist.parts.runwriter import write_run
from holdfast.persist.parts.split import cuts
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part
from holdfast.persist.upkeep.compaction import CompactionTask, batches_of, consolidated


@dataclass(frozen=True, slots=True)
class CompactionPiece:
    """The rows of a compaction whose keys are in a range. Picklable: any process may merge it."""

    task: CompactionTask
    schema_id: int
    range: KeyRange


def pieces(machine: Machine, task: CompactionTask, most: int) -> list[CompactionPiece]:
    """At most so many pieces of about equal size, in the order of their keys; some may be empty.

    Raises:
        HandleExpired: the batches are gone.
    """
    with batches_of(machine, task) as (state, batches):
        found = cuts(machine, replace(state, batches=batches), CLOSED, most) if most > 1 else []
        limits = [None, *(((True, value),) for value in found), None]
        return [
            CompactionPiece(task, max(state.schemas), KeyRange(lower, upper))
            for lower, upper in pairwise(limits)
        ]


def merge_piece(machine: Machine, piece: CompactionPiece) -> tuple[Part, ...]:
    """Merge a piece into parts: those of all pieces, in their order, are what `install` takes.

    Memory is bounded as for a compaction. Raises as `pieces`.
    """
    with batches_of(machine, piece.task) as (state, batches):
        # Another process planned it, perhaps on a later version.
        schemas = state.schemas if piece.schema_id in state.schemas else machine.refresh().schemas
        schema = schemas[piece.schema_id]
        return write_run(
            machine,
            writer_id=piece.task.writer.id,
            schema=schema,
            schema_id=piece.schema_id,
            pieces=consolidated(machine, schema, batches, piece.task.since, wanted=piece.range),
            inline=piece.range == EVERYTHING,
            ahead=machine.config.builder_threads,
        )
