# ruff: noqa: D102 - the traits document their methods
"""Counts, errors, bytes and latencies of store calls, as plain values and as a stream of events.

Invariants:

- Metrics change nothing: each call goes to the store below once, and its result or error comes back
  unchanged.
- An observer that raises does not affect the call. The error is logged once per observer.
- Operations are named `blob.get`, `consensus.compare_and_set` and so on. Bytes count the data that went to
  the store or came from it. `open_input` counts none, because what is read of it later is unknown here.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.forks import ForkLock
from holdfast.persist.clock import Clock
from holdfast.persist.stores.layer import BlobLayer, ConsensusLayer
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
)

T = TypeVar("T")

LATENCY_BOUNDS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Upper bounds of the latency buckets, inclusive. One more bucket counts slower calls."""

_log: Final = logging.getLogger(__name__)


class Observation(NamedTuple):
    """One call that has ended. `error` is the class of the error that it raised; None if it succeeded."""

    operation: str
    seconds: float
    bytes_out: int
    bytes_in: int
    error: str | None


Observer = Callable[[Observation], None]


@dataclass(frozen=True, slots=True)
class OperationStats:
    """All calls of one operation so far. `buckets` has one count per bound, and one for all slower calls."""

    calls: int
    errors: Mapping[str, int]
    bytes_out: int
    """Bytes written to the store."""
    bytes_in: int
    """Bytes read from the store."""
    seconds: float
    """The sum of all latencies."""
    buckets: tuple[int, ...]


@dataclass(slots=True)
class _Tally:
    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    bytes_out: int = 0
    bytes_in: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))


class StoreMetrics:
    """Collects observations, and calls `observers` with each. Thread-safe. Several stores may share it.

    An observer runs in the thread of the call, so it should be fast. An exporter can use one to count.
    """

    def __init__(self, *observers: Observer, clock: Clock | None = None) -> None:
        self.clock: Final = clock or Clock()
        self._observers: Final = observers
        self._failing: Final[set[int]] = set()
        self._lock: Final = ForkLock()
        self._tallies: Final[dict[str, _Tally]] = {}

    def snapshot(self) -> dict[str, OperationStats]:
        """Return what was observed so far, by operation. The value does not change afterwards."""
        with self._lock:
            return {
                operation: OperationStats(
                    tally.calls,
                    dict(tally.errors),
                    tally.bytes_out,
                    tally.bytes_in,
                    tally.seconds,
                    tuple(tally.buckets),
                )
                for operation, tally in sorted(self._tallies.items())
            }

    def observe(self, seen: Observation) -> None:
        """Count one call."""
        with self._lock:
            tally = self._tallies.setdefault(seen.operation, _Tally())
            tally.calls += 1
            tally.bytes_out += seen.bytes_out
            tally.bytes_in += seen.bytes_in
            tally.seconds += seen.seconds
            tally.buckets[bisect_left(LATENCY_BOUNDS_S, seen.seconds)] += 1
            if seen.error is not None:
                tally.errors[seen.error] += 1
        for number, observer in enumerate(self._observers):
            try:
                observer(seen)
            except Exception:  # noqa: BLE001 - the observer must not change the outcome of the call
                if number not in self._failing:
                    self._failing.add(number)
                    _log.exception("an observer of store metrics failed; its later errors are not logged")

    def measure(
        self, operation: str, act: Callable[[], T], *, out: int = 0, size: Callable[[T], int] = lambda _: 0
    ) -> T:
        """Run `act`, which writes `out` bytes, and count it. `size` returns the bytes of its result."""
        began = self.clock.monotonic()
        try:
            answer = act()
        except BaseException as error:
            seconds = self.clock.monotonic() - began
            self.observe(Observation(operation, seconds, out, 0, type(error).__name__))
            raise
        self.observe(Observation(operation, self.clock.monotonic() - began, out, size(answer), None))
        return answer


class MeteredBlob(BlobLayer):
    """Counts each call of `inner` in `metrics`."""

    def __init__(self, inner: Blob, metrics: StoreMetrics) -> None:
        super().__init__(inner)
        self._measure: Final = metrics.measure
        self._metrics: Final = metrics

    def get(self, key: str) -> bytes | None:
        return self._measure("blob.get", lambda: self.inner.get(key), size=lambda data: len(data or b""))

    def get_start(self, key: str, most: int) -> bytes | None:
        return self._measure(
            "blob.get", lambda: self.inner.get_start(key, most), size=lambda data: len(data or b"")
        )

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._measure("blob.put", lambda: self.inner.put(key, data), out=memoryview(data).nbytes)

    def delete(self, key: str) -> bool:
        return self._measure("blob.delete", lambda: self.inner.delete(key))

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return self._listing(self.inner.list(prefix))

    def clock_ms(self) -> int | None:
        return self._measure("blob.clock_ms", self.inner.clock_ms)

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        return self._measure("blob.open_input", lambda: self.inner.open_input(key, most))

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        return self._measure("blob.open_spans", lambda: self.inner.open_spans(key, size, spans))

    def _listing(self, found: Iterator[BlobMeta]) -> Iterator[BlobMeta]:
        """Yield the listing. Count it at its end as one call, with the time that the store took."""
        clock, seconds, error = self._metrics.clock, 0.0, None
        try:
            while True:
                began = clock.monotonic()
                try:
                    meta = next(found, None)
                finally:
                    seconds += clock.monotonic() - began
                if meta is None:
                    return
                yield meta
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            self._metrics.observe(Observation("blob.list", seconds, 0, 0, error))


class MeteredConsensus(ConsensusLayer):
    """Counts each call of `inner` in `metrics`. A compare-and-set that lost is a result, not an error."""

    def __init__(self, inner: Consensus, metrics: StoreMetrics) -> None:
        super().__init__(inner)
        self._measure: Final = metrics.measure

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        return self._measure(
            "consensus.heads", lambda: self.inner.heads(keys, known), size=lambda found: _size(found.values())
        )

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return self._measure("consensus.scan", lambda: self.inner.scan(key, from_seqno, limit), size=_size)

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        return self._measure("consensus.digests", lambda: self.inner.digests(key, from_seqno, limit))

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        return self._measure(
            "consensus.compare_and_set", lambda: self.inner.compare_and_set(puts, expect), out=_size(puts)
        )

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        return self._measure("consensus.truncate", lambda: self.inner.truncate(key, seqno, known))

    def list_keys(self) -> list[str]:
        return self._measure("consensus.list_keys", self.inner.list_keys)


def _size(entries: Iterable[Entry | Head | Put]) -> int:
    return sum(len(entry.data) for entry in entries)
