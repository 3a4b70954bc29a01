"""Stores that fail on command, for tests that code on top of them keeps its promises.

A `FaultyBlob` and a `FaultyConsensus` wrap real stores, and represent them as one process sees them. They
share a plan, which decides the fate of each call. Several such processes may share the inner stores.

Invariants:

- An operation happens completely or not at all, as the traits promise. Only what the caller learns differs.
- Nothing happens after a death. A plan that has let its process die must return `DEATH_BEFORE` for every
  later operation, so that no `finally` block or thread of the dead process reaches the store. The plans here
  do so.
- A seeded plan depends only on its seed and on the order of calls.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar, assert_never

import pyarrow as pa

from holdfast.errors import Determinate, Indeterminate
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
from holdfast.persist.stores.watch import Watch

T = TypeVar("T")


class ProcessDeath(BaseException):
    """The simulated process is dead. It is not an `Exception`, so no error handler survives it."""


class Fault(Enum):
    """The fate of one operation."""

    NONE = "none"
    DETERMINATE = "determinate"  # not done, and the caller knows it
    INDETERMINATE_BEFORE = "indeterminate before"  # not done, and the caller can't know it
    INDETERMINATE_AFTER = "indeterminate after"  # done, and the caller can't know it
    DEATH_BEFORE = "death before"  # the process dies, and the operation is not done
    DEATH_AFTER = "death after"  # the operation is done, and the process dies before it knows it


class Operation(NamedTuple):
    """One call of a store, such as `blob.put` or `consensus.compare_and_set`, and the keys that it names."""

    name: str
    keys: tuple[str, ...]

    @property
    def writes(self) -> bool:
        """Whether the operation changes the store."""
        return self.name in _WRITES


_WRITES: Final = frozenset({"blob.put", "blob.delete", "consensus.compare_and_set", "consensus.truncate"})


class FaultPlan(Protocol):
    """Decides the fate of each operation, in the order of the calls. Safe to call from any thread."""

    def decide(self, operation: Operation) -> Fault:
        """Return the fate of `operation`."""


class ScriptedPlan:
    """Faults by count: the n-th matching operation (from 0) gets `script[n]`. All others get no fault."""

    def __init__(
        self, script: Mapping[int, Fault], *, matches: Callable[[Operation], bool] = lambda _: True
    ) -> None:
        self._script: Final = dict(script)
        self._matches: Final = matches
        self._lock: Final = threading.Lock()
        self._dead = False
        self.seen = 0

    def decide(self, operation: Operation) -> Fault:
        with self._lock:
            if self._dead:
                return Fault.DEATH_BEFORE
            if not self._matches(operation):
                return Fault.NONE
            fault = self._script.get(self.seen, Fault.NONE)
            self.seen += 1
            self._dead = fault in _DEATHS
            return fault


class SeededPlan:
    """Random faults: each operation fails with probability `rate`, and kills the process with `death_rate`.

    A failed read is determinate, because it has no effect. `stop` ends the faults, so that a test can let the
    process finish its work. A dead process stays dead.
    """

    def __init__(self, seed: int, *, rate: float, death_rate: float = 0.0) -> None:
        self._random: Final = random.Random(seed)
        self._rate, self._death_rate = rate, death_rate
        self._lock: Final = threading.Lock()
        self._dead = False

    def decide(self, operation: Operation) -> Fault:
        with self._lock:
            if self._dead:
                return Fault.DEATH_BEFORE
            chance = self._random.random()
            if chance < self._death_rate:
                self._dead = True
                return self._random.choice(_DEATHS)
            if chance < self._death_rate + self._rate:
                return self._random.choice(_WRITE_ERRORS) if operation.writes else Fault.DETERMINATE
            return Fault.NONE

    def stop(self) -> None:
        """End the faults."""
        with self._lock:
            self._rate = self._death_rate = 0.0


_DEATHS: Final = (Fault.DEATH_BEFORE, Fault.DEATH_AFTER)
_WRITE_ERRORS: Final = (Fault.DETERMINATE, Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER)


def suffer(plan: FaultPlan, operation: Operation, act: Callable[[], T]) -> T:
    """Do `act` or not, and return or raise, as `plan` decides for `operation`."""
    fault = plan.decide(operation)
    what = f"{operation.name} of {', '.join(operation.keys) or 'all'}: injected fault"
    match fault:
        case Fault.NONE:
            return act()
        case Fault.DETERMINATE:
            raise Determinate(what)
        case Fault.INDETERMINATE_BEFORE:
            raise Indeterminate(what)
        case Fault.INDETERMINATE_AFTER:
            act()
            raise Indeterminate(what)
        case Fault.DEATH_BEFORE:
            raise ProcessDeath(what)
        case Fault.DEATH_AFTER:
            act()
            raise ProcessDeath(what)
        case _:
            assert_never(fault)


class FaultyBlob(Blob):
    """`inner` as a process sees it under the faults of `plan`."""

    def __init__(self, inner: Blob, plan: FaultPlan) -> None:
        self._inner: Final = inner
        self._plan: Final = plan

    @property
    def description(self) -> str:
        return self._inner.description

    def clock_ms(self) -> int | None:
        return suffer(self._plan, Operation("blob.clock_ms", ()), self._inner.clock_ms)

    def get(self, key: str) -> bytes | None:
        return suffer(self._plan, Operation("blob.get", (key,)), lambda: self._inner.get(key))

    def get_start(self, key: str, most: int) -> bytes | None:
        return suffer(self._plan, Operation("blob.get", (key,)), lambda: self._inner.get_start(key, most))

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        operation = Operation("blob.open_input", (key,))
        return suffer(self._plan, operation, lambda: self._inner.open_input(key, most))

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        operation = Operation("blob.open_input", (key,))
        return suffer(self._plan, operation, lambda: self._inner.open_spans(key, size, spans))

    def put(self, key: str, data: bytes | memoryview) -> None:
        suffer(self._plan, Operation("blob.put", (key,)), lambda: self._inner.put(key, data))

    def delete(self, key: str) -> bool:
        return suffer(self._plan, Operation("blob.delete", (key,)), lambda: self._inner.delete(key))

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return suffer(self._plan, Operation("blob.list", (prefix,)), lambda: self._inner.list(prefix))

    def forget(self, key: str) -> None:
        self._inner.forget(key)

    @property
    def direct(self) -> Blob:
        inner = self._inner.direct
        return self if inner is self._inner else FaultyBlob(inner, self._plan)

    def close(self) -> None:
        self._inner.close()


class FaultyConsensus(Consensus):
    """`inner` as a process sees it under the faults of `plan`."""

    def __init__(self, inner: Consensus, plan: FaultPlan) -> None:
        self._inner: Final = inner
        self._plan: Final = plan

    @property
    def description(self) -> str:
        return self._inner.description

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        operation = Operation("consensus.heads", tuple(keys))
        return suffer(self._plan, operation, lambda: self._inner.heads(keys, known))

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return suffer(
            self._plan, Operation("consensus.scan", (key,)), lambda: self._inner.scan(key, from_seqno, limit)
        )

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        operation = Operation("consensus.digests", (key,))
        return suffer(self._plan, operation, lambda: self._inner.digests(key, from_seqno, limit))

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        operation = Operation("consensus.compare_and_set", tuple(put.key for put in puts))
        return suffer(self._plan, operation, lambda: self._inner.compare_and_set(puts, expect))

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        operation = Operation("consensus.truncate", (key,))
        return suffer(self._plan, operation, lambda: self._inner.truncate(key, seqno, known))

    def list_keys(self) -> list[str]:
        return suffer(self._plan, Operation("consensus.list_keys", ()), self._inner.list_keys)

    def line(self) -> str | None:
        return self._inner.line()

    def clock_ms(self) -> int | None:
        return self._inner.clock_ms()

    def check_integrity(self) -> None:
        self._inner.check_integrity()

    def watch(self, key: str) -> Watch | None:
        return self._inner.watch(key)

    def close(self) -> None:
        self._inner.close()
