"""The task of the compaction job: merges pieces of shards into parts for the driver's claims.

This is a separate module because the module of a job is the program, and executors can't import its
functions.
"""

from collections.abc import Sequence
from uuid import UUID

from holdfast.errors import HandleExpired, ShardFinalized
from holdfast.forks import kept_in_process
from holdfast.persist import CompactionPiece, PersistClient
from holdfast.persist.state.state import Part
from holdfast.spark.place import Place

Merged = tuple[Part, ...] | None
"""The parts of a piece, in the order of their keys. None if its batches are gone."""


def merge_pieces(pieces: Sequence[CompactionPiece], *, place: Place, location_id: UUID) -> tuple[Merged, ...]:
    """Merge the pieces one after the other. Runs in an executor."""
    client = _kept_open(place, location_id)
    return tuple(_merged(client, piece) for piece in pieces)


def _merged(client: PersistClient, piece: CompactionPiece) -> Merged:
    try:
        return client.compactions.merge_piece(piece)
    except (HandleExpired, ShardFinalized):
        return None


# Worker processes stay alive and run many tasks.
_kept_open = kept_in_process(most=8)(Place.open_to_write)
