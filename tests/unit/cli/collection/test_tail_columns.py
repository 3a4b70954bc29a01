"""`holdfast collection tail` while columns are added, and tables of odd cells."""

import pyarrow as pa
import pytest

from holdfast.cli.collection.rows import _Changes
from holdfast.cli.rows.text import cell_of

BEFORE = pa.table({"id": [1], "_time": [10], "_diff": [1]})
AFTER = pa.table({"id": [2], "zz": [7], "_time": [11], "_diff": [1]})


def test_a_csv_keeps_the_columns_of_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    changes = _Changes("csv")
    for each in (BEFORE, AFTER, AFTER):
        changes.show(each)
    out, err = capsys.readouterr()
    assert out.splitlines() == ['"id","_time","_diff"', "1,10,1", "2,11,1", "2,11,1"]
    assert err == "not shown, as it was added since the start: zz; tail again\n"


def test_a_table_says_what_the_columns_are_from_now_on(capsys: pytest.CaptureFixture[str]) -> None:
    changes = _Changes("table")
    for each in (BEFORE, AFTER, AFTER):
        changes.show(each)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["_time", "_diff", "id"],
        ["10", "1", "1"],
        ["_time", "_diff", "id", "zz"],
        ["11", "1", "2", "7"],
        ["11", "1", "2", "7"],
    ]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("\x1b[31mred\nline", "\\x1b[31mred\\nline"),
        ("café → '\\", "café → '\\"),
        (None, ""),
        (b"\x1b", "Gw=="),
    ],
)
def test_a_cell_is_one_line_that_no_terminal_obeys(cell: object, shown: str) -> None:
    assert cell_of(cell) == shown
