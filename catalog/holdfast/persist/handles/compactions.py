"""Compaction as work to hand out: you claim it here, and run it anywhere, for example in a Spark job."""

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

    A claim keeps others from doing the same work for as long as its holder renews it. Closing the client does
    not release it, because another process may be doing the work. A result is installed only while the entry
    of the claim's writer exists. So if nobody renews the claim for the length of its lease, the work is lost.
    Several processes can do the work in pieces at once; see `holdfast.persist.upkeep.piecewise`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def claim(self, shard_id: str, *, purpose: str, full: bool = False) -> CompactionTask | None:
        """Claim the next compaction that a shard needs; with `full`, the merge of all its batches into one.

        If others have claimed batches, `full` claims the most adjacent ones of the rest. Return None if that
        would gain nothing, or others have claimed it. `claimants` returns their purposes.

        Raises:
            NotWritable: the client was opened with mode "read".
        """
        machine = self._machine(shard_id)
        writer = self._session.new_handle("w", purpose)
        state = machine.refresh()
        if not full:
            return compaction.claim_compaction(machine, writer)
        while batches := compaction.most_unclaimed(state):
            if task := compaction.claim_compaction(machine, writer, batches):
                return task
            # Others have claimed or merged some of them since the state was read.
            state = machine.refresh()
        return None

    def claimants(self, shard_id: str) -> tuple[str, ...]:
        """Return the purposes of all claims on a shard."""
        state = self._machine(shard_id).refresh()
        known = (state.writers.get(claim.writer_id) for claim in state.claims.values())
        return tuple(writer.purpose for writer in known if writer is not None)

    def size(self, task: CompactionTask) -> StoredSize:
        """Return how much the batches of a task store. Raises `HandleExpired` if they are gone."""
        with compaction.batches_of(self._machine(task.shard_id), task) as (_, batches):
            return StoredSize(sum(each.rows for each in batches), sum(each.size_bytes for each in batches))

    def renew(self, task: CompactionTask) -> bool:
        """Renew the claim. Call it at least once per lease. Return whether the work is still wanted."""
        return compaction.renew(self._machine(task.shard_id), task)

    def renewal(self, task: CompactionTask) -> Callable[[], None]:
        """Return a function that renews the claim if that is due. It never renews a lost claim."""
        return compaction.renewal(self._machine(task.shard_id), task)

    def pieces(self, task: CompactionTask, most: int) -> list[CompactionPiece]:
        """Divide the work into at most `most` picklable pieces of about equal size, in the order of keys.

        Raises `HandleExpired` if the batches are gone.
        """
        return piecewise.pieces(self._machine(task.shard_id), task, most)

    def merge_piece(self, piece: CompactionPiece) -> tuple[Part, ...]:
        """Do a piece, while the holder of the claim renews it. `install` takes all results, in their order.

        Raises the same errors as `merge`.
        """
        return piecewise.merge_piece(self._machine(piece.task.shard_id), piece)

    def merge(self, task: CompactionTask) -> tuple[Part, ...]:
        """Do the work, and renew the claim during it. Return the result for `install`. Both are picklable.

        Raises:
            HandleExpired: the batches are gone: another process has merged them, or the shard was finalized.
            CorruptBlob: a part is damaged.
        """
        return compaction.merge_task(self._machine(task.shard_id), task)

    def install(self, task: CompactionTask, parts: tuple[Part, ...]) -> bool:
        """Replace exactly the batches of the task by the result. Return whether that happened.

        If not, the batches had changed, or nobody renewed the claim for too long. The parts are then deleted.
        If the method raises an error, the parts stay, and you can call it again.
        """
        return compaction.install(self._machine(task.shard_id), task, parts)

    def release(self, task: CompactionTask) -> None:
        """Release a claim without a result."""
        compaction.release(self._machine(task.shard_id), task)

    def end(self, shard_id: str, purposes: Container[str]) -> None:
        """End the claims with these purposes, which a process that is being replaced has made.

        The replaced process can't install their results any more, even if it still runs.
        """
        compaction.end_claims(self._machine(shard_id), purposes)

    def _machine(self, shard_id: str) -> Machine:
        self._session.check_writable()
        return self._session.machine(shard_id)
