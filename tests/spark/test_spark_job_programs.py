"""The exit codes of the job programs. A wrong spec is refused before Spark starts."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.collections import JobRecord, JobState, StorageController
from holdfast.persist import Schema
from holdfast.spark.jobs import compact, hydrate, snapshot
from holdfast.spark.jobs.spec import CompactSpec, HydrateSpec, JobSpec, SnapshotSpec
from holdfast.tables.iceberg.target import IcebergTarget

pytestmark = pytest.mark.spark
Fill = Callable[..., str]
Orders = Callable[[JobRecord], JobSpec]

SCHEMA = Schema.of(key={"id": "uint64"}, value={"name": "string?"})
PROGRAMS: dict[str, ModuleType] = {"compact": compact, "hydrate": hydrate, "snapshot": snapshot}


@pytest.fixture(scope="module")
def orders(fill: Fill) -> str:
    """A collection, and beside it `other`, with other rows."""
    fill("other", SCHEMA, {0: [{"id": i, "name": "other"} for i in range(3)]})
    return fill("orders", SCHEMA, {0: [{"id": 1, "name": "order"}]})


@pytest.fixture
def spec_of(url: str, orders: str, tmp_path: Path) -> Orders:
    """The spec that a job was started for."""

    def make(job: JobRecord) -> JobSpec:
        given = {"url": url, "collection": orders, "job_id": job.job_id, "attempt": job.attempt}
        match job.kind:
            case "compact":
                return CompactSpec(**given)
            case "hydrate":
                return HydrateSpec(**given, rendition=job.slot)
            case _:
                return SnapshotSpec(**given, destination=str(tmp_path / "out"))

    return make


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [*product(PROGRAMS, ["collection", "kind", "nobody"]), ("hydrate", "slot")],
)
def test_a_job_of_something_else_is_refused_and_stays_as_it_is(
    controller: StorageController,
    orders: str,
    spec_of: Orders,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    wrong: str,
) -> None:
    job = controller.start_job(orders, kind, "r2", spec={})
    spec = spec_of(job)
    said = f"is {kind} r2 of collection {orders}, not {kind} r2 of other"
    match wrong:
        case "collection":
            spec = replace(spec, collection="other")
        case "kind":
            job = controller.start_job(orders, "another", "r2", spec={})
            spec = replace(spec, job_id=job.job_id)
            said = f"is another r2 of collection {orders}, not {kind} r2 of orders"
        case "nobody":
            spec = replace(spec, collection="nobody")
            said = "no collection has the id or name 'nobody'"
        case "slot":
            assert isinstance(spec, HydrateSpec)
            spec = replace(spec, rendition="r3")
            said = f"is hydrate r2 of collection {orders}, not hydrate r3 of orders"
    assert PROGRAMS[kind].main([spec.to_json()]) == 2
    line, hint = capsys.readouterr().err.splitlines()
    assert said in line
    assert hint.startswith("  hint: ")
    assert controller.job(job.job_id) == job
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"type": "nope"}, "catalog lake can't be used: ValueError: 'nope' is not"),
        ({"type": "sql"}, "catalog lake can't be used: ValueError: URI missing"),
        ({"type": "sql", "uri": ""}, "catalog lake can't be used: NoSuchPropertyException: "),
        ({"type": "sql", "uri": "nope"}, "catalog lake can't be used: ArgumentError: "),
        ({"type": "sql", "uri": "nope://x"}, "catalog lake can't be used: NoSuchModuleError: "),
        ({"type": "rest", "uri": "nope"}, "catalog lake can't be used: MissingSchema: "),
        ({"type": "rest", "uri": "nope://x"}, "catalog lake can't be used: InvalidSchema: "),
        ({"type": "rest", "uri": "http://*"}, "catalog lake can't be used: InvalidURL: "),
        ({"type": "sql", "uri": "sqlite://"}, "table lake.a.b can't be used: ValueError: No default path"),
        (
            {"type": "sql", "uri": "sqlite://", "warehouse": "nope://x"},
            "table lake.a.b can't be used: ValueError: Unrecognized filesystem type",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:No preferred file implementation for scheme")
def test_a_catalog_whose_properties_mean_nothing_is_refused(
    controller: StorageController,
    url: str,
    orders: str,
    capsys: pytest.CaptureFixture[str],
    properties: dict[str, str],
    says: str,
) -> None:
    job = controller.start_job(orders, "snapshot", str(properties), spec={})
    target = IcebergTarget(catalog="lake", table="a.b", properties=properties)
    spec = SnapshotSpec(url=url, collection=orders, iceberg=target, job_id=job.job_id, attempt=1)
    assert snapshot.main([spec.to_json()]) == 2
    line, hint = capsys.readouterr().err.splitlines()
    assert line.startswith(f"snapshot: the Iceberg {says}")
    assert hint == "  hint: correct the properties of the catalog, in the spec or the environment"
    failed = controller.job(job.job_id)
    assert failed is not None
    assert (failed.state, failed.error) == (
        JobState.FAILED,
        f"{line.removeprefix('snapshot: ')}; {hint.removeprefix('  hint: ')}",
    )
