"""`holdfast persist recover` names what comes back and what is lost. Then collections can be read."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.catalog import OpenMode, catalog_shard_id, persist_catalog
from holdfast.cli import main
from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import HoldfastError, LogRegressed
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.admin import recover
from holdfast.persist.admin.verify import verify
from holdfast.persist.ids import EPOCH_BITS, rollup_key
from holdfast.persist.state import divergence
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.divergence import Marker, decode_marker, encode_marker
from holdfast.persist.stores import BlobMeta, Digest, FileBlob

ROWS = 40


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "location"


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


def lose_consensus(folder: Path) -> None:
    for file in folder.glob("consensus.sqlite*"):
        file.unlink()


def contents(url: str) -> list[int]:
    done = run("collection", "read", "orders", "--url", url, "--format", "json")
    assert done.exit_code == 0, done.output
    return sorted(json.loads(line)["id"] for line in done.stdout.splitlines())


def test_what_commands_wrote_comes_back_without_the_consensus_store(
    url: str, folder: Path, tmp_path: Path
) -> None:
    assert run("collection", "create", "orders", "--url", url, "--key", "id:int64").exit_code == 0
    for number in range(4):
        file = tmp_path / "new.csv"
        file.write_text("id\n" + "\n".join(str(number * 10 + row) for row in range(10)))
        assert run("collection", "write", "orders", str(file), "--url", url).exit_code == 0
    lose_consensus(folder)
    dry = run("persist", "recover", url)
    assert dry.stderr.endswith(f"and run: holdfast persist recover {url} --yes\n")
    assert "collection orders: comes back complete up to " in dry.stderr
    done = run("persist", "recover", url, "--yes")
    assert done.exit_code == 1, "nobody knows what came after"
    assert "recovered 3 of 3 shards" in done.stderr
    for looked in (dry, done):
        assert "; if anything was written later, it is lost" in looked.stderr
        assert "nobody knows whether anything is lost" in looked.stderr
        assert "leftover" not in looked.stderr
        assert looked.stdout.count("no later version is known") == 3
    assert done.stderr.endswith(f"run: holdfast persist verify {url}\n")
    assert "nothing was written" not in done.stderr
    assert "collection orders: came back complete up to " in done.stderr
    assert "orders: r1, 1 of 1" in done.stdout
    assert contents(url) == list(range(ROWS))


def test_a_collection_whose_shards_come_back_apart_can_be_read_and_its_lost_times_are_named(
    url: str, folder: Path
) -> None:
    schema = Schema.of({"id": "int64"})
    with (
        PersistClient.open(url, config=PersistConfig(inline_max_bytes=0)) as client,
        StorageController(client, who="test") as controller,
    ):
        controller.create_collection(CollectionSpec("c1", "orders", schema, 2))
        writer = controller.writer("c1", purpose="test")
        writer.append([{"id": number} for number in range(20)], 0, 10)
    with (
        PersistClient.open(url, config=PersistConfig(inline_max_bytes=0)) as client,
        StorageController(client, who="test") as controller,
    ):
        writer = controller.writer("c1", purpose="test")
        writer.append([{"id": number} for number in range(20, 40)], 10, 20)
        first, second = controller.describe("c1").holding.shards
        before = {path.name for path in (folder / "blob" / second).iterdir()}
    for path in (folder / "blob" / second).glob("v*"):
        if path.name not in before:
            path.unlink()
    lose_consensus(folder)
    old = shutil.copytree(folder, folder.parent / "copy")
    dry = run("persist", "recover", url)
    assert dry.exit_code == 1
    assert "comes back complete up to 10, and without some rows from then up to 20" in dry.stderr
    report = json.loads(run("persist", "recover", f"file://{old}", "--json").stdout)
    (collection,) = report["collections"]
    assert (collection["complete_to"], collection["upper"], collection["lagging"]) == (10, 20, [second])
    assert run("persist", "recover", url, "--yes").exit_code == 1
    (listed,) = json.loads(run("collection", "list", "--url", url, "--json").stdout)
    assert (listed["name"], listed["state"], listed["upper"]) == ("orders", "Active", 20)
    found = contents(url)
    assert set(range(20)) < set(found) < set(range(40))
    again = run("persist", "recover", url, "--yes")
    assert (again.exit_code, again.stdout) == (0, ""), "all is done"
    # Of a collection with a shard that never comes back nothing is made up.
    shutil.rmtree(old / "blob" / first)
    dry = run("persist", "recover", f"file://{old}")
    assert "collection orders: would not be usable: 1 of its 3 shards can't be recovered" in dry.stderr
    lost = run("persist", "recover", f"file://{old}", "--yes")
    assert lost.exit_code == 1
    assert "collection orders: can't be used: 1 of its 3 shards can't be recovered" in lost.stderr
    (listed,) = json.loads(run("collection", "list", "--url", f"file://{old}", "--json").stdout)
    assert (listed["name"], listed["state"], listed["upper"]) == ("orders", "Torn", None)


def test_a_location_in_which_nothing_is_left_is_named(url: str, folder: Path) -> None:
    with PersistClient.open(url):
        pass
    lose_consensus(folder)
    for options in ((), ("--yes",)):
        looked = run("persist", "recover", url, *options)
        assert looked.exit_code == 1
        assert "nothing was found: no shard has a log or a blob" in looked.stderr
        assert "0 of 0" not in looked.stderr
        assert "start the clients" not in looked.stderr
    assert "nothing was written" not in looked.stderr


def test_two_histories_need_a_choice(url: str, folder: Path, tmp_path: Path) -> None:
    shard = "s00000000-0000-4000-8000-000000000001"
    schema = Schema.of({"id": "int64"})

    def write(first: int, count: int, *, close: bool = True) -> None:
        client = PersistClient.open(url)
        with client.writer(shard, schema, purpose="test") as writer:
            for time in range(first, first + count):
                writer.compare_and_append([{"id": time}], time, time + 1)
        (client if close else client.location).close()

    write(0, 5)
    copy = tmp_path / "copy.sqlite"
    shutil.copy(folder / "consensus.sqlite", copy)
    write(5, 10)
    lose_consensus(folder)
    shutil.copy(copy, folder / "consensus.sqlite")
    write(5, 2, close=False)
    log = (folder / "consensus.sqlite").read_bytes()
    for options in ((), ("--yes",)):
        refused = run("persist", "recover", url, *options)
        assert refused.exit_code == 1, refused.output
        assert "1 shard with two histories: clients wrote to an older copy; choose with" in refused.stderr
        assert "nothing was written" in refused.stderr
        assert refused.stderr.endswith(f"run: holdfast persist recover {url} --take WHICH --yes\n")
        shown = run("persist", "recover", url, *options, "--json")
        assert (shown.exit_code, json.loads(shown.stdout)["done"]) == (1, False)
    assert (folder / "consensus.sqlite").read_bytes() == log
    assert run("persist", "recover", url, "--take", "what").exit_code == 2
    done = run("persist", "recover", url, "--yes", "--take", "log")
    assert done.exit_code == 1, done.output
    assert "the other history is lost" in done.stdout
    with PersistClient.open(url, mode="read") as client:
        assert client.recent_upper(shard) == 7


def test_nothing_is_lost_where_the_log_is_whole(url: str, folder: Path) -> None:
    shard = "s00000000-0000-4000-8000-000000000001"
    with (
        PersistClient.open(url) as client,
        client.writer(shard, Schema.of({"id": "int64"}), purpose="t") as writer,
    ):
        writer.compare_and_append([{"id": 1}], 0, 1)
    # A recovery that was cut short: only the blob store has counted it.
    location = folder / "blob" / "location.json"
    location.write_text(json.dumps({**json.loads(location.read_text()), "recoveries": 1}))
    with pytest.raises(HoldfastError):
        PersistClient.open(url)
    for options in ([], ["--yes"]):
        done = run("persist", "recover", url, *options)
        assert done.exit_code == 0
        assert "every log is whole: nothing is lost, except what the recovery" in done.stderr
        assert "nobody knows" not in done.stderr
        assert "its log is whole" in done.stdout


@pytest.mark.parametrize("yes", [False, True])
def test_versions_that_certainly_are_lost_are_named_with_their_collection(
    url: str, folder: Path, yes: bool
) -> None:
    """The blobs of the newest versions are gone, and an older rollup is left."""
    schema = Schema.of({"id": "int64"})
    for first in (0, 10):
        with (
            PersistClient.open(url, config=PersistConfig(inline_max_bytes=0, maintenance="off")) as client,
            StorageController(client, who="test") as controller,
        ):
            if not first:
                controller.create_collection(CollectionSpec("c1", "orders", schema))
            writer = controller.writer("c1", purpose="test")
            writer.append([{"id": first}], first, first + 10)
            (shard,) = controller.describe("c1").holding.shards
            parts = [path.name for path in (folder / "blob" / shard).glob("w*")]
        if not first:
            kept = set(parts)
    for name in set(parts) - kept:
        shutil.rmtree(folder / "blob" / shard / name)
    with PersistClient.open(url, mode="read") as client:
        head = client.session.existing(shard).state.seqno
    done = run("persist", "recover", url, *(["--yes"] if yes else []))
    assert done.exit_code == 1
    (row,) = [line for line in done.stdout.splitlines() if line.startswith(shard)]
    assert row.rstrip().endswith(("is lost", "are lost"))
    came = "came back" if yes else "comes back"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("collection orders: ")]
    assert f"{came} complete up to 10; what version" in line
    assert line.endswith(f" to {head} of {shard} wrote later is lost")
    assert f"versions of 1 shard {'are' if yes else 'would be'} lost: see NOTE" in done.stderr


def test_an_accepted_log_may_be_collected_again(url: str, folder: Path) -> None:
    """The file was replaced by an older copy under a client that had written more."""
    schema = Schema.of({"k": "int64"}, {})
    config = PersistConfig(maintenance="off")
    with PersistClient.open(url, config=config) as client:
        shard = client.new_shard_id()
        writer = client.writer(shard, schema, purpose="test")
        writer.compare_and_append([{"k": 0}], 0, 1)
        for known, found in ((Digest(9, b"mine"), None), (Digest(9, b"mine"), Digest(8, b"them"))):
            marker = Marker(shard, 0, 99, known, found, 1, "ship", 0)
            client.location.blob.put(marker.key, encode_marker(marker))
    looked = run("persist", "recover", url, "--accept")
    assert (looked.exit_code, shard in looked.stdout) == (1, True)
    assert "nothing was written" in looked.stderr
    (lost,) = [line for line in looked.stdout.splitlines() if " lost " in line]
    assert lost.split()[:3] == ["lost", "99", "unknown"], "a client leaves the version, but no upper"
    undecided = run("persist", "recover", url)
    assert (undecided.exit_code, "1 shard may have two histories" in undecided.stderr) == (1, True)
    assert len(list((folder / "blob" / shard).glob("f*"))) == 2
    done = run("persist", "recover", url, "--accept", "--yes")
    assert (done.exit_code, "accepted the log of 1 shard" in done.stderr) == (0, True)
    assert list((folder / "blob" / shard).glob("f*")) == []
    again = json.loads(run("persist", "recover", url, "--accept", "--json").stdout)
    assert again == {"done": False, "shards": {}, "histories": []}
    nothing = run("persist", "recover", url, "--accept")
    assert (nothing.exit_code, "there is nothing to accept" in nothing.stderr) == (0, True)
    refused = run("persist", "recover", url, "--accept", "--restored")
    assert refused.exit_code == 2


def write_rows(url: str, folder: Path, first: int) -> None:
    """Ten rows, by a client that closes: it writes rollups."""
    file = folder.parent / "new.csv"
    file.write_text("id\n" + "\n".join(str(first + row) for row in range(10)))
    assert run("collection", "write", "orders", str(file), "--url", url).exit_code == 0


def overwrite(path: Path, copy: Path) -> None:
    """As `cp` does, with nothing in the WAL, and in another process: this one has locks on the file."""
    code = (
        "import shutil, sqlite3, sys; copy, path = sys.argv[1:];"
        " sqlite3.connect(path).execute('PRAGMA wal_checkpoint(TRUNCATE)'); shutil.copyfile(copy, path)"
    )
    subprocess.run([sys.executable, "-c", code, str(copy), str(path)], check=True)


@pytest.mark.parametrize("went_on", [False, True], ids=["an older log", "two logs"])
def test_accept_shows_for_each_shard_what_is_kept_and_what_is_lost(
    url: str, folder: Path, went_on: bool
) -> None:
    path, copy = folder / "consensus.sqlite", folder.parent / "copy.sqlite"
    assert run("collection", "create", "orders", "--url", url, "--key", "id:int64").exit_code == 0
    write_rows(url, folder, 0)
    # The last client that closed has emptied the WAL.
    shutil.copyfile(path, copy)
    for number in (1, 2):
        write_rows(url, folder, number * 10)
    with PersistClient.open(url, config=PersistConfig(maintenance="off", hostname="ship")) as living:
        known = {shard: (living.recent_upper(shard), _seqno(living, shard)) for shard in living.shards()}
        overwrite(path, copy)
        if went_on:
            write_rows(url, folder, 500)
        regressed = 0
        for shard in known:
            try:
                living.recent_upper(shard)
            except LogRegressed:
                regressed += 1
        # The shard of the metadata gets a version only now and then.
        assert 2 <= regressed <= len(known)
    with PersistClient.open(url, mode="read") as client:
        log = {shard: (client.recent_upper(shard), _seqno(client, shard)) for shard in client.shards()}
    report = json.loads(run("persist", "recover", url, "--accept", "--json").stdout)
    assert report["shards"].keys() == {each["shard_id"] for each in report["histories"]}
    names = {each["of"] for each in report["histories"]}
    assert {"orders: r1, 1 of 1", "records of collections"} <= names
    assert names <= {"orders: r1, 1 of 1", "records of collections", "orders: metadata"}
    by_client: set[str] = set()
    for each in report["histories"]:
        shard = each["shard_id"]
        assert (each["kept"]["upper"], each["kept"]["seqno"]) == log[shard]
        by = {side["source"]: side for side in each["others"]}
        if "client" in by:
            by_client.add(shard)
            assert (by["client"]["seqno"], by["client"]["hostname"]) == (known[shard][1], "ship")
            assert 0 < by["client"]["lost"] <= known[shard][1]
            assert by["client"]["wall_ms"] >= each["kept"]["wall_ms"]
        # The newest rollup is of the last client that closed, which knew all.
        assert (by["rollup"]["upper"], by["rollup"]["seqno"] <= known[shard][1]) == (known[shard][0], True)
    assert len(by_client) == len(names), "it compared all its shards when it ended"
    looked = run("persist", "recover", url, "--accept")
    assert looked.exit_code == 1
    rows = [line for line in looked.stdout.splitlines() if " kept " in line or " lost " in line]
    kept = [line for line in rows if " kept " in line]
    assert (len(kept), len(rows)) == (len(names), 3 * len(names))
    for shard in by_client:
        assert [line for line in rows if "ship" in line and f" {known[shard][1]} " in line]
    assert "the rows that only the other history has would be lost" in looked.stderr
    assert "likely causes are a failover to a lagging standby" in looked.stderr
    assert re.search(
        r"; acknowledged writes after \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC may be lost", looked.stdout
    )
    if went_on:
        plain = run("persist", "recover", url)
        assert "(orders: r1, 1 of 1): the log's history ends with version" in plain.stderr
        assert "see --accept" in plain.stderr
    accepted = run("persist", "recover", url, "--accept", "--yes")
    assert accepted.exit_code == 0
    assert "the rows that only the other history has are lost" in accepted.stderr
    assert "clients that ended with LogRegressed stay ended: open new ones" in accepted.stderr
    assert json.loads(run("persist", "recover", url, "--accept", "--json").stdout)["histories"] == []
    with PersistClient.open(url, mode="read") as client:
        assert {shard: client.recent_upper(shard) for shard in log} == {
            shard: upper for shard, (upper, _) in log.items()
        }


@pytest.mark.parametrize("options", [["--accept"], []])
def test_no_more_of_a_rollup_is_read_than_a_rollup_may_have(
    url: str, folder: Path, shard: str, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Somebody has put a large object in the place of one."""
    (folder / "blob" / rollup_key(shard, 99)).write_bytes(bytes(1000))
    monkeypatch.setattr(divergence, "MOST_BYTES", 100)
    monkeypatch.setattr(recover, "MOST_BYTES", 100)
    read: list[int] = []
    start = FileBlob.get_start

    def counted(blob: FileBlob, key: str, most: int) -> bytes | None:
        found = start(blob, key, most)
        if "/v" in key:
            read.append(len(found or b""))
        return found

    monkeypatch.setattr(FileBlob, "get_start", counted)
    assert run("persist", "recover", url, *options).exit_code == 1
    assert 100 in read
    assert 1000 not in read


