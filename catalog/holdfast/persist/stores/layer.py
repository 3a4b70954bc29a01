# ruff: noqa: D102 - the traits document their methods
"""A plain layer over a store, which passes every call to the store below. Subclasses override some calls.

Each method of a trait must be passed on here. Otherwise a layer would use the trait's default implementation
in place of the one of its store.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import pyarrow as pa

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
    Lost,
    Put,
)
from holdfast.persist.stores.watch import Watch

T = TypeVar("T")


class BlobLayer(Blob):
    """Passes all calls to `inner`."""

    def __init__(self, inner: Blob) -> None:
        self.inner: Final = inner

    @property
    def description(self) -> str:
        return self.inner.description

    def get(self, key: str) -> bytes | None:
        return self.inner.get(key)

    def get_start(self, key: str, most: int) -> bytes | None:
        return self.inner.get_start(key, most)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.inner.put(key, data)

    def delete(self, key: str) -> bool:
        return self.inner.delete(key)

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return self.inner.list(prefix)

    def clock_ms(self) -> int | None:
        return self.inner.clock_ms()

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        return self.inner.open_input(key, most)

    def together(self, asks: Sequence[Callable[[], T]]) -> Sequence[T]:
        return self.inner.together(asks)

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        return self.inner.open_spans(key, size, spans)

    def forget(self, key: str) -> None:
        self.inner.forget(key)

    @property
    def direct(self) -> Blob:
        # If `inner` is a cache, leave out this layer as well.
        inner = self.inner.direct
        return self if inner is self.inner else inner

    def close(self) -> None:
        self.inner.close()


class ConsensusLayer(Consensus):
    """Passes all calls to `inner`."""

    def __init__(self, inner: Consensus) -> None:
        self.inner: Final = inner

    @property
    def description(self) -> str:
        return self.inner.description

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        return self.inner.heads(keys, known)

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return self.inner.scan(key, from_seqno, limit)

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        return self.inner.digests(key, from_seqno, limit)

    def turn(self, keys: Sequence[str]) -> AbstractContextManager[None]:
        return self.inner.turn(keys)

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        return self.inner.compare_and_set(puts, expect)

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        return self.inner.truncate(key, seqno, known)

    def list_keys(self) -> list[str]:
        return self.inner.list_keys()

    def line(self) -> str | None:
        return self.inner.line()

    def mark(self) -> Hashable:
        return self.inner.mark()

    def clock_ms(self) -> int | None:
        return self.inner.clock_ms()

    def lost(self) -> Lost | None:
        return self.inner.lost()

    def check_restart(self) -> None:
        self.inner.check_restart()

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        return self.inner.restart(key, seqno, data)

    def check_integrity(self) -> None:
        self.inner.check_integrity()

    def watch(self, key: str) -> Watch | None:
        return self.inner.watch(key)

    def close(self) -> None:
        self.inner.close()
