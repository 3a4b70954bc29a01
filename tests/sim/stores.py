"""The stores of a simulated world: they are in memory, and each call may switch to another process.

A write may be slow. Then its caller gets `Indeterminate`, and the write takes effect some steps later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from holdfast.errors import Indeterminate
from holdfast.persist.stores import (
    Blob,
    BlobMeta,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    LogRow,
    MemoryConsensus,
    Put,
)
from holdfast.persist.stores.traits import NOTHING_KNOWN
from sim.audit import Auditor
from sim.story import answer as told
from sim.story import short
from sim.weather import Exposure

T = TypeVar("T")


class _Calls:
    """The calls of one process to one store."""

    def __init__(self, store: str, exposure: Exposure, *, may_be_slow: bool = True) -> None:
        self._store = store
        self._exposure = exposure
        self._may_be_slow = may_be_slow

    def write(self, what: str, effect: Callable[[], T]) -> T:
        exposure = self._exposure
        exposure.before(self._store, what, writes=True)
        if self._may_be_slow and exposure.is_slow(what):
            exposure.scheduler.later(what, effect)
            raise Indeterminate(f"{what}: no answer came in time")
        return self._answer(what, effect)

    def read(self, what: str, effect: Callable[[], T]) -> T:
        self._exposure.before(self._store, what, writes=False)
        return self._answer(what, effect)

    def _answer(self, what: str, effect: Callable[[], T]) -> T:
        try:
            answer = effect()
        except Exception as error:
            self._exposure.scheduler.note(f"{what} -> {type(error).__name__}")
            raise
        self._exposure.scheduler.note(f"{what} -> {told(answer)}")
        self._exposure.after()
        return answer


class SimBlob(Blob):
    """The blob store as one process has it; on a disk nothing takes effect after its process."""

    def __init__(self, inner: Blob, exposure: Exposure, auditor: Auditor) -> None:
        self._inner = inner
        self._auditor = auditor
        self._calls = _Calls("blob", exposure, may_be_slow=exposure.grid.disk is None)

    @property
    def description(self) -> str:
        return "simulated blob"

    def clock_ms(self) -> int:
        return self._calls.read("clock", self._inner.clock_ms)

    def get(self, key: str) -> bytes | None:
        return self._calls.read(f"get {short(key)}", lambda: self._inner.get(key))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._calls.write(f"put {short(key)}", lambda: self._inner.put(key, data))

    def delete(self, key: str) -> bool:
        def effect() -> bool:
            self._auditor.deleted(key)
            return self._inner.delete(key)

        return self._calls.write(f"delete {short(key)}", effect)

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return self._calls.read(f"list {short(prefix)}", lambda: iter(list(self._inner.list(prefix))))


class SimConsensus(Consensus):
    """The consensus store as one process has it."""

    def __init__(self, inner: MemoryConsensus, exposure: Exposure, auditor: Auditor, who: str) -> None:
        self._inner = inner
        self._who = who
        self._auditor = auditor
        self._calls = _Calls("consensus", exposure)

    @property
    def description(self) -> str:
        return "simulated consensus"

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        what = f"heads {' '.join(map(short, keys))}"
        return self._calls.read(what, lambda: self._inner.heads(keys, known))

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return self._calls.read(
            f"scan {short(key)} from v{from_seqno}", lambda: self._inner.scan(key, from_seqno, limit)
        )

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        what = f"digests {short(key)} from v{from_seqno}"
        return self._calls.read(what, lambda: self._inner.digests(key, from_seqno, limit))

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        def effect() -> bool:
            won = self._inner.compare_and_set(puts, expect)
            if won:
                self._auditor.committed(puts, self._who)
            return won

        what = "cas " + " ".join(f"{short(put.key)} v{put.seqno}" for put in puts)
        return self._calls.write(what, effect)

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        def effect() -> int:
            self._auditor.truncated(key, seqno)
            return self._inner.truncate(key, seqno, known)

        return self._calls.write(f"truncate {short(key)} below v{seqno}", effect)

    def list_keys(self) -> list[str]:
        return self._calls.read("list_keys", self._inner.list_keys)
