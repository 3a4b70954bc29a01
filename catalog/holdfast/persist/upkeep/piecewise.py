"""A compaction in pieces by key: several processes merge the batches of one claim, and the result is one run.

- The pieces are ranges of the first column that cover all of its values. They are planned once, with the
  schema of the version that they were planned on, and with the since of the claim. So the runs of the pieces,
  in their order, are the run that a single process would have made, except that parts may end elsewhere.
- A process that merges a piece uploads for the writer of the claim. The process that has the claim renews the
  writer's lease, and only that process installs the result. A part that was uploaded twice, or by a process
  that nobody waits for any more, is not named by the result. The sweeper deletes it once the writer's entry
  is gone. The entry ends with the installation of the result.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.errors import CLOSED
from holdfast.persist.parts.run_writer import write_run
from holdfast.persist.parts.split import cuts
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part
from holdfast.persist.upkeep.compaction import CompactionTask, batches_of, consolidated


@dataclass(frozen=True, slots=True)
class CompactionPiece:
    """The rows of a compaction whose keys are in a range. It is picklable, so any process can merge it."""

    task: CompactionTask
    schema_id: int
    range: KeyRange


def pieces(machine: Machine, task: CompactionTask, most: int) -> list[CompactionPiece]:
    """Plan at most `most` pieces of about equal size, in the order of their keys. Some may be empty.

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
    """Merge a piece into parts. `install` takes the parts of all pieces, in the order of the pieces.

    Memory is limited as for a compaction. Raises the same errors as `pieces`.
    """
    with batches_of(machine, piece.task) as (state, batches):
        # Another process planned the piece, maybe on a later version.
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
