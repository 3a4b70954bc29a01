"""`format("holdfast")` on real Spark: types, times, multiplicities, shards, options and errors."""

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import holdfast.spark
from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import AsOfTooEarly, BadInput, CollectionNotFound, HoldfastError, NoLocation
from holdfast.persist import PersistClient, Schema

pytestmark = pytest.mark.spark
Fill = Callable[..., str]

TYPES = {
    "bool": [True, False],
    "int8": [-128, 127],
    "int16": [-(2**15), 2**15 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "uint8": [0, 255],
    "uint16": [0, 2**16 - 1],
    "uint32": [0, 2**32 - 1],
    "uint64": [0, 2**64 - 1],
    "float32": [float("nan"), float("-inf")],
    "float64": [float("nan"), -1.5e300],
    "decimal128(20,2)": [Decimal("-1.05"), Decimal("999999999999999999.99")],
    "decimal128(38,38)": [Decimal("0." + "9" * 38), Decimal(0)],
    "string": ["", "schäl\U0001f600\0x"],
    "binary": [b"", b"\x00\xff"],
    "date32": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime.fromisoformat("1969-12-31T23:59:59.999999"),
        dt.datetime.fromisoformat("2300-01-01"),
    ],
    "timestamp_utc": [
        dt.datetime.fromisoformat("1900-01-01T00:00:00+00:00"),
        dt.datetime.fromisoformat("2026-03-29T01:30:00.000001+00:00"),
    ],
}


def load(spark: SparkSession, url: str, collection: str, **options: Any) -> DataFrame:
    reader = spark.read.format("holdfast").option("url", url).option("collection", collection)
    return reader.options(**options).load()


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.fixture(scope="module")
def people(fill: Fill) -> str:
    """Six people in three shards; at time 5 number 1 changes its name and number 2 goes, 7 and 8 come."""
    schema = Schema.of(key={"id": "int64"}, value={"name": "string?", "score": "float64"})
    rows = [{"id": i, "name": None if i == 4 else f"p{i}", "score": i / 2} for i in range(1, 7)]
    changes = [
        {**rows[0], "_diff": -1},
        {**rows[0], "name": "renamed", "_diff": 1},
        {**rows[1], "_diff": -1},
        {"id": 7, "name": "p7", "score": 3.5, "_diff": 1},
        {"id": 8, "name": "p8", "score": 4.0, "_diff": 1},
    ]
    fill("people", schema, {3: rows, 5: changes}, shards=3)
    return "people"


def test_every_type_round_trips_with_nulls(spark: SparkSession, url: str, fill: Fill) -> None:
    columns = {f"c{i}": name for i, name in enumerate(TYPES)}
    schema = Schema.of(key={"id": "int32"}, value={name: f"{type_}?" for name, type_ in columns.items()})
    rows: list[dict[str, Any]] = [{"id": 2, **dict.fromkeys(columns)}]
    rows += [
        {"id": index, **{name: TYPES[type_][index] for name, type_ in columns.items()}} for index in range(2)
    ]
    table = pa.Table.from_pylist(rows, schema=schema.arrow)
    fill("types", schema, {0: table})

    found = load(spark, url, "types").orderBy("id").toArrow()

    wanted = table.sort_by("id")
    for name, type_ in columns.items():
        is_, want = found.column(name), wanted.column(name)
        if type_.startswith("uint"):
            want = want.cast(is_.type)
        if type_.startswith("float"):
            assert str(is_.to_pylist()) == str(want.to_pylist()), type_
        else:
            assert is_.to_pylist() == want.to_pylist(), type_
    names = dict(load(spark, url, "types").dtypes)
    at = {type_: name for name, type_ in columns.items()}
    assert names[at["uint64"]] == "decimal(20,0)"
    assert names[at["uint8"]] == "smallint"
    assert names[at["timestamp"]] == "timestamp_ntz"
    assert names[at["timestamp_utc"]] == "timestamp"


def test_a_time_can_be_chosen_and_the_latest_is_the_default(
    spark: SparkSession, url: str, people: str
) -> None:
    assert ids(load(spark, url, people, asOf=3)) == [1, 2, 3, 4, 5, 6]
    assert ids(load(spark, url, people, asOf=4)) == [1, 2, 3, 4, 5, 6]
    assert ids(load(spark, url, people, asOf=5)) == ids(load(spark, url, people)) == [1, 3, 4, 5, 6, 7, 8]
    names = {row.id: row.name for row in load(spark, url, people).collect()}
    assert (names[1], names[4]) == ("renamed", None)