@pytest.mark.parametrize("told", [False, True])
def test_accept_names_the_shard_of_a_catalog(url: str, told: bool) -> None:
    """The shard does not contain the id of its organization, but the client that ended knew it."""
    organization = "11111111-2222-3333-4444-555555555555"
    shard = catalog_shard_id(organization)
    of = f"the catalog of organization {organization}" if told else ""
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        persist_catalog(client, organization).open(OpenMode.WRITABLE, holder="me", purpose="test").close()
        marker = Marker(shard, 0, 99, Digest(9, b"mine"), None, 1, "ship", 0, of)
        client.location.blob.put(marker.key, encode_marker(marker))
    shown = run("persist", "recover", url, "--accept")
    assert (of or "a catalog  ") in shown.stdout
    (each,) = json.loads(run("persist", "recover", url, "--accept", "--json").stdout)["histories"]
    assert each["of"] == (of or "a catalog")


def test_a_marker_of_an_earlier_version_says_not_what_its_shard_is_for() -> None:
    marker = Marker("s00000000-0000-4000-8000-000000000001", 0, 9, Digest(9, b"mine"), None, 1, "ship", 0)
    fields = json.loads(encode_marker(marker))
    del fields["of"]
    assert decode_marker(json.dumps(fields).encode(), marker.key) == marker


