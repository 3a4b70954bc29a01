"""`holdfast collection write`: repeated files, kills, large files, and files that change."""

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv

import holdfast
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.tables.files.source import RowSource, whole
from unit.cli.terminals import DEADLINE_S, HOLDFAST

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})
CSV = "id,name\n1,a\n2,b\n"


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder / 'location'}"
        with holdfast.table(
            self.url, "flights", columns={"id": "int64", "name": "string?"}, key="id", shards=2
        ):
            pass

    def write(self, file: str, *options: str, stdin: str = "") -> Result:
        command = ["collection", "write", "flights", file, *options, "--url", self.url]
        return CliRunner().invoke(main, command, input=stdin)

    def file(self, name: str, text: str = CSV) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def ids(self) -> list[int]:
        with holdfast.table(self.url, "flights", mode="read") as table:
            found: list[int] = table.read()["id"].to_pylist()
            return sorted(found)

    def upper(self) -> int:
        with holdfast.table(self.url, "flights", mode="read") as table:
            return table.upper


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


VALUES = Schema.of(
    key={"id": "int64"},
    value={"x": "float64?", "y": "float32?", "d": "decimal128(10,2)?", "b": "binary?", "s": "string?"},
)
CSV_LINES = 'id,x,y,d,b,s\n1,1.5,1e3,1.00,,"a\nb"\n\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", CSV_LINES + "z,1,1,1,,\n", "column 'id': 'z' in line 5 is not a valid int64"),
        ("a.csv", CSV_LINES + '"",1,1,1,,\n', "column 'id': '' is not a valid int64"),
        ("a.csv", CSV_LINES + "4,x,1,1,,\n", "column 'x': 'x' in line 5 is not a valid float64"),
        ("a.csv", CSV_LINES + "4,1e999,1,1,,\n", "column 'x': '1e999' in line 5 is too large for float64"),
        ("a.csv", CSV_LINES + "4,1,-1e39,1,,\n", "column 'y': '-1e39' in line 5 is too large for float32"),
        ("a.csv", CSV_LINES + "4,1,1,q,,\n", "column 'd': 'q' in line 5 is not a valid decimal"),
        ("a.csv", CSV_LINES + "4,1,1,1.123,,\n", "Decimal('1.123') in line 5"),
        ("a.csv", CSV_LINES + "4,1,1,1,***,\n", "column 'b': '***' in line 5 is not a valid base64 text"),
        ("a.json", '{"id": 1}\n\n{"id": 2, "x": "x"}\n', "column 'x': 'x' in line 3 is not a valid number"),
        ("a.json", '{"id": 1}\n\n{"id": "q"}\n', "column 'id', line 3: 'q' is a string"),
        (
            "a.json",
            '{"id": 1}\n\n{"id": 2, "x": 1e999}\n',
            "in line 3 is not a valid number",
        ),
        ("a.json", '{"id": 1}\n\n{"id": 2, "y": 1e39}\n', "1e+39 in line 3"),
        ("a.csv", CSV_LINES + "4,1,1,1,,caf\udce9\n", "column 's': the text in line 5 is not UTF-8"),
        ("a.csv", "id,caf\udce9\n1,2\n", "column name 'caf\ufffd' is not UTF-8"),
        ("a.csv", "id,s,s\n1,a,b\n", "column 's' is given twice"),
    ],
)
def test_a_bad_value_is_named_with_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode(errors="surrogateescape"))
    with RowSource(file, None, VALUES) as source, pytest.raises(BadInput) as caught:
        whole(source)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


