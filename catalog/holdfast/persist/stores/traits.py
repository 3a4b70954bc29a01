"""The two interfaces of a location: `Blob` for large immutable objects, `Consensus` for small ordered logs.

Every implementation keeps these invariants. The conformance suite tests them.

- Each call is linearizable: it takes effect at one point between its start and its return. What a call has
  returned is durable. It survives power loss if the store can survive power loss at all.
- A failed call raises `Determinate` (it certainly did not happen) or `Indeterminate` (it may have happened,
  or may still happen). If a store does not know, it raises `Indeterminate`. A failed read is `Determinate`,
  because it changes nothing. Wrong arguments raise `BadInput`, a write through a store that was opened for
  reading raises `NotWritable`, and unreadable bytes raise `CorruptBlob`.
- All stores accept the same keys (`check_key`), so what works in one store works in the others.
- Objects are safe to call from any thread.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist.stores.watch import Watch

T = TypeVar("T")

MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 200
UNKNOWN_ARGUMENTS: Final = "URL"
"""The arguments of a command in a hint, if it is unknown which URLs the location has."""
MAX_SEQNO = (1 << 63) - 1
NOTHING_KNOWN: Final[Mapping[str, int]] = MappingProxyType({})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@lru_cache(maxsize=65536)
def check_key(key: str) -> str:
    """Return `key` if every store can hold it, else raise `BadInput`.

    A key is one or more segments joined by "/". It has at most 1024 bytes of UTF-8 (the limit of S3). A
    segment has at most 200 bytes (the limit of file names, with room for a suffix). It is not empty and does
    not begin with ".", because such a name could leave the folder, or be one of the stores' own hidden files.
    Control characters are not allowed. A key must not be a folder of another key, such as "a" and "a/b". Only
    a file store notices and refuses this.
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
    """Whether `key` passes `check_key`. The name of a folder that the S3 console makes does not."""
    try:
        check_key(key)
    except BadInput:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return `prefix` if a valid key can begin with it, else raise `BadInput`."""
    if prefix:
        check_key(prefix + "x" if prefix.endswith("/") else prefix)
    return prefix


class BlobMeta(NamedTuple):
    """What a listing shows of one object. The size is in bytes.

    `modified_ms` is the time of the last put in ms since the epoch, on the store's own clock. It is None if
    the store has no clock.
    """

    key: str
    size: int
    modified_ms: int | None


class Blob(ABC):
    """Durable objects by key. Persist writes each key once; a second put replaces the whole object."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The name of the store for messages, without secrets."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the bytes last put under `key`; None if there are none."""

    def get_start(self, key: str, most: int) -> bytes | None:
        """Return the first `most` bytes of what `get` returns. Use it for small objects of untrusted stores.

        If others can write to the store, it reads no more than that.
        """
        data = self.get(key)
        return None if data is None else data[:most]

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store `data` under `key`, all or nothing: no reader ever sees a part of it."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Remove `key`. Return whether it was there. Power loss may undo a delete; it never undoes a put."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[BlobMeta]:
        """Yield the objects whose key begins with `prefix` (any string, "" for all), ascending by key.

        Names that are not keys (`check_key`) are left out; others may have put them there. The listing is not
        a snapshot: an object that is put or deleted during it may or may not appear. All others do.
        """

    def clock_ms(self) -> int | None:
        """Return the store's time in ms since the epoch, on the clock of `modified_ms`; None if it has none.

        The clocks of two hosts differ. All clients of a store agree on the store's clock.
        """
        return None

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        """Open the object for random access; None if there is none. It stays readable after a delete.

        A store that must first fetch the object fetches no more than its first `most` bytes.
        """
        data = self.get_start(key, most)
        return None if data is None else pa.BufferReader(data)

    def together(self, asks: Sequence[Callable[[], T]]) -> Sequence[T]:
        """Call the functions, maybe in parallel, and return their results. They call this store.

        If some raise, the first of them counts, once all have ended.
        """
        return [ask() for ask in asks]

    def open_spans(
        self,
        key: str,
        size: int,
        spans: Sequence[tuple[int, int]],  # noqa: ARG002 - for stores that fetch
    ) -> pa.NativeFile | None:
        """Open an object of `size` bytes of which only some spans are read: from a byte to before another.

        A store that must first fetch the object may fetch only these. Other bytes are then zeros. Returns
        None if there is no such object. If it has another size, the file has another size too.
        """
        return self.open_input(key, size + 1)

    def forget(self, key: str) -> None:  # noqa: B027 - a store without a cache has nothing to forget
        """Drop cached copies of `key`, so that the next read asks the store."""

    @property
    def direct(self) -> "Blob":
        """The store without its caches, for callers that must know what the store itself has."""
        return self

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Close open connections and files. The data stays."""


class Entry(NamedTuple):
    """One entry of a key's log."""

    seqno: int
    data: bytes


class Digest(NamedTuple):
    """Identifies the bytes of an entry: their number, and bytes 8 to 11.

    Everything that persist stores is framed (`holdfast.persist.stores.frame`), and these four bytes of a
    frame are the CRC-32C of its contents. A store can compare both in its own statement, without a checksum
    function.
    """

    size: int
    crc: bytes

    def __str__(self) -> str:
        return f"{self.size}.{self.crc.hex()}"


def digest_of(data: bytes | memoryview) -> Digest:
    """Return the digest of an entry's bytes."""
    return Digest(len(data), bytes(data[8:12]))


class LogRow(NamedTuple):
    """The number and digest of an entry that a caller knows. They identify all entries up to it."""

    seqno: int
    digest: Digest


