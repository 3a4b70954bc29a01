"""A refused command prints one line, exits with 2 (3 if there is no location), and changes nothing."""

import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main

ORG = "11111111-2222-3333-4444-555555555555"


def tree(folder: Path) -> dict[str, bytes | None]:
    """All files and folders, but for the index of SQLite's log, in which readers lock themselves."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not path.name.endswith("-shm")
    }


def run(folder: Path, command: str) -> Result:
    """A command line; `{at}` stands for the location, `{dir}` for the folder around it."""
    arguments = [each.format(at=f"file://{folder}/at", dir=folder, org=ORG) for each in command.split()]
    return CliRunner().invoke(main, arguments)


def check_refused(result: Result, code: int, message: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    first, *hints = result.stderr.splitlines()
    assert first.startswith("holdfast: ")
    assert message in first
    assert len(hints) <= 1
    assert all(hint.startswith("  hint: ") for hint in hints)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files to write from, and no location."""
    (tmp_path / "ok.csv").write_text("id\n1\n")
    (tmp_path / "file").write_text("no folder")
    for name, times in {
        "text": pa.array(["soon"]),
        "empty": pa.array([None], pa.int64()),
        "gap": pa.array([50, None], pa.int64()),
        "negative": pa.array([-1]),
        "past": pa.array([5]),
        "both": pa.array([5, 50]),
        "listed": pa.array([[1]]),
    }.items():
        pq.write_table(
            pa.table({"id": list(range(len(times))), "_time": times}), tmp_path / f"{name}.parquet"
        )
    return tmp_path


@pytest.fixture
def filled(folder: Path) -> Path:
    """The same with a location: collection `c` complete up to 11, and a catalog."""
    for command in (
        "collection create c --id c1 --key id:int64 --url {at}",
        "collection write c {dir}/ok.csv --at 10 --url {at}",
        "catalog init --persist {at} --organization-id {org}",
    ):
        assert run(folder, command).exit_code == 0
    return folder


BAD_INPUT = [
    ("collection write c {dir}/text.parquet", "column '_time'"),
    ("collection write c {dir}/empty.parquet", "column '_time'"),
    ("collection write c {dir}/gap.parquet", "column '_time'"),
    ("collection write c {dir}/negative.parquet", "column '_time'"),
    ("collection write c {dir}/listed.parquet", "column '_time'"),
    ("collection write c {dir}/past.parquet", "rows can't be added at 5"),
    ("collection write c {dir}/both.parquet", "rows can't be added at 5"),
    ("collection write c {dir}/ok.csv --at 5", "rows can't be added at 5"),
    ("collection write c {dir}/ok.csv --at 50 --new-upper 50", "--new-upper 50"),
    ("collection write c {dir}/gone.csv", "can't read"),
    ("collection write nope {dir}/ok.csv", "no collection has the id or name 'nope'"),
    ("collection drop nope --yes", "no collection has the id or name 'nope'"),
    ("collection drop c", "needs confirmation"),
    ("collection create c --key id:int64", "name 'c'"),
    ("collection create d --id c1 --key id:int64", "c1"),
    ("collection create d --key id:int6", "unknown column type"),
    ("collection create d --key id:int64 --shards 0", "shards is 0"),
    ("collection create d --key id:int64 --shards 100000000000000000000000000", "shards is"),
    ("collection read c --as-of 1969-12-31", "out of range"),
]
TIMES = [
    ("1969-01-01", "out of range"),
    ("100000000000000000000000000", "out of range"),
    ("18446744073709551616", "out of range"),
    ("0001-01-01T00:00:00+23:59", "out of range"),
    ("9" * 5000, "neither a number of milliseconds"),
    ("soon", "neither a number of milliseconds"),
]


@pytest.mark.parametrize(("command", "message"), BAD_INPUT)
def test_bad_input_changes_nothing(filled: Path, command: str, message: str) -> None:
    before = tree(filled)
    check_refused(run(filled, command + " --url {at}"), 2, message)
    assert tree(filled) == before


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("handover", "did you mean 'holdfast collection handover'?"),
        ("verify", "did you mean 'holdfast persist verify'?"),
        ("rad", "did you mean 'holdfast read'?"),
        ("persist inspect s123 --url {at}", "'holdfast persist inspect' without SHARD shows all shards"),
        (
            'catalog delete items {{"id":{{"user":"77"}}}} --yes --persist {at} --organization-id {org}',
            "'holdfast catalog dump' shows all objects with their keys",
        ),
    ],
)
def test_a_refused_command_has_a_hint(filled: Path, command: str, hint: str) -> None:
    result = run(filled, command)
    assert result.exit_code == 2, result.output
    assert f"  hint: {hint}" in result.stderr


@pytest.mark.parametrize("option", ["--at", "--new-upper"])
@pytest.mark.parametrize(("time", "message"), TIMES, ids=[time[:30] for time, _ in TIMES])
def test_a_time_out_of_range_changes_nothing(filled: Path, option: str, time: str, message: str) -> None:
    before = tree(filled)
    check_refused(run(filled, f"collection write c {{dir}}/ok.csv {option} {time} --url {{at}}"), 2, message)
    assert tree(filled) == before


