"""`readStream` on real Spark returns contents and all changes once, through restarts and limits."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from holdfast.collections import StorageController
from holdfast.persist import Schema

pytestmark = pytest.mark.spark
Fill = Callable[..., str]
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})


class Sink:
    """What arrives of a stream: the rows of each batch by its number, the last attempt of it."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = str(folder / "checkpoint")
        self.batches: dict[int, list[Any]] = {}
        self.broken_at: int | None = None

    def take(self, frame: DataFrame, number: int) -> None:
        if self.broken_at == number:
            self.broken_at = None
            raise ValueError("the sink is broken")
        self.batches[number] = frame.collect()

    def run(self, frame: DataFrame) -> StreamingQuery:
        """All that is there now."""
        query = (
            frame.writeStream.foreachBatch(self.take)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        return query

    @property
    def contents(self) -> Counter[tuple[int, str]]:
        rows = Counter()
        for batch in self.batches.values():
            for row in batch:
                rows[(row.id, row.name)] += row._diff
        return Counter({row: count for row, count in rows.items() if count})


def stream(spark: SparkSession, url: str, collection: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("holdfast").option("url", url).option("collection", collection)
    return reader.options(**options).load()


def rows(*pairs: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"id": id_, "name": name} for id_, name in pairs]


@pytest.mark.long
def test_contents_come_first_then_changes_exactly_once(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill, tmp_path: Path
) -> None:
    collection = fill("followed", SCHEMA, {3: rows((1, "a"), (2, "b"))}, shards=2)
    writer = controller.writer(collection, purpose="test")
    sink = Sink(tmp_path)
    frame = stream(spark, url, "followed", mode="diff")
    assert frame.columns == ["id", "name", "_time", "_diff"]
    sink.run(frame)
    assert sink.contents == {(1, "a"): 1, (2, "b"): 1}
    assert {row._time for row in sink.batches[0]} == {3}

    writer.append([{"id": 1, "name": "a", "_diff": -1}, {"id": 1, "name": "A", "_diff": 1}], 4, 6)
    sink.broken_at = 1
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        sink.run(frame)
    (hold,) = [each for each in controller.holds(collection) if each.purpose.startswith("spark stream ")]
    assert (hold.since, hold.durable) == (3, True)
    # What has not arrived stays readable, and the batch that broke is read again as it was.
    controller.set_retention_hold(collection, 5)
    assert controller.frontiers(collection).since == 3
    writer.append(rows((7, "g")), 6, 9)
    sink.run(frame)
    assert sink.contents == {(1, "A"): 1, (2, "b"): 1, (7, "g"): 1}
    assert [(row.id, row._time, row._diff) for row in sorted(sink.batches[1])] == [(1, 4, 1), (1, 4, -1)]
    before = dict(sink.batches)
    sink.run(frame)
    assert sink.batches == before
    controller.release_hold(collection, hold.purpose)


@pytest.mark.long
def test_a_stream_goes_through_a_handover_and_takes_in_no_more_than_its_limit(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill, tmp_path: Path
) -> None:
    collection = fill("resharded", SCHEMA, {0: rows((0, "zero"))})
    sink = Sink(tmp_path)
    limited = stream(spark, url, "resharded", mode="diff", maxRowsPerTrigger=2)
    sink.run(limited)
    writer = controller.writer(collection, purpose="test")
    for time in range(1, 6):
        writer.append(rows((time, "x"), (time, "y")), time, time + 1)
    controller.renditions.create(collection, shards=3)
    controller.hydrate(collection, "r2")
    controller.renditions.hand_over(collection, "r2")
    writer = controller.writer(collection, purpose="test")
    writer.append(rows((9, "after")), writer.upper(), writer.upper() + 2)
    sink.run(limited)
    assert sink.contents == Counter(
        {(0, "zero"): 1, (9, "after"): 1, **{(time, name): 1 for time in range(1, 6) for name in "xy"}}
    )
    assert max(len(batch) for batch in sink.batches.values()) == 2


@pytest.mark.long
def test_a_stream_of_what_was_never_written_waits_for_it(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill, tmp_path: Path
) -> None:
    collection = fill("awaited", SCHEMA, {})
    sink = Sink(tmp_path)
    frame = stream(spark, url, "awaited", mode="diff")
    sink.run(frame)
    sink.run(frame)
    writer = controller.writer(collection, purpose="test")
    for time in (0, 1):
        writer.append(rows((time, "x")), time, time + 1)
        sink.run(frame)
        sink.run(frame)
    assert [[row.id for row in batch] for _, batch in sorted(sink.batches.items())] == [[], [0], [1]]
