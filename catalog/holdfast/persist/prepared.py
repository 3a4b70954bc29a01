"""Prepared commands: all their work is done but the commit, and large updates are uploaded.

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
"""Seconds after which an upload that is not committed may be swept away; an append refuses at half of it."""


class Appender(Protocol):
    """The write handle that an append is from."""

    def begin(self) -> None:
        """Note that an append is in flight; `BadInput` after `close`."""

    def settle(self) -> None:
        """Note that it is known whether the append happened."""

    def mark_undecided(self) -> None:
        """Refuse all further work: it is unknown whether the append happened."""


@dataclass(slots=True)
class Prepared:
    """A command ready to commit; `uploaded` are blobs that are garbage if it is rejected.

    What an append uploaded belongs to the shard once it is committed, and is gone once it is rejected, so
    it can't be given to a multi-write again then; one that uploaded nothing, or that is kept, can.
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
        """Mark as used; `BadInput` where it is, or what was uploaded may have been swept away."""
        if self.uploaded and self.machine.clock.monotonic() - self._made_s > LONGEST_UPLOAD_S / 2:
            raise BadInput(
                f"this append to {self.machine.shard_id} was prepared too long ago", hint="prepare it again"
            )
        if self._spent:
            raise BadInput(
                f"this write to {self.machine.shard_id} is committed already, or what it uploaded is gone",
                hint="prepare it again",
            )
        if self.writer is not None:
            self.writer.begin()
        self._spent = True

    def give_back(self) -> None:
        """Note that it was not tried after all."""
        self._spent = False
        self.settle()

    def settle(self) -> None:
        """Note that it is known whether it happened."""
        if self.writer is not None:
            self.writer.settle()

    @property
    def usable(self) -> bool:
        """Whether a multi-write may take it."""
        return not self._spent

    def keep(self) -> Self:
        """Keep what it uploaded where it is rejected, for another try; the caller abandons it at last."""
        self._kept = True
        return self

    def expect(self, upper: int) -> None:
        """Let an append expect this upper, at most the times of its updates, with its next try."""
        assert isinstance(self.command, Append)
        assert all(part.lower >= upper for run in self.command.runs for part in run)
        self.command = replace(self.command, expected_upper=upper)

    def rejected(self) -> Sequence[str]:
        """Note that it certainly did not happen; answers the blobs that are garbage by that."""
        if self._kept:
            self._spent = False
            return ()
        self._spent = bool(self.uploaded)
        return self.uploaded

    def abandon(self) -> None:
        """Delete what was uploaded, where it was not committed: it can't be any more.

        In a forked child it does nothing: the parent may commit it.
        """
        if not self._spent and self.machine.owner.is_here:
            self._spent = True
            with suppress(StorageError):
                for key in self.uploaded:
                    self.machine.location.blob.delete(key)


def spend(writes: Sequence[Prepared]) -> None:
    """Mark all as used, or none: `BadInput` where one of them is used already."""
    for count, write in enumerate(writes):
        try:
            write.spend()
        except BaseException:
            for spent in writes[:count]:
                spent.give_back()
            raise


def check_prepared(commands: Sequence[Prepared]) -> Sequence[Prepared]:
    """Return prepared commands; `BadInput` where something is none."""
    if not isinstance(commands, Sequence):
        raise BadInput(f"a multi-write takes a list of prepared commands, not {shown(commands)}")
    for command in commands:
        if not isinstance(command, Prepared):
            raise BadInput(
                f"a multi-write takes prepared commands, not {shown(command)}",
                hint="make them with the methods prepare_... of handles and clients",
            )
    return commands
