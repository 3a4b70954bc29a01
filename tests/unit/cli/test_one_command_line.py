"""What all commands have in common: formats, empty tables, exit codes, and progress that can be hushed."""

import csv
import io
import json
import signal
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import holdfast
from holdfast.cli import main
from holdfast.cli.rows.text import cell_of, kept_whole, without_spare
from holdfast.errors import BadInput
from holdfast.tables.duckdb_extra import telling
from unit.cli.terminals import DEADLINE_S, HOLDFAST, at_a_terminal, lines_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    holdfast.table(folder, "none", columns={"id": "int64", "name": "string?"}).close()
    with holdfast.table(
        folder, "orders", columns={"id": "int64", "total": "decimal128(20,0)", "price": "decimal128(9,2)"}
    ) as orders:
        orders.append({"id": [1, 2], "total": [10**19, 3], "price": [Decimal("1.50"), Decimal(2)]})
    return folder


def run(folder: Path, *words: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, [*words, "--url", str(folder)], input=stdin)


def test_an_empty_table_reads_as_empty(folder: Path, tmp_path: Path) -> None:
    shown = run(folder, "read", "none")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "id  name\n", "")
    shown = run(folder, "diff", "none", "--from", "0")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "id  name  _diff\n", "none is empty\n")
    assert run(folder, "diff", "none", "--from", "0", "--to", "1").exit_code == 1
    assert run(folder, "read", "none", "--format", "csv", "--columns", "id").stdout == '"id"\n'
    assert run(folder, "read", "none", "--format", "json", "--where", "id > 3").stdout == ""
    assert run(folder, "read", "none", "--output", str(tmp_path / "none.parquet")).exit_code == 0
    assert run(folder, "read", "none", "--columns", "nothing").exit_code == 2
    assert run(folder, "read", "none", "--as-of", "2999-01-01").exit_code == 1


LISTS = [
    ("ls",),
    ("collection", "holds", "orders"),
    ("collection", "jobs", "orders"),
    ("persist", "inspect"),
    ("persist", "names"),
    ("persist", "holds"),
]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_a_list_has_the_same_formats_everywhere(folder: Path, words: tuple[str, ...]) -> None:
    found = json.loads(run(folder, *words, "--format", "json").stdout)
    again = json.loads(run(folder, *words, "--json").stdout)
    rows = list(csv.DictReader(io.StringIO(run(folder, *words, "--format", "csv").stdout)))
    assert [set(row) for row in rows] == [set(each) for each in found]
    for each, other, row in zip(found, again, rows, strict=True):
        for name in set(each) - {"age_ms"}:
            value = each[name]
            assert other[name] == value
            assert row[name] in ("" if value is None else str(value), json.dumps(value))
    assert run(folder, *words).exit_code == run(folder, *words, "--format", "table").exit_code == 0


def test_numbers_and_moments_are_not_folded_while_the_rest_has_room() -> None:
    columns, rows = ["when", "note"], [["2026-01-01 12:00:00.000Z", "some words " * 9]]
    # 24 and 10 characters, and 7 for the lines.
    assert kept_whole(columns, rows, 41) == [True, False]
    assert kept_whole(columns, rows, 40) == [False, False]


def test_a_narrow_terminal_leaves_out_what_can_be_spared(folder: Path, tmp_path: Path) -> None:
    rows = [["a", "0123456789", "b"]]
    assert without_spare(["x", "id", "y"], rows, ["id"], 22) == (["x", "id", "y"], rows, [])
    assert without_spare(["x", "id", "y"], rows, ["id"], 21) == (["x", "y"], [["a", "b"]], ["id"])
    _, shown = at_a_terminal(["ls", "--url", str(folder)], columns=80, home=tmp_path)
    head, *lines = [line for line in lines_of(shown) if "─" not in line and "━" not in line]
    tables = json.loads(run(folder, "ls", "--format", "json").stdout)
    assert head.replace("┃", " ").split() == ["NAME", "STATE", "SHARDS", "SINCE", "UPPER"]
    assert [line.replace("│", " ").split()[0] for line in lines[:-1]] == [each["name"] for each in tables]
    assert lines[-1] == "this terminal is too narrow for ID (--format json)"


def test_a_table_shows_nested_values_and_truths_as_json() -> None:
    cells = [cell_of(each) for each in (True, ["a", None], {"x": 1.5, "y": [False]}, None, "a\nb")]
    assert cells == ["true", '["a", null]', '{"x": 1.5, "y": [false]}', "", "a\\nb"]


