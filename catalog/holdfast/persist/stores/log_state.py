"""The state of an S3-only consensus log, and which commands the next object can hold. No I/O.

Invariants:

- The state is a function of the objects up to `position`. Each object names the token of the one before. So
  objects that were put over a truncated piece of the log can't be taken for the log.
- An object is added only to the state for which it was drafted. So what its writer checked is true there.
- The head of a key is never truncated.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

from holdfast.errors import CorruptBlob
from holdfast.persist.stores.traits import Digest, Entry, Expect, LogRow, Put, digest_of

RECENT: Final = 1024
"""How many tokens a state remembers. They show whether a put of unknown outcome is part of the log."""


@dataclass(frozen=True, slots=True)
class LogAppend:
    """A compare-and-set."""

    puts: tuple[Put, ...]
    expect: tuple[Expect, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncates one key below `seqno`; with `known`, only if the log has that entry."""

    key: str
    seqno: int
    known: LogRow | None = None


Command = LogAppend | Truncate


@dataclass(frozen=True, slots=True)
class LogObject:
    """One step of the log, at `position` (from 1). Its puts apply before its truncations."""

    log_id: bytes
    position: int
    token: bytes
    previous: bytes
    puts: tuple[Put, ...]
    truncations: tuple[Truncate, ...] = ()


@dataclass(frozen=True, slots=True)
class Floor:
    """Objects below `floor` may be deleted. `checkpoint` is the name of the newest one ("" for none)."""

    log_id: bytes
    floor: int = 1
    checkpoint: str = ""
    checkpoint_position: int = 0


@dataclass(slots=True)
class LogState:
    """The remaining entries of all logs at `position`."""

    position: int = 0
    tokens: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECENT))
    logs: dict[str, list[Entry]] = field(default_factory=dict)
    live_bytes: int = 0
    """The bytes of the remaining entries."""
    new_bytes: int = 0
    """The bytes of entries that were added since the checkpoint at `checkpoint_position`."""
    checkpoint_position: int = 0

    @property
    def token(self) -> bytes:
        """The token of the newest object; empty before the first one."""
        return self.tokens[-1] if self.tokens else b""

    def token_at(self, position: int) -> bytes | None:
        """Return the token of an object; None if it is not remembered (any more)."""
        back = self.position - position
        return self.tokens[-1 - back] if 0 <= back < len(self.tokens) else None

    def head(self, key: str) -> int:
        """Return the seqno of the newest entry; 0 if there is none."""
        log = self.logs.get(key)
        return log[-1].seqno if log else 0

    def first(self, key: str) -> int:
        """Return the seqno of the oldest remaining entry; 0 if there is none."""
        log = self.logs.get(key)
        return log[0].seqno if log else 0

    def digest(self, key: str, seqno: int) -> Digest | None:
        """Return the digest of an entry; None if the log does not have it."""
        log = self.logs.get(key, [])
        place = seqno - log[0].seqno if log else -1
        return digest_of(log[place].data) if 0 <= place < len(log) else None

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        """Return the oldest `limit` entries at or after `from_seqno`."""
        log = self.logs.get(key, [])
        start = max(0, from_seqno - self.first(key))
        return log[start : start + limit]

    def follows(self, added: LogObject) -> bool:
        """Whether an object was drafted for this state."""
        return added.position == self.position + 1 and added.previous == self.token

    def add(self, added: LogObject) -> None:
        """Add the next object. Raises `CorruptBlob` if it contradicts the state."""
        assert self.follows(added)
        for put in added.puts:
            if put.seqno != self.head(put.key) + 1:
                raise CorruptBlob(
                    f"log object {added.position}",
                    f"entry {self.head(put.key) + 1} of {put.key}",
                    f"entry {put.seqno}",
                )
            self.logs.setdefault(put.key, []).append(Entry(put.seqno, put.data))
            self.live_bytes += len(put.data)
            self.new_bytes += len(put.data)
        for truncation in added.truncations:
            log = self.logs.get(truncation.key, [])
            count = max(0, min(truncation.seqno, self.head(truncation.key)) - self.first(truncation.key))
            self.live_bytes -= sum(len(entry.data) for entry in log[:count])
            del log[:count]
        self.position = added.position
        self.tokens.append(added.token)

    def note_checkpoint(self, position: int) -> None:
        """Record that there is, or was, a checkpoint at `position`."""
        if position > self.checkpoint_position:
            self.checkpoint_position, self.new_bytes = position, 0

    def copy(self) -> "LogState":
        """Return a copy of this state, for a checkpoint."""
        logs = {key: list(log) for key, log in self.logs.items()}
        return LogState(self.position, self.tokens.copy(), logs, self.live_bytes)


@dataclass(frozen=True, slots=True)
class Draft:
    """The contents of a possible next object, and the outcome of each command.

    `taken` maps the indexes of the commands in the object to their results. `beaten` has the indexes of
    commands that other commands in the object prevent, and `refused` of those that the state itself prevents.
    """

    puts: tuple[Put, ...]
    truncations: tuple[Truncate, ...]
    taken: dict[int, bool | int]
    beaten: tuple[int, ...]
    refused: tuple[int, ...]


def draft(state: LogState, commands: Iterable[Command]) -> Draft:
    """Draft an object with as many of the commands as possible, applied one after the other."""
    heads: dict[str, int] = {}
    firsts: dict[str, int] = {}
    newest: dict[str, Digest] = {}
    puts: list[Put] = []
    truncations: list[Truncate] = []
    taken: dict[int, bool | int] = {}
    beaten: list[int] = []
    refused: list[int] = []

    def holds(condition: Expect) -> bool:
        key, head, digest = condition
        if heads.get(key, state.head(key)) != head:
            return False
        return digest is None or digest == (newest.get(key) or state.digest(key, head))

    for number, command in enumerate(commands):
        match command:
            case LogAppend():
                wanted = [Expect(put.key, put.seqno - 1, put.after) for put in command.puts]
                wanted += command.expect
                if any(state.head(key) > head for key, head, _ in wanted):
                    refused.append(number)
                elif all(map(holds, wanted)):
                    heads.update((put.key, put.seqno) for put in command.puts)
                    newest.update((put.key, digest_of(put.data)) for put in command.puts)
                    puts += [Put(put.key, put.seqno, put.data) for put in command.puts]
                    taken[number] = True
                elif any(heads.get(key, 0) > head for key, head, _ in wanted):
                    beaten.append(number)
                else:
                    refused.append(number)
            case Truncate(key, seqno, known):
                # A truncation acts as if it came before the puts: it keeps the head of the state.
                first, cut = firsts.get(key, state.first(key)), min(seqno, state.head(key))
                if known is not None and state.digest(key, known.seqno) != known.digest:
                    refused.append(number)
                elif cut > first:
                    firsts[key] = cut
                    truncations.append(Truncate(key, cut))
                    taken[number] = cut - first
                elif key in firsts:
                    beaten.append(number)
                else:
                    refused.append(number)
            case _:
                assert_never(command)
    return Draft(tuple(puts), tuple(truncations), taken, tuple(beaten), tuple(refused))
