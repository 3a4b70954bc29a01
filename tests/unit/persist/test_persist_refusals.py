"""A refusal leaves everything usable: other commands of a multi-write, other threads, other readers."""

from typing import Any

import pytest

from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist import PersistClient, WriteHandle, WriteMode
from holdfast.persist.stores import MemoryBlob
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows


def test_a_multi_write_that_is_refused_for_one_append_spends_none() -> None:
    client = Stores().open(inline_max_bytes=0)
    writer, other = (client.writer(shard, SCHEMA, purpose="test") for shard in (SHARD, OTHER))
    used = other.prepare_append(rows(1), 0, 1)
    client.multi_write([used])
    fresh = writer.prepare_append(rows(2), 0, 1)

    with pytest.raises(BadInput, match="committed already"):
        client.multi_write([fresh, used])

    client.multi_write([fresh])
    assert contents(client.reader(SHARD, purpose="test").snapshot(0).to_table()) == {(2, "x"): 1}
    with pytest.raises(BadInput, match="committed already"):
        client.multi_write([fresh])


def test_a_write_that_is_given_twice_is_spent_by_neither() -> None:
    client = Stores().open()
    client.exclusive("test")
    writer = client.writer(SHARD, SCHEMA, purpose="test", mode=WriteMode.WRITE_SEAL)
    write = writer.prepare_write(rows(1))

    with pytest.raises(BadInput, match="committed already"):
        client.multi_write([write, write])

    client.multi_write([write])
    writer.seal(1)
    assert contents(client.reader(SHARD, purpose="test").snapshot(0).to_table()) == {(1, "x"): 1}


def test_a_seal_that_another_thread_was_first_with_has_nothing_to_do() -> None:
    client = Stores().open()
    client.exclusive("test")
    first, second = (
        client.writer(SHARD, SCHEMA, purpose="test", mode=WriteMode.WRITE_SEAL) for _ in range(2)
    )

    class Slow(WriteHandle):
        looks = 0

        @property
        def cached_upper(self) -> int:
            Slow.looks += 1
            if Slow.looks == 2:
                second.seal(10)
            return super().cached_upper

    first.__class__ = Slow
    first.seal(10)

    assert client.recent_upper(SHARD) == 10


def test_a_part_that_is_lost_is_told_however_busy_its_shard_is() -> None:
    stores = Stores()
    client = stores.open(inline_max_bytes=0)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    for time in range(3):
        writer.compare_and_append(rows(time), time, time + 1)
    lost = min(stores.parts())
    stores.blob.delete(lost)
    most = 20

    class Busy(MemoryBlob):
        moved = 0

        def get(self, key: str) -> bytes | None:
            if key == lost:
                Busy.moved += 1
                assert Busy.moved < most, "it is asked for again and again"
                _move(stores.open())
            return super().get(key)

    def _move(other: PersistClient) -> None:
        upper = other.recent_upper(SHARD)
        other.writer(SHARD, SCHEMA, purpose="busy").compare_and_append(None, upper, upper + 1)

    busy: Any = stores.blob
    busy.__class__ = Busy
    for read in (lambda found: found.to_table(), list):
        with pytest.raises(CorruptBlob, match=lost):
            read(stores.open(mode="read").reader(SHARD, purpose="test").snapshot(2))
