"""What persist asks of a store: `Blob` for large immutable objects, `Consensus` for small ordered logs.

Invariants that every implementation keeps (the conformance suite is their executable form):

- Each call is linearizable: it takes effect at one point between its start and its return, and what
  returned is durable, across power loss where the store survives that at all.
- A failed call raises `Determinate` (it certainly did not happen) or `Indeterminate` (it may have
  happened, or may still happen); anything a store does not know is `Indeterminate`. A failed read is
  `Determinate`: it changes nothing. Wrong arguments are `BadInput`, a write through a store that was
  opened for reading is `NotWritable`, unreadable bytes are `CorruptBlob`.
- Keys obey `check_key` in all stores alike, so what works in one works in the others.
- Objects are safe to call from any thread.

Source: seed 5 (jargon: blob, log, storage location).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist.stores.watch import Watch

MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 200
MAX_SEQNO = (1 << 63) - 1
NOTHING_KNOWN: Final[Mapping[str, int]] = MappingProxyType({})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@lru_cache(maxsize=65536)
def check_key(key: str) -> str:
    """Return `key` if every store can hold it, else raise `BadInput`.

    A key is one or more segments joined by "/": at most 1024 bytes of UTF-8 (S3), a segment at most 200
    (file names, with room for a suffix), no segment empty or beginning with "." (path escape, and the
    stores' own hidden files), no control characters. A key must not be a folder of another ("a" and
    "a/b"): only a file store can notice, and refuses.
    """
    if not key:
        raise BadInput("a storage key must not be empty")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise BadInput(f"storage key {key!r} is not valid Unicode") from error
    if size > MAX_KEY_BYTES:
        raise BadInput(f"storage key {key[:40]!r}... has {size} bytes, at most {MAX_KEY_BYTES} are allowed")
    for segment in key.split("/"):
        if not segment or segment.startswith("."):
            raise BadInput(f"storage key {key!r} has a segment that is empty or begins with '.'")
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise BadInput(f"storage key {key[:40]!r}... has a segment of over {MAX_SEGMENT_BYTES} bytes")
    if _CONTROL.search(key):
        raise BadInput(f"storage key {key!r} has a control character")
    return key


def is_key(key: str) -> bool:
    """Whether `check_key` takes a key. It refuses the name of a folder that the S3 console makes."""
    try:
        check_key(key)
    except BadInput:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return `prefix` if some valid key could begin with it, else raise `BadInput`."""
    if prefix:
        check_key(prefix + "x" if prefix.endswith("/") else prefix)
    return prefix


class BlobMeta(NamedTuple):
    """What a listing tells about one object; the size is in bytes.

    `modified_ms` is the time of the last put in ms since the epoch by the store's own clock, None where
    the store has none.
    """

    key: str
    size: int
    modified_ms: int | None


class Blob(ABC):
    """Durable key -> bytes. Keys are written once by persist; a second put replaces the first whole."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Which store this is, for messages; without secrets."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The bytes last put under `key`, or None where there are none."""

    def get_start(self, key: str, most: int) -> bytes | None:
        """The first `most` bytes of what `get` gives: for what is small, of a store that may be anybody's.

        A store that others may fill reads no more than that.
        """
        data = self.get(key)
        return None if data is None else data[:most]

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store `data` under `key`, all or nothing: no reader ever sees a part of it."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove `key`; whether it was there. Power loss may undo a delete: losing is worse than leaking."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[BlobMeta]:
        """The objects whose key begins with `prefix` (any string, "" for all), ascending by key.

        What others have put under a name that is no key (`check_key`) is left out.
        Not a snapshot: an object put or deleted meanwhile may or may not be listed; all others are.
        """

    def clock_ms(self) -> int | None:
        """The store's own time in ms since the epoch, on the clock of `modified_ms`; None where it has none.

        No two hosts agree on the time; all clients of a store agree on this one.
        """
        return None

    def open_input(self, key: str) -> pa.NativeFile | None:
        """The object for random access, or None where there is none; stays readable after a delete."""
        data = self.get(key)
        return None if data is None else pa.BufferReader(data)

    def forget(self, key: str) -> None:  # noqa: B027 - a store keeps nothing nearer than itself
        """Drop what is kept of `key` nearer than the store, so that the next read of it asks the store."""

    @property
    def direct(self) -> "Blob":
        """The store without what is kept nearer: for who must know what is in the store itself."""
        return self

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Release what the object holds open; the data stays."""


class Entry(NamedTuple):
    """One entry of a key's log."""

    seqno: int
    data: bytes


class Digest(NamedTuple):
    """What identifies the bytes of an entry: their number, and bytes 8 to 11.

    All that persist stores is framed (`holdfast.persist.stores.frame`), and there a frame has the CRC-32C of
    its contents. A store can compare both inside its own statement, without a checksum function.
    """

    size: int
    crc: bytes

    def __str__(self) -> str:
        return f"{self.size}.{self.crc.hex()}"


def digest_of(data: bytes | memoryview) -> Digest:
    """The digest of an entry's bytes."""
    return Digest(len(data), bytes(data[8:12]))


class Row(NamedTuple):
    """An entry that a caller knows, by its number and digest: it identifies all entries up to it."""

    seqno: int
    digest: Digest


