"""`holdfast ingest`: what a user sees, and many kills of several instances at once."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from holdfast.persist import PersistClient
from unit.cli.terminals import DEADLINE_S, HOLDFAST
from unit.ingest.snapshots import taken

SPEC = """
collection: orders
key: {id: int64}
columns: {name: 'string?', at: 'int64?'}
source:
  files: {path: FOLDER, pattern: '*.jsonl'}
  format: {json: {}}
  include: {position: at}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "orders.yaml").write_text(SPEC.replace("FOLDER", str(tmp_path / "in")))
    return tmp_path


def holdfast_(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", f"file://{folder}/location"])


def ingested(folder: Path, *options: str) -> Result:
    return holdfast_(folder, "ingest", str(folder / "orders.yaml"), "--once", *options)


def test_a_source_that_can_not_be_used_leaves_no_collection(folder: Path) -> None:
    (folder / "in").rmdir()
    refused = ingested(folder)
    assert (refused.exit_code, "source folder" in refused.stderr) == (2, True)
    assert "orders" not in holdfast_(folder, "collection", "list").stdout
    (folder / "in").mkdir()
    assert ingested(folder).exit_code == 0
    assert "orders" in holdfast_(folder, "collection", "list").stdout


def test_a_pattern_that_matches_nothing_is_shown_once(folder: Path) -> None:
    (folder / "in" / "note.txt").write_text("not matched")
    process = started(folder)
    try:
        wait_for_line(folder, f"no file in file://{folder}/in matches pattern '*.jsonl' yet\n")
        (folder / "in" / "one.jsonl").write_text('{"id": 1, "name": "a"}\n')
        wait_for_line(folder, "going on after ")
    finally:
        process.terminate()
        process.communicate()
    assert (folder / "stderr").read_text().count("no file in") == 1


def test_files_become_rows_with_offsets_and_errors(folder: Path) -> None:
    (folder / "in" / "one.jsonl").write_text('{"id": 1, "name": "a"}\n{"id": 2}\nbad\n')
    (folder / "in" / "note.txt").write_text("not matched")
    result = ingested(folder)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("fed orders with 3 messages, 2 updates, 1 bad record: complete up to ")
    assert "3 messages (" in result.stderr
    assert "0 messages" in ingested(folder, "--quiet").stdout
    read = holdfast_(folder, "collection", "read", "orders", "--format", "csv")
    assert list(csv.reader(io.StringIO(read.stdout))) == [
        ["id", "name", "at"],
        ["1", "a", "1"],
        ["2", "", "2"],
    ]
    shown = holdfast_(folder, "collection", "offsets", "orders", "--format", "json")
    (offset,) = map(json.loads, shown.stdout.splitlines())
    assert (offset["partition"], offset["rows"], offset["source"]) == ("one.jsonl", 3, f"file://{folder}/in")
    (error,) = map(
        json.loads,
        holdfast_(folder, "collection", "errors", "orders", "--format", "json").stdout.splitlines(),
    )
    assert (error["partition"], error["position"], error["kind"]) == ("one.jsonl", 3, "decode")
    early = holdfast_(folder, "collection", "offsets", "orders", "--as-of", "1")
    assert early.stdout == "no offsets at 1\n"
    described = holdfast_(folder, "collection", "describe", "orders", "--json")
    assert json.loads(described.stdout)["retain"] == "7d"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be a YAML file with the fields collection and source"),
        ("a: [", "is not YAML"),
        (
            "collection: orders",
            "source must have one of files, kafka, postgres, collection, generator (it has nothing)",
        ),
        ("collection: 1", "needs 'collection': the name of the collection to feed"),
        ("collection: orders\nsources: {}", "has an unknown field 'sources'"),
        ("collection: orders\nsource: {files: {paht: /in}}", "source.files.path is missing"),
        ("collection: orders\nkey: id", "key must be a block of name: type, such as {id: int64}"),
    ],
)
def test_a_bad_file_is_one_clear_line_and_makes_no_location(folder: Path, text: str, told: str) -> None:
    (folder / "orders.yaml").write_text(text)
    result = ingested(folder)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.startswith(f"holdfast: {folder / 'orders.yaml'}")
    assert not (folder / "location").exists()


def test_a_table_is_refused(folder: Path) -> None:
    with holdfast.table(f"file://{folder}/location", "orders", columns={"id": "int64"}, key="id"):
        pass
    spec = (folder / "orders.yaml").read_text().replace("key: {id: int64}", "").replace("columns:", "#")
    (folder / "orders.yaml").write_text(spec.replace("  include: {position: at}", ""))
    result = ingested(folder)
    assert result.exit_code == 2
    assert "collection orders is not fed from a source" in result.stderr


