"""`Table.export`: a folder of Parquet files whose manifest is its record."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections.snapshots.manifest import read_manifest, verify_snapshot
from holdfast.collections.snapshots.parquet import groups_of
from holdfast.errors import BadInput
from holdfast.tables import Table, export
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "note": "string?"}


@pytest.fixture
def table() -> Table:
    return holdfast.table(Stores().open(), "t", columns=COLUMNS)


def test_rows_come_as_often_as_they_count_and_the_manifest_says_which(table: Table, tmp_path: Path) -> None:
    first = table.append([{"id": 1, "note": "a", "_diff": 2}, {"id": 2, "_diff": 1}])
    table.append([{"id": 3}])
    found = table.export(tmp_path / "out", first)
    assert (found.as_of, found.rows, found.collection) == (first, 3, "t")
    assert verify_snapshot(tmp_path / "out") == found
    assert sorted(pq.read_table(tmp_path / "out")["id"].to_pylist()) == [1, 1, 2]
    assert table.export(str(tmp_path / "latest")).rows == 4
    assert table._opened.reading._busy == 0


def test_a_repeated_export_writes_nothing_and_another_one_is_refused(table: Table, tmp_path: Path) -> None:
    first = table.append([{"id": 1}])
    target = tmp_path / "out"
    found = table.export(target, first)
    files = sorted(target.iterdir())
    assert table.export(target, first) == found
    assert sorted(target.iterdir()) == files
    last = table.append([{"id": 2}])
    with pytest.raises(BadInput, match="has an export as of"):
        table.export(target, last)
    other = holdfast.table(table.client, "other", columns=COLUMNS)
    other.append([{"id": 1}])
    with pytest.raises(BadInput, match="an export of another table, t"):
        other.export(target)
    assert read_manifest(target) == found
    (tmp_path / "there").mkdir()
    with pytest.raises(BadInput, match="exists, and has no finished export"):
        table.export(tmp_path / "there")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput):
        table.export(tmp_path / "file")


def test_an_export_that_fails_leaves_nothing(table: Table, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing has been written yet"):
        table.export(tmp_path / "out")
    table.append([{"id": 1, "_diff": -1}])
    with pytest.raises(BadInput, match="negative counts"):
        table.export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    table.append([{"id": 1, "_diff": 1}])
    assert table.export(tmp_path / "out").rows == 0
    assert pq.read_table(tmp_path / "out").schema.names == ["id", "note"]


def test_row_groups_and_files_have_a_limit(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_GROUP_ROWS", 1)
    monkeypatch.setattr(export, "_FILE_BYTES", 5)
    batches = [pa.record_batch({"id": [number]}) for number in range(3)]
    assert [each.num_rows for each in groups_of(batches, export._GROUP_ROWS)] == [1, 1, 1]
    for number in range(3):
        table.append([{"id": number}])
    assert table.export(tmp_path / "out").rows == 3
    assert verify_snapshot(tmp_path / "out").rows == 3


def test_an_export_becomes_a_table_of_another_location(tmp_path: Path) -> None:
    here, there = (tmp_path / "here").as_uri(), (tmp_path / "there").as_uri()
    columns = COLUMNS | {
        "at": "timestamp(ns)?",
        "till": "timestamp(s,Europe/Paris)?",
        "tags": "list<string?>?",
    }
    row = {
        "at": datetime.fromisoformat("2026-01-01"),
        "till": datetime(2026, 1, 2, tzinfo=UTC),
        "tags": ["a", None],
    }
    with holdfast.table(here, "t", columns=columns, key="id") as table:
        time = table.append([{"id": 1, "note": "a", **row}, {"id": 2}])
        expected = table.to_pandas()

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["collection", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    target = str(tmp_path / "out")
    told = run("export", "t", target, "--url", here)
    assert f"{target} has 2 rows of t as of {time}" in told
    assert run("export", "t", target, "--url", here, "--as-of", str(time)) == told
    assert "has an export as of" in run("export", "t", target, "--url", here, code=2)
    run("restore", "t", target, "--url", there, "--create", "--yes")
    with holdfast.table(there, "t") as copy:
        assert copy.to_pandas().equals(expected)
        assert copy.key == ("id",)
