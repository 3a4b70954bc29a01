"""The reader of a stream, called as Spark calls it: offsets, limits, holds, restarts and refusals."""

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import (
    BadInput,
    CollectionNotFound,
    HandleExpired,
    HoldfastError,
    LocationMismatch,
)
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.admin.manual import compact_now
from holdfast.spark.datasource import HoldfastDataSource

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})


class Query:
    """A streaming query without a JVM: what Spark asks of a source, and its checkpoint."""

    def __init__(self, url: str, collection: str = "f", **options: Any) -> None:
        given = {"url": url, "collection": collection, **{name: str(each) for name, each in options.items()}}
        source = HoldfastDataSource(given)
        schema = source.schema()
        # Spark plans with a copy.
        self.reader = pickle.loads(pickle.dumps(source)).streamReader(schema)

    def run(self, checkpoint: "Checkpoint", *, breaks: bool = False) -> None:
        """All that is there now; with `breaks` the first batch does not arrive."""
        self.reader.prepareForTriggerAvailableNow()
        if checkpoint.planned is not None:
            self._batch(checkpoint, checkpoint.planned)
        while True:
            end = self.reader.latestOffset(self._start(checkpoint), self.reader.getDefaultReadLimit())
            # The first batch is planned even where it is of nothing.
            if end == checkpoint.arrived:
                break
            checkpoint.planned = json.loads(json.dumps(end))
            if breaks:
                if checkpoint.arrived is not None:
                    self.reader.commit(checkpoint.arrived)
                self.reader.partitions(self._start(checkpoint), end)
                break
            self._batch(checkpoint, end)
        self.reader.stop()

    def _start(self, checkpoint: "Checkpoint") -> dict[str, Any]:
        return checkpoint.arrived or self.reader.initialOffset()

    def _batch(self, checkpoint: "Checkpoint", end: dict[str, Any]) -> None:
        if checkpoint.arrived is not None:
            self.reader.commit(checkpoint.arrived)
        pieces = self.reader.partitions(self._start(checkpoint), end)
        copy = pickle.loads(pickle.dumps(self.reader))
        batches = [batch for piece in pieces for batch in copy.read(pickle.loads(pickle.dumps(piece)))]
        checkpoint.batches.append([row for batch in batches for row in batch.to_pylist()])
        checkpoint.arrived, checkpoint.planned = json.loads(json.dumps(end)), None


class Checkpoint:
    """What outlives a query, and what has arrived."""

    def __init__(self) -> None:
        self.planned: dict[str, Any] | None = None
        self.arrived: dict[str, Any] | None = None
        self.batches: list[list[dict[str, Any]]] = []

    @property
    def contents(self) -> dict[tuple[int, str], int]:
        counts: Counter[tuple[int, str]] = Counter()
        for row in (row for batch in self.batches for row in batch):
            counts[(row["id"], row["name"])] += row.get("_diff", 1)
        return {row: count for row, count in counts.items() if count}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/lake"


@pytest.fixture
def controller(url: str) -> Iterator[StorageController]:
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        controller = StorageController(client)
        controller.create_collection(CollectionSpec("c1", "f", SCHEMA, shards=2))
        yield controller


def write(controller: StorageController, time: int, *rows: tuple[int, str, int]) -> None:
    writer = controller.writer("f", purpose="test")
    given = [{"id": id_, "name": name, "_diff": diff} for id_, name, diff in rows]
    writer.seal(time)
    writer.append(given, time, time + 1)


def stream_hold(controller: StorageController) -> int | None:
    (hold,) = [each for each in controller.holds("c1") if each.purpose.startswith("spark stream ")]
    return hold.since


