"""The program `holdfast` starts fast."""

import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import GROUPS, VERBS, main

RUN = """
import sys
from holdfast.cli import program
try:
    program.run()
finally:
    assert "pandas" not in sys.modules
"""


def test_a_command_imports_no_pandas(tmp_path: Path) -> None:
    assert find_spec("pandas") is not None
    rows = tmp_path / "rows.csv"
    rows.write_text("id,name\n1,a\n")
    url = f"file://{tmp_path}/location"
    for command in (
        ["collection", "create", "orders", "--key", "id:int64", "--column", "name:string?"],
        ["collection", "write", "orders", str(rows)],
    ):
        done = CliRunner().invoke(main, [*command, "--url", url])
        assert done.exit_code == 0, done.output
    read = subprocess.run(
        [sys.executable, "-c", RUN, "read", "orders", "--url", url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (read.returncode, read.stderr) == (0, "")
    assert "1   a" in read.stdout


def test_the_help_of_a_command_imports_nothing_heavy() -> None:
    modules = {each.target.partition(":")[0] for each in (*GROUPS.values(), *VERBS.values())}
    code = f"import sys, {', '.join(sorted(modules))}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "polars", "numpy", "holdfast.persist"} & set(done.stdout.split())


def test_a_command_imports_no_polars_until_rows_are_sorted() -> None:
    code = "import sys, holdfast.collections.controller, holdfast.tables.table; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"polars", "polars_hash", "duckdb", "boto3"} & set(done.stdout.split())


def test_the_program_is_what_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="holdfast")
    assert script.value == "holdfast.cli.program:run"
