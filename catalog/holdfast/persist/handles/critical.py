"""Critical holds: durable holds on a shard's `since`. To move a hold, you need its token.

- The holder chooses the token (`opaque`). The token is needed to move the hold, to release it, or to replace
  the token. Each of these is one compare-and-set of the shard. So if two processes believe that they own the
  hold, one of them gets `Fenced`. Every process has the empty token.
- Opening a hold changes nothing, with any token. Only `compare_and_downgrade` changes the token. So a process
  that wakes up late does not win its hold back by opening it again.
- A token should be unique, such as a random one or a greater epoch. If a process returns with the stored
  token, it is the holder.
- A token is never printed. `holdfast.persist.ids.fingerprint` lets people compare tokens.
"""

from typing import Final

from holdfast.errors import BadInput
from holdfast.persist.checks import check_frontier, check_purpose
from holdfast.persist.ids import check_shard_id, critical_id
from holdfast.persist.multi_write import Prepared, multi_write
from holdfast.persist.session import Session
from holdfast.persist.state.command import DowngradeCritical, DropCritical, RegisterCritical
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import CriticalReader

MOST_OPAQUE_BYTES: Final = 256
"""The token is in every version of the shard, so it must stay small."""


def check_opaque(opaque: bytes) -> bytes:
    """Return `opaque`, or raise `BadInput` if it can't be the token of a hold."""
    if not isinstance(opaque, bytes) or len(opaque) > MOST_OPAQUE_BYTES:
        raise BadInput(f"the token of a critical hold must be bytes, at most {MOST_OPAQUE_BYTES}")
    return opaque


class CriticalSince:
    """A durable hold on a shard's `since`, identified by its purpose. Thread-safe.

    The handle uses the token that it was opened with, even if another token is stored.
    """

    def __init__(self, session: Session, machine: Machine, reader: CriticalReader, opaque: bytes) -> None:
        self._session = session
        self._machine = machine
        self._found = reader
        self._opaque = opaque
        self.id = reader.id
        self.purpose = reader.purpose

    @property
    def since(self) -> int:
        """The time of the hold, as this process knows it."""
        return self._known.since

    @property
    def opaque(self) -> bytes:
        """The stored token, as this process knows it. Pass it to `compare_and_downgrade` as `expected`."""
        return self._known.opaque

    @property
    def _known(self) -> CriticalReader:
        return self._machine.state.critical_readers.get(self.id, self._found)

    def downgrade(self, since: int) -> None:
        """Move the hold forward to `since`. It never moves back.

        Raises:
            Fenced: the stored token is not the token of this handle; nothing happened.
            HandleExpired: the hold was released.
        """
        multi_write(self._session, [self.prepare_downgrade(since)])

    def compare_and_downgrade(self, expected: bytes, opaque: bytes, since: int) -> None:
        """If the stored token is `expected`, replace it by `opaque` and move the hold to `since`.

        The handle then uses the token `opaque`, and processes that use `expected` are fenced. A hold that is
        beyond `since` stays where it is. You can safely repeat the call after an `Indeterminate`: if `opaque`
        is stored already, this process stored it.

        Raises:
            Fenced: the stored token is another; nothing happened.
            HandleExpired: the hold was released.
        """
        multi_write(self._session, [self.prepare_compare_and_downgrade(expected, opaque, since)])
        self._opaque = opaque

    def prepare_downgrade(self, since: int) -> Prepared:
        """Prepare a downgrade for `multi_write`."""
        return self.prepare_compare_and_downgrade(self._opaque, self._opaque, since)

    def prepare_compare_and_downgrade(self, expected: bytes, opaque: bytes, since: int) -> Prepared:
        """Prepare a new token for `multi_write`. This handle keeps its own; open another with `opaque`."""
        command = DowngradeCritical(
            self.id, check_frontier(since), check_opaque(expected), check_opaque(opaque)
        )
        return Prepared(self._machine, command)

    def release(self) -> None:
        """Release the hold for ever. Raises `Fenced` if the stored token is not the token of this handle."""
        multi_write(self._session, [self.prepare_release()])

    def prepare_release(self) -> Prepared:
        """Prepare the release of the hold, for `multi_write`."""
        return Prepared(self._machine, DropCritical(self.id, self._opaque))


def open_critical(session: Session, shard_id: str, *, purpose: str, opaque: bytes) -> CriticalSince:
    """Open the hold of this purpose. Raises the same errors as `PersistClient.critical_since`."""
    machine = session.machine(shard_id)
    session.check_writable()
    (reader,) = commit([(machine, RegisterCritical(check_purpose(purpose), check_opaque(opaque)))])
    assert isinstance(reader, CriticalReader)
    return CriticalSince(session, machine, reader, opaque)


def prepare_critical(
    session: Session, shard_id: str, *, purpose: str, opaque: bytes = b"", not_past: int | None = None
) -> Prepared:
    """See `PersistClient.prepare_critical`."""
    if not_past is not None:
        check_frontier(not_past, "not_past")
    command = RegisterCritical(check_purpose(purpose), check_opaque(opaque), not_past)
    return Prepared(session.machine(shard_id), command)


def prepare_downgrade_critical(
    session: Session,
    shard_id: str,
    since: int,
    *,
    purpose: str,
    opaque: bytes = b"",
    expected: bytes | None = None,
) -> Prepared:
    """See `PersistClient.prepare_downgrade_critical`."""
    hold = critical_id(check_shard_id(shard_id), check_purpose(purpose))
    old = opaque if expected is None else expected
    command = DowngradeCritical(hold, check_frontier(since), check_opaque(old), check_opaque(opaque))
    return Prepared(session.machine(shard_id), command)


def prepare_release_critical(
    session: Session, shard_id: str, *, purpose: str, opaque: bytes = b""
) -> Prepared:
    """See `PersistClient.prepare_release_critical`."""
    hold = critical_id(check_shard_id(shard_id), check_purpose(purpose))
    return Prepared(session.machine(shard_id), DropCritical(hold, check_opaque(opaque)))