def test_a_batch_that_did_not_arrive_is_read_again_as_it_was(controller: StorageController, url: str) -> None:
    write(controller, 3, (1, "a", 1), (2, "b", 1))
    checkpoint = Checkpoint()
    Query(url, mode="diff").run(checkpoint, breaks=True)
    write(controller, 4, (1, "a", -1))
    controller.set_retention_hold("f", 4)
    assert controller.frontiers("f").since == stream_hold(controller) == 3
    Query(url, mode="diff").run(checkpoint)
    assert [{row["_time"] for row in batch} for batch in checkpoint.batches] == [{3}, {4}]
    assert checkpoint.contents == {(2, "b"): 1}
    write(controller, 7, (5, "e", 1))
    Query(url, mode="diff").run(checkpoint, breaks=True)
    assert stream_hold(controller) == 4
    Query(url, mode="diff").run(checkpoint)
    assert checkpoint.contents == {(2, "b"): 1, (5, "e"): 1}
    assert len(checkpoint.batches) == 3
    Query(url, mode="diff").run(checkpoint)
    assert len(checkpoint.batches) == 3


@pytest.mark.parametrize("merged", [False, True])
def test_a_limit_cuts_between_times_and_never_within_one(
    controller: StorageController, url: str, merged: bool
) -> None:
    write(controller, 0, (0, "zero", 1))
    checkpoint = Checkpoint()
    Query(url, mode="diff").run(checkpoint)
    for time, count in ((1, 2), (2, 1), (3, 1), (5, 7), (6, 1)):
        write(controller, time, *((time, f"n{number}", 1) for number in range(count)))
    for shard in controller.describe("f").holding.shards if merged else ():
        compact_now(controller.client, shard, full=True)
    Query(url, mode="diff", maxRowsPerTrigger=3).run(checkpoint)
    times = [sorted({row["_time"] for row in batch}) for batch in checkpoint.batches]
    assert [each for each in times if each] == [[0], [1, 2], [3], [5], [6]]


def test_a_handover_in_between_is_one_history(controller: StorageController, url: str) -> None:
    write(controller, 3, (1, "a", 1), (2, "b", 1))
    checkpoint = Checkpoint()
    Query(url, mode="diff").run(checkpoint)
    write(controller, 5, (1, "a", -1))
    controller.renditions.create("f", shards=3)
    controller.hydrate("f", "r2")
    at = controller.renditions.hand_over("f", "r2").held_from
    write(controller, at + 1, (3, "c", 1))
    Query(url, mode="diff").run(checkpoint)
    assert checkpoint.contents == {(2, "b"): 1, (3, "c"): 1}
    assert {row["_time"] for row in checkpoint.batches[1]} == {5, at + 1}


def test_it_may_begin_after_a_time(controller: StorageController, url: str) -> None:
    write(controller, 1, (1, "a", 1))
    write(controller, 2, (2, "b", 1), (3, "c", 1))
    checkpoint = Checkpoint()
    Query(url, where='[["id", "!=", 3]]', **{"from": 1}).run(checkpoint)
    assert checkpoint.batches == [[{"id": 2, "name": "b"}]]
    write(controller, 3, (4, "d", 1))
    with pytest.raises(BadInput, match=r"'from' is .*, but the checkpoint started with"):
        Query(url, **{"from": 2}).run(checkpoint)


def test_rows_that_go_end_a_stream_of_rows_that_come(controller: StorageController, url: str) -> None:
    write(controller, 1, (1, "a", 2))
    checkpoint = Checkpoint()
    Query(url).run(checkpoint)
    assert checkpoint.batches == [[{"id": 1, "name": "a"}] * 2]
    write(controller, 2, (1, "a", -1))
    with pytest.raises(BadInput, match="this stream can only return added rows"):
        Query(url).run(checkpoint)
    assert len(checkpoint.batches) == 1


@pytest.mark.parametrize("breaks", [False, True])
def test_what_is_still_empty_is_waited_for(controller: StorageController, url: str, breaks: bool) -> None:
    checkpoint = Checkpoint()
    Query(url, mode="diff").run(checkpoint, breaks=breaks)
    Query(url, mode="diff").run(checkpoint)
    assert checkpoint.batches == [[]]
    write(controller, 4, (1, "first", 1))
    Query(url, mode="diff").run(checkpoint, breaks=breaks)
    assert stream_hold(controller) == 4
    write(controller, 5, (1, "first", -1), (2, "second", 1))
    Query(url, mode="diff").run(checkpoint)
    assert [len(batch) for batch in checkpoint.batches] == [0, 1, 2]
    assert checkpoint.contents == {(2, "second"): 1}


