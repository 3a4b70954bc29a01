# ruff: noqa: D102 - the trait documents its methods
"""Stores in the memory of one process, for tests, examples and `memory://` locations.

They keep every promise of the traits except durability: the contents end with the process.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from holdfast.persist.stores.traits import (
    NOTHING_KNOWN,
    Blob,
    BlobMeta,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    LogRow,
    Put,
    check_commands,
    check_key,
    check_prefix,
    check_scan,
    digest_of,
)
from holdfast.persist.stores.watch import Watch, Watches


def wall_clock_ms() -> int:
    """Return the time of this host in ms since the epoch."""
    return time.time_ns() // 1_000_000


class MemoryBlob(Blob):
    """Objects in a dict. `clock` returns the modification times, in ms since the epoch."""

    def __init__(self, name: str = "", *, clock: Callable[[], int] = wall_clock_ms) -> None:
        self._name: Final = name
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._objects: Final[dict[str, tuple[bytes, int]]] = {}

    @property
    def description(self) -> str:
        return f"memory blob {self._name!r}"

    def clock_ms(self) -> int:
        return self._clock()

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        return None if found is None else found[0]

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key(key)
        with self._lock:
            self._objects[key] = (bytes(data), self._clock())

    def delete(self, key: str) -> bool:
        check_key(key)
        with self._lock:
            return self._objects.pop(key, None) is not None

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        check_prefix(prefix)
        with self._lock:
            found = [
                BlobMeta(key, len(data), modified)
                for key, (data, modified) in self._objects.items()
                if key.startswith(prefix)
            ]
        return iter(sorted(found))


class MemoryConsensus(Consensus):
    """Logs in a dict of lists. One lock makes every call atomic."""

    def __init__(self, name: str = "") -> None:
        self._name: Final = name
        self._lock: Final = threading.Lock()
        self._logs: Final[dict[str, list[Entry]]] = {}
        self._watches: Final = Watches()

    @property
    def description(self) -> str:
        return f"memory consensus {self._name!r}"

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        for key in keys:
            check_key(key)
        with self._lock:
            return {
                key: Head(*self._logs[key][-1], self._digest(key, known.get(key, 0)))
                for key in keys
                if key in self._logs
            }

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        check_scan(key, limit)
        with self._lock:
            log = self._logs.get(key)
            if log is None:
                return []
            start = max(0, from_seqno - log[0].seqno)
            return log[start : start + limit]

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        check_commands(puts, expect)
        with self._lock:
            wanted = [Expect(put.key, put.seqno - 1, put.after) for put in puts]
            if not all(map(self._holds, (*wanted, *expect))):
                return False
            for put in puts:
                self._logs.setdefault(put.key, []).append(Entry(put.seqno, bytes(put.data)))
        self._watches.ring(put.key for put in puts)
        return True

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        check_key(key)
        with self._lock:
            log = self._logs.get(key)
            if log is None or (known is not None and self._digest(key, known.seqno) != known.digest):
                return 0
            dropped = max(0, min(seqno, log[-1].seqno) - log[0].seqno)
            del log[:dropped]
            return dropped

    def list_keys(self) -> list[str]:
        with self._lock:
            return sorted(self._logs)

    def check_restart(self) -> None:
        pass

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        check_commands([Put(key, seqno, data)], ())
        with self._lock:
            if self._head(key) >= seqno:
                return False
            self._logs[key] = [Entry(seqno, bytes(data))]
            return True

    def watch(self, key: str) -> Watch:
        return self._watches.add(check_key(key))

    def _head(self, key: str) -> int:
        log = self._logs.get(key)
        return log[-1].seqno if log else 0

    def _holds(self, condition: Expect) -> bool:
        digest = condition.digest
        return self._head(condition.key) == condition.head and (
            digest is None or self._digest(condition.key, condition.head) == digest
        )

    def _digest(self, key: str, seqno: int) -> Digest | None:
        log = self._logs.get(key, [])
        place = seqno - log[0].seqno if log else -1
        return digest_of(log[place].data) if 0 <= place < len(log) else None
