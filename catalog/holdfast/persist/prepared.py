"""Prepared commands: large updates are uploaded, and only the commit is left to do.

`Session.multi_write` commits any number of them in one step.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, Self

from holdfast.errors import BadInput, StorageError
from holdfast.persist.rows.casts import shown
from holdfast.persist.state.command import Append, Command
from holdfast.persist.state.machine import Machine

LONGEST_UPLOAD_S: Final = 24 * 3600
"""Seconds after which an uncommitted upload may be swept away. An append is refused after half of that."""


class Appender(Protocol):
    """The write handle that made an append."""

    def begin(self) -> None:
        """Record that an append is in flight. Raises `BadInput` after `close`."""

    def settle(self) -> None:
        """Record that it is known whether the append happened."""

    def mark_undecided(self) -> None:
        """Refuse all further work, because it is unknown whether the append happened."""


@dataclass(slots=True)
class Prepared:
    """A command that is ready to commit. `uploaded` are blobs that become garbage if it is rejected.

    Once an append is committed, its uploads belong to the shard. Once it is rejected, they are deleted. In
    both cases it can't be given to a multi-write again. An append that uploaded nothing, or that is kept,
    can.
    """

    machine: Machine
    command: Command
    uploaded: Sequence[str] = ()
    writer: "Appender | None" = field(default=None, repr=False)
    _spent: bool = field(default=False, init=False, repr=False)
    _kept: bool = field(default=False, init=False, repr=False)
    _made_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._made_s = self.machine.clock.monotonic()

    def spend(self) -> None:
        """Mark it as used. Raises `BadInput` if it is used already, or its uploads may be swept away."""
        if self.uploaded and self.machine.clock.monotonic() - self._made_s > LONGEST_UPLOAD_S / 2:
            raise BadInput(
                f"this append to {self.machine.shard_id} was prepared too long ago", hint="prepare it again"
            )
        if self._spent:
            raise BadInput(
                f"this write to {self.machine.shard_id} is committed already, or its uploads are deleted",
                hint="prepare it again",
            )
        if self.writer is not None:
            self.writer.begin()
        self._spent = True

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
        assert isinstance(self.command, Append)
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
        if not self._spent and self.machine.owner.is_here:
            self._spent = True
            with suppress(StorageError):
                for key in self.uploaded:
                    self.machine.location.blob.delete(key)


def spend(writes: Sequence[Prepared]) -> None:
    """Mark all as used, or none. Raises `BadInput` if one of them is used already."""
    for count, write in enumerate(writes):
        try:
            write.spend()
        except BaseException:
            for spent in writes[:count]:
                spent.give_back()
            raise


def check_prepared(commands: Sequence[Prepared]) -> Sequence[Prepared]:
    """Return prepared commands. Raises `BadInput` if one is something else."""
    if not isinstance(commands, Sequence):
        raise BadInput(f"a multi-write takes a list of prepared commands, not {shown(commands)}")
    for command in commands:
        if not isinstance(command, Prepared):
            raise BadInput(
                f"a multi-write takes prepared commands, not {shown(command)}",
                hint="make them with the prepare_... methods of handles and clients",
            )
    return commands
