"""The cache of blobs: bounded, shared, and always checked."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import BadInput, Indeterminate
from holdfast.persist.stores import CacheConfig, CachedBlob, MemoryBlob, spool
from testbed.faults import Fault, FaultyBlob, ScriptedPlan


class Counting(MemoryBlob):
    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    def get(self, key: str) -> bytes | None:
        self.gets += 1
        return super().get(key)


def in_folder(inner: MemoryBlob, folder: Path, *, most: int = 1 << 20, scope: str = "l") -> CachedBlob:
    return CachedBlob(inner, CacheConfig(memory_bytes=0, folder=folder, folder_bytes=most), scope=scope)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def test_what_was_read_or_written_is_not_read_again(tmp_path: Path) -> None:
    inner = Counting()
    inner.put("s/a", b"a")
    for cached in (CachedBlob(inner, CacheConfig(), scope="l"), in_folder(inner, tmp_path)):
        inner.gets = 0
        cached.put("s/b", b"b")
        for _ in range(3):
            assert cached.get("s/a") == b"a"
            assert cached.get("s/b") == b"b"
            opened = cached.open_input("s/b", 2)
            assert opened is not None
            assert opened.read() == b"b"
            assert cached.get("s/c") is None
        assert inner.gets == 1 + 3


def test_a_large_object_that_is_open_is_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small, large = b"s" * spool.IN_MEMORY_BYTES, os.urandom(spool.IN_MEMORY_BYTES + 1)
    cached = CachedBlob(MemoryBlob(), CacheConfig(), scope="l")
    cached.put("small", small)
    cached.put("large", large)

    for key, data, type_ in (("small", small, pa.BufferReader), ("large", large, pa.OSFile)):
        opened = cached.open_input(key, len(data) + 1)
        assert isinstance(opened, type_)
        # It has no name that could stay.
        assert files(tmp_path) == []
        assert opened.size() == len(data)
        opened.seek(7)
        assert opened.read() == data[7:]

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    opened = cached.open_input("large", len(large) + 1)
    assert opened is not None
    assert opened.read() == large


def test_memory_is_bounded_and_what_was_used_last_stays() -> None:
    inner = Counting()
    for name in "abcdef":
        inner.put(name, name.encode() * 25)
    cached = CachedBlob(inner, CacheConfig(memory_bytes=100), scope="l")
    for name in "abcd":
        cached.get(name)
    cached.get("a")
    cached.get("e")
    inner.gets = 0

    assert cached.stats().memory_bytes == 100
    for name in "acde":
        assert cached.get(name) == name.encode() * 25
    assert inner.gets == 0
    cached.get("b")
    assert inner.gets == 1
    inner.put("large", bytes(26))
    assert cached.get("large") == bytes(26)
    assert cached.stats().memory_bytes == 100
    assert inner.gets == 2


def test_the_folder_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    inner = Counting()
    cached = in_folder(inner, tmp_path, most=100_000)
    cached.put("used", os.urandom(10_000))
    (used,) = files(tmp_path)
    for number in range(50):
        os.utime(used, (number, number))  # longer ago than all others
        cached.put(f"k{number}", os.urandom(10_000))
        # In the order of time, which the clock of a file system may be too coarse for.
        for age, path in enumerate(sorted(set(files(tmp_path)) - {used}, key=lambda p: p.stat().st_mtime)):
            os.utime(path, (1_000_000 + age, 1_000_000 + age))
        cached.get("used")
        assert total(tmp_path) <= 100_000
        assert used.exists()

    inner.gets = 0
    assert cached.get("k49") is not None
    assert inner.gets == 0
    cached.put("large", bytes(30_000))
    inner.gets = 0
    cached.get("large")
    assert inner.gets == 1


def test_processes_that_share_a_folder_keep_its_bound(tmp_path: Path) -> None:
    code = (
        "import os, sys; from holdfast.persist.stores import *;"
        "config = CacheConfig(memory_bytes=0, folder=sys.argv[1], folder_bytes=200_000);"
        "cached = CachedBlob(MemoryBlob(), config, scope='l'); blob = cached.inner;"
        "data = {f'k{n}': bytes([n]) * 3000 for n in range(100)};"
        "[blob.put(key, value) for key, value in data.items()];"
        "assert all(cached.get(key) == value for _ in range(2) for key, value in data.items());"
        "print(cached.stats().dropped, cached.stats().failures)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    assert [process.communicate()[0] for process in processes] == ["0 0\n"] * 2
    assert [process.returncode for process in processes] == [0, 0]
    assert 100_000 < total(tmp_path) <= 200_000 + 2 * 200_000 // 32


@pytest.mark.parametrize("size", [0, 1, 5000])
def test_a_damaged_file_is_dropped_and_read_from_the_store(tmp_path: Path, size: int) -> None:
    inner = Counting()
    inner.put("k", b"x" * size)
    cached = in_folder(inner, tmp_path)
    cached.get("k")
    (path,) = files(tmp_path)
    good = path.read_bytes()
    other = in_folder(inner, tmp_path / "other")
    other.put("l", b"another key's")
    strange = files(tmp_path / "other")[0].read_bytes()
    flips = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 1 + size // 9)]
    damaged = [b"", good[:-1], good[: len(good) // 2], good + b"\0", b"garbage", strange, *flips]

    for bad in damaged:
        path.write_bytes(bad)
        inner.gets = 0
        assert cached.get("k") == b"x" * size, bad[:20]
        assert inner.gets == 1
        assert path.read_bytes() == good
    assert cached.stats().dropped == len(damaged)


def test_locations_that_share_a_folder_see_their_own(tmp_path: Path) -> None:
    one, other = (
        in_folder(MemoryBlob(), tmp_path, scope="one"),
        in_folder(MemoryBlob(), tmp_path, scope="two"),
    )
    one.put("k", b"one")
    other.put("k", b"two")

    assert (one.get("k"), other.get("k")) == (b"one", b"two")


def test_a_folder_that_fails_makes_nothing_fail(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    inner = MemoryBlob()
    cached = in_folder(inner, folder)
    folder.rmdir()
    folder.write_bytes(b"a file is in its place")

    cached.put("k", b"x")
    assert cached.get("k") == b"x"
    assert cached.delete("k") is True
    assert cached.get("k") is None
    assert cached.stats().failures >= 2
    with pytest.raises(BadInput, match="can't make the cache folder"):
        in_folder(inner, folder / "below")


def test_a_put_of_unknown_outcome_is_not_cached(tmp_path: Path) -> None:
    for number, fault in enumerate((Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER)):
        inner = MemoryBlob()
        plan = ScriptedPlan({0: fault})
        config = CacheConfig(folder=tmp_path / str(number))
        cached = CachedBlob(FaultyBlob(inner, plan), config, scope="l")
        with pytest.raises(Indeterminate):
            cached.put("k", b"x")

        assert cached.get("k") == inner.get("k")
        assert (cached.get("k") is None) == (fault is Fault.INDETERMINATE_BEFORE)


def test_what_is_deleted_is_dropped(tmp_path: Path) -> None:
    cached = CachedBlob(MemoryBlob(), CacheConfig(folder=tmp_path), scope="l")
    cached.put("k", b"x")

    assert cached.delete("k") is True
    assert cached.get("k") is None
    assert files(tmp_path) == []


def test_files_that_a_crash_left_go(tmp_path: Path) -> None:
    cached = in_folder(MemoryBlob(), tmp_path)
    old, new = tmp_path / ".tmp-old", tmp_path / ".tmp-new"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))

    cached.put("k", b"x")

    assert not old.exists()
    assert new.exists()


def test_threads_share_a_cache(tmp_path: Path) -> None:
    inner = MemoryBlob()
    data = {f"k{number}": os.urandom(500) for number in range(60)}
    for key, value in data.items():
        inner.put(key, value)
    config = CacheConfig(memory_bytes=5000, folder=tmp_path, folder_bytes=20_000)
    cached = CachedBlob(inner, config, scope="l")
    wrong: list[str] = []

    def read() -> None:
        for _ in range(5):
            wrong.extend(key for key, value in data.items() if cached.get(key) != value)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert cached.stats().memory_bytes <= 5000
    assert total(tmp_path) <= 20_000 + 4 * 20_000 // 32


def test_bounds_without_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="0 or more"):
        CacheConfig(memory_bytes=-1)


def test_an_object_that_is_too_large_for_the_cache_is_not_fetched_as_a_whole(tmp_path: Path) -> None:
    asked: list[str] = []

    class Spans(MemoryBlob):
        def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
            asked.append(key)
            return super().open_spans(key, size, spans)

    inner = Spans()
    for size in (256, 257):
        inner.put(f"k{size}", bytes(size))
        for cached in (
            CachedBlob(inner, CacheConfig(memory_bytes=1024), scope="l"),
            CachedBlob(inner, CacheConfig(memory_bytes=0, folder=tmp_path, folder_bytes=size * 4), scope="l"),
        ):
            opened = cached.open_spans(f"k{size}", size, [(0, 1)])
            assert opened is not None
            assert opened.size() == size
    assert asked == ["k257"]