class Head(NamedTuple):
    """The newest entry of a key's log, and the digest of the entry that the caller asked for.

    `known` is None if the caller asked for no entry, or if the log does not have it.
    """

    seqno: int
    data: bytes
    known: Digest | None = None


class Put(NamedTuple):
    """An entry to append. The append happens only if the key's head is `seqno - 1`.

    With `after`, the head must also have that digest. So an entry that was made for one history of the log is
    never appended to another history of the same length.
    """

    key: str
    seqno: int
    data: bytes
    after: Digest | None = None


class Expect(NamedTuple):
    """A condition: the head of `key` is `head` at the commit point. A key without entries has head 0.

    With `digest`, the head must also have that digest.
    """

    key: str
    head: int
    digest: Digest | None = None


class Lost(NamedTuple):
    """Why logs end earlier than before, and per key the newest entry that still exists but is unusable."""

    why: str
    heads: Mapping[str, int]


class Consensus(ABC):
    """A gapless, append-only log of small entries per key. Sequence numbers begin at 1.

    The head is the entry with the greatest seqno. A key that ever got an entry has a head for ever:
    truncation removes the oldest entries and never the head. So a writer that slept through a truncation
    still loses.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """The name of the store for messages, without secrets."""

    @abstractmethod
    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        """Return the heads of `keys`, all as of one point in time. Keys without entries are left out.

        `known` maps keys to sequence numbers. Each head includes the digest of that entry of its log, as of
        the same point in time.
        """

    @abstractmethod
    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        """Return the oldest `limit` entries with `seqno >= from_seqno`, ascending and gapless.

        If entry `from_seqno` was truncated, the result begins at the oldest remaining entry.
        """

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        """Return the sequence numbers and digests of the entries that `scan` returns for these arguments."""
        return [(entry.seqno, digest_of(entry.data)) for entry in self.scan(key, from_seqno, limit)]

    @abstractmethod
    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        """Append all `puts` in one atomic step, if every condition holds at that step.

        The conditions are: the seqno of each put is its key's head + 1, the head has the digest that the put
        names, if it names one, and each of `expect` holds. The method returns False if a condition did not
        hold; then nothing was done. Raises `Determinate` or `Indeterminate`. Raises `BadInput` if there are
        no puts, two puts on one key, or a seqno outside [1, 2**63).
        """

    def turn(self, keys: Sequence[str]) -> AbstractContextManager[None]:  # noqa: ARG002 - for overrides
        """Wait until no other client appends to `keys`, and let none append until the end of the block.

        Read the heads in the block, and append once. By this, many clients that append to one key wait for
        each other, instead of losing races. Nothing depends on it but speed: a store without turns does
        nothing, and a turn may end early. Don't keep it for longer than that takes: it stops other writers.
        Raises `Determinate`.
        """
        return nullcontext()

    @abstractmethod
    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        """Remove the entries below `seqno`, but never the head. Return how many were removed.

        With `known`, nothing is removed unless the log has that entry.
        """

    @abstractmethod
    def list_keys(self) -> list[str]:
        """Return all keys that have entries, ascending."""

    def line(self) -> str | None:
        """Return the line of the store's own history, as of its newest connection; None if it is unknown.

        A promoted server, or a copy of a server, is on another line than the original server.
        """
        return None

    def mark(self) -> Hashable:
        """Return a mark of the store's contents; None if the store can't do this without reading them.

        While this object returns an equal mark, no log has changed in between.
        """
        return None

    def clock_ms(self) -> int | None:
        """Return an estimate of the store's time in ms since the epoch; None if the store has no clock.

        The call sends no request. Other replies include the time, and this host's monotonic clock adds what
        has passed since. The result may be ahead by the duration of the last reply, at most a second.
        """
        return None

    def lost(self) -> "Lost | None":
        """Return what the store has lost, as far as it can see; None if nothing. Only recovery uses it."""
        return None

    def check_restart(self) -> None:
        """Raise `BadInput` if this store does not support `restart`."""
        raise BadInput(
            f"logs in {self.description} can't be restarted",
            hint="recover into another consensus store: SQLite or Postgres",
        )

    def restart(self, key: str, seqno: int, data: bytes) -> bool:  # noqa: ARG002 - for overrides
        """Make the log of `key` continue at `seqno`, beyond its head, without its earlier entries.

        Only recovery uses it, while nobody else uses the store. Returns False if the head is not below
        `seqno`.
        """
        self.check_restart()
        return False

    def check_integrity(self) -> None:  # noqa: B027 - most stores check their data themselves
        """Look for damage that no other call would notice, in stores without checksums of their own.

        Raises `CorruptBlob` if there is damage; every later call then raises it too. Raises `Determinate` or
        `StoreUnreachable` if the store can't be read now.
        """

    def watch(self, key: str) -> Watch | None:  # noqa: ARG002 - a store without hints ignores its key
        """Return a watch that hints when `key` may have grown; None if the store has no hints.

        What this object appends is hinted at once, and what others append soon. Hints may be lost, or come
        for nothing. They come for as long as the watch is referenced.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Close open connections and files. The data stays."""


def check_commands(puts: Sequence[Put], expect: Sequence[Expect]) -> None:
    """Raise `BadInput` if the arguments of `compare_and_set` are invalid for every store."""
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
    """Raise `BadInput` if the arguments of `scan` are invalid for every store."""
    check_key(key)
    if limit < 1:
        raise BadInput(f"a scan of {key} has limit {limit}, but the limit must be at least 1")