def _seqno(client: PersistClient, shard: str) -> int:
    return client.session.machine(shard).state.seqno


def test_many_shards_with_two_histories_are_cut_for_people_and_not_in_json(url: str) -> None:
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        for _ in range(23):
            shard = client.new_shard_id()
            with client.writer(shard, Schema.of({"k": "int64"}), purpose="test") as writer:
                writer.compare_and_append([{"k": 0}], 0, 1)
            for seqno in (98, 99):
                marker = Marker(shard, 0, seqno, Digest(9, b"mine"), None, 1, "ship", 1_700_000_000_000)
                client.location.blob.put(marker.key, encode_marker(marker))
    looked = run("persist", "recover", url, "--accept")
    assert (looked.stdout.count(" kept "), looked.stdout.count(" lost ")) == (20, 20)
    assert looked.stdout.count("the log lacks 98 versions or more of it; 1 more sign of it") == 20
    assert "and 3 more shards: --json shows all" in looked.stderr
    assert len(json.loads(run("persist", "recover", url, "--accept", "--json").stdout)["histories"]) == 23


@pytest.fixture
def shard(url: str) -> str:
    """A shard with three versions, in a location of its own."""
    with PersistClient.open(url, config=PersistConfig(maintenance="off", hostname="ship")) as client:
        shard = client.new_shard_id()
        with client.writer(shard, Schema.of({"k": "int64"}), purpose="test") as writer:
            writer.compare_and_append([{"k": 0}], 0, 1)
    return shard