@pytest.mark.parametrize(
    ("after", "written", "said"),
    [
        (4, 3, "f can't be read as a stream from 4 on: it is complete up to 3"),
        (0, None, "f can't be read as a stream from 0 on: nothing has been written yet"),
    ],
)
def test_a_stream_from_a_time_to_come_is_refused_and_holds_nothing(
    controller: StorageController, url: str, after: int, written: int | None, said: str
) -> None:
    if written is not None:
        write(controller, written, (1, "a", 1))
    with pytest.raises(BadInput, match=said):
        Query(url, **{"from": after}).run(Checkpoint())
    assert not [each for each in controller.holds("c1") if each.purpose.startswith("spark ")]


@pytest.mark.parametrize(
    ("change", "error"),
    [({"collection": "c2"}, CollectionNotFound), ({"location": "0" * 32}, LocationMismatch)],
)
def test_a_checkpoint_of_something_else_is_refused(
    controller: StorageController, url: str, change: dict[str, str], error: type[HoldfastError]
) -> None:
    write(controller, 1, (1, "a", 1))
    checkpoint = Checkpoint()
    Query(url).run(checkpoint)
    assert checkpoint.arrived is not None
    checkpoint.arrived |= {**change, "stream": "another"}
    write(controller, 2, (2, "b", 1))
    with pytest.raises(error):
        Query(url).run(checkpoint)
    assert len(checkpoint.batches) == 1
    assert len([each for each in controller.holds("c1") if each.purpose.startswith("spark ")]) == 1


def test_what_comes_after_a_time_is_held_while_nothing_comes(controller: StorageController, url: str) -> None:
    write(controller, 3, (1, "a", 1))
    checkpoint = Checkpoint()
    Query(url, mode="diff", **{"from": 3}).run(checkpoint)
    assert checkpoint.batches == [[]]
    assert stream_hold(controller) == 3
    write(controller, 5, (2, "b", 1))
    controller.set_retention_hold("f", 5)
    Query(url, mode="diff", **{"from": 3}).run(checkpoint)
    assert checkpoint.contents == {(2, "b"): 1}


def test_a_hold_that_was_released_ends_the_stream(controller: StorageController, url: str) -> None:
    write(controller, 3, (1, "a", 1))
    checkpoint = Checkpoint()
    query = Query(url, mode="diff")
    query.run(checkpoint)
    write(controller, 4, (2, "b", 1))
    reader = Query(url, mode="diff").reader
    end = reader.latestOffset(checkpoint.arrived, reader.getDefaultReadLimit())
    (hold,) = [each for each in controller.holds("c1") if each.purpose.startswith("spark stream ")]
    controller.release_hold("f", hold.purpose)
    with pytest.raises(HandleExpired, match="was released"):
        reader.commit(end)


def test_a_column_that_was_widened_says_to_start_anew(url: str) -> None:
    with PersistClient.open(url) as client:
        narrow = Schema.of(key={"id": "int64"}, value={"n": "int32"})
        StorageController(client).create_collection(CollectionSpec("c2", "narrow", narrow))
        writer = StorageController(client).writer("narrow", purpose="test")
        writer.append([{"id": 1, "n": 1}], 0, 1)
        checkpoint = Checkpoint()
        Query(url, "narrow", mode="diff").run(checkpoint)
        planned = Query(url, "narrow", mode="diff")
        StorageController(client).evolve_collection(
            "narrow", Schema.of(key={"id": "int64"}, value={"n": "int64"})
        )
        StorageController(client).writer("narrow", purpose="test").append([{"id": 2, "n": 2**40}], 1, 2)
        with pytest.raises(BadInput, match="column 'n' is int64 now and has values that int32 can't hold"):
            planned.run(checkpoint)
        Query(url, "narrow", mode="diff").run(checkpoint)
        assert checkpoint.batches[-1][0]["n"] == 2**40
