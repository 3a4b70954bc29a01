"""The cache after a store returned wrong bytes: it reads again, and the audit reads the store itself."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob
from holdfast.persist import PersistClient
from holdfast.persist.admin.verify import verify
from holdfast.persist.stores import CacheConfig, CachedBlob, MemoryBlob
from holdfast.persist.stores.layer import BlobLayer
from testbed.faults import FaultyBlob, ScriptedPlan
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents, rows


class Wrong(BlobLayer):
    """A store that gives `times` wrong answers for blobs whose key holds `what`."""

    def __init__(self, inner: MemoryBlob, what: str, times: int) -> None:
        super().__init__(inner)
        self.what, self.times, self.wrong = what, times, 0

    def get(self, key: str) -> bytes | None:
        return self._wrong(key, self.inner.get(key))

    def get_start(self, key: str, most: int) -> bytes | None:
        return self._wrong(key, self.inner.get_start(key, most))

    def _wrong(self, key: str, data: bytes | None) -> bytes | None:
        if data is not None and self.what in key and self.wrong < self.times:
            self.wrong += 1
            return data[:20] + bytes([data[20] ^ 1]) + data[21:]
        return data


def cached(stores: Stores, store: BlobLayer, folder: Path) -> PersistClient:
    client = stores.open(mode="read")
    blob = FaultyBlob(CachedBlob(store, CacheConfig(folder=folder), scope="x"), ScriptedPlan({}))
    client.session.location = replace(client.location, blob=blob)
    return client


def written(stores: Stores) -> None:
    client = stores.open(inline_max_bytes=0, rollup_every=1)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
    client.maintain(SHARD)


READS: dict[str, Callable[[PersistClient], object]] = {
    "at once": lambda client: client.reader(SHARD, purpose="test").snapshot(0).to_table(),
    "streamed": lambda client: [*client.reader(SHARD, purpose="test").snapshot(0)],
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("what", ["/w", "/v"])
def test_what_was_read_wrongly_once_is_read_again(
    stores: Stores, tmp_path: Path, how: str, what: str
) -> None:
    written(stores)
    store = Wrong(BlobLayer(stores.blob), what, times=1)  # type: ignore[arg-type]
    READS[how](cached(stores, store, tmp_path))
    assert store.wrong == 1
    READS[how](cached(stores, store, tmp_path))


@pytest.mark.parametrize("how", READS)
def test_what_stays_wrong_is_told_and_not_kept(stores: Stores, tmp_path: Path, how: str) -> None:
    written(stores)
    store = Wrong(BlobLayer(stores.blob), "/w", times=2)  # type: ignore[arg-type]
    with pytest.raises(CorruptBlob, match=r"in memory blob '.*' is corrupt: expected crc32c") as told:
        READS[how](cached(stores, store, tmp_path))
    assert pickle.loads(pickle.dumps(told.value)).args == told.value.args
    assert told.value.hint.endswith("run: holdfast persist verify URL")
    # The second wrong answer is in the cache: who reads next does not believe it for ever.
    found = cached(stores, store, tmp_path).reader(SHARD, purpose="test").snapshot(0).to_table()
    assert contents(found) == {(1, "x"): 1}


def test_the_audit_sees_the_store_and_not_the_cache(stores: Stores, tmp_path: Path) -> None:
    written(stores)
    client = cached(stores, BlobLayer(stores.blob), tmp_path)
    READS["at once"](client)
    assert verify(client, SHARD).findings == ()
    (part,) = stores.parts()
    stores.blob.delete(part)
    assert [finding.key for finding in verify(client, SHARD).findings] == [part]