class Head(NamedTuple):
    """The newest entry of a key's log, and the digest of the entry that the caller asked about.

    `known` is None if the caller named no entry, or if the log does not have it.
    """

    seqno: int
    data: bytes
    known: Digest | None = None


class Put(NamedTuple):
    """An entry to append: it happens only where the key's head is `seqno - 1`.

    With `after`, the head must also have that digest. So an entry that was made from one history of the log
    is never appended to another history that happens to have the same length.
    """

    key: str
    seqno: int
    data: bytes
    after: Digest | None = None


class Expect(NamedTuple):
    """A condition: the head of `key` is `head` at the commit point; 0 is a key without entries.

    With `digest`, the head must also have that digest.
    """

    key: str
    head: int
    digest: Digest | None = None


class Lost(NamedTuple):
    """Why logs end earlier than they did, and the newest entries of keys that are left and can't be used."""

    why: str
    heads: Mapping[str, int]


class Consensus(ABC):
    """A gapless append-only log of small entries per key; sequence numbers begin at 1.

    The entry with the greatest seqno is the head. A key that ever had an entry has a head for ever:
    truncation takes from the other end and never takes the head. That is what lets a writer that slept
    through a truncation lose.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """Which store this is, for messages; without secrets."""

    @abstractmethod
    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        """The heads of `keys`, all as of one point in time; keys without entries are absent.

        `known` maps keys to sequence numbers. Each head comes with the digest of that entry of its log, as
        of the same point in time.
        """

    @abstractmethod
    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        """The oldest `limit` entries of those with `seqno >= from_seqno`, ascending and gapless.

        Where truncation took `from_seqno`, the answer begins at the oldest entry left.
        """

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        """The sequence numbers and digests of the entries that `scan` returns for the same arguments."""
        return [(entry.seqno, digest_of(entry.data)) for entry in self.scan(key, from_seqno, limit)]

    @abstractmethod
    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        """Append all `puts` in one atomic step, if every condition holds at that step.

        The conditions: each put's seqno is its key's head + 1, the head has the digest that the put names, if
        it names one, and each of `expect` holds. False means
        that one did not hold and nothing was done. Raises `Determinate` or `Indeterminate`; `BadInput`
        for no puts, two puts on one key, or a seqno outside [1, 2**63).
        """

    @abstractmethod
    def truncate(self, key: str, seqno: int, known: Row | None = None) -> int:
        """Drop the entries below `seqno`, but never the head; how many were dropped.

        With `known`, nothing is dropped unless the log has that entry.
        """

    @abstractmethod
    def list_keys(self) -> list[str]:
        """All keys that have entries, ascending."""

    def line(self) -> str | None:
        """In which line of its own history the store is, as of its newest connection; None if it can't tell.

        A server that was promoted, or a copy of one, is in another line than the server before.
        """
        return None

    def clock_ms(self) -> int | None:
        """The store's own time in ms since the epoch, by what it last said; None if it has no clock.

        It asks nothing: the time comes with other replies, and this host's monotonic clock adds what has
        passed since. It may be ahead by the time that the last reply took, at most a second.
        """
        return None

    def lost(self) -> "Lost | None":
        """What the store has lost, as far as it shows; None if nothing shows it. For recovery alone."""
        return None

    def check_restart(self) -> None:
        """Raise `BadInput` where `restart` can't be done in this store."""
        raise BadInput(
            f"logs in {self.description} can't be made anew",
            hint="recover into another consensus store: SQLite or Postgres",
        )

    def restart(self, key: str, seqno: int, data: bytes) -> bool:  # noqa: ARG002 - a store that can overrides it
        """Let the log of `key` go on at `seqno`, beyond its head, without what was before.

        For recovery alone, while nobody else uses the store. False where the head is not below `seqno`.
        """
        self.check_restart()
        return False

    def check_integrity(self) -> None:  # noqa: B027 - most stores check what they keep themselves
        """Look for damage that no other call would notice; for stores without checksums of their own.

        Raises `CorruptBlob` where there is some, and every later call does too; `Determinate` or
        `StoreUnreachable` where the store can't be read now.
        """

    def watch(self, key: str) -> Watch | None:  # noqa: ARG002 - a store without hints ignores its key
        """Hints that `key` may have grown, as long as the watch is held; None where its readers poll.

        What this object appends is hinted at once, what others do soon; hints may be lost or come for
        nothing.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Release what the object holds open; the data stays."""


def check_commands(puts: Sequence[Put], expect: Sequence[Expect]) -> None:
    """Raise `BadInput` where the arguments of `compare_and_set` have no meaning in any store."""
    if not puts:
        raise BadInput("compare_and_set was called with nothing to put")
    for put in puts:
        check_key(put.key)
        if not 1 <= put.seqno <= MAX_SEQNO:
            raise BadInput(f"seqno {put.seqno} of {put.key} is outside [1, 2**63)")
    if len(puts) > 1 and len({put.key for put in puts}) != len(puts):
        raise BadInput("compare_and_set was called with two puts on one key")
    for condition in expect:
        check_key(condition.key)


def check_scan(key: str, limit: int) -> None:
    """Raise `BadInput` where the arguments of `scan` have no meaning in any store."""
    check_key(key)
    if limit < 1:
        raise BadInput(f"a scan of {key} was limited to {limit} entries, the least is 1")
