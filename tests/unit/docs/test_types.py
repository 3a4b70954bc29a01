"""The code of the tutorials and of the README passes the type checkers that users have."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import docpages
from testbed.pages import blocks

PAGES = (
    "README.md",
    "docs/tutorial/a-first-table.md",
    "docs/tutorial/a-first-source.md",
    "docs/tutorial/with-spark.md",
)
BIN = Path(sys.executable).parent
READING = """
import holdfast

table = holdfast.table("memory://types", "orders")
reveal_type(table.read())
reveal_type(table.diff(1))
reveal_type(table.scan())
reveal_type(table.to_polars())
reveal_type(table.to_pandas())
reveal_type(table.append([{"id": 1}]))
reveal_type(holdfast.sql("memory://types", "select 1").read())
"""
TYPES = ("Table", "Table", "RecordBatchReader", "DataFrame", "DataFrame", "int", "Table")
WRITING = """
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import holdfast
from holdfast.tables import KeysLike, TableLike

table = holdfast.table("memory://types", "orders")
forms: list[TableLike] = [
    [{"id": 1}],
    {"id": [1], "note": ["a"]},
    pa.table({"id": [1]}),
    pa.RecordBatch.from_pylist([{"id": 1}]),
    pd.DataFrame({"id": [1]}),
    pl.DataFrame({"id": [1]}),
    np.array([(1,)], dtype=[("id", "i8")]),
    table.to_duckdb(),
    table,
]
keys: list[KeysLike] = [[1], [(1, "a")], {1}, pd.Series([1]), np.array([1]), pl.Series([1]), *forms]
for form in forms:
    table.append(form)
for each in keys:
    table.delete(each)
holdfast.write({table: holdfast.Upsert([{"id": 1}])})
table.append([{"id": 1, "note": "a"}, {"id": 2}])
"""
WRONG = (
    'table.append("abc")',
    "table.append(5)",
    "table.upsert([1, 2])",
    "table.delete(5)",
    "table.read(as_of=1.5)",
)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the code of each page, and with one module that shows what calls return."""
    folder = tmp_path_factory.mktemp("modules")
    for page in PAGES:
        code = [
            block.text
            for block in blocks(page, (docpages.ROOT / page).read_text())
            if block.language == "python"
        ]
        assert code
        (folder / f"{Path(page).stem.replace('-', '_').lower()}.py").write_text("\n".join(code))
    (folder / "reading.py").write_text(READING)
    refused = "".join(f"{line}  # type: ignore\n" for line in WRONG)
    (folder / "writing.py").write_text(WRITING + refused)
    return folder


def shown_types(printed: str) -> list[str]:
    """The last words of the types that a checker reveals, in order."""
    lines = [line for line in printed.splitlines() if "Revealed type is" in line or "Type of" in line]
    return [line.rstrip('"').rpartition('"')[2].rpartition(".")[2] for line in lines]


@pytest.mark.long
def test_mypy_passes_and_knows_what_calls_return(modules: Path) -> None:
    (modules / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    done = subprocess.run(
        [BIN / "mypy", "--python-executable", sys.executable, "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=modules,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown_types(done.stdout) == list(TYPES)


@pytest.mark.long
def test_pyright_passes_and_knows_what_calls_return(modules: Path) -> None:
    done = subprocess.run(
        [BIN / "pyright", "--pythonpath", sys.executable, "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=modules,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown_types(done.stdout) == list(TYPES)
