"""Snapshots as Iceberg tables: the rows of a collection, one commit for a job, never older over newer."""

import datetime as dt
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AssertRefSnapshotId
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from holdfast.collections import CollectionSpec, JobState, StorageController
from holdfast.collections.snapshots.manifest import SnapshotManifest
from holdfast.errors import BadInput, Fenced, HoldfastError, Indeterminate, StoreUnreachable
from holdfast.persist import Schema
from holdfast.spark import scan
from holdfast.spark.jobs import iceberg_files, snapshot
from holdfast.spark.jobs.spec import SnapshotSpec
from holdfast.tables.iceberg import commits
from holdfast.tables.iceberg.commits import Replacement
from holdfast.tables.iceberg.files import TableLocation, run_name
from holdfast.tables.iceberg.schemas import evolve, make_table, open_catalog
from holdfast.tables.iceberg.target import IcebergTarget
from spark.attempts import again, killed_at, record_of
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.postgres]
Fill = Callable[..., str]
Order = Callable[..., SnapshotSpec]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = Schema.of(
    key={"id": "uint64"},
    value={
        "tiny": "int8",
        "port": "uint16?",
        "count": "uint32",
        "ratio": "float32",
        "price": "decimal128(9,2)?",
        "name": "string?",
        "raw": "binary",
        "day": "date32",
        "at": "timestamp_utc",
        "local": "timestamp?",
        "ok": "bool",
    },
)


def row(number: int) -> dict[str, Any]:
    return {
        "id": 2**63 + number,
        "tiny": number % 100 - 50,
        "port": None if number % 5 == 0 else number,
        "count": 2**32 - 1 - number,
        "ratio": number / 4,
        "price": None if number % 3 == 0 else Decimal(number) / 4,
        "name": None if number % 7 == 0 else f"o{number}",
        "raw": bytes([number % 256]),
        "day": dt.date(2026, 1, 1) + dt.timedelta(days=number),
        "at": NOON + dt.timedelta(microseconds=number),
        "local": NOON.replace(tzinfo=None) if number % 2 else None,
        "ok": number % 2 == 0,
    }


@dataclass(frozen=True)
class Lake:
    """A catalog that readers open as well as the job, and how to name its tables."""

    target: IcebergTarget
    catalog: Catalog

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.target.table)

    def rows(self, snapshot_id: int | None = None) -> Counter[Any]:
        """What any reader of Iceberg gets; numbers as the collection has them."""
        found = self.table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        return Counter(tuple(sorted({**each, "id": int(each["id"])}.items())) for each in found)


def lake(target: IcebergTarget) -> Lake:
    return Lake(target, load_catalog(target.catalog, **target.properties))


@pytest.fixture
def sqlite(tmp_path: Path) -> Lake:
    """A catalog in a SQLite file, with its tables in a folder."""
    (tmp_path / "warehouse").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }
    return lake(IcebergTarget(catalog="shop", table="sales.orders", properties=properties))


