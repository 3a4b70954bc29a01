"""Reads of one operation share a look at the store, and see no less than what ended before it."""

import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from conformance.objectstore import Bucket, MemoryObjects
from holdfast.errors import UpperMismatch
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.looks import look_again, one_look
from holdfast.persist.stores import Location, MemoryBlob
from holdfast.persist.stores.s3_log import S3LogConsensus

SCHEMA = Schema.of(key={"id": "int64"}, value={})
X, Y = (f"s{number:08d}-0000-4000-8000-000000000000" for number in (1, 2))


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number]})


@pytest.fixture
def clients(request: pytest.FixtureRequest) -> Iterator[tuple[PersistClient, PersistClient]]:
    url, config = f"memory://looks-{request.node.name}", PersistConfig(maintenance="off")
    with PersistClient.open(url, config=config) as ours, PersistClient.open(url, config=config) as others:
        for shard in (X, Y):
            ours.writer(shard, SCHEMA, purpose="test").compare_and_append(rows(0), 0, 1)
        yield ours, others


def append(client: PersistClient, shard: str, upper: int) -> None:
    """Append in another thread, as others do."""

    def run() -> None:
        client.writer(shard, SCHEMA, purpose="test").compare_and_append(rows(upper), upper, upper + 1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


class Reads:
    """Counts the reads of heads of a client."""

    def __init__(self, client: PersistClient, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        consensus = client.session.location.consensus
        heads = consensus.heads

        def counted(*args: Any) -> Any:
            self.count += 1
            return heads(*args)

        patch.setattr(consensus, "heads", counted)


def test_a_block_reads_each_shard_once(
    clients: tuple[PersistClient, PersistClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = clients
    reads = Reads(ours, monkeypatch)
    with one_look():
        for _ in range(3):
            assert (ours.recent_upper(X), ours.recent_upper(Y)) == (1, 1)
            with one_look():
                assert ours.recent_uppers([X]) == {X: 1}
    assert reads.count == 2
    assert ours.recent_upper(X) == 1
    assert reads.count == 3


def test_a_block_sees_what_ended_before_it(clients: tuple[PersistClient, PersistClient]) -> None:
    ours, others = clients
    assert ours.recent_upper(X) == 1
    append(others, X, 1)
    with one_look():
        assert ours.recent_upper(X) == 2
        append(others, X, 2)
        assert ours.recent_upper(X) == 2
        look_again()
        assert ours.recent_upper(X) == 3
        append(others, X, 3)
    assert ours.recent_upper(X) == 4
    append(others, X, 4)
    with one_look():
        assert ours.recent_upper(X) == 5


def test_a_look_does_not_last_longer_than_its_block(clients: tuple[PersistClient, PersistClient]) -> None:
    ours, others = clients
    with pytest.raises(UpperMismatch), one_look():
        ours.writer(X, SCHEMA, purpose="test").compare_and_append(rows(0), 0, 1)
    append(others, X, 1)
    assert ours.recent_upper(X) == 2


def test_another_thread_has_no_part_in_a_block(clients: tuple[PersistClient, PersistClient]) -> None:
    ours, others = clients
    found = []
    with one_look():
        ours.recent_upper(X)
        append(others, X, 1)
        thread = threading.Thread(target=lambda: found.append(ours.recent_upper(X)))
        thread.start()
        thread.join()
        assert found == [2]
        # What another thread has read since the block began counts here, too.
        assert ours.recent_upper(X) == 2


def test_reads_after_a_commit_see_everything_before_it(
    clients: tuple[PersistClient, PersistClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = clients
    writer = ours.writer(Y, SCHEMA, purpose="test")
    with one_look():
        assert (ours.recent_upper(X), writer.upper()) == (1, 1)
        append(others, X, 1)
        writer.compare_and_append(rows(1), 1, 2)
        assert ours.recent_upper(X) == 2
        reads = Reads(ours, monkeypatch)
        # The commit itself has compared this shard with the store.
        assert writer.upper() == 2
        assert reads.count == 0


def test_a_refused_commit_shows_why(clients: tuple[PersistClient, PersistClient]) -> None:
    """So a loop that tries again finds the reason, and ends."""
    ours, others = clients
    writer = ours.writer(X, SCHEMA, purpose="test")
    with one_look():
        assert writer.upper() == 1
        append(others, X, 1)
        assert writer.upper() == 1
        with pytest.raises(UpperMismatch):
            writer.compare_and_append(rows(1), 1, 2)
        assert writer.upper() == 2
        writer.compare_and_append(rows(2), 2, 3)


def test_a_version_whose_rollup_is_gone_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of S3 was read in the block. Another process has replaced the rollup since."""
    bucket, blob = Bucket(), MemoryBlob()
    config = PersistConfig(maintenance="off", rollup_every=1, gc_grace_s=0.0)

    def opened() -> PersistClient:
        return PersistClient(Location.of(blob, S3LogConsensus(MemoryObjects(bucket))), config=config)

    def write(client: PersistClient, shard: str, upper: int) -> None:
        client.writer(shard, SCHEMA, purpose="test").compare_and_append(rows(upper), upper, upper + 1)
        client.maintain(shard)

    with opened() as ours, opened() as others:
        for shard in (X, Y):
            for upper in range(3):
                write(others, shard, upper)
        with one_look():
            assert ours.recent_upper(Y) == 3
            thread = threading.Thread(target=lambda: [write(others, X, upper) for upper in range(3, 6)])
            thread.start()
            thread.join()
            assert ours.recent_upper(X) == 6


def test_work_that_needs_the_newest_version_reads_it_in_a_block_too(
    clients: tuple[PersistClient, PersistClient],
) -> None:
    """`refresh` is for reads whose caller would delete, or fail, because of what a version lacks."""
    ours, others = clients
    machine = ours.session.machine(X)
    with one_look():
        assert machine.look().upper == 1
        append(others, X, 1)
        assert machine.look().upper == 1
        assert machine.refresh().upper == 2
    evolved = Schema.of(key={"id": "int64"}, value={"note": "string?"})
    with one_look():
        assert machine.look().upper == 2
        others.evolve(X, evolved)
        # The caller knows the schema from a record that it read later.
        ours.writer(X, evolved, purpose="test")


def test_a_task_that_begins_in_a_block_has_no_part_in_it(
    clients: tuple[PersistClient, PersistClient],
) -> None:
    ours, others = clients
    found = []
    with one_look():
        assert ours.recent_upper(X) == 1
        append(others, X, 1)
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(ours.recent_upper, X)))
        thread.start()
        thread.join()
    assert found == [2]