def test_one_dataframe_with_many_filters_gives_each_its_answer(
    spark: SparkSession, url: str, people: str
) -> None:
    frame = load(spark, url, people)
    assert ids(frame.filter("id = 1")) == [1]
    assert frame.count() == 7
    assert ids(frame.filter("id = 3").union(frame.filter("id = 7"))) == [3, 7]
    frame.filter("id = 5").explain()
    assert frame.filter("id = 1").union(frame).count() == 8
    assert frame.alias("a").join(frame.alias("b"), "id").count() == 7
    frame.createOrReplaceTempView("people_view")
    assert spark.sql("SELECT id FROM people_view WHERE name IS NULL").collect()[0].id == 4
    assert spark.sql("SELECT count(*) AS n FROM people_view").collect()[0].n == 7


def test_a_dataframe_is_one_frozen_snapshot(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill
) -> None:
    schema = Schema.of(key={"id": "int64"})
    collection = fill("growing", schema, {0: [{"id": 1}]})
    before = load(spark, url, "growing")
    by_schema = spark.read.format("holdfast").schema("id bigint").option("url", url)
    unplanned = by_schema.option("collection", "growing").load()
    controller.writer(collection, purpose="test").append([{"id": 2}], 1, 2)
    assert ids(before) == [1]
    assert ids(before) == [1]
    # With a schema from the user the time is fixed when the plan is made.
    assert ids(unplanned) == [1, 2]
    assert ids(load(spark, url, "growing")) == [1, 2]


def test_sql_reads_through_a_temporary_view_and_a_table_is_refused(
    spark: SparkSession, url: str, people: str
) -> None:
    using = f"USING holdfast OPTIONS (url '{url}', collection '{people}', asOf '3')"
    spark.sql(f"CREATE TEMPORARY VIEW people_at_3 {using}")
    assert ids(spark.sql("SELECT id FROM people_at_3 WHERE score > 2")) == [5, 6]
    assert spark.sql("SELECT count(*) AS n FROM people_at_3").collect()[0].n == 6
    with pytest.raises(AnalysisException, match="a table of Spark's catalog can't be a collection"):
        spark.sql(f"CREATE TABLE people_table {using}")
    # With columns it is made, and without options when it is read.
    spark.sql(f"CREATE TABLE people_table (id BIGINT) {using}")
    try:
        with pytest.raises(AnalysisException, match="a table of Spark's catalog loses its options"):
            spark.table("people_table").collect()
    finally:
        spark.sql("DROP TABLE people_table")


def test_a_row_appears_as_often_as_its_multiplicity_says(spark: SparkSession, url: str, fill: Fill) -> None:
    schema = Schema.of(key={"id": "int64", "tag": "string"})
    rows = [{"id": i % 4, "tag": "x", "_diff": 1 + i % 4} for i in range(40)]
    fill("bag", schema, {0: rows, 1: [{"id": 3, "tag": "x", "_diff": -40}]}, shards=2)
    counts = Counter(ids(load(spark, url, "bag", asOf=0)))
    assert counts == {0: 10, 1: 20, 2: 30, 3: 40}
    assert Counter(ids(load(spark, url, "bag"))) == {0: 10, 1: 20, 2: 30}


def test_what_is_no_multiset_is_an_error_and_no_loss(spark: SparkSession, url: str, fill: Fill) -> None:
    fill("broken", Schema.of(key={"id": "int64"}), {0: [{"id": 1, "_diff": -2}]})
    with pytest.raises(
        Exception, match=r"collection broken at 0 is not a multiset: \{'id': 1\} occurs -2 times"
    ) as caught:
        load(spark, url, "broken").collect()
    assert "\nhint: a writer removed a row that did not exist" in str(caught.value)


def test_partitions_are_as_few_as_asked_for(spark: SparkSession, url: str, people: str) -> None:
    assert load(spark, url, people, partitions=1).rdd.getNumPartitions() == 1
    assert 2 <= load(spark, url, people, partitions=8).rdd.getNumPartitions() <= 8
    assert ids(load(spark, url, people, partitions=1)) == ids(load(spark, url, people, partitions=8))


