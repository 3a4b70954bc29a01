"""`holdfast persist export`: its targets, what it leaves alone, and values that a format cannot hold."""

import base64
import json
import math
import os
import stat
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv

from holdfast.cli import main
from holdfast.persist import PersistClient, Schema
from holdfast.tables import rows as table_rows

SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"id": "int64"}, {"data": "binary?", "x": "float64", "d": "decimal128(10,2)"})
NOT_TEXT = b"\xff\xfe\x00"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["persist", "export", *arguments])


@pytest.fixture
def url(tmp_path: Path) -> str:
    with PersistClient.open(tmp_path / "location") as client:
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(
            [
                {"id": 1, "data": NOT_TEXT, "x": math.nan, "d": 1},
                {"id": 2, "data": None, "x": -math.inf, "d": Decimal("1.25"), "_diff": 2},
                {"id": 3, "data": b"abc", "x": math.inf, "d": 0},
            ],
            0,
            1,
        )
    return f"file://{tmp_path / 'location'}"


def one_line(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert not isinstance(result.exception, Exception)
    first, *hint = result.stderr.splitlines()
    assert len(hint) <= 1
    return first


def test_what_is_no_regular_file_is_left_alone(url: str, tmp_path: Path) -> None:
    fifo, dangling, folder = tmp_path / "fifo", tmp_path / "dangling", tmp_path / "folder"
    os.mkfifo(fifo)
    dangling.symlink_to(tmp_path / "nowhere")
    folder.mkdir()
    through = tmp_path / "through"
    through.symlink_to("/dev/null")
    for file in (fifo, dangling, folder, through):
        line = one_line(run(url, SHARD, str(file), "--format", "csv"), 2)
        assert str(file) in line
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert dangling.is_symlink()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dangling", "fifo", "folder", "location", "through",
    ]  # fmt: skip


def test_a_symlink_stays_and_its_file_is_replaced(url: str, tmp_path: Path) -> None:
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    assert run(url, SHARD, str(link)).exit_code == 0
    assert link.is_symlink()
    assert target.read_text().startswith('"id"')


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "json"])
@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
@pytest.mark.long
def test_standard_output_is_written_through(url: str, tmp_path: Path, form: str, name: str) -> None:
    file = tmp_path / f"out.{form}"
    assert run(url, SHARD, str(file)).exit_code == 0
    script = "import sys; from holdfast.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "persist", "export", url, SHARD, name, "--format", form]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert done.stdout == file.read_bytes()
    assert done.stderr.decode() == "wrote 4 rows as of 0 to standard output\n"


def test_standard_output_needs_a_format(url: str) -> None:
    assert "choose a format for standard output" in one_line(run(url, SHARD, "-"), 2)


@pytest.mark.parametrize("diff", [(), ("--diff",)])
def test_csv_has_binary_in_base64(url: str, tmp_path: Path, diff: tuple[str, ...]) -> None:
    file = tmp_path / "out.csv"
    assert run(url, SHARD, str(file), *diff).exit_code == 0
    found = csv.read_csv(file)
    assert base64.b64decode(found.column("data")[0].as_py()) == NOT_TEXT
    assert found.column("d").to_pylist()[:2] == [1.0, 1.25]
    assert found.num_rows == (3 if diff else 4)


def test_json_is_what_others_call_json(url: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert run(url, SHARD, str(file), "--diff").exit_code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = [json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines()]
    assert [row["x"] for row in found] == ["NaN", "-Infinity", "Infinity"]
    assert base64.b64decode(found[0]["data"]) == NOT_TEXT


def test_copies_of_a_row_are_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_PIECE_ROWS", 4)
    contents = pa.table({"id": [1, 2, 3, 4], "_diff": [1, 9, 2, 1]})
    pieces = [piece.column("id").to_pylist() for piece in table_rows.repeated_pieces(contents)]
    assert pieces == [[1, 2, 2, 2], [2, 2, 2, 2], [2, 2, 3, 3], [4]]
    assert table_rows.repeated(contents.slice(0, 0)).num_rows == 0


def test_an_export_keeps_values_that_only_columns_hold(url: str, tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    assert run(url, SHARD, str(file)).exit_code == 0
    assert pq.read_table(file).column("data").to_pylist() == [NOT_TEXT, None, None, b"abc"]


def test_a_time_after_the_year_9999_is_text(tmp_path: Path) -> None:
    with PersistClient.open(tmp_path / "location") as client:
        late = pa.table({"at": pa.array([2**62], pa.timestamp("us"))})
        client.writer(SHARD, Schema.of({"at": "timestamp"}), purpose="test").compare_and_append(late, 0, 1)
    url = f"file://{tmp_path / 'location'}"
    file = tmp_path / "out.json"
    assert run(url, SHARD, str(file)).exit_code == 0
    assert json.loads(file.read_text()) == {"at": "148108-07-06T14:00:27.387904"}


def test_an_error_of_arrow_is_one_line(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise pa.ArrowInvalid("no\nway")

    monkeypatch.setattr(PersistClient, "reader", broken)
    assert one_line(run(url, SHARD, str(tmp_path / "x.csv")), 1) == "holdfast: Arrow can't do this: no way"
