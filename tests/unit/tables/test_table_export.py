"""`Table.export`: a folder of Parquet files whose manifest is its record."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections.snapshots.folder import LocalFolder
from holdfast.collections.snapshots.manifest import SnapshotManifest, read_manifest, verify_snapshot
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
    with pytest.raises(BadInput, match="the count of a row is -"):
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
    assert run("export", "t", target, "--url", here) == told
    run("restore", "t", target, "--url", there, "--create", "--yes")
    with holdfast.table(there, "t") as copy:
        assert copy.to_pandas().equals(expected)
        assert copy.key == ("id",)


def test_a_killed_export_is_finished_by_the_next_run_for_the_same_table_and_time(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> bool:
        raise Killed

    first = table.append([{"id": 1}])
    last = table.append([{"id": 2}])
    target = tmp_path / "out"
    for dies in ("to_json", "create"):
        with monkeypatch.context() as patch:
            patch.setattr(export, "_give_up", lambda _: None)
            if dies == "create":
                patch.setattr(LocalFolder, "create", killed)
            else:
                patch.setattr(SnapshotManifest, "to_json", killed)
            with pytest.raises(Killed):
                table.export(target, first)
    assert len(list(target.glob("part-*"))) == 2
    with pytest.raises(BadInput, match="unfinished export as of") as caught:
        table.export(target, last)
    assert f"export as of {first} to finish it" in str(caught.value.hint)
    other = holdfast.table(table.client, "other", columns=COLUMNS)
    other.append([{"id": 1}])
    with pytest.raises(BadInput, match="unfinished export of another table"):
        other.export(target)
    # A run that is still alive finishes first, and the other one finds its export.
    write = export._written

    def slowly(*args: Any) -> SnapshotManifest:
        monkeypatch.undo()
        made = write(*args)
        assert table.export(target, first).rows == 1
        return made

    monkeypatch.setattr(export, "_written", slowly)
    found = table.export(target, first)
    assert found == verify_snapshot(target) == table.export(target, first)
    assert sorted(each.name for each in target.iterdir()) == sorted(
        ["_export.json", "_manifest.json", *(each.name for each in found.files)]
    )

    # A run that fails leaves what another one has finished.
    given_up = tmp_path / "given-up"

    def fails(*args: Any) -> SnapshotManifest:
        monkeypatch.undo()
        table.export(given_up, first)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_written", fails)
    assert table.export(given_up, first) == verify_snapshot(given_up)
    monkeypatch.setattr(export, "_written", killed)
    with pytest.raises(Killed):
        table.export(tmp_path / "gone", first)
    assert not (tmp_path / "gone").exists()
