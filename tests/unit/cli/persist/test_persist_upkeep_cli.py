"""`holdfast persist holds|gc|compact|sweep`: their output, and what they leave alone."""

import json
import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.ids import new_id, part_key
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.state.divergence import Marker, encode_marker
from holdfast.persist.state.machine import commit
from holdfast.persist.stores import Digest
from holdfast.tables.files.source import RowSource, whole

SCHEMA = Schema.of({"id": "int64"}, {"name": "string?"})
SHARD = "s00000000-0000-4000-8000-000000000001"
DAY_S = 24 * 3600


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["persist", *arguments])


def ok(*arguments: str) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "location"


@pytest.fixture
def url(folder: Path) -> str:
    """A location with one shard of five batches in blobs, a lease that is left behind and two holds."""
    config = PersistConfig(hostname="ship", inline_max_bytes=0, maintenance="off", lease_s=900.0)
    client = PersistClient.open(f"file://{folder}", config=config)
    writer = client.writer(SHARD, SCHEMA, purpose="orders")
    for at in range(8):
        writer.compare_and_append(pa.table({"id": [1], "name": ["a"]}), at, at + 1)
    client.critical_since(SHARD, purpose="backup [red]x[/]")
    client.reader(SHARD, purpose="dashboard")
    client.critical_since(SHARD, purpose="retention", opaque=b"secret").downgrade(4)
    client.location.close()
    return f"file://{folder}"


def test_holds_are_shown_with_what_they_keep(url: str) -> None:
    result = ok("holds", url)
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["SHARD", "HELD", "AT", "BEHIND", "FOR", "BY", "ENDS", "TOKEN"]
    assert len(lines) == 3
    assert lines[-1].split()[1:4] == ["4", "4", "retention"]
    assert "secret" not in result.output
    assert "backup [red]x[/]" in result.stdout
    assert any("dashboard" in line and "15 min lease" in line and "ship" in line for line in lines)
    assert result.stderr.strip() == "3 holds on 1 shard"
    holds = json.loads(ok("holds", url, SHARD, "--json").stdout)
    assert {(hold["kind"], hold["lease_s"]) for hold in holds} == {("critical", None), ("leased", 900.0)}


def test_compact_tells_what_it_merged(url: str) -> None:
    result = ok("compact", url)
    assert result.stdout.splitlines()[1].split()[1:4] == ["8", "->", "1"]
    assert result.stderr.strip() == "compacted 1 of 1 shard"
    again = ok("compact", url)
    assert (again.stdout, again.stderr.strip()) == ("", "compacted 0 of 1 shard")


def test_compact_merges_all_when_asked(url: str) -> None:
    ok("compact", url)
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        client.writer(SHARD, SCHEMA, purpose="more").compare_and_append(
            pa.table({"id": [2], "name": ["b"]}), 8, 9
        )
    assert ok("compact", url).stdout == ""
    (done,) = json.loads(ok("compact", url, SHARD, "--full", "--json").stdout)
    assert (done["batches_before"], done["batches"]) == (2, 1)


def test_gc_deletes_what_has_waited(url: str, folder: Path) -> None:
    ok("compact", url)
    result = ok("gc", url)
    assert result.stderr.strip() == "deleted 0 blobs of 1 shard; 8 wait"
    assert ok("gc", url, "--grace", "0").stderr.strip().startswith("deleted 0 blobs"), "a lease holds them"
    assert len(list((folder / "blob" / SHARD).glob("w*/p*"))) == 8


def test_gc_deletes_what_nobody_holds(url: str, folder: Path) -> None:
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        machine = client.session.machine(SHARD)
        readers = machine.refresh().leased_readers.values()
        commit([(machine, ExpireHandles(tuple((each.id, each.heartbeats) for each in readers), ()))])
    ok("compact", url)
    kept = ok("gc", url, SHARD, "--grace", "0", "--keep-garbage", "60")
    assert kept.stderr.strip() == "deleted 0 blobs of 1 shard; 8 wait"
    result = ok("gc", url, SHARD, "--grace", "0")
    assert result.stdout.splitlines()[1].split()[:3] == [SHARD, "8", "0"]
    assert result.stderr.strip() == "deleted 8 blobs of 1 shard; 0 wait"
    assert len(list((folder / "blob" / SHARD).glob("w*/p*"))) == 0


def test_gc_says_why_it_deletes_nothing(url: str) -> None:
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        marker = Marker(SHARD, 0, 99, Digest(9, b"mine"), None, 1, "ship", 0)
        client.location.blob.put(marker.key, encode_marker(marker))
    told = ok("gc", url).stderr.splitlines()
    assert told[1] == f"nothing of 1 shard is deleted, such as {SHARD}:"
    assert "ship" in told[2]
    assert told[3] == "'holdfast persist recover' with --accept shows all of them"
    (done,) = json.loads(ok("gc", url, "--json").stdout)
    assert "ship" in done["kept"]


def test_sweep_shows_orphans_and_deletes_when_asked(url: str, folder: Path) -> None:
    left = folder / "blob" / part_key(SHARD, new_id("w"), new_id("p"))
    left.parent.mkdir()
    left.write_bytes(b"orphan")
    assert ok("sweep", url).stderr.splitlines()[0].endswith("1 too young to tell")
    old = time.time() - 3 * DAY_S
    os.utime(left, (old, old))
    result = ok("sweep", url)
    assert str(left.relative_to(folder / "blob")) in result.stdout
    assert result.stdout.splitlines()[1].endswith("6 bytes  3 d")
    assert result.stderr.splitlines()[-1] == "nothing was deleted: pass --delete to delete"
    assert left.exists()
    told = json.loads(ok("sweep", url, "--delete", "--json").stdout)
    assert [orphan["size_bytes"] for orphan in told["shards"][0]["orphans"]] == [6]
    assert ok("sweep", url).stdout == ""