def put_marker(url: str, marker: Marker, **other: object) -> None:
    """Put a marker, with other values in some of its fields."""
    fields = json.loads(encode_marker(marker)) | other
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        client.location.blob.put(marker.key, json.dumps(fields).encode())


@pytest.mark.parametrize("yes", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        {"wall_ms": 10**30},
        {"wall_ms": 253_402_300_800_000},
        {"wall_ms": -1},
        {"head": -1},
        {"head": 10**30},
    ],
)
def test_a_marker_with_an_impossible_value_is_named(
    url: str, shard: str, other: dict[str, object], yes: bool
) -> None:
    marker = Marker(shard, 0, 99, Digest(9, b"mine"), None, 1, "ship", 1_700_000_000_000)
    put_marker(url, marker, **other)
    with PersistClient.open(url, mode="read") as client:
        (finding,) = verify(client, shard).findings
    assert finding.key == marker.key
    shown = run("persist", "recover", url, "--accept", *(["--yes"] if yes else []))
    assert shown.exit_code == (0 if yes else 1), shown.output
    assert [line for line in shown.stdout.splitlines() if marker.key in line and " lost " in line]
    json_ = run("persist", "recover", url, "--accept", "--json")
    assert json_.exit_code == (0 if yes else 1)
    assert (marker.key in json_.stdout) is not yes