def test_columns_can_be_chosen_and_come_in_that_order(spark: SparkSession, url: str, people: str) -> None:
    frame = load(spark, url, people, asOf=3, columns="score, id")
    assert frame.columns == ["score", "id"]
    assert sorted(tuple(row) for row in frame.collect()) == [(i / 2, i) for i in range(1, 7)]
    only_names = load(spark, url, people, asOf=3, columns='["name"]')
    assert sorted(row.name or "" for row in only_names.collect()) == ["", "p1", "p2", "p3", "p5", "p6"]


def test_read_says_the_same_with_keywords(spark: SparkSession, url: str, people: str) -> None:
    frame = holdfast.spark.read(spark, url=url, collection=people, as_of=3, columns=["id"], partitions=1)
    assert (frame.columns, ids(frame)) == (["id"], [1, 2, 3, 4, 5, 6])


def test_conditions_keep_the_rows_that_a_filter_keeps(spark: SparkSession, url: str, people: str) -> None:
    where = '[["score", ">", 1], ["name", "is not", null], ["id", "<", 8]]'
    frame = load(spark, url, people, where=where, columns="id")
    assert frame.columns == ["id"]
    assert ids(frame) == ids(load(spark, url, people).filter("score > 1 and name is not null and id < 8"))
    assert ids(frame) == [3, 5, 6, 7]
    assert load(spark, url, people, where='[["id", "<", 0]]').count() == 0
    read = holdfast.spark.read(spark, url=url, collection=people, where=[("id", "in", [1, 7])])
    assert ids(read) == [1, 7]


@pytest.mark.long
def test_a_time_without_a_zone_is_in_the_sessions(spark: SparkSession, url: str, fill: Fill) -> None:
    hours = [dt.datetime(2026, 3, 28, 12, tzinfo=dt.UTC) + dt.timedelta(hours=number) for number in range(40)]
    schema = Schema.of(key={"at": "timestamp_utc"}, value={"local": "timestamp?"})
    fill("hours", schema, {0: [{"at": hour, "local": hour.replace(tzinfo=None)} for hour in hours]})
    session = spark.newSession()
    given = [
        ("at", "2026-03-29T02:30:00"),  # which is at no time in Berlin
        ("at", "2026-03-29"),
        ("at", "2026-03-29T08:00:00+05:00"),
        ("local", "2026-03-29T02:30:00"),
    ]
    for zone in ("Asia/Tokyo", "Europe/Berlin"):
        session.conf.set("spark.sql.session.timeZone", zone)
        everything = holdfast.spark.read(session, url=url, collection="hours")
        (expected,) = everything.selectExpr(
            *(f"count_if({column} < '{text}')" for column, text in given)
        ).collect()
        for (column, text), count in zip(given, expected, strict=True):
            read = holdfast.spark.read(session, url=url, collection="hours", where=[(column, "<", text)])
            assert read.count() == count, (zone, column, text)
        assert expected[0] != expected[3]
    option = [["at", "<", "2026-03-29T00:00:00"]]
    assert load(spark, url, "hours", where=json.dumps(option)).count() == 12
    assert load(spark, url, "hours", where=json.dumps(option), timeZone="+02:00").count() == 10


def test_changes_between_two_times_have_their_time_and_how_often(
    spark: SparkSession, url: str, people: str
) -> None:
    frame = load(spark, url, people, **{"mode": "diff", "from": 3})
    assert frame.columns == ["id", "name", "score", "_time", "_diff"]
    found = Counter({(row.id, row.name, row._time): row._diff for row in frame.collect()})
    assert found == {
        (1, "p1", 5): -1,
        (1, "renamed", 5): 1,
        (2, "p2", 5): -1,
        (7, "p7", 5): 1,
        (8, "p8", 5): 1,
    }
    assert load(spark, url, people, **{"mode": "diff", "from": 3, "asOf": 4}).count() == 0
    assert load(spark, url, people, **{"mode": "diff", "from": 3, "asOf": 3}).count() == 0
    with pytest.raises(BadInput, match="a difference must go forward in time, not from 4 to 3"):
        holdfast.spark.diff(spark, url=url, collection=people, after=4, as_of=3)
    gone = holdfast.spark.diff(
        spark, url=url, collection=people, after=0, columns=["id"], where=[("score", "=", 1)]
    )
    assert sorted(tuple(row) for row in gone.collect()) == [(2, 3, 1), (2, 5, -1)]
    summed = load(spark, url, people, **{"mode": "diff", "from": 0}).groupBy("id").sum("_diff")
    assert sorted(row.id for row in summed.collect() if row[1]) == [1, 3, 4, 5, 6, 7, 8]


