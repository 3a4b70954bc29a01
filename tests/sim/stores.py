"""The stores of a simulated world: memory, with a switch of the running process at every call.

A write may be slow: its caller learns nothing (`Indeterminate`), and it takes effect some steps later.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from holdfast.errors import Indeterminate
from holdfast.persist.storage import (
    Blob,
    BlobMeta,
    Consensus,
    Entry,
    Expect,
    MemoryBlob,
    MemoryConsensus,
    Put,
)
from sim.audit import Auditor
from sim.scheduler import Scheduler

T = TypeVar("T")


class _Slow:
    def __init__(self, scheduler: Scheduler, slow_rate: float) -> None:
        self._scheduler = scheduler
        self._slow_rate = slow_rate

    def write(self, what: str, effect: Callable[[], T]) -> T:
        scheduler = self._scheduler
        scheduler.pause()
        if scheduler.random.random() < self._slow_rate:
            scheduler.meet("fault: slow", what)
            scheduler.later(effect)
            raise Indeterminate(f"{what}: no answer came in time")
        return self.read(what, effect, pause=False)

    def read(self, what: str, effect: Callable[[], T], *, pause: bool = True) -> T:
        scheduler = self._scheduler
        if pause:
            scheduler.pause()
        answer = effect()
        scheduler.note(f"{what} -> {answer if isinstance(answer, bool | int) else '...'}")
        if scheduler.random.random() < 0.3:
            # The answer is on its way: the world may be another one when it arrives.
            scheduler.pause()
        return answer


class SimBlob(Blob):
    def __init__(self, inner: MemoryBlob, scheduler: Scheduler, auditor: Auditor, slow_rate: float) -> None:
        self._inner = inner
        self._auditor = auditor
        self._slow = _Slow(scheduler, slow_rate)

    @property
    def description(self) -> str:
        return "simulated blob"

    def clock_ms(self) -> int:
        return self._slow.read("clock", self._inner.clock_ms)

    def get(self, key: str) -> bytes | None:
        return self._slow.read("get", lambda: self._inner.get(key))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._slow.write("put", lambda: self._inner.put(key, data))

    def delete(self, key: str) -> bool:
        def effect() -> bool:
            self._auditor.deleted(key)
            return self._inner.delete(key)

        return self._slow.write("delete", effect)

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return self._slow.read("list", lambda: self._inner.list(prefix))


class SimConsensus(Consensus):
    def __init__(
        self, inner: MemoryConsensus, scheduler: Scheduler, auditor: Auditor, slow_rate: float
    ) -> None:
        self._inner = inner
        self._auditor = auditor
        self._slow = _Slow(scheduler, slow_rate)

    @property
    def description(self) -> str:
        return "simulated consensus"

    def heads(self, keys: Sequence[str]) -> dict[str, Entry]:
        return self._slow.read("heads", lambda: self._inner.heads(keys))

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return self._slow.read(f"scan {from_seqno}", lambda: self._inner.scan(key, from_seqno, limit))

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        def effect() -> bool:
            won = self._inner.compare_and_set(puts, expect)
            if won:
                self._auditor.committed(puts)
            return won

        return self._slow.write(f"cas {[put.seqno for put in puts]}", effect)

    def truncate(self, key: str, seqno: int) -> int:
        def effect() -> int:
            self._auditor.truncated(key, seqno)
            return self._inner.truncate(key, seqno)

        return self._slow.write(f"truncate {seqno}", effect)

    def list_keys(self) -> list[str]:
        return self._slow.read("list_keys", self._inner.list_keys)