def in_environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """As if the process had begun with them: pyiceberg has read its environment when it was imported."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


@pytest.fixture
def servers(
    spark: SparkSession,
    postgres: PostgresServer,
    minio: Minio,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    """A catalog in Postgres, with its tables in a bucket; what is secret of it is in the environment."""
    for variable, value in minio.credentials.items():
        monkeypatch.setitem(spark.sparkContext.environment, variable, value)
    with postgres.database() as name:
        url = postgres.url(name).replace("postgresql://", "postgresql+psycopg://")
        in_environment(monkeypatch, PYICEBERG_CATALOG__SHOP__URI=url)
        properties = {
            "type": "sql",
            "warehouse": f"s3://{bucket}/warehouse",
            "s3.endpoint": minio.endpoint,
            "s3.region": "us-east-1",
        }
        found = lake(IcebergTarget(catalog="shop", table="sales.orders", properties=properties))
        yield found
        found.catalog.close()


@pytest.fixture
def orders(fill: Fill) -> str:
    """Sixty orders at time 10, some twice at 20, in two shards."""
    rows = [row(number) for number in range(60)]
    return fill(f"orders-{uuid.uuid4()}", SCHEMA, {10: rows, 20: rows[::3]}, shards=2)


@pytest.fixture
def order(controller: StorageController, url: str, orders: str) -> Order:
    """Starts a job on record and makes its spec."""

    def make(target: IcebergTarget, **change: Any) -> SnapshotSpec:
        of = change.get("collection", orders)
        record = controller.start_job(of, "snapshot", str(uuid.uuid4()), spec={})
        given: dict[str, Any] = {
            "url": url,
            "collection": orders,
            "iceberg": target,
            "job_id": record.job_id,
            "attempt": record.attempt,
            "as_of": 15,
        }
        return SnapshotSpec(**{**given, **change})

    return make


def contents(controller: StorageController, collection: str, as_of: int) -> Counter[Any]:
    with controller.reader(collection, purpose="test") as reader:
        rows = reader.snapshot(as_of).to_table().to_pylist()
    counted = Counter[Any]()
    for each in rows:
        diff = each.pop("_diff")
        counted[tuple(sorted(each.items()))] += diff
    return counted


def files_of(table: Table) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


def docs(table: Table) -> dict[str, str]:
    return {field.name: field.doc for field in table.schema().fields if field.doc is not None}


@pytest.mark.parametrize("place", ["sqlite", pytest.param("servers", marks=pytest.mark.long)])
@pytest.mark.long
def test_a_table_has_what_the_collection_had_and_follows_its_columns(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    controller: StorageController,
    order: Order,
    orders: str,
    place: str,
) -> None:
    there: Lake = request.getfixturevalue(place)
    first = order(there.target)
    controller.comment_columns(orders, {"name": "who", "raw": "as it came"})
    snapshot.run(SnapshotSpec.from_json(first.to_json()), say=str, spark=spark)
    result = record_of(controller, first).result
    table = there.table
    assert docs(table) == {"name": "who", "raw": "as it came"}
    assert there.rows() == contents(controller, orders, 15)
    assert (result["rows"], result["as_of"], result["table"]) == (60, 15, "shop.sales.orders")
    assert result["snapshot_id"] == str(table.metadata.current_snapshot_id)
    assert {field.name for field in table.schema().fields} == set(SCHEMA.names)
    # Metadata alone tells a reader that it needs no file.
    assert list(table.scan("tiny < -60").plan_files()) == []
    assert len(list(table.scan("tiny < 0").plan_files())) == result["files"]

    evolved = Schema.of(
        key={"id": "uint64"},
        value={**{c.name: f"{c.type}{'?' if c.nullable else ''}" for c in SCHEMA.value}, "tiny": "int64?"}
        | {"note": "string?"},
    )
    controller.evolve_collection(orders, evolved)
    controller.comment_columns(orders, {"name": "who it is", "tiny": "wider", "raw": None, "note": "new"})
    writer = controller.writer(orders, purpose="test")
    upper = writer.upper()
    writer.append([{**row(70), "tiny": 2**40, "note": "new"}], upper, upper + 10)
    second = order(there.target, as_of=upper)
    snapshot.run(second, say=str, spark=spark)
    assert there.rows() == contents(controller, orders, upper)
    assert there.rows(int(result["snapshot_id"])) == contents_without_note(controller, orders)
    after = there.table
    assert docs(after) == {"name": "who it is", "tiny": "wider", "raw": "as it came", "note": "new"}
    assert [each.summary.operation.value for each in after.snapshots() if each.summary] == [
        "append",
        "overwrite",
    ]
    assert {type(after.schema().find_field(name).field_type) for name in ("tiny", "note")} == {
        LongType,
        StringType,
    }
    assert not files_of(table) & files_of(after)


def contents_without_note(controller: StorageController, orders: str) -> Counter[Any]:
    """As a snapshot of before shows it through the schema that it was made with."""
    return Counter(
        {
            tuple(pair for pair in each if pair[0] != "note"): count
            for each, count in contents(controller, orders, 15).items()
        }
    )


@pytest.mark.long
def test_a_driver_that_is_killed_before_the_record_is_followed_by_one_that_only_records(
    spark: SparkSession, controller: StorageController, order: Order, orders: str, sqlite: Lake
) -> None:
    first = order(sqlite.target)
    killed = killed_at(first, "are written, committing")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert record_of(controller, first).state is JobState.RUNNING
    committed = sqlite.table
    assert len(committed.snapshots()) == 1

    second = again(controller, first)
    # Another time makes no difference: the contents are those of the one commit.
    said: list[str] = []
    snapshot.run(replace(second, as_of=20), say=said.append, spark=spark)
    assert "recording that" in said[0]
    record = record_of(controller, second)
    assert (record.state, record.attempt, record.result["as_of"]) == (JobState.DONE, 2, 15)
    assert record.result["snapshot_id"] == str(committed.metadata.current_snapshot_id)
    assert sqlite.table.metadata == committed.metadata
    assert sqlite.rows() == contents(controller, orders, 15)


@pytest.mark.parametrize("moment", ["tasks into", "are written, committing"])
@pytest.mark.long
def test_a_driver_that_finds_that_another_one_of_its_attempt_has_committed_ends_well(
    spark: SparkSession, controller: StorageController, order: Order, sqlite: Lake, moment: str
) -> None:
    spec = order(sqlite.target)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if moment in text:
            snapshot.run(spec, say=str, spark=spark)

    snapshot.run(spec, say=say, spark=spark)
    assert said[-1] == f"another driver of attempt 1 of job {spec.job_id} has committed"
    record = record_of(controller, spec)
    assert (record.state, record.attempt) == (JobState.DONE, 1)
    (only,) = sqlite.table.snapshots()
    assert record.result["snapshot_id"] == str(only.snapshot_id)
    assert sqlite.rows() == contents(controller, spec.collection, 15)


@pytest.mark.long
def test_an_attempt_that_is_fenced_after_its_commit_leaves_the_table_what_it_has(
    spark: SparkSession, controller: StorageController, order: Order, orders: str, sqlite: Lake
) -> None:
    zombie = order(sqlite.target)
    successor: list[SnapshotSpec] = []

    def say(text: str) -> None:
        if "are written, committing" in text:
            successor.append(again(controller, zombie))

    with pytest.raises(Fenced, match="attempt 1"):
        snapshot.run(zombie, say=say, spark=spark)
    assert sqlite.rows() == contents(controller, orders, 15)
    snapshot.run(successor[0], say=str, spark=spark)
    assert record_of(controller, zombie).state is JobState.DONE
    assert len(sqlite.table.snapshots()) == 1
    assert sqlite.rows() == contents(controller, orders, 15)


def test_what_attempts_before_left_is_removed_and_what_the_table_has_is_not(
    spark: SparkSession, controller: StorageController, order: Order, orders: str, sqlite: Lake
) -> None:
    spec = order(sqlite.target)
    snapshot.run(spec, say=str, spark=spark)
    data = Path(sqlite.table.location().removeprefix("file://")) / "data"
    third = order(sqlite.target, as_of=20)
    third = again(controller, again(controller, third))
    for run in ("attempt-1-0a", "attempt-2-0b", "attempt-3-0c", "other"):
        (data / third.job_id / run).mkdir(parents=True)
        (data / third.job_id / run / "part.parquet").write_text("left")
    snapshot.run(third, say=str, spark=spark)
    left = {path.name for path in (data / third.job_id).iterdir()}
    assert {"attempt-3-0c", "other"} < left
    assert len(left) == 3
    assert sqlite.rows() == contents(controller, orders, 20)


@dataclass(frozen=True)
class Written:
    """What a driver has when it begins to commit; no Spark was needed to get there."""

    spec: SnapshotSpec
    catalog: Catalog
    target: IcebergTarget
    wanted: Replacement
    place: TableLocation

    @classmethod
    def of(
        cls, controller: StorageController, spec: SnapshotSpec, catalog: Catalog | None = None
    ) -> "Written":
        assert spec.iceberg is not None
        target = spec.iceberg
        catalog = catalog or open_catalog(target)
        found = scan.find(spec.reading(spec.collection, spec.as_of))
        table, run = make_table(catalog, target, found.schema), run_name(spec.attempt)
        place = TableLocation.of(
            table, evolve(table.transaction(), target, found.schema), f"{spec.job_id}/{run}"
        )
        written = [
            iceberg_files.write_task(each, schema=found.schema, place=place)
            for each in enumerate(scan.plan(found))
        ]
        files = tuple(file for file in written if file is not None)
        manifest = SnapshotManifest(
            location_id=str(controller.client.location_id),
            collection_id=found.collection_id,
            collection=found.name,
            as_of=found.as_of,
            job_id=spec.job_id,
            attempt=spec.attempt,
            schema=found.schema,
            files=tuple(file.file for file in files),
            created_ms=0,
        )
        return cls(spec, catalog, target, Replacement(manifest, run, files, place.schema), place)

    def commit(self, check_current: Callable[[], object] = lambda: None) -> str:
        """The run that has committed in the end."""
        _, found = commits.commit(self.catalog, self.target, self.wanted, check_current)
        return commits.run_of(found)


@pytest.mark.parametrize("place", ["sqlite", pytest.param("servers", marks=pytest.mark.long)])
def test_of_two_drivers_of_a_job_that_commit_at_once_one_does(
    request: pytest.FixtureRequest, controller: StorageController, order: Order, orders: str, place: str
) -> None:
    there: Lake = request.getfixturevalue(place)
    spec = order(there.target)
    both = [Written.of(controller, spec), Written.of(controller, spec)]
    # Each has looked for the other's commit before either commits.
    together = threading.Barrier(2)
    met: set[int] = set()

    def meet() -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            together.wait(60)

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda one: one.commit(meet), both))
    assert len(met) == 2
    assert len(set(runs)) == 1
    assert len(there.table.snapshots()) == 1
    assert there.rows() == contents(controller, orders, 15)
    # What the other one wrote can go without harm.
    for one in both:
        if one.wanted.run != runs[0]:
            one.place.discard()
    assert there.rows() == contents(controller, orders, 15)


def test_a_zombie_is_overtaken_between_its_check_and_its_commit(
    controller: StorageController, order: Order, orders: str, sqlite: Lake
) -> None:
    zombie = Written.of(controller, order(sqlite.target))
    successor = Written.of(controller, again(controller, zombie.spec))
    assert zombie.commit(successor.commit) == successor.wanted.run
    assert len(sqlite.table.snapshots()) == 1

    # By another job, as of a later time: the zombie is told that it is none, or that it is late.
    late = Written.of(controller, order(sqlite.target, as_of=18))
    newer = Written.of(controller, order(sqlite.target, as_of=20))
    with pytest.raises(BadInput, match="as of 20: it can't be replaced by the contents as of 18"):
        late.commit(newer.commit)
    replaced = Written.of(controller, order(sqlite.target, as_of=20))
    again(controller, replaced.spec)
    with pytest.raises(Fenced, match="attempt 1"):
        replaced.commit(lambda: controller.check_attempt(replaced.spec.job_id, 1))
    assert sqlite.rows() == contents(controller, orders, 20)
    assert len(sqlite.table.snapshots()) == 2


def test_columns_that_others_change_meanwhile_are_told(
    controller: StorageController, order: Order, sqlite: Lake
) -> None:
    written = Written.of(controller, order(sqlite.target))
    with sqlite.table.update_schema() as update:
        update.rename_column("name", "label")
    with pytest.raises(BadInput, match=r"the columns of the Iceberg table shop\.sales\.orders were changed"):
        written.commit()
    assert sqlite.table.snapshots() == []


def by_hand(there: Lake) -> None:
    there.catalog.create_namespace_if_not_exists("sales")
    columns = pa.schema([("id", pa.decimal128(20, 0)), ("secret", pa.string())])
    made = there.catalog.create_table(there.target.table, columns)
    made.append(pa.table({"id": [1, 2], "secret": ["kept", "too"]}, columns))


def appended(there: Lake) -> None:
    there.table.append(there.table.scan(limit=3).to_arrow())


def deleted(there: Lake) -> None:
    there.table.delete("tiny < 0")


class Rewriting(_OverwriteFiles):
    """A stand-in for the compaction of another engine, which pyiceberg has none of."""

    def _summary(self, *given: Any) -> Summary:
        told = super()._summary(*given)
        return Summary(operation=Operation.REPLACE, **told.additional_properties)


def rewritten(there: Lake) -> None:
    """The same rows in other files."""
    table = there.table
    with table.transaction() as transaction:
        rows = table.scan().to_arrow()
        with Rewriting(operation=Operation.OVERWRITE, transaction=transaction, io=table.io) as rewrite:
            for task in table.scan().plan_files():
                rewrite.delete_data_file(task.file)
            for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
                rewrite.append_data_file(file)


def rewritten_of_what_is_expired(there: Lake) -> None:
    rewritten(there)
    first, *_ = there.table.snapshots()
    there.table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()


def left(there: Lake) -> tuple[Any, set[Path]]:
    """Everything that is durable of a table."""
    location = Path(there.table.location().removeprefix("file://"))
    return there.table.metadata, {path for path in location.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "ours", "says", "hint"),
    [
        (by_hand, False, r"rows that others wrote \(snapshot \d+, append\)", "or drop this one"),
        (appended, True, r"rows that others wrote \(snapshot \d+, append\)", "or roll this one back to"),
        (deleted, True, r"rows that others wrote \(snapshot \d+, (delete|overwrite)\)", "roll this one back"),
        (rewritten_of_what_is_expired, True, "rewritten rows of a snapshot that is expired", "or drop"),
    ],
)
def test_what_others_have_put_into_a_table_is_not_replaced(
    spark: SparkSession,
    controller: StorageController,
    order: Order,
    orders: str,
    sqlite: Lake,
    change: Callable[[Lake], None],
    ours: bool,
    says: str,
    hint: str,
) -> None:
    if ours:
        Written.of(controller, order(sqlite.target)).commit()
    change(sqlite)
    before = left(sqlite)
    spec = order(sqlite.target, as_of=20)
    said: list[str] = []
    with pytest.raises(BadInput, match=rf"^the Iceberg table shop\.sales\.orders has {says}: ") as refused:
        snapshot.run(spec, say=said.append, spark=spark)
    assert said == [], "no task ran"
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)
    assert orders in str(refused.value)
    assert hint in refused.value.hint
    assert record_of(controller, spec).state is JobState.FAILED
    assert left(sqlite) == before

    if "roll this one back" in hint:
        # What the hint says is all that it takes.
        number = int(refused.value.hint.split()[-1])
        sqlite.table.manage_snapshots().rollback_to_snapshot(number).commit()
        Written.of(controller, order(sqlite.target, as_of=20)).commit()
        assert sqlite.rows() == contents(controller, orders, 20)


def test_a_table_of_another_collection_is_not_replaced_even_of_one_of_its_name(
    spark: SparkSession, controller: StorageController, order: Order, fill: Fill, sqlite: Lake
) -> None:
    name = f"twice-{uuid.uuid4()}"
    was = fill(name, SCHEMA, {10: [row(1)]})
    Written.of(controller, order(sqlite.target, collection=was, as_of=10)).commit()
    controller.drop_collection(was, command_id=f"drop {was}", force=True)
    now = str(uuid.uuid4())
    controller.create_collection(CollectionSpec(now, name, SCHEMA), command_id=f"create {now}")
    controller.writer(now, purpose="test").append([row(2)], 0, 21)
    before = left(sqlite)
    with pytest.raises(
        BadInput, match=rf"has collection {name} \(.*/{was}\): collection .*/{now}\) can't replace that"
    ):
        snapshot.run(order(sqlite.target, collection=now, as_of=20), say=str, spark=spark)
    assert left(sqlite) == before


def test_a_table_whose_files_others_have_rewritten_is_still_the_collections(
    controller: StorageController, order: Order, orders: str, sqlite: Lake
) -> None:
    Written.of(controller, order(sqlite.target)).commit()
    rewritten(sqlite)
    assert sqlite.rows() == contents(controller, orders, 15)
    late = Written.of(controller, order(sqlite.target, as_of=14))
    with pytest.raises(BadInput, match="as of 15: it can't be replaced by the contents as of 14"):
        late.commit()
    # Also by one that comes between.
    second = Written.of(controller, order(sqlite.target, as_of=20))
    done: list[str] = []

    def once_more() -> None:
        if not done:
            done.append("rewritten")
            rewritten(sqlite)

    assert second.commit(once_more) == second.wanted.run
    assert [each.summary.operation.value for each in sqlite.table.snapshots() if each.summary] == [
        "append",
        "replace",
        "replace",
        "overwrite",
    ]
    assert sqlite.rows() == contents(controller, orders, 20)


def test_of_two_collections_that_come_to_a_new_table_at_once_one_gets_it(
    controller: StorageController, order: Order, orders: str, fill: Fill, sqlite: Lake
) -> None:
    other = fill(f"other-{uuid.uuid4()}", SCHEMA, {10: [row(1)]})
    first = Written.of(controller, order(sqlite.target))
    second = Written.of(controller, order(sqlite.target, collection=other, as_of=10))
    # The first has looked at an empty table when the second commits.
    with pytest.raises(
        BadInput, match=rf"has collection other-.*/{other}\): collection .* can't replace that"
    ):
        first.commit(second.commit)
    assert sqlite.rows() == contents(controller, other, 10)
    assert len(sqlite.table.snapshots()) == 1


def test_what_others_add_while_a_snapshot_is_written_stays_and_the_snapshots_files_go(
    spark: SparkSession, controller: StorageController, order: Order, sqlite: Lake
) -> None:
    snapshot.run(order(sqlite.target), say=str, spark=spark)
    before: list[Any] = []

    def say(text: str) -> None:
        if "tasks into" in text:
            appended(sqlite)
            before.append(left(sqlite))

    with pytest.raises(BadInput, match="rows that others wrote"):
        snapshot.run(order(sqlite.target, as_of=20), say=say, spark=spark)
    assert [left(sqlite)] == before


class LostAnswers(SqlCatalog):
    """A stand-in for a catalog service whose answers get lost, of commits that it has made or not."""

    lands = True

    def commit_table(self, *given: Any) -> Any:
        if self.lands:
            super().commit_table(*given)
        raise ConnectionError("the connection was reset")


def test_a_commit_of_unknown_outcome_is_looked_for_and_never_made_twice(
    controller: StorageController, order: Order, orders: str, sqlite: Lake
) -> None:
    lossy = LostAnswers("shop", **sqlite.target.properties)
    spec = order(sqlite.target)
    # It is there, so that only commits of snapshots get lost.
    make_table(sqlite.catalog, sqlite.target, SCHEMA)
    landed = Written.of(controller, spec, lossy)
    assert landed.commit() == landed.wanted.run
    assert len(sqlite.table.snapshots()) == 1

    lossy.lands = False
    unknown = Written.of(controller, order(sqlite.target, as_of=20), lossy)
    with pytest.raises(Indeterminate, match="it is unknown whether the snapshot was committed") as failed:
        unknown.commit()
    assert "\n" not in str(failed.value)
    successor = Written.of(controller, again(controller, unknown.spec))
    assert successor.commit() == successor.wanted.run
    # If it was only late it fails now, since the table has changed.
    with pytest.raises(CommitFailedException):
        super(LostAnswers, lossy).commit_table(*late_commit(unknown))
    assert len(sqlite.table.snapshots()) == 2


def late_commit(one: Written) -> tuple[Any, ...]:
    """What the commit of one has asked for on top of the first snapshot."""
    table = one.catalog.load_table(one.target.table)
    first = min(table.snapshots(), key=lambda each: each.sequence_number or 0)
    return table, (AssertRefSnapshotId(snapshot_id=first.snapshot_id, ref="main"),), ()


def test_what_can_not_be_written_is_told_in_a_line_before_anything_is(
    spark: SparkSession, controller: StorageController, order: Order, sqlite: Lake, tmp_path: Path
) -> None:
    sqlite.catalog.create_namespace("sales")
    number = NestedField(1, "id", LongType(), required=False)
    other = NestedField(2, "shop", IntegerType(), required=True)
    by_id = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="id")
    )
    for name, fields, spec_, says in (
        (
            "numbers",
            (number,),
            PartitionSpec(),
            "column 'id' is long in the Iceberg table shop.sales.numbers",
        ),
        ("owned", (other,), PartitionSpec(), "requires column 'shop'"),
        ("cut", (number,), by_id, "is partitioned"),
    ):
        made = sqlite.catalog.create_table(f"sales.{name}", IcebergSchema(*fields), partition_spec=spec_)
        spec = order(replace(sqlite.target, table=f"sales.{name}"))
        with pytest.raises(BadInput, match=says) as refused:
            snapshot.run(spec, say=str, spark=spark)
        assert "\n" not in str(refused.value)
        assert record_of(controller, spec).state is JobState.FAILED
        assert sqlite.catalog.load_table(f"sales.{name}").metadata == made.metadata
    assert list((tmp_path / "warehouse").rglob("*.parquet")) == []


def test_a_missing_pyiceberg_is_told(
    spark: SparkSession,
    controller: StorageController,
    order: Order,
    sqlite: Lake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = order(sqlite.target)
    for name in list(sys.modules):
        if name.startswith(("pyiceberg", "holdfast.spark.jobs.iceberg")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(BadInput, match="pyiceberg, which is not installed"):
        snapshot.run(spec, say=str, spark=spark)
    assert record_of(controller, spec).error.endswith("pip install 'holdfast[iceberg]'")


def test_a_catalog_that_can_not_be_had_is_told_without_its_password(
    spark: SparkSession, controller: StorageController, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_environment(
        monkeypatch, PYICEBERG_CATALOG__GONE__URI="postgresql+psycopg://me:hidden-word@127.0.0.1:1/x"
    )
    spec = order(
        IcebergTarget(catalog="gone", table="a.b", properties={"type": "sql", "warehouse": "file:///x"})
    )
    with pytest.raises(
        StoreUnreachable, match="the Iceberg catalog gone can't be used: OperationalError"
    ) as failed:
        snapshot.run(spec, say=str, spark=spark)
    record = record_of(controller, spec)
    assert record.state is JobState.FAILED
    assert "hidden-word" not in record.error + str(failed.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"catalog": "shop", "table": "orders"}, "must be namespace.table"),
        ({"catalog": "", "table": "a.b"}, "must be a name"),
        ({"table": "a.b"}, "'iceberg.catalog' is missing"),
        ({"catalog": "shop", "table": "a.b", "mode": "append"}, "unknown field 'iceberg.mode'"),
        ({"catalog": "shop", "table": "a.b", "properties": {"s3.secret-access-key": "x"}}, "is a secret"),
        ({"catalog": "shop", "table": "a.b", "properties": {"uri": "postgresql://u:p@h/d"}}, "is a secret"),
        ({"catalog": "shop", "table": "a.b", "properties": {"uri": 3}}, "object of texts"),
    ],
)
def test_a_target_without_meaning_or_with_a_secret_is_refused(given: dict[str, Any], says: str) -> None:
    common = {"url": "file:///x", "collection": "c", "job_id": str(uuid.UUID(int=1)), "attempt": 1}
    with pytest.raises(BadInput, match=says) as refused:
        SnapshotSpec(**common, iceberg=given)  # type: ignore[arg-type]
    assert "u:p@" not in str(refused.value)
    if "is a secret" in says:
        assert "PYICEBERG_CATALOG__SHOP__" in refused.value.hint
    for both in ({}, {"destination": "/x", "iceberg": {"catalog": "shop", "table": "a.b"}}):
        with pytest.raises(HoldfastError, match="either 'destination' or 'iceberg'"):
            SnapshotSpec(**common, **both)  # type: ignore[arg-type]
