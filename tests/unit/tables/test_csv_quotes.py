"""Quotes of CSV files that are not closed: refused with their line, before anything is written."""

import io
import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.tables.files import quotes

LONG = "x" * 300 + "\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('id,a\n1,x\n2,"oops\n3,y\n4,z\n', "the quote in line 3 is not closed"),
        ('id,a\n1,x\n2,"oops\n3,"y"\n4,z\n', "the quote in line 3 closes in line 4, and text follows it"),
        ('id,a\n1,"a ""b"" c"\n2,"oops', "the quote in line 3 is not closed"),
        ('id,a\n1,5" pipe\n2,"oops ""\n', "the quote in line 3 is not closed"),
        ('id,"a\n1,x\n', "the quote in line 1 is not closed"),
        (f'id,a\n1,"{LONG * 9000}"\n2,"{LONG * 9000}', "the quote in line 9003 is not closed"),
    ],
)
def test_a_quote_that_is_not_closed_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file, url = tmp_path / "q.csv", str(tmp_path / "location")
    file.write_text(text)
    with pytest.raises(BadInput, match=f"q.csv: {said}"):
        holdfast.create_table(tmp_path / "none", "o", file)
    assert not (tmp_path / "none").exists()
    with holdfast.table(url, "o", columns={"id": "int64", "a": "string?"}, key="id") as table:
        for given, stdin in ((str(file), ""), ("-", text)):
            arguments = ["write", "o", given, "--format", "csv", "--url", url]
            done = CliRunner().invoke(main, arguments, input=stdin)
            assert done.exit_code == 2
            assert said in done.stderr.splitlines()[0]
        assert table.upper == 0


def test_texts_with_quotes_and_lines_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "q.csv"
    file.write_text('\ufeff"id",a\r\n1,"x\ny ""z"""\r\n2,""\n3,5" pipe\n4,"""\n"""\n5,a"b"c', newline="")
    with holdfast.create_table(tmp_path / "loc", "o", file, key="id") as table:
        found = table.read().sort_by("id")["a"].to_pylist()
    assert found == ['x\ny "z"', "", '5" pipe', '"\n"', 'a"b"c']


def test_quotes_are_those_of_a_reader_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(7)
    for block in (1, 5, 1 << 20):
        monkeypatch.setattr(quotes, "_BLOCK_BYTES", block)
        for _ in range(4000):
            text = "".join(chosen.choices('"""",\n\na', k=chosen.randrange(14)))
            again = partial(io.BytesIO, text.encode())
            expected = by_character(text)
            try:
                quotes.check_quotes(again)
                found = ""
            except BadInput as error:
                found = str(error)
            assert found == expected, repr(text)


def by_character(text: str) -> str:
    """The error for a CSV file, by its characters one after the other."""
    opened, place, before = 0, 0, "\n"
    while place < len(text):
        each, behind = text[place], text[place + 1 : place + 2]
        line = text.count("\n", 0, place) + 1
        if each == '"' and not opened:
            opened = line if before in ",\n" else 0
        elif each == '"' and behind == '"':
            place += 1
        elif each == '"' and behind in ("", ",", "\n"):
            opened = 0
        elif each == '"':
            return f"the quote in line {opened} closes in line {line}, and text follows it"
        before = each
        place += 1
    return f"the quote in line {opened} is not closed" if opened else ""


def test_a_line_of_any_length_is_left_to_arrow(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_bytes(b"id\n" + b"x" * (9 << 20) + b'\n"')
    with pytest.raises((BadInput, pa.ArrowException), match=r"q\.csv"):
        holdfast.create_table(tmp_path / "loc", "o", tmp_path / "q.csv")
