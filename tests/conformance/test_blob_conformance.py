"""The promises of every blob store."""

import os
import threading
import time

import pytest

from holdfast.errors import BadInput
from holdfast.persist.stores import Blob

UNICODE_KEY = "sch\u00f6n/\u65e5\u672c\u8a9e/\U0001f984 with space"


def _keys(blob: Blob, prefix: str = "") -> list[str]:
    return [meta.key for meta in blob.list(prefix)]


def test_what_was_put_is_what_is_read(blob: Blob) -> None:
    blob.put("s1/w1/p1", b"first")
    blob.put("s1/w1/p2", memoryview(b"second"))

    assert blob.get("s1/w1/p1") == b"first"
    assert blob.get("s1/w1/p2") == b"second"


def test_a_missing_key_is_none_and_not_an_error(blob: Blob) -> None:
    blob.put("a/b", b"x")

    assert blob.get("c") is None
    assert blob.get("a") is None
    assert blob.get("a/b/c") is None
    assert blob.open_input("c", 1) is None
    assert blob.open_input("a", 1) is None


def test_a_second_put_replaces_the_first_whole(blob: Blob) -> None:
    blob.put("key", b"a long first value")
    blob.put("key", b"short")

    assert blob.get("key") == b"short"
    assert [(meta.key, meta.size) for meta in blob.list("")] == [("key", 5)]


def test_delete_tells_whether_the_object_was_there(blob: Blob) -> None:
    blob.put("a/b", b"x")

    assert blob.delete("a/b") is True
    assert blob.delete("a/b") is False
    assert blob.delete("never/was") is False
    assert blob.get("a/b") is None
    assert _keys(blob) == []


def test_a_deleted_key_can_be_put_again(blob: Blob) -> None:
    blob.put("a/b", b"x")
    blob.delete("a/b")
    blob.put("a/b", b"y")

    assert blob.get("a/b") == b"y"


def test_an_empty_value_is_a_value(blob: Blob) -> None:
    blob.put("empty", b"")

    assert blob.get("empty") == b""
    assert [(meta.key, meta.size) for meta in blob.list("")] == [("empty", 0)]
    opened = blob.open_input("empty", 1)
    assert opened is not None
    assert opened.read() == b""


def test_a_value_of_20_mib(blob: Blob) -> None:
    data = os.urandom(1 << 20) * 20

    blob.put("s1/large", data)

    assert blob.get("s1/large") == data
    assert [meta.size for meta in blob.list("s1/")] == [20 << 20]


def test_of_an_object_that_is_small_its_start_is_all(blob: Blob) -> None:
    blob.put("key", b"0123456789")
    blob.put("empty", b"")

    for most, start in ((1, b"0"), (9, b"012345678"), (10, b"0123456789"), (4096, b"0123456789")):
        assert blob.get_start("key", most) == start
    assert blob.get_start("empty", 4096) == b""
    assert blob.get_start("missing", 4096) is None
    assert blob.get_start("key/below", 4096) is None
    assert blob.get("key") == b"0123456789"


def test_part_of_an_object_can_be_read(blob: Blob) -> None:
    blob.put("key", b"0123456789")

    opened = blob.open_input("key", 11)

    assert opened is not None
    with opened:
        assert opened.size() == 10
        opened.seek(4)
        assert opened.read(3) == b"456"


