"""Critical holds: durable holds on a shard's `since`, moved by who has the token.

- A hold has a token of its holder's choice (`opaque`), which is needed to move the hold, to release it, or to
  put another token in its place. That is one compare-and-set of the shard, so of two processes that believe
  to hold it one is `Fenced`. The empty token is one that everybody has.
- Finding a hold changes nothing, whatever token is given: only `compare_and_downgrade` does. A process that
  woke up late does not win its hold back by opening it again.
- Tokens should be unlike any other, such as a random one or a greater epoch: a holder that comes back with
  the stored token is the holder.
- A token is never printed: `holdfast.persist.ids.fingerprint` tells two of them apart.
"""

from typing import Final

from holdfast.errors import BadInput
from holdfast.persist.checks import check_frontier, check_purpose
from holdfast.persist.ids import check_shard_id, critical_id
from holdfast.persist.prepared import Prepared
from holdfast.persist.session import Session
from holdfast.persist.state.command import DowngradeCritical, DropCritical, RegisterCritical
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import CriticalReader

MOST_OPAQUE_BYTES: Final = 256
"""It is in every version of the shard, so it must stay small."""


def check_opaque(opaque: bytes) -> bytes:
    """Return `opaque`, or raise `BadInput` where it can't be the token of a hold."""
    if not isinstance(opaque, bytes) or len(opaque) > MOST_OPAQUE_BYTES:
        raise BadInput(f"the token of a critical hold is at most {MOST_OPAQUE_BYTES} bytes")
    return opaque


class CriticalSince:
    """A durable hold on a shard's `since`, found again by its purpose. Thread-safe.

    The handle acts with the token that it was opened with, whatever is stored.
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
        """Where the hold stands, as this process knows it."""
        return self._known.since

    @property
    def opaque(self) -> bytes:
        """The token that is stored, as this process knows it; what `compare_and_downgrade` may expect."""
        return self._known.opaque

    @property
    def _known(self) -> CriticalReader:
        return self._machine.state.critical_readers.get(self.id, self._found)

    def downgrade(self, since: int) -> None:
        """Move the hold forward to `since`; never back.

        Raises:
            Fenced: the stored token is not the one of this handle; nothing happened.
            HandleExpired: the hold was released.
        """
        self._session.multi_write([self.prepare_downgrade(since)])

    def compare_and_downgrade(self, expected: bytes, opaque: bytes, since: int) -> None:
        """Where the stored token is `expected`, put `opaque` in its place and move the hold to `since`.

        The handle has the token `opaque` from then on, and who acts with `expected` is fenced. A hold that is
        beyond `since` stays where it is. Repeating it after an `Indeterminate` is safe: where `opaque` is
        stored already, this process put it there.

        Raises:
            Fenced: the stored token is another; nothing happened.
            HandleExpired: the hold was released.
        """
        self._session.multi_write([self.prepare_compare_and_downgrade(expected, opaque, since)])
        self._opaque = opaque

    def prepare_downgrade(self, since: int) -> Prepared:
        """A downgrade for `multi_write`."""
        return self.prepare_compare_and_downgrade(self._opaque, self._opaque, since)

    def prepare_compare_and_downgrade(self, expected: bytes, opaque: bytes, since: int) -> Prepared:
        """A change of token for `multi_write`; this handle keeps its own: open another with `opaque`."""
        command = DowngradeCritical(
            self.id, check_frontier(since), check_opaque(expected), check_opaque(opaque)
        )
        return Prepared(self._machine, command)

    def release(self) -> None:
        """Give up the hold for ever. Raises `Fenced` where the stored token is not the one of this handle."""
        self._session.multi_write([self.prepare_release()])

    def prepare_release(self) -> Prepared:
        """The end of the hold, for `multi_write`."""
        return Prepared(self._machine, DropCritical(self.id, self._opaque))


def open_critical(session: Session, shard_id: str, *, purpose: str, opaque: bytes) -> CriticalSince:
    """The hold of this purpose. Raises as `PersistClient.critical_since`."""
    machine = session.machine(shard_id)
    session.check_writable()
    (reader,) = commit([(machine, RegisterCritical(check_purpose(purpose), check_opaque(opaque)))])
    assert isinstance(reader, CriticalReader)
    return CriticalSince(session, machine, reader, opaque)


def prepare_critical(
    session: Session, shard_id: str, *, purpose: str, opaque: bytes = b"", not_past: int | None = None
) -> Prepared:
    """The taking of a hold, as `PersistClient.prepare_critical` documents it."""
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
    """The move of a hold, as `PersistClient.prepare_downgrade_critical` documents it."""
    hold = critical_id(check_shard_id(shard_id), check_purpose(purpose))
    old = opaque if expected is None else expected
    command = DowngradeCritical(hold, check_frontier(since), check_opaque(old), check_opaque(opaque))
    return Prepared(session.machine(shard_id), command)


def prepare_release_critical(
    session: Session, shard_id: str, *, purpose: str, opaque: bytes = b""
) -> Prepared:
    """The end of a hold, as `PersistClient.prepare_release_critical` documents it."""
    hold = critical_id(check_shard_id(shard_id), check_purpose(purpose))
    return Prepared(session.machine(shard_id), DropCritical(hold, check_opaque(opaque)))
