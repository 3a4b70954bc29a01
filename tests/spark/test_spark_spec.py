"""The JSON spec of a job: a round trip keeps it, and an error names what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.spark.jobs import compact, hydrate, snapshot
from holdfast.spark.jobs.spec import SPEC_VERSION, SnapshotSpec, load_spec
from holdfast.tables.iceberg.target import IcebergTarget

GIVEN: dict[str, Any] = {
    "url": "file:///srv/lake",
    "collection": "flights",
    "destination": "/srv/snapshots",
    "job_id": "6b1f9c52-3f0d-5d1c-9f39-1d8a3a4b2c10",
    "attempt": 1,
}


def test_a_spec_survives_json() -> None:
    spec = SnapshotSpec(**GIVEN, as_of=2**64 - 1, partitions=2)
    assert SnapshotSpec.from_json(spec.to_json()) == spec
    table = {"catalog": "shop", "table": "a.b", "properties": {"type": "sql"}}
    iceberg = SnapshotSpec(**{**GIVEN, "destination": None}, iceberg=IcebergTarget(**table))
    assert SnapshotSpec.from_json(iceberg.to_json()) == iceberg
    assert json.loads(iceberg.to_json())["iceberg"] == table


def test_the_version_and_the_kind_may_be_left_out() -> None:
    spec = SnapshotSpec.from_json(json.dumps(GIVEN))
    assert (spec.version, spec.kind, spec.as_of) == (SPEC_VERSION, "snapshot", None)


def test_a_spec_is_taken_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(GIVEN))
    assert load_spec(str(path), SnapshotSpec) == load_spec(json.dumps(GIVEN), SnapshotSpec)
    with pytest.raises(BadInput, match="can't read the job spec"):
        load_spec(str(tmp_path / "missing.json"), SnapshotSpec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": None}, "'url' must be a text that isn't empty, not None"),
        ({"collection": ""}, "'collection' must be a text"),
        ({"job_id": "42"}, "'job_id' must be a lower-case UUID, not '42'"),
        ({"attempt": 0}, "'attempt' must be an integer from 1"),
        ({"attempt": "1"}, "'attempt' must be an integer from 1"),
        ({"attempt": True}, "'attempt' must be an integer from 1"),
        ({"as_of": -1}, "'as_of' must be an integer from 0"),
        ({"as_of": 1.5}, "'as_of' must be an integer from 0"),
        ({"partitions": 0}, "'partitions' must be an integer from 1"),
        ({"kind": "compact"}, "kind is 'compact', this job is 'snapshot'"),
        ({"version": "one"}, "'version' must be an integer"),
        ({"asof": 3}, "unknown field 'asof'"),
        ({"destination": 7}, "'destination' must be a text"),
        ({"destination": "/srv/\0"}, "'destination' has a null character: '/srv/\\x00'"),
        ({"destination": "/srv/\ud800"}, "'destination' must be a text"),
        ({"url": "file:///srv/\0"}, "'url' has a null character"),
        ({"destination": None, "iceberg": "x"}, "'iceberg' must be an object of catalog, table and"),
        ({"destination": None, "iceberg": []}, "'iceberg' must be an object of catalog, table and"),
        ({"version": SPEC_VERSION + 1, "new_field": 1}, f"version {SPEC_VERSION + 1} is newer"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        SnapshotSpec.from_json(json.dumps(GIVEN | change))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(GIVEN) - {"destination"}))
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' is missing"):
        SnapshotSpec.from_json(json.dumps({key: value for key, value in GIVEN.items() if key != name}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"spec"'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="job spec"):
        SnapshotSpec.from_json(text)


@pytest.mark.spark
@pytest.mark.parametrize("job", [compact, hydrate, snapshot])
def test_the_program_of_a_job_tells_how_it_is_used(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        assert job.main([flag]) == 0
        told = capsys.readouterr().out
        assert f"    python -m {job.__name__} '<JSON spec, or the path of a spec>'" in told.splitlines()
        assert "\nExit codes: 0 " in told
