"""Compaction as work to hand out: claimed in the state here, done anywhere, such as by a Spark job."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.persist import compaction
from holdfast.persist.command import Handle
from holdfast.persist.compaction import CompactionTask
from holdfast.persist.state import Part

if TYPE_CHECKING:
    from holdfast.persist.client import PersistClient
    from holdfast.persist.machine import Machine


class Compactions:
    """Claims compactions of a client's shards and installs their results. Thread-safe.

    A claim keeps others from the same work for as long as its holder renews it. It is not given up when the
    client is closed: another process may be at the work. A result is installed as long as the entry of the
    claim's writer stands: who is not heard of for the lease has worked for nothing.
    """

    def __init__(self, client: "PersistClient", writer: Callable[[str], Handle]) -> None:
        self._client = client
        self._writer = writer

    def claim(self, shard_id: str, *, purpose: str) -> CompactionTask | None:
        """The work that a shard wants done next, claimed; None where none is due, or others are at it.

        Raises:
            NotWritable: the client was opened with mode "read".
        """
        machine = self._machine(shard_id)
        machine.refresh()
        return compaction.claim_compaction(machine, self._writer(purpose))

    def renew(self, task: CompactionTask) -> bool:
        """Say that the work goes on, at least once in the writer's lease; whether it is still wanted."""
        return compaction.renew(self._machine(task.shard_id), task)

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

    def _machine(self, shard_id: str) -> "Machine":
        self._client.check_writable()
        return self._client.machine(shard_id)