def test_json_has_whole_decimals_as_numbers(folder: Path) -> None:
    lines = run(folder, "read", "orders", "--format", "json", "--where", "id = 1").stdout
    assert lines == '{"id": 1, "total": 10000000000000000000, "price": "1.50"}\n'
    summed = run(folder, "sql", "SELECT sum(id) AS ids, sum(price) AS price FROM orders", "--format", "json")
    assert summed.stdout == '{"ids": 3, "price": "3.50"}\n'


def test_a_limit_of_0_shows_no_rows_here_and_in_python(folder: Path, tmp_path: Path) -> None:
    with holdfast.table(folder, "orders", mode="read") as orders:
        assert orders.scan(limit=0).read_all().num_rows == 0
        with pytest.raises(BadInput, match="limit must be"):
            orders.scan(limit=-1)
    for words in (["read", "orders"], ["diff", "orders", "--from", "0"], ["sql", "SELECT id FROM orders"]):
        shown = run(folder, *words, "--limit", "0")
        assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 1)
        assert run(folder, *words, "--limit", "0", "--format", "json").stdout == ""
        assert run(folder, *words, "--limit", "-1").exit_code == 2
    out = tmp_path / "none.parquet"
    assert run(folder, "read", "orders", "--limit", "0", "--output", str(out)).exit_code == 0
    assert parquet.read_table(out).num_rows == 0


def test_rows_come_from_standard_input(tmp_path: Path) -> None:
    holdfast.table(tmp_path, "orders", columns={"id": "int64"}).close()
    assert run(tmp_path, "write", "orders", "--format", "csv", stdin=b"id\n1\n").exit_code == 0
    assert run(tmp_path, "write", "orders", "-", "--format", "json", stdin=b'{"id": 2}\n').exit_code == 0
    rows = run(tmp_path, "read", "orders", "--format", "parquet").stdout_bytes
    assert run(tmp_path, "write", "orders", "--format", "parquet", stdin=rows).exit_code == 0
    with holdfast.table(tmp_path, "orders", mode="read") as orders:
        assert sorted(orders.read()["id"].to_pylist()) == [1, 1, 2, 2]


def test_a_terminal_is_no_file_of_rows(folder: Path, tmp_path: Path) -> None:
    code, shown = at_a_terminal(["write", "orders", "--url", str(folder)], columns=100, home=tmp_path)
    assert code == 2
    assert "standard input is a terminal" in shown


def test_quiet_hushes_progress_and_what_was_done(folder: Path, tmp_path: Path) -> None:
    words = ["read", "orders", "--output", str(tmp_path / "out.csv"), "--url", str(folder)]
    _, shown = at_a_terminal(words, columns=100, home=tmp_path)
    assert "\x1b[?25l" in shown
    code, hushed = at_a_terminal([*words, "--quiet"], columns=100, home=tmp_path)
    assert (code, hushed) == (0, "")

    more = tmp_path / "more.csv"
    more.write_text("id\n5\n")
    shop = tmp_path / "shop"
    holdfast.table(shop, "t", columns={"id": "int64"}).close()
    for told in (["write", "t", str(more), "--again"], ["sql", "FROM t"], ["persist", "names"]):
        assert run(shop, *told).stderr
        quiet = run(shop, *told, "--quiet")
        assert (quiet.exit_code, quiet.stderr) == (0, "")
    # An error is always shown.
    assert run(shop, "write", "t", str(more), "--quiet").stderr.startswith("holdfast: ")


def test_the_former_word_is_refused_with_the_new_one(folder: Path) -> None:
    for words in (["collection", "drop", "orders"], ["persist", "gc"], ["persist", "sweep"]):
        refused = run(folder, *words, "--retain", "5")
        assert refused.exit_code == 2
        assert refused.stderr.endswith("hint: write --keep-garbage 5\n")


def test_an_output_that_nobody_reads_ends_the_command_silently(folder: Path) -> None:
    with subprocess.Popen(
        [HOLDFAST, "read", "orders", "--format", "csv", "--url", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as done:
        assert done.stdout is not None
        done.stdout.close()
        _, told = done.communicate(timeout=DEADLINE_S)
    assert (done.returncode, told) == (141, b"")


INTERRUPTED = """
import os, signal, sys
from holdfast.cli import main
from holdfast.tables.duckdb_extra import telling
import holdfast.persist
def interrupted(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
holdfast.persist.PersistClient.open = interrupted
main(["ls", "--url", "memory://x"])
"""


def test_an_interrupted_query_is_an_interrupt() -> None:
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.01):
            connection.interrupt()

    def query() -> None:
        with telling():
            connection.execute("SELECT count(*) FROM range(1000000000) a, range(1000000000) b").fetchall()

    with duckdb.connect() as connection:
        other = threading.Thread(target=interrupt)
        other.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                query()
        finally:
            ended.set()
            other.join()


def test_an_interrupted_command_ends_silently() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