@pytest.mark.parametrize(
    "command",
    [
        "collection write c {dir}/ok.csv --url {at}",
        "collection drop c --yes --url {at}",
        "collection list --url {at}",
        "catalog dump --persist {at} --organization-id {org}",
        "persist inspect {at}",
    ],
)
def test_only_init_and_create_make_a_location(folder: Path, command: str) -> None:
    before = tree(folder)
    result = run(folder, command)
    check_refused(result, 3, "does not exist")
    assert "holdfast collection create" in result.stderr
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "catalog init --persist {at} --organization-id {org} --deploy-generation " + "1" + "0" * 22,
            "not an integer from 0",
        ),
        ("catalog init --persist {at} --organization-id me", "'me' is not a UUID"),
        (
            "catalog dump --persist {at} --organization-id {org} --as-of " + "1" + "0" * 22,
            "not an integer from 0",
        ),
        ("collection create c --key id:int6 --url {at}", "unknown column type"),
        ("collection create c --key id:int64 --shards 0 --url {at}", "shards is 0"),
        ("collection write c {dir}/gone.csv --url {at}", "can't read"),
    ],
)
def test_arguments_are_checked_before_a_location_is_made(folder: Path, command: str, message: str) -> None:
    before = tree(folder)
    check_refused(run(folder, command), 2, message)
    assert tree(folder) == before


@pytest.mark.parametrize(
    "command",
    [
        "catalog init --persist {url} --organization-id {org}",
        "catalog epoch --persist {url} --organization-id {org}",
        "collection create c --key id:int64 --url {url}",
        "collection write c {dir}/ok.csv --url {url}",
        "collection list --url {url}",
        "persist inspect {url}",
    ],
)
@pytest.mark.parametrize("where", ["file", "file/below", "file/far/below"])
def test_a_path_that_can_be_no_folder_is_bad_input(folder: Path, command: str, where: str) -> None:
    before = tree(folder)
    result = run(folder, command.replace("{url}", f"file://{folder}/{where}"))
    check_refused(result, 2, f"{folder}/file")
    assert "hint: give the path of a folder" in result.stderr
    assert tree(folder) == before


@pytest.mark.parametrize(
    "where", ["/proc/holdfast", "{dir}/new/" + "x" * 256, "{dir}/occupied", "{dir}/foreign"]
)
def test_a_folder_that_cannot_be_the_locations_is_left_as_it_was(folder: Path, where: str) -> None:
    (folder / "occupied").mkdir()
    (folder / "occupied" / "blob").write_text("a file where the blob folder should be")
    (folder / "foreign" / "blob" / "photos").mkdir(parents=True)
    before = tree(folder)
    for command in (
        "collection create c --key id:int64 --url",
        "catalog init --organization-id {org} --persist",
    ):
        check_refused(run(folder, f"{command} file://{where}"), 2, where.format(dir=folder))
    assert tree(folder) == before


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_folder_without_permission_is_bad_input(below: str) -> None:
    """Permissions don't bind root, so the command runs as nobody where the tests run as root."""
    script = (
        "import os, sys; from holdfast.cli import main;"
        " import holdfast.cli.collection.commands, holdfast.collections;"
        " os.getuid() or (os.setgroups([]), os.setresuid(65534, 65534, 65534)); main(sys.argv[1:])"
    )
    arguments = ["collection", "create", "c", "--key", "id:int64", "--url"]
    with tempfile.TemporaryDirectory() as closed:
        Path(closed).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments, f"file://{closed}{below}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert list(Path(closed).iterdir()) == []
    assert done.returncode == 2, done.stderr
    first, hint = done.stderr.splitlines()
    assert f"{closed} is not writable for this process" in first
    assert hint.startswith("  hint: ")


def test_what_is_there_already_is_answered_without_a_write(filled: Path) -> None:
    before = tree(filled)
    for command, message in (
        ("catalog init --persist {at} --organization-id {org}", "already initialized"),
        ("collection create c --id c1 --key id:int64 --url {at}", "collection c (c1) with 1 shard"),
    ):
        result = run(filled, command)
        assert (result.exit_code, message in result.stdout) == (0, True), result.output
    assert tree(filled) == before
    other = str(uuid.uuid4())
    assert run(filled, f"catalog init --persist {{at}} --organization-id {other}").exit_code == 0
    assert tree(filled) != before


def test_a_dump_gets_the_modes_of_any_new_file(filled: Path) -> None:
    target = filled / "dump.json"
    mask = os.umask(0o027)
    try:
        done = run(filled, "catalog dump --persist {at} --organization-id {org} --target {dir}/dump.json")
    finally:
        os.umask(mask)
    assert done.exit_code == 0
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in filled.iterdir() if path.name.startswith(".")] == []
