"""Multi-writes: they commit prepared commands on any number of shards in one step, all or none.

A command is prepared when its large updates are uploaded, and only the commit is left to do. Every write
takes this path: a plain append is a multi-write of one command.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Self

from holdfast.errors import BadInput, HoldfastError, Indeterminate, LocationMismatch, StorageError
from holdfast.persist.rows.casts import shown
from holdfast.persist.session import Session
from holdfast.persist.state.command import AppendRuns, AppendStaged, Command, RegisterWriter, Seal, Write
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.stores import Location

_TAKING: Final = threading.Lock()
LONGEST_UPLOAD_S: Final = 24 * 3600
"""Seconds after which an uncommitted upload may be swept away. An append is refused after half of that."""


class InFlight:
    """What one write handle has in flight. It keeps upkeep from ending the writer's entry too early.

    `settled` of the machine has the writers without an append in flight or in doubt.
    """

    __slots__ = ("__weakref__", "_settled", "_shard_id", "closed", "undecided", "writer_id")

    def __init__(self, machine: Machine, writer_id: str) -> None:
        self._settled = machine.settled
        self._shard_id = machine.shard_id
        self.writer_id = writer_id
        self.closed = False
        self.undecided = False
        self.settle()

    def begin(self) -> None:
        """Note that an append is in flight. Raises `BadInput` if the handle is closed."""
        if self.closed:
            raise closed_writer(self._shard_id)
        self._settled.discard(self.writer_id)

    def settle(self) -> None:
        """Note that the outcome of the append is known."""
        if not self.undecided:
            self._settled.add(self.writer_id)

    def mark_undecided(self) -> None:
        """Make the handle refuse further work: the outcome of an append is unknown."""
        self.undecided = True
        self._settled.discard(self.writer_id)


@dataclass(slots=True)
class Prepared:
    """A command that is ready to commit. Thread-safe: one of several threads commits it.

    Once an append is committed, its uploads belong to the shard. Once it is rejected, they are deleted. In
    both cases it can't be given to a multi-write again. An append that uploaded nothing, or that is kept,
    can.
    """

    machine: Machine
    command: Command
    writer: InFlight | None = field(default=None, repr=False)
    uploaded: Sequence[str] = field(init=False)
    """Keys of the blobs that are garbage if the command is rejected."""
    _spent: bool = field(default=False, init=False, repr=False)
    _kept: bool = field(default=False, init=False, repr=False)
    _made_s: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        runs = self.command.runs if isinstance(self.command, AppendRuns | Write) else ()
        self.uploaded = [part.blob_key for run in runs for part in run if part.blob_key is not None]
        if self.uploaded:
            self._made_s = self.machine.clock.monotonic()

    def spend(self) -> None:
        """Mark it as used. Raises `BadInput` if it is used already, or its uploads may be swept away."""
        if self.uploaded and self.machine.clock.monotonic() - self._made_s > LONGEST_UPLOAD_S / 2:
            raise BadInput(
                f"this append to {self.machine.shard_id} was prepared more than"
                f" {LONGEST_UPLOAD_S // 7200} hours ago: its uploads may be deleted"
                f" {LONGEST_UPLOAD_S // 3600} hours after they were made",
                hint="prepare it again",
            )
        if not self._take():
            raise BadInput(
                f"this write to {self.machine.shard_id} is committed already, or its uploads are deleted",
                hint="prepare it again",
            )
        if self.writer is not None:
            try:
                self.writer.begin()
            except BaseException:
                self._spent = False
                raise

    def _take(self) -> bool:
        """Mark it as used; False if it is used already. One of several threads takes it."""
        with _TAKING:
            free, self._spent = not self._spent, True
            return free

    def give_back(self) -> None:
        """Record that it was not tried after all."""
        self._spent = False
        self.settle()

    def settle(self) -> None:
        """Record that it is known whether it happened."""
        if self.writer is not None:
            self.writer.settle()

    @property
    def usable(self) -> bool:
        """Whether a multi-write may use it."""
        return not self._spent

    def keep(self) -> Self:
        """Keep the uploads for another attempt if it is rejected. The caller must `abandon` it in the end."""
        self._kept = True
        return self

    def expect(self, upper: int) -> None:
        """Make an append expect this upper at its next attempt. `upper` is at most its earliest time."""
        assert isinstance(self.command, AppendRuns)
        assert all(part.lower >= upper for run in self.command.runs for part in run)
        self.command = replace(self.command, expected_upper=upper)

    def rejected(self) -> Sequence[str]:
        """Record that it certainly did not happen. Return the blobs that are garbage now."""
        if self._kept:
            self._spent = False
            return ()
        self._spent = bool(self.uploaded)
        return self.uploaded

    def abandon(self) -> None:
        """Delete the uploads, unless it was committed. It can't be committed afterwards.

        In a forked child it does nothing, because the parent may commit it.
        """
        if self.machine.owner.is_here and self._take():
            with suppress(StorageError):
                for key in self.uploaded:
                    self.machine.location.blob.delete(key)


def closed_writer(shard_id: str) -> BadInput:
    """Return the error for the use of a write handle after its `close`."""
    return BadInput(f"this writer of {shard_id} is closed", hint="open another writer of the shard")


def multi_write(session: Session, commands: Sequence[Prepared]) -> None:
    """Commit prepared commands, all or none. See `PersistClient.multi_write`."""
    session.check_writable()
    appends = _spend_all(commands, session.location)
    if not commands:
        return
    try:
        steps = [(_own_machine(session, each), each.command) for each in commands]
        commit(steps)
    except Indeterminate:
        for append in appends:
            if append.writer is not None:
                append.writer.mark_undecided()
        raise
    except HoldfastError as error:
        for append in appends:
            append.settle()
        # After an attempt of unknown outcome, leaking a blob is better than deleting a live one.
        if not isinstance(error.__cause__, Indeterminate):
            _discard(session, appends)
        raise
    for append in appends:
        append.settle()
    for machine, done in steps:
        if isinstance(done, RegisterWriter):
            # This writer only created the shard, and will not write.
            machine.settled.add(done.writer.id)
            machine.closed.add(done.writer.id)
        session.maintainer.after_commit(machine)


def _spend_all(commands: Sequence[Prepared], location: Location) -> list[Prepared]:
    """Mark all appends, writes and seals among the commands as used, or none. Return them.

    Raises:
        BadInput: one is used already, something is no prepared command, or a shard has two appends or seals.
        LocationMismatch: a shard is not of this location.
    """
    if not isinstance(commands, Sequence):
        raise BadInput(f"a multi-write takes a list of prepared commands, not {shown(commands)}")
    for command in commands:
        if not isinstance(command, Prepared):
            raise BadInput(
                f"a multi-write takes prepared commands, not {shown(command)}",
                hint="make them with the prepare_... methods of handles and clients",
            )
        if command.machine.location.location_id != location.location_id:
            raise LocationMismatch(
                f"a command for shard {command.machine.shard_id} belongs to another location than"
                f" {location.blob.description}",
                hint="prepare and commit it with clients of the same location",
            )
    kinds = AppendRuns | AppendStaged | Seal | Write
    writes = [command for command in commands if isinstance(command.command, kinds)]
    moves = [write.machine.shard_id for write in writes if not isinstance(write.command, Write)]
    if again := next((shard_id for shard_id in moves if moves.count(shard_id) > 1), None):
        raise BadInput(
            f"a multi-write takes at most one append or seal per shard, but {again} has more",
            hint="prepare one append with all updates of the shard",
        )
    for count, write in enumerate(writes):
        try:
            write.spend()
        except BaseException:
            for spent in writes[:count]:
                spent.give_back()
            raise
    return writes


def _own_machine(session: Session, prepared: Prepared) -> Machine:
    """Return the session's machine of the shard. Another client of the location may have prepared it."""
    shard_id = prepared.machine.shard_id
    return session.machines.get(shard_id) or session.machine(shard_id)


def _discard(session: Session, appends: Sequence[Prepared]) -> None:
    for append in appends:
        garbage = append.rejected()
        # The reason of the rejection matters more than a blob that can't be deleted now.
        with suppress(StorageError):
            for key in garbage:
                session.location.blob.delete(key)