def test_what_somebody_holds_stays_readable(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill
) -> None:
    collection = fill("held", Schema.of(key={"id": "int64"}), {0: [{"id": 1}], 5: [{"id": 2}]})
    with holdfast.spark.hold(url=url, collection=collection, as_of=2) as time:
        controller.set_retention_hold(collection, 4)
        assert ids(load(spark, url, "held", asOf=time)) == [1]
    controller.set_retention_hold(collection, 4)
    with pytest.raises(AsOfTooEarly), holdfast.spark.hold(url=url, collection=collection, as_of=2):
        pass


def test_what_was_never_written_has_no_rows_and_no_changes(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill
) -> None:
    collection = fill("unwritten", Schema.of(key={"id": "int64"}), {})
    frames = [
        load(spark, url, "unwritten"),
        holdfast.spark.diff(spark, url=url, collection="unwritten", after=3),
    ]
    controller.writer(collection, purpose="test").append([{"id": 1}], 0, 5)
    assert [frame.count() for frame in frames] == [0, 0]
    assert ids(load(spark, url, "unwritten")) == [1]


def test_an_empty_snapshot_has_columns_and_no_rows(spark: SparkSession, url: str, people: str) -> None:
    frame = load(spark, url, people, asOf=0)
    assert (frame.count(), frame.columns) == (0, ["id", "name", "score"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": "people"}, "option 'url' is missing"),
        ({"url": "URL"}, "option 'collection' is missing"),
        ({"url": "URL", "collection": "nobody"}, "nobody"),
        (
            {"url": "URL", "collection": "people", "asOf": "6"},
            "is not complete at 6: its latest complete time is 5",
        ),
        (
            {"url": "URL", "collection": "people", "columns": "id,nam"},
            "no column 'nam'; it has id, name, score",
        ),
        (
            {"url": "URL", "collection": "people", "where": '[["id", ">", "x"]]'},
            "'x' is not a value of column 'id' (int64)",
        ),
        ({"url": "ftp://host/lake", "collection": "people"}, "ftp"),
        ({"url": "file:///nowhere/at/all", "collection": "people"}, "/nowhere/at/all"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_when_the_dataframe_is_made(
    spark: SparkSession, url: str, people: str, options: dict[str, str], message: str
) -> None:
    given = {key: url if value == "URL" else value for key, value in options.items()}
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("holdfast").options(**given).load()
    lines = [line for line in str(caught.value).splitlines() if line.startswith("holdfast.errors.")]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_time_before_since_is_refused(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill
) -> None:
    collection = fill("retained", Schema.of(key={"id": "int64"}), {0: [{"id": 1}], 5: [{"id": 2}]})
    early = load(spark, url, "retained", asOf=2)
    assert controller.set_retention_hold(collection, 4) == 4
    with pytest.raises(AnalysisException, match="collection retained can't be read at 2, because"):
        load(spark, url, "retained", asOf=2)
    with pytest.raises(Exception, match="as_of 2 is before since 4"):
        early.collect()


def test_read_raises_one_line_of_its_own_with_what_to_do(
    spark: SparkSession, url: str, people: str, tmp_path: Path
) -> None:
    def error(kind: type[HoldfastError], **options: Any) -> HoldfastError:
        with pytest.raises(HoldfastError) as caught:
            holdfast.spark.read(spark, **{"url": url, "collection": people, **options})
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
        return caught.value

    early = error(HoldfastError, as_of=99)
    assert str(early) == "collection people is not complete at 99: its latest complete time is 5"
    assert early.hint == "wait, or read at an earlier time"
    assert error(HoldfastError, as_of_timestamp=dt.date(2026, 1, 1)).hint == early.hint
    naive = dt.datetime(2026, 1, 1)  # noqa: DTZ001
    assert "has no zone" in str(error(BadInput, as_of_timestamp=naive))
    assert error(HoldfastError, as_of_timestamp=naive.replace(tzinfo=dt.UTC)).hint == early.hint
    assert (
        error(BadInput, as_of=dt.date(2026, 1, 1)).hint
        == "for a date or time, use the option 'asOfTimestamp'"
    )
    assert "nobody" in str(error(CollectionNotFound, collection="nobody"))
    error(NoLocation, url=f"file://{tmp_path}/gone")
    assert error(BadInput, where=[("id", "in", 3)]).hint.startswith('such as [["id"')
    assert str(error(BadInput, columns="id")) == "columns must be a list of names, not 'id'"
    assert str(error(BadInput, where='[["id", "=", 1]]')).startswith(
        "where must be a list of conditions, not '[["
    )
    assert str(error(BadInput, where=3)) == "where must be a list of conditions, not 3"
    assert str(error(BadInput, where=("id", "=", 1))) == "where: 'id' is not a condition"
    assert (
        str(error(BadInput, where=[("id", "=", object)]))
        == f"where: {object!r} can't be the value of a column"
    )
    assert "is not a condition" in str(error(BadInput, where=[("id", "=")]))


@pytest.mark.long
def test_values_of_other_libraries_are_conditions_too(spark: SparkSession, url: str, people: str) -> None:
    def found(*where: tuple[str, str, Any]) -> list[int]:
        return ids(holdfast.spark.read(spark, url=url, collection=people, where=where))

    everyone = found()
    assert everyone == [1, 3, 4, 5, 6, 7, 8]
    assert found(("id", "=", np.int64(3))) == [3]
    assert found(("id", "<", np.float32(3.5))) == [1, 3]
    assert found(("id", "<", Decimal("3.5"))) == [1, 3]
    assert found(("id", "in", {1, np.int8(8), 9})) == [1, 8]
    assert found(("id", "in", range(4, 7)), ("id", "in", np.array([6, 7]))) == [6]
    assert found(("id", "in", pd.Series([1, 7]))) == [1, 7]
    assert load(spark, url, people, where="[]").count() == len(everyone)


@pytest.mark.long
def test_a_location_made_anew_at_the_same_address_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/lake"
    for number in (1, 2):
        shutil.rmtree(tmp_path / "lake", ignore_errors=True)
        with PersistClient.open(url) as client:
            controller = StorageController(client)
            controller.create_collection(CollectionSpec("u1", "anew", Schema.of(key={"id": "int64"})))
            controller.writer("u1", purpose="test").append([{"id": number}], 0, 1)
        # The workers of Spark live on from the first round to the second.
        assert ids(load(spark, url, "anew")) == [number]


@pytest.mark.long
def test_comments_are_in_the_schema_of_every_read_and_in_nobodys_way(
    spark: SparkSession, url: str, controller: StorageController, fill: Fill, tmp_path: Path
) -> None:
    schema = Schema.of(key={"id": "int64"}, value={"name": "string?", "score": "uint32"})
    rows = [{"id": number, "name": f"p{number}", "score": number} for number in range(3)]
    collection = fill("commented", schema, {3: rows}, shards=2)
    controller.comment_columns(collection, {"id": "a number\nof its own", "score": "how good ✈"})
    said = {"id": {"comment": "a number\nof its own"}, "name": {}, "score": {"comment": "how good ✈"}}

    frame = load(spark, url, "commented")
    assert {field.name: field.metadata for field in frame.schema} == said
    assert ids(frame.where("score > 0")) == [1, 2]
    frame.createOrReplaceTempView("commented")
    described = {row.col_name: row.comment for row in spark.sql("DESCRIBE commented").collect()}
    assert described == {"id": "a number\nof its own", "name": None, "score": "how good ✈"}
    few = load(spark, url, "commented", columns="score")
    assert [field.metadata for field in few.schema] == [said["score"]]

    holdfast.spark.write(frame, url=url, collection="commented")
    changes = load(spark, url, "commented", mode="diff", **{"from": 3})
    assert {field.name: field.metadata for field in changes.schema} == {**said, "_time": {}, "_diff": {}}
    assert ids(changes) == [0, 1, 2]

    stream = spark.readStream.format("holdfast").options(url=url, collection="commented").load()
    assert {field.name: field.metadata for field in stream.schema} == said
    arrived: list[int] = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: arrived.extend(ids(batch)))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    assert sorted(arrived) == [0, 0, 1, 1, 2, 2]