def test_verify_tells_each_finding_with_its_key(url: str, folder: Path) -> None:
    result = ok("verify", url)
    assert (result.stdout, result.stderr) == ("", "read 8 rows in 8 parts of 1 shard: all is well\n")
    first, second, *_ = sorted((folder / "blob" / SHARD).glob("w*/p*"))
    first.unlink()
    second.write_bytes(b"no part")
    result = run("verify", url, SHARD)
    assert result.exit_code == 1
    keys = [str(path.relative_to(folder / "blob")) for path in (first, second)]
    gone, damaged = sorted(result.stdout.splitlines())
    assert gone == f"{keys[0]}: the part is gone"
    assert re.fullmatch(rf"{keys[1]}: it is corrupt: expected [0-9]+ bytes, found 7 bytes", damaged)
    *_, counted, hint = result.stderr.splitlines()
    assert counted.endswith("2 findings")
    assert hint.startswith("  hint: put it back from a copy of the store; ")
    assert "persist recover" in hint
    told = run("verify", url, "--json")
    assert told.exit_code == 1
    findings = json.loads(told.stdout)["findings"]
    assert sorted(each["key"] for each in findings) == keys
    assert {f"  hint: {each['hint']}" for each in findings} == {hint}


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_export_writes_the_contents_at_a_time(url: str, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"out.{suffix}"
    result = ok("export", url, SHARD, str(file))
    assert result.stderr.strip() == f"wrote 8 rows as of 7 to {file}"
    assert whole(RowSource(file, None, SCHEMA)).to_pylist() == [{"id": 1, "name": "a"}] * 8
    ok("export", url, SHARD, str(file), "--as-of", "5", "--diff")
    assert whole(RowSource(file, None, SCHEMA)).to_pylist() == [{"id": 1, "name": "a", "_diff": 6}]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_export_that_fails_leaves_the_old_file(url: str, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    file.write_text("old")
    for part in (folder / "blob" / SHARD).glob("w*/p*"):
        part.unlink()
    assert run("export", url, SHARD, str(file)).exit_code == 3
    assert file.read_text() == "old"
    assert run("export", url, SHARD, str(file), "--as-of", "1").exit_code != 0
    assert run("export", url, SHARD, str(tmp_path / "no" / "x.csv")).exit_code == 2
    assert run("export", url, SHARD, str(tmp_path / "x.what")).exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["location", "out.csv"]


def test_recover_tells_before_it_does(url: str, folder: Path) -> None:
    with PersistClient.open(url, config=PersistConfig(rollup_every=1, maintenance="off")) as client:
        client.maintain(SHARD)
    for file in folder.glob("consensus.sqlite*"):
        file.unlink()
    refused = run("inspect", url)
    assert refused.exit_code == 2, "there is a location, and its consensus store is lost"
    assert f"run: holdfast persist recover {url}\n" in refused.stderr
    assert "catalog init" not in refused.stderr
    dry = run("recover", url)
    assert dry.exit_code == 1, "nobody knows what came after the rollup"
    assert dry.stderr.splitlines()[0].startswith("treated as empty: ")
    assert dry.stderr.splitlines()[-1].startswith("nothing was written")
    assert not (folder / "consensus.sqlite").exists()
    done = run("recover", url, "--yes")
    assert (done.exit_code, done.stdout) == (1, dry.stdout)
    assert done.stderr.splitlines()[0] == "recovered 1 of 1 shard"
    assert ok("verify", url).stderr.endswith("all is well\n")
    assert run("recover", url, "--yes").exit_code == 0


def test_recover_says_so_where_a_shard_is_lost(url: str, folder: Path) -> None:
    for file in folder.glob("consensus.sqlite*"):
        file.unlink()
    dry = run("recover", url)
    assert dry.exit_code == 1
    assert "1 shard would be lost" in dry.stderr
    done = run("recover", url, "--yes")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[:2] == [
        "recovered 0 of 1 shard",
        "1 shard lost: only a newer copy of the consensus store has more",
    ]
    told = run("verify", url)
    assert told.exit_code == 1
    assert f"{SHARD}/: the shard has blobs (8) but no log" in told.stdout
    assert json.loads(run("verify", url, "--json").stdout)["findings"][0]["shard_id"] == SHARD


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("holds", "{url}", "nonsense"), "'nonsense' is not a shard id"),
        (("gc", "{url}", new_id("s")), "does not exist"),
        (("compact", "{url}", new_id("s")), "does not exist"),
        (("sweep", "{url}", "--older-than", "1"), "younger than 24 hours"),
        (("gc", "{url}", "--grace", "-1"), "--grace"),
        (("gc", "{url}", "--consensus", "sqlite:///nowhere/else.sqlite"), ""),
        (("sweep", "gopher://x"), "gopher"),
        (("recover", "file:///nowhere", "--yes"), "/nowhere"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_changes_nothing(
    url: str, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    def stored() -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and "-shm" not in path.name
        }

    before = stored()
    result = run(*(each.format(url=url) for each in arguments))
    assert result.exit_code in (2, 3)
    assert result.stdout == ""
    first, *hints = result.stderr.splitlines()
    assert first.startswith("holdfast: ")
    assert message in first
    assert len(hints) <= 1
    assert stored() == before