@pytest.mark.parametrize(
    ("seqno", "found", "head", "lost"),
    [
        (99, None, 1, 98),
        (99, None, 150, 1),
        (99, None, 0, 97),
        (1, None, 0, 1),
        (99, Digest(9, b"them"), 120, 1),
        ((3 << 40) + 5, None, 1, 5),
    ],
)
def test_what_is_lost_is_a_possible_count(
    url: str, shard: str, seqno: int, found: Digest | None, head: int, lost: int
) -> None:
    put_marker(url, Marker(shard, 0, seqno, Digest(9, b"mine"), found, head, "ship", 1))
    (each,) = json.loads(run("persist", "recover", url, "--accept", "--json").stdout)["histories"]
    assert [side["lost"] for side in each["others"]] == [lost]


def test_what_a_rollup_of_a_later_recovery_has_is_a_possible_count(url: str, shard: str) -> None:
    with PersistClient.open(url, config=PersistConfig(maintenance="off")) as client:
        later = replace(client.session.existing(shard).state, seqno=(7 << EPOCH_BITS) + 3)
        client.location.blob.put(rollup_key(shard, later.seqno), encode_state(later))
    (each,) = json.loads(run("persist", "recover", url, "--accept", "--json").stdout)["histories"]
    assert [side["lost"] for side in each["others"]] == [3]