def test_it_follows_the_folder_until_it_is_told_to_end(folder: Path) -> None:
    spec = (folder / "orders.yaml").read_text() + "  run: {interval: 100ms}\n"
    (folder / "orders.yaml").write_text(spec)
    process = started(folder)
    try:
        for number in range(3):
            put(folder, number, [number])
            wait_for(folder, number + 1)
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert out.startswith("fed orders with 3 messages, 3 updates")


@pytest.mark.long
def test_kills_of_several_instances_lose_and_repeat_nothing(folder: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    spec = (folder / "orders.yaml").read_text() + "  run: {interval: 20ms}\n  batch: {maxBytes: '64'}\n"
    (folder / "orders.yaml").write_text(spec)
    processes = [started(folder) for _ in range(3)]
    ids: list[int] = []
    kills = 0
    try:
        for number in range(60):
            new = [number * 10 + index for index in range(draw.randrange(4))]
            ids += new
            put(folder, number, new)
            time.sleep(draw.random() * 0.3)
            if draw.random() < 0.4:
                victim = draw.randrange(3)
                processes[victim].kill()
                processes[victim].communicate()
                kills += 1
                processes[victim] = started(folder)
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert kills >= 5, f"seed {seed}"
    assert ingested(folder).exit_code == 0, f"seed {seed}"
    assert Counter(found(folder)) == Counter(ids), f"seed {seed}"


def put(folder: Path, number: int, ids: list[int]) -> None:
    unfinished = folder / "in" / f".{number}"
    unfinished.write_text("".join(f'{{"id":{id_}}}\n' for id_ in ids))
    unfinished.rename(folder / "in" / f"{number}.jsonl")


def started(folder: Path) -> subprocess.Popen[str]:
    command = [str(HOLDFAST), "ingest", str(folder / "orders.yaml"), "--url", f"file://{folder}/location"]
    with (folder / "stderr").open("a") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ.copy()
        )


def wait_for_line(folder: Path, text: str) -> None:
    """Wait until the command has shown a line with this text."""
    deadline = time.monotonic() + DEADLINE_S
    while text not in (shown := (folder / "stderr").read_text()):
        assert time.monotonic() < deadline, shown[-2000:]
        time.sleep(0.05)


def found(folder: Path) -> list[int]:
    with holdfast.table(f"file://{folder}/location", "orders") as table:
        return [int(row["id"]) for row in table.read(columns=["id"]).to_pylist()]


