"""The task of the compaction job: pieces of shards, merged into parts for the claims of the driver.

It is a module of its own because that of a job is the program, whose functions executors could not import.
"""

from collections.abc import Sequence
from uuid import UUID

from holdfast.errors import HandleExpired, ShardFinalized
from holdfast.forks import kept_in_process
from holdfast.persist import CompactionPiece, PersistClient
from holdfast.persist.state.state import Part
from holdfast.spark.place import Place

Merged = tuple[Part, ...] | None
"""The parts of a piece, in the order of their keys; None where its batches are gone."""


def merge_pieces(pieces: Sequence[CompactionPiece], *, place: Place, location_id: UUID) -> tuple[Merged, ...]:
    """Merge one piece after the other; runs in an executor."""
    client = _kept_open(place, location_id)
    return tuple(_merged(client, piece) for piece in pieces)


def _merged(client: PersistClient, piece: CompactionPiece) -> Merged:
    try:
        return client.compactions.merge_piece(piece)
    except (HandleExpired, ShardFinalized):
        return None


# Worker processes live on and do many tasks.
_kept_open = kept_in_process(most=8)(Place.open_to_write)