@pytest.mark.parametrize("hostname", ["ship\nwreck", "ship\x1b[31m", "ship\r", "ship\u2028x", "ship\ud800"])
def test_a_host_name_stays_on_its_line(url: str, shard: str, hostname: str) -> None:
    put_marker(url, Marker(shard, 0, 99, Digest(9, b"mine"), None, 1, hostname, 1))
    shown = run("persist", "recover", url, "--accept")
    assert shown.exit_code == 1
    head, kept, lost = shown.stdout.splitlines()
    assert "BY HOST" in head
    assert " kept " in kept
    assert repr(hostname)[1:-1] in lost
    assert hostname not in shown.output
    assert len(shown.stdout.splitlines()) == 3


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_a_healthy_location_needs_no_recovery(
    url: str, folder: Path, shard: str, yes: tuple[str, ...]
) -> None:
    def stored() -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".sqlite-shm"
        }

    before = stored()
    shown = run("persist", "recover", url, *yes)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "the consensus store is healthy: there is nothing to recover" in shown.stderr
    told = run("persist", "recover", url, *yes, "--json")
    assert told.exit_code == 0
    assert json.loads(told.stdout)["done"] is False
    assert stored() == before


@pytest.mark.parametrize("number", ["9" * 20, "9" * 19, str(1 << 63), str((1 << 63) - 1), str(1 << 64)])
def test_a_foreign_object_with_an_impossible_number_blocks_no_recovery(
    url: str, folder: Path, shard: str, number: str
) -> None:
    name = f"v{number}-00000000-0000-4000-8000-000000000001"
    (folder / "blob" / shard / name).write_bytes(b"not ours")
    assert run("persist", "recover", url).exit_code == 0, "healthy"
    assert json.loads(run("persist", "recover", url, "--accept", "--json").stdout)["histories"] == []
    lose_consensus(folder)
    done = run("persist", "recover", url, "--yes")
    assert done.exit_code == 1, done.output
    assert "recovered 1 of 1 shard" in done.stderr
    assert (folder / "blob" / shard / name).read_bytes() == b"not ours"