def test_the_line_of_a_late_value_is_right(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    rows = [f"{number},{number}.5,,,,{'x' * 100}\n" for number in range(40_000)]
    for bad, line in (("39999,1e999,,,,\n", 40_001), ("z,1,,,,\n", 40_001)):
        file.write_text("".join(["id,x,y,d,b,s\n", *rows[:-1], bad]))
        with RowSource(file, None, VALUES) as source, pytest.raises(BadInput, match=f" in line {line} is "):
            whole(source)


def test_csv_reads_floats_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,x,y\n1, 3 ,inf\n2,-Infinity,NaN\n3,,1e-400\n4,1e308,0.1\n")
    schema = Schema.of(key={"id": "int64"}, value={"x": "float64?", "y": "float32?"})
    with RowSource(file, None, schema) as source:
        rows = whole(source)
    assert rows["x"].to_pylist() == [3.0, float("-inf"), None, 1e308]
    assert rows["y"].to_numpy().tolist()[::2] == [float("inf"), 0.0]
    assert np.isnan(rows["y"].to_numpy()[1])
    assert rows["y"].to_numpy()[3] == np.float32(0.1)


@pytest.mark.parametrize("piped", [False, True])
def test_the_threads_of_arrow_read_no_python_file(
    place: Place, piped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They may still read when the process ends, and a thread that then needs the interpreter aborts it.
    opened: list[object] = []
    open_csv = csv.open_csv
    monkeypatch.setattr(csv, "open_csv", lambda file, **kw: opened.append(file) or open_csv(file, **kw))
    file = "-" if piped else place.file("one.csv")
    assert place.write(file, "--format", "csv", stdin=CSV).exit_code == 0
    assert {type(each) for each in opened} == {pa.OSFile}
    assert place.ids() == [1, 2]


def test_the_same_file_again_is_told_and_refused(place: Place) -> None:
    first, copy = place.file("one.csv"), place.file("two.csv")
    assert place.write(first).exit_code == 0
    upper = place.upper()
    for file, name in ((first, ""), (copy, " as one.csv")):
        refused = place.write(file)
        told, hint = refused.stderr.splitlines()
        assert refused.exit_code == 1
        assert told.startswith(f"holdfast: {file} was written to flights before{name}, 2 rows on ")
        assert told.endswith(": nothing was written now")
        assert "--again" in hint
        assert "--once" in hint
        done = place.write(file, "--once")
        assert (done.exit_code, done.stderr.startswith("nothing to do: ")) == (0, True)
    assert (place.ids(), place.upper()) == ([1, 2], upper)
    assert place.write(first, "--again").exit_code == 0
    assert place.ids() == [1, 1, 2, 2]
    assert place.write(first).exit_code == 1
    assert place.write(place.file("one.csv", CSV + "3,c\n")).exit_code == 0
    assert place.ids() == [1, 1, 1, 2, 2, 2, 3]


def test_what_comes_through_a_pipe_or_twice_changes_nothing_is_never_refused(place: Place) -> None:
    for _ in range(2):
        assert place.write("-", "--format", "csv", stdin=CSV).exit_code == 0
    assert place.ids() == [1, 1, 2, 2]
    file = place.file("one.csv")
    for _ in range(2):
        assert place.write(file, "--upsert").exit_code == 0
        assert place.ids() == [1, 2]
    for _ in range(2):
        assert place.write(place.file("none.csv", "id,name\n")).exit_code == 0


def test_another_collection_may_have_the_same_file(place: Place) -> None:
    file = place.file("one.csv")
    place.write(file)
    with holdfast.table(place.url, "others", columns={"id": "int64", "name": "string?"}):
        pass
    done = CliRunner().invoke(main, ["collection", "write", "others", file, "--url", place.url])
    assert done.exit_code == 0


def test_options_that_contradict_are_refused(place: Place) -> None:
    refused = place.write(place.file("one.csv"), "--once", "--again")
    assert (refused.exit_code, "can't be used together" in refused.stderr) == (2, True)


def test_a_write_that_is_killed_can_be_given_again(place: Place) -> None:
    count = 150_000
    ids = np.random.default_rng(1).permutation(count)
    file = place.folder / "rows.parquet"
    pq.write_table(pa.table({"id": ids, "name": np.char.add("name ", ids.astype(str))}), file)
    command = [HOLDFAST, "collection", "write", "flights", str(file), "--url", place.url]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    blobs = place.folder / "location" / "blob"
    deadline = time.monotonic() + DEADLINE_S
    # Its first part is there: it has read all, and is between its first upload and its answer.
    while killed.poll() is None and not any(blobs.rglob("s*/*")):
        assert time.monotonic() < deadline
    killed.send_signal(signal.SIGKILL)
    killed.wait(DEADLINE_S)
    there = place.ids() if place.upper() else []
    assert len(there) in (0, count)
    again = place.write(str(file), "--once")
    assert again.exit_code == 0, again.output
    assert again.stderr.startswith("nothing to do: " if there else f"wrote {count:,} rows")
    assert place.ids() == list(range(count))


def test_a_file_that_changes_while_it_is_read_is_refused(place: Place) -> None:
    file = Path(place.file("one.csv", "id,name\n" + "1,a\n" * 100_000))
    with RowSource(file, None, SCHEMA) as source:
        pieces = source.pieces()
        next(pieces)
        with file.open("a") as more:
            more.write("2,b\n")
        with pytest.raises(BadInput, match="was changed while it was read"):
            list(pieces)


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow", "arrow stream"])
def test_rows_come_in_pieces_whatever_the_file(tmp_path: Path, form: str) -> None:
    count = 30_000
    table = pa.table({"id": list(range(count)), "name": [str(each) for each in range(count)]})
    file = tmp_path / f"rows.{form.split()[0]}"
    match form:
        case "csv":
            file.write_text("id,name\n" + "".join(f"{each},{each}\n" for each in range(count)))
        case "json":
            lines = (json.dumps({"id": each, "name": str(each)}) for each in range(count))
            file.write_text("\n".join(lines))
        case "parquet":
            pq.write_table(table, file)
        case "arrow":
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        case _:
            with pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    told: list[tuple[int, int | None]] = []
    with RowSource(file, None, SCHEMA) as source:
        assert source.fingerprint() is not None
        pieces = list(source.pieces(lambda done, of, _: told.append((done, of))))
    assert pa.concat_tables(pieces).select(["id", "name"]).equals(table)
    if form != "csv":
        assert max(piece.num_rows for piece in pieces) <= 8192
    assert len(told) == len(pieces)
    size = file.stat().st_size
    ends = {"parquet": (count, count), "csv": (size, size), "json": (size, size)}
    assert told[-1] == ends.get(form, (count, None))


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
def test_no_rows_are_a_piece_with_columns(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"rows.{form}"
    match form:
        case "csv":
            file.write_text("id,name\n")
        case "json":
            file.write_text("")
        case "parquet":
            pq.write_table(SCHEMA.arrow.empty_table(), file)
        case _:
            with pa.ipc.new_file(file, SCHEMA.arrow):
                pass
    with RowSource(file, None, SCHEMA) as source:
        (piece,) = source.pieces()
    assert (piece.num_rows, piece.column_names) == (0, ["id", "name"])


def test_a_row_that_is_added_too_often_is_refused(place: Place) -> None:
    many = place.file("many.csv", "id,name,_diff\n1,a,1\n2,b,9223372036854775807\n")
    refused = place.write(many)
    assert refused.exit_code == 2
    assert "the row (id=2, name='b') has _diff 9223372036854775807" in refused.stderr
    assert place.ids() == []