def wait_for(folder: Path, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if len(found(folder)) == count:
                return
        except holdfast.HoldfastError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{count} rows did not come")


def shown(folder: Path, what: str, name: str = "orders") -> list[dict[str, object]]:
    result = holdfast_(folder, "collection", what, name, "--format", "json")
    return [json.loads(each) for each in result.stdout.splitlines()]


def bound(folder: Path, name: str = "orders") -> list[tuple[object, ...]]:
    """The files of a collection."""
    return [(each["partition"], each["rows"], each["checksum"]) for each in shown(folder, "offsets", name)]


def test_a_snapshot_is_restored_and_fed_on_from_there(folder: Path) -> None:
    (folder / "in" / "a.jsonl").write_text('{"id": 1}\nbad\n')
    assert ingested(folder).exit_code == 0
    with PersistClient.open(f"file://{folder}/location") as client:
        taken(client, folder / "snapshot")
    (folder / "in" / "b.jsonl").write_text('{"id": 2}\n{"id": 3}\n')
    assert ingested(folder).exit_code == 0
    before = bound(folder)
    snapshot = str(folder / "snapshot")
    # Where there is no such collection, one is created only on request.
    missing = holdfast_(folder, "collection", "restore", "copy", snapshot, "--yes")
    assert (missing.exit_code, "copy" in missing.stderr) == (2, True)
    assert holdfast_(folder, "collection", "restore", "orders", snapshot).exit_code == 2
    for name, *options in (("orders", "--yes"), ("copy", "--create")):
        told = holdfast_(folder, "collection", "restore", name, snapshot, *options)
        assert told.exit_code == 0, told.stderr
        assert "is r2, restored, from" in told.stdout
        assert f"its source continues from where the snapshot was: 'holdfast collection offsets {name}'" in (
            told.stdout
        )
        assert bound(folder, name) == before[:1]
        spec = (folder / "orders.yaml").read_text().replace("collection: orders", f"collection: {name}")
        (folder / f"{name}.yaml").write_text(spec)
        again = holdfast_(folder, "ingest", str(folder / f"{name}.yaml"), "--once")
        assert again.stdout.startswith(f"fed {name} with 2 messages, 2 updates: complete"), again.stderr
        assert bound(folder, name) == before
        assert [each["partition"] for each in shown(folder, "errors", name)] == ["a.jsonl"]
        described = holdfast_(folder, "collection", "describe", name, "--json")
        assert json.loads(described.stdout)["retain"] == "7d"
    # What the snapshot lacks is missed if it is gone. In the copy nobody knows of it.
    assert holdfast_(folder, "collection", "restore", "orders", snapshot, "--yes").exit_code == 0
    (folder / "in" / "b.jsonl").unlink()
    stalled = ingested(folder)
    assert stalled.exit_code == 1
    assert "messages as the one before it: messages 0 to 19 of partition b.jsonl are gone" in stalled.stderr
    anew = ingested(folder, "--anew")
    assert anew.stdout.startswith("fed orders with 0 messages"), anew.stderr


def test_a_handover_says_from_when_and_what_readers_wait_for(folder: Path) -> None:
    (folder / "in" / "a.jsonl").write_text('{"id": 1, "name": "a"}\n')
    assert ingested(folder).exit_code == 0
    filled = ingested(folder, "--rendition", "r2", "--json")
    assert filled.exit_code == 0, filled.stderr
    upper = json.loads(filled.stdout)["upper"]
    told = holdfast_(folder, "collection", "handover", "orders", "--rendition", "r2")
    current, waits = told.stdout.splitlines()
    assert current.startswith("orders is r2 with 1 shard, from "), told.stderr
    assert waits.startswith(
        f"readers see r2 once its pipeline has written it past that time: it is complete up to {upper} ("
    )


def test_more_shards_are_fed_on(folder: Path) -> None:
    (folder / "in" / "a.jsonl").write_text('{"id": 1}\nbad\n')
    assert ingested(folder).exit_code == 0
    told = holdfast_(folder, "collection", "handover", "orders", "--shards", "3")
    assert told.stdout.startswith("orders is r2 with 3 shards, from"), told.stderr
    (folder / "in" / "a.jsonl").unlink()
    (folder / "in" / "b.jsonl").write_text('{"id": 2}\n{"id": 3}\n')
    again = ingested(folder)
    assert again.stdout.startswith("fed orders with 2 messages, 2 updates: complete"), again.stderr
    assert [(each[0], each[1]) for each in bound(folder)] == [("a.jsonl", 2), ("b.jsonl", 2)]
    assert [each["partition"] for each in shown(folder, "errors")] == ["a.jsonl"]
    assert len(shown(folder, "read")) == 3


def test_a_backup_while_it_is_fed_is_fed_on_from_there(folder: Path) -> None:
    (folder / "in" / "0.jsonl").write_text('{"id": 0}\nbad\n')
    assert ingested(folder).exit_code == 0
    command = [HOLDFAST, "ingest", str(folder / "orders.yaml"), "--url", f"file://{folder}/location"]
    (folder / "orders.yaml").write_text((folder / "orders.yaml").read_text() + "  run: {interval: 10ms}\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as feed:
        for number in range(1, 60):
            (folder / "in" / f"{number}.tmp").write_text(f'{{"id": {number}}}\nbad\n')
            (folder / "in" / f"{number}.tmp").rename(folder / "in" / f"{number}.jsonl")
            if number == 30:
                runner = CliRunner()
                copied = runner.invoke(
                    main, ["persist", "backup", f"file://{folder}/location", str(folder / "backup")]
                )
                assert copied.exit_code == 0, copied.stderr
            time.sleep(0.01)
        feed.terminate()
        feed.communicate(timeout=DEADLINE_S)
    assert ingested(folder).exit_code == 0
    wanted = bound(folder)
    assert len(wanted) == 60
    (folder / "location").rename(folder / "old")
    restored = CliRunner().invoke(
        main, ["persist", "restore", str(folder / "backup"), f"file://{folder}/location"]
    )
    assert restored.exit_code == 0, restored.stderr
    files = len(bound(folder))
    assert 0 < files < 60
    assert [len(shown(folder, each)) for each in ("read", "errors")] == [files, files]
    assert ingested(folder).exit_code == 0
    assert bound(folder) == wanted
    assert [len(shown(folder, each)) for each in ("read", "errors")] == [60, 60]