@pytest.mark.parametrize("command", ["recover", "inspect", "holds", "verify"])
def test_texts_of_a_log_stay_on_their_lines(url: str, folder: Path, command: str) -> None:
    hostname = "ship\n\x1b[31mwreck"
    with PersistClient.open(url, config=PersistConfig(maintenance="off", hostname=hostname)) as client:
        shard = client.new_shard_id()
        with client.writer(shard, Schema.of({"k": "int64"}), purpose="test") as writer:
            writer.compare_and_append([{"k": 0}], 0, 1)
        client.reader(shard, purpose="test")
        later = replace(client.session.existing(shard).state, seqno=99, shard_id="s\x1b[31m")
        client.location.blob.put(rollup_key(shard, 99), encode_state(later))
        client.location.close()
    more = {"inspect": [shard], "recover": ["--accept"]}.get(command, [])
    done = run("persist", command, url, *more)
    assert done.exit_code == (1 if command in ("verify", "recover") else 0), done.output
    assert "\x1b" not in done.output
    if command in ("inspect", "holds", "recover"):
        assert [line for line in done.stdout.splitlines() if "ship\\n\\x1b[31mwreck" in line]


@pytest.mark.parametrize("command", [["recover", "--accept", "--yes"], ["verify"]])
def test_a_healthy_location_is_left_alone_while_a_client_writes_rollups(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """A client commits a version and writes its rollup after the command has read the head."""
    config = PersistConfig(maintenance="off", rollup_every=1)
    listed = FileBlob.list
    with PersistClient.open(url, config=config) as client:
        shard = client.new_shard_id()
        writer = client.writer(shard, Schema.of({"k": "int64"}), purpose="test")
        times = iter(range(1000))

        def write() -> None:
            time = next(times)
            writer.compare_and_append([{"k": time}], time, time + 1)
            client.maintain(shard)

        def late(blob: FileBlob, prefix: str) -> Iterator[BlobMeta]:
            if prefix == f"{shard}/v":
                monkeypatch.setattr(FileBlob, "list", listed)
                write()
                monkeypatch.setattr(FileBlob, "list", late)
            return listed(blob, prefix)

        write()
        monkeypatch.setattr(FileBlob, "list", late)
        done = run("persist", command[0], url, *command[1:])
        assert done.exit_code == 0, done.output
        assert shard not in done.stdout
        client.location.close()
    monkeypatch.setattr(FileBlob, "list", listed)
    with PersistClient.open(url, mode="read") as client:
        assert client.recent_upper(shard) == next(times)
