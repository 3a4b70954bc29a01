"""Compaction as work to hand out: claimed in the state here, done anywhere, such as by a Spark job."""

from collections.abc import Callable, Container

from holdfast.persist.session import Session
from holdfast.persist.state.inspect import StoredSize
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part
from holdfast.persist.upkeep import compaction, piecewise
from holdfast.persist.upkeep.compaction import CompactionTask
from holdfast.persist.upkeep.piecewise import CompactionPiece


class Compactions:
    """Claims compactions of a client's shards and installs their results. Thread-safe.

    A claim keeps others from the same work for as long as its holder renews it. It is not given up when the
    client is closed: another process may be at the work. A result is installed as long as the entry of the
    claim's writer stands: who is not heard of for the lease has worked for nothing. The work may be done in
    pieces, by several processes at once: see `holdfast.persist.upkeep.piecewise`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def claim(self, shard_id: str, *, purpose: str, full: bool = False) -> CompactionTask | None:
        """The work that a shard wants done next, claimed; with `full` the merge of all its batches into one.

        None where that would gain nothing, or others are at it: those whom `claimants` names.

        Raises:
            NotWritable: the client was opened with mode "read".
        """
        machine = self._machine(shard_id)
        state = machine.refresh()
        batches = compaction.all_batches(state) if full else ()
        if full and not batches:
            return None
        return compaction.claim_compaction(machine, self._session.new_handle("w", purpose), batches)

    def claimants(self, shard_id: str) -> tuple[str, ...]:
        """The purposes of those who have claimed work on a shard."""
        state = self._machine(shard_id).refresh()
        known = (state.writers.get(claim.writer_id) for claim in state.claims.values())
        return tuple(writer.purpose for writer in known if writer is not None)

    def size(self, task: CompactionTask) -> StoredSize:
        """How much the batches of a task have stored. Raises `HandleExpired` where they are gone."""
        with compaction.batches_of(self._machine(task.shard_id), task) as (_, batches):
            return StoredSize(sum(each.rows for each in batches), sum(each.size_bytes for each in batches))

    def renew(self, task: CompactionTask) -> bool:
        """Say that the work goes on, at least once in the writer's lease; whether it is still wanted."""
        return compaction.renew(self._machine(task.shard_id), task)

    def renewal(self, task: CompactionTask) -> Callable[[], None]:
        """What renews the claim when that is due, however often it is called; never one that was lost."""
        return compaction.renewal(self._machine(task.shard_id), task)

    def pieces(self, task: CompactionTask, most: int) -> list[CompactionPiece]:
        """The work in at most so many pieces of about equal size, in the order of their keys. Picklable.

        Raises `HandleExpired` where the batches are gone.
        """
        return piecewise.pieces(self._machine(task.shard_id), task, most)

    def merge_piece(self, piece: CompactionPiece) -> tuple[Part, ...]:
        """Do a piece, while who has the claim renews it; those of all pieces, in their order, for `install`.

        Raises as `merge`.
        """
        return piecewise.merge_piece(self._machine(piece.task.shard_id), piece)

    def merge(self, task: CompactionTask) -> tuple[Part, ...]:
        """Do the work, renewing the claim meanwhile; the result, for `install`. Both are picklable.

        Raises:
            HandleExpired: the batches are gone: another has merged them, or the shard has ended.
            CorruptBlob: a part is not what was written.
        """
        return compaction.merge_task(self._machine(task.shard_id), task)

    def install(self, task: CompactionTask, parts: tuple[Part, ...]) -> bool:
        """Put the result in the place of exactly the batches of the task; whether that was done.

        If not, others were there, or nobody had renewed the claim for too long, and the parts are deleted.
        Where it raises the parts stay: ask again.
        """
        return compaction.install(self._machine(task.shard_id), task, parts)

    def release(self, task: CompactionTask) -> None:
        """Give up a claim without a result."""
        compaction.release(self._machine(task.shard_id), task)

    def end(self, shard_id: str, purposes: Container[str]) -> None:
        """End the claims that were made with one of these purposes, by a process that is replaced.

        What it has not installed it never will, wherever it is.
        """
        compaction.end_claims(self._machine(shard_id), purposes)

    def _machine(self, shard_id: str) -> Machine:
        self._session.check_writable()
        return self._session.machine(shard_id)
