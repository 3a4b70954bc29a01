"""A terminal shows progress during long work, and a pipe gets none."""

import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from unit.cli.terminals import DEADLINE_S, HOLDFAST, at_a_terminal, left_on_screen, lines_of
from unit.collections.snapshots import snapshot

ROWS = 40_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    rows = pa.table({"id": list(range(ROWS)), "name": [f"name {each % 97}" for each in range(ROWS)]})
    pq.write_table(rows, folder / "rows.parquet")
    snapshot(folder / "kept", [(7, "a"), (8, None)])
    with holdfast.table(
        folder / "location", "flights", columns={"id": "int64", "name": "string?"}, key="id"
    ) as table:
        table.append(rows)
    return folder


def command(place: Path, *arguments: str) -> list[str]:
    words = [each.format(at=place) for each in arguments]
    return ["collection", *words, "--url", f"file://{place / 'location'}"]


COMMANDS = [
    (("write", "flights", "{at}/rows.parquet"), ["reading", f"{ROWS:,} of {ROWS:,} rows", "writing"]),
    (("read", "flights", "--output", "{at}/out.csv"), ["writing", " rows"]),
    (("diff", "flights", "--from", "0", "--output", "{at}/diff.json"), ["comparing"]),
    (("handover", "flights", "--shards", "2"), ["filling r2", f" of {2 * ROWS:,} rows", "handing over"]),
    (("restore", "flights", "{at}/kept", "--yes"), ["restoring flights", "2 of 2 rows"]),
]


@pytest.mark.parametrize(("arguments", "told"), COMMANDS, ids=[words[0] for words, _ in COMMANDS])
def test_work_is_seen_and_then_only_what_it_came_to(
    place: Path, arguments: tuple[str, ...], told: list[str]
) -> None:
    code, shown = at_a_terminal(command(place, *arguments), columns=100, home=place)
    assert code == 0, shown
    lines = lines_of(shown)
    for each in told:
        assert any(each in line for line in lines), (each, lines)
    assert any("━" in line for line in lines)
    assert max(map(len, lines)) <= 100
    # The cursor comes back, and no bar stays.
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert not any("━" in line for line in left_on_screen(shown))
    assert "flights" in left_on_screen(shown)[-1] or "wrote" in left_on_screen(shown)[-1]


def test_a_narrow_terminal_gets_one_line_that_fits(place: Path) -> None:
    target = place / "a-file-with-a-name-that-is-longer-than-the-terminal-is-wide.jsonl"
    code, shown = at_a_terminal(
        command(place, "read", "flights", "--output", str(target)), columns=40, home=place
    )
    assert code == 0
    *progress, last = lines_of(shown.rpartition("\x1b[?25h")[0])
    assert all(len(line) <= 40 for line in (*progress, last))


def test_pipes_get_rows_and_one_line_of_what_was_done(place: Path) -> None:
    done = subprocess.run(
        [HOLDFAST, *command(place, "write", "flights", "{at}/rows.parquet", "--again")],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"wrote {ROWS:,} rows to flights, as of ")


@pytest.mark.parametrize("form", ["csv", "arrow"])
def test_a_reader_that_has_enough_ends_a_read_without_a_word(place: Path, form: str) -> None:
    done = subprocess.Popen(
        [HOLDFAST, *command(place, "read", "flights", "--format", form)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONDEVMODE": "0"},
    )
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.read(10)
    done.stdout.close()
    with done.stderr:
        assert done.stderr.read() == b""
    done.wait(DEADLINE_S)