@pytest.mark.parametrize("size", [10, 3 * 1024 * 1024])
def test_an_open_object_outlives_its_deletion(blob: Blob, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"0123456789"
    blob.put("key", data)
    opened = blob.open_input("key", len(data) + 1)
    assert opened is not None

    blob.delete("key")

    with opened:
        assert opened.size() == len(data)
        opened.seek(len(data) - 10)
        assert opened.read() == b"0123456789"
        opened.seek(0)
        assert opened.read() == data


def test_unicode_keys_come_back_as_they_were(blob: Blob) -> None:
    blob.put(UNICODE_KEY, b"x")

    assert blob.get(UNICODE_KEY) == b"x"
    assert _keys(blob) == [UNICODE_KEY]
    assert _keys(blob, "sch\u00f6n/\u65e5") == [UNICODE_KEY]


def test_a_listing_has_every_key_with_the_prefix_in_order(blob: Blob) -> None:
    keys = ["a-b", "a.b", "a/b", "a/b2/c", "a/c", "a0", "ab", "b/a", "z"]
    for key in reversed(keys):
        blob.put(key, key.encode())

    assert _keys(blob) == sorted(keys)
    assert _keys(blob, "a") == sorted(key for key in keys if key.startswith("a"))
    assert _keys(blob, "a/") == ["a/b", "a/b2/c", "a/c"]
    assert _keys(blob, "a/b") == ["a/b", "a/b2/c"]
    assert _keys(blob, "a/b/") == []
    assert _keys(blob, "q") == []


def test_a_listing_tells_when_an_object_was_put(blob: Blob) -> None:
    before = time.time_ns() // 1_000_000
    blob.put("key", b"x")
    after = time.time_ns() // 1_000_000

    (meta,) = blob.list("")

    # A file system's clock may lag the host's by a tick.
    assert meta.modified_ms is not None
    assert before - 20 <= meta.modified_ms <= after


def test_objects_deleted_during_a_listing_do_not_break_it(blob: Blob) -> None:
    for number in range(20):
        blob.put(f"s{number:02}/p", b"x")

    listing = blob.list("")
    first = next(listing)
    for number in range(1, 19):
        blob.delete(f"s{number:02}/p")
    rest = [meta.key for meta in listing]

    assert first.key == "s00/p"
    assert rest[-1] == "s19/p"


@pytest.mark.parametrize(
    "key",
    [
        *("", "/", "a/", "/a", "a//b", ".", "..", "../x", "a/../b", "a/./b", ".tmp/x"),
        *("a\0b", "a\nb", "\ud800", "x" * 201, "/".join(["y" * 100] * 11)),
    ],
    ids=repr,
)
def test_a_key_that_some_store_could_not_hold_is_refused(blob: Blob, key: str) -> None:
    with pytest.raises(BadInput):
        blob.put(key, b"x")
    with pytest.raises(BadInput):
        blob.get(key)
    with pytest.raises(BadInput):
        blob.delete(key)
    assert _keys(blob) == []


@pytest.mark.parametrize("prefix", ["../", "a/../", "/", "."])
def test_a_prefix_that_no_key_can_have_is_refused(blob: Blob, prefix: str) -> None:
    with pytest.raises(BadInput):
        blob.list(prefix)


def test_readers_see_one_of_the_racing_puts_whole(blob: Blob) -> None:
    size = 64 * 1024
    seen: set[bytes] = set()
    done = threading.Event()

    def write(byte: int) -> None:
        for _ in range(15):
            blob.put("s1/key", bytes([byte]) * size)

    def read() -> None:
        while not done.is_set():
            data = blob.get("s1/key")
            if data is not None:
                seen.add(data)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(byte,)) for byte in range(4)]
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    final = blob.get("s1/key")

    assert final in {bytes([byte]) * size for byte in range(4)}
    assert seen <= {bytes([byte]) * size for byte in range(4)}
    assert _keys(blob) == ["s1/key"]


def test_the_clock_is_that_of_modification_times(blob: Blob) -> None:
    before = blob.clock_ms()
    blob.put("a/b", b"x")
    after = blob.clock_ms()
    (meta,) = blob.list("a/b")

    assert before is not None
    assert after is not None
    assert meta.modified_ms is not None
    # Both have the store's resolution, of up to a second.
    assert before - 2000 <= meta.modified_ms <= after + 2000


def test_spans_of_an_object_are_read_at_their_places(blob: Blob) -> None:
    data = os.urandom(3 << 20)
    blob.put("key", data)
    spans = [(0, 10), (1 << 20, (1 << 20) + 70_000), (len(data) - 5, len(data))]
    opened = blob.open_spans("key", len(data), spans)
    assert opened is not None
    with opened:
        assert opened.size() == len(data)
        for start, end in spans:
            assert opened.read_at(end - start, start) == data[start:end]
    assert blob.open_spans("other", len(data), spans) is None


@pytest.mark.parametrize("size", [2 << 20, (2 << 20) - 1, (3 << 20) + 1, 100])
def test_an_object_of_another_size_has_it(blob: Blob, size: int) -> None:
    blob.put("key", bytes(size))
    expected = 5 << 19
    opened = blob.open_spans("key", expected, [(expected - 10, expected)])
    assert opened is not None
    with opened:
        assert opened.size() != expected
