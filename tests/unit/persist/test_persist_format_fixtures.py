"""What each released format version wrote stays readable, and can be written on."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.make_format import (
    BLOCKS,
    FOLDER,
    LIMITED,
    LIMITS,
    SUMS,
    TYPES,
    Names,
    listed,
    main,
    restore,
    sums,
)
from holdfast.errors import CLOSED, CorruptBlob, Deprecated, ShardFinalized, VersionTooNew
from holdfast.persist import (
    PersistClient,
    PersistConfig,
    Progress,
    ReadHandle,
    Schema,
    SnapshotPart,
    TypedReader,
    TypedUpdate,
    Updates,
)
from holdfast.persist.parts.verified import known_part
from holdfast.persist.rows.blocks import checksums
from holdfast.persist.rows.part import KEY_FORMAT_VERSION, check_footer
from holdfast.persist.rows.stored import logical_rows
from holdfast.persist.state.codec import (
    DIFF_MAGIC,
    FORMAT_VERSION,
    ROLLUP_MAGIC,
    decode_diff,
    decode_state,
    open_frame,
)
from holdfast.persist.state.lock import LOCK_MAGIC
from holdfast.persist.state.state import ShardState, WriteMode
from holdfast.persist.stores import SqliteConsensus, location, log_codec
from holdfast.persist.stores.formats import OLDEST
from holdfast.persist.stores.frame import seal, unseal
from holdfast.persist.stores.log_codec import CHECKPOINT_MAGIC, FLOOR_MAGIC, OBJECT_MAGIC
from holdfast.tables.files.formats import from_json_lines, write_json_lines

FIXTURES = [FOLDER / f"v{version}" for version in range(OLDEST, FORMAT_VERSION + 1)]
EACH = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.name)


def expected(fixture: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((fixture / "expected.json").read_text())
    return found


@pytest.fixture
def folder(fixture: Path, tmp_path: Path) -> Path:
    """A copy of a fixture, to be opened."""
    folder = tmp_path / "location"
    restore(fixture, folder)
    return folder


@EACH
def test_a_released_format_is_never_changed(fixture: Path) -> None:
    """If this fails, put the files back as they were released.

    What they hold must stay readable as it is. A change of the format gets a new version, and that one its
    own folder: raise the version in `holdfast.persist.state.codec` (or that of the part or the store which
    changed) and run `make format-fixture`.
    """
    assert fixture.is_dir(), f"{fixture} is missing: run 'make format-fixture' for a new format version"
    lines = [line.split("  ", 1) for line in (fixture / SUMS).read_text().splitlines()]
    stored = {path: digest for digest, path in lines}
    found = sums(fixture)
    changed = [path for path in {**stored, **found} if stored.get(path) != found.get(path)]
    assert not changed, (
        f"{changed} of the released format {fixture.name} changed: restore them with 'git checkout'; a new"
        " format needs a new version and a new folder, made by 'make format-fixture'"
    )


@pytest.mark.parametrize("fixture", [TYPES], ids=lambda path: path.name)
def test_values_of_later_types_are_read_and_written_on(fixture: Path, folder: Path) -> None:
    test_a_released_format_is_never_changed(fixture)
    with PersistClient.open(folder.as_uri()) as client:
        shard = client.names()["typed"]
        rows = expected(fixture)["rows"]
        with client.reader(shard, purpose="test") as reader:
            schema = reader.snapshot(1).schema
            contents = logical_rows(reader.snapshot(1).to_table(), schema).sort_by("k")
            stream = io.BytesIO()
            write_json_lines(contents.drop_columns("_diff"), stream)
            assert [json.loads(line) for line in stream.getvalue().splitlines()] == rows
            text = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
            (again,) = from_json_lines(io.BytesIO(text), schema)
            with client.writer(shard, schema, purpose="test") as writer:
                writer.compare_and_append(again.append_column("_diff", pa.array([-1] * 4)), 2, 3)
            assert reader.snapshot(2).to_table().num_rows == 0


@pytest.mark.parametrize("fixture", [LIMITS], ids=lambda path: path.name)
def test_limits_of_parts_are_read_and_leave_parts_out(fixture: Path, folder: Path) -> None:
    test_a_released_format_is_never_changed(fixture)
    facts = expected(fixture)["shards"]
    assert facts.keys() == LIMITED.keys()
    with PersistClient.open(folder.as_uri(), mode="read") as client:
        for name, (_, limits) in LIMITED.items():
            read_all(client, facts[name])
            (part,) = (
                part for batch in state_of(client, facts[name]["shard"]).batches for part in batch.parts
            )
            assert (part.least, part.greatest) == limits
    for blob in folder.glob("blob/*/w*/p*"):
        blob.unlink()
    shard = facts["int32"]["shard"]
    with PersistClient.open(folder.as_uri(), mode="read") as client:
        for outside in (SnapshotPart(shard, 0, upper=-5), SnapshotPart(shard, 0, lower=8)):
            assert client.read_snapshot_part(outside).to_table().num_rows == 0
        with pytest.raises(CorruptBlob):
            client.read_snapshot_part(SnapshotPart(shard, 0, lower=7)).to_table()


@pytest.mark.parametrize("fixture", [BLOCKS], ids=lambda path: path.name)
def test_blocks_of_a_part_are_verified_by_its_footer(fixture: Path, folder: Path) -> None:
    test_a_released_format_is_never_changed(fixture)
    facts = expected(fixture)["shards"]["summed"]
    with PersistClient.open(folder.as_uri(), mode="read") as client:
        read_all(client, facts)
        (part,) = (part for batch in state_of(client, facts["shard"]).batches for part in batch.parts)
        blob = folder / "blob" / str(part.blob_key)
        known = known_part(client.session.machine(facts["shard"]), part)
    assert 0 < part.footer_bytes < part.size_bytes == blob.stat().st_size
    assert known.blocks == checksums(blob.read_bytes())
    assert len(known.blocks) > 1
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    with PersistClient.open(folder.as_uri(), mode="read") as client, pytest.raises(CorruptBlob):
        known_part(client.session.machine(facts["shard"]), part)


def read_all(client: PersistClient, facts: dict[str, Any]) -> None:
    """Compare everything that can be read of a shard with what is expected."""
    reader = client.reader(facts["shard"], purpose="test")
    assert list(client.inspect(facts["shard"]).schemas) == facts["schemas"]
    for time, rows in facts["contents"].items():
        as_of = int(time)
        snapshot = reader.snapshot(as_of)
        empty = snapshot.schema.arrow_diff
        assert listed(snapshot.to_table().to_pylist()) == rows
        assert listed(pa.Table.from_batches(list(snapshot), empty).to_pylist()) == rows
        pieces = [client.read_snapshot_part(part).to_table() for part in reader.snapshot_parts(as_of, 3)]
        assert listed(pa.concat_tables(pieces).to_pylist()) == rows
    first, *_, last = facts["contents"]
    assert listed(followed(reader, int(first))) == facts["contents"][last]
    reader.close()


def followed(reader: ReadHandle, as_of: int) -> list[dict[str, Any]]:
    listen = reader.subscribe(as_of)
    rows: list[dict[str, Any]] = []
    while events := listen.next(timeout=0):
        for event in events:
            assert isinstance(event, Updates | Progress)
            rows += event.table.to_pylist() if isinstance(event, Updates) else []
    return rows


@EACH
def test_what_a_format_wrote_is_read(fixture: Path, folder: Path) -> None:
    facts = expected(fixture)
    before = sums(folder / "blob")
    with PersistClient.open(folder.as_uri(), mode="read") as client:
        assert str(client.location_id) == facts["location_id"]
        assert client.names() == {name: shard["shard"] for name, shard in facts["shards"].items()}
        for shard in facts["shards"].values():
            info = client.inspect(shard["shard"])
            assert (info.since, info.upper) == (shard["since"], shard["upper"] or CLOSED)
            holds = sorted([hold.purpose, hold.kind, hold.since, hold.token] for hold in info.holds)
            assert holds == shard["holds"]
            if shard["upper"] is None:
                with pytest.raises(ShardFinalized):
                    client.reader(shard["shard"], purpose="test")
            else:
                read_all(client, shard)
        coded = facts["shards"]["coded"]
        with TypedReader(client, coded["shard"], Names(2), purpose="test") as reader:
            assert [*reader.snapshot(1)] == [
                TypedUpdate("k1", ["v1"], 1, 1),
                TypedUpdate("k2", ["v2"] * 2, 1, 1),
            ]
        with pytest.raises(VersionTooNew):
            TypedReader(client, coded["shard"], Names(1), purpose="test")
    assert sums(folder / "blob") == before


@EACH
@pytest.mark.parametrize("inline", [0, 65536], ids=["blob", "inline"])
def test_what_a_format_wrote_is_written_on(fixture: Path, folder: Path, inline: int) -> None:
    """Rows that are there already come again, upkeep runs, and what was there before is there still."""
    facts = expected(fixture)
    config = PersistConfig(
        maintenance="off", inline_max_bytes=inline, gc_grace_s=0.0, compaction_fanin=2, rollup_every=1
    )
    for _ in range(2):
        with PersistClient.open(folder.as_uri(), config=config) as client:
            for name, shard in facts["shards"].items():
                if shard["upper"] is None:
                    continue
                grow(client, shard)
                client.maintain(shard["shard"])
                read_all(client, shard)
                state = state_of(client, shard["shard"])
                assert client.create_or_load(name, state.schema, mode=state.write_mode) == shard["shard"]
    with PersistClient.open(folder.as_uri(), config=config) as client:
        stored = facts["shards"]["stored"]["shard"]
        client.critical_since(stored, purpose="fixture retention", opaque=b"token 1").downgrade(3)
        client.create_or_load("another", Schema.of({"k": "int64"}))
        client.exclusive("fixture").close()
        later = Schema.of({"k": "int64"}, {"v": "string?", "w": "int8?"})
        client.evolve(facts["shards"]["inline"]["shard"], later)
        assert later in state_of(client, facts["shards"]["inline"]["shard"]).schemas.values()


def state_of(client: PersistClient, shard: str) -> ShardState:
    return client.session.machine(shard).refresh()


def grow(client: PersistClient, shard: dict[str, Any]) -> None:
    """Append the newest contents once more; what is expected doubles from there on."""
    state = state_of(client, shard["shard"])
    upper = state.upper
    if state.write_mode is WriteMode.WRITE_SEAL:
        with client.exclusive("fixture"):
            mode = WriteMode.WRITE_SEAL
            writing = client.writer(shard["shard"], state.schema, purpose="test", mode=mode)
            writing.seal(shard["sealed"]["upper"])
            writing.close()
        shard["contents"][str(shard["sealed"]["upper"] - 1)] = shard["sealed"]["contents"]
        return
    newest = client.reader(shard["shard"], purpose="test").snapshot(upper - 1).to_table()
    with client.writer(shard["shard"], state.schema, purpose="test") as writer:
        writer.compare_and_append(newest, upper, upper + 1)
    rows = shard["contents"][str(upper - 1)]
    shard["contents"][str(upper)] = [[row, 2 * count] for row, count in rows]


def reframed(data: bytes, version: int) -> bytes:
    """A frame of another version with a right checksum."""
    prefix = data[:4] + struct.pack("<HH", version, 0)
    return (
        prefix + struct.pack("<I", google_crc32c.extend(google_crc32c.value(prefix), data[12:])) + data[12:]
    )


OTHERS = [(FORMAT_VERSION + 1, VersionTooNew), (OLDEST - 1, Deprecated)]


@pytest.mark.parametrize(("version", "error"), OTHERS)
def test_no_format_is_guessed(tmp_path: Path, version: int, error: type[Exception]) -> None:
    """Each frame says what it is, and one that this version doesn't read is refused by name."""
    restore(FIXTURES[-1], tmp_path)
    with PersistClient.open(tmp_path.as_uri(), mode="read") as client:
        shard = client.names()["stored"]
        (row,) = client.location.consensus.heads([shard]).values()
        state = state_of(client, shard)
        lock = client.location.consensus.heads(["lock"])["lock"].data
        rollup = client.location.blob.get(state.rollups[max(state.rollups)].blob_key)
        part = next(part for batch in state.batches for part in batch.parts if part.blob_key)
        data = client.location.blob.get(part.blob_key or "")
        schema = state.schemas[part.schema_id]
    assert rollup is not None
    assert data is not None
    with pytest.raises(error, match=f"a row has format version {version}"):
        decode_diff(reframed(row.data, version), "a row")
    with pytest.raises(error, match=f"a rollup has format version {version}"):
        decode_state(reframed(rollup, version), "a rollup")
    with pytest.raises(error, match=f"the lock has format version {version}"):
        open_frame(LOCK_MAGIC, reframed(lock, version), "the lock")
    for magic in (OBJECT_MAGIC, CHECKPOINT_MAGIC, FLOOR_MAGIC):
        with pytest.raises(error, match=f"an object has format version {version}"):
            unseal(magic, log_codec.FORMAT_VERSION, seal(magic, version, b""), "an object")
    assert (row.data[:4], rollup[:4]) == (DIFF_MAGIC, ROLLUP_MAGIC)
    table = pq.read_table(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**table.schema.metadata, KEY_FORMAT_VERSION: str(version).encode()})
    with pytest.raises(error, match=f"a part has part format {version}"):
        check_footer(pq.read_metadata(pa.BufferReader(sink.getvalue())), schema, key="a part")
    with pytest.raises(error, match=f"here has format {version}"):
        location.decode_location(json.dumps({"format": version, "location_id": "x"}).encode(), "here")


@pytest.mark.parametrize(("version", "error"), OTHERS)
def test_no_format_of_a_store_is_guessed(tmp_path: Path, version: int, error: type[Exception]) -> None:
    sql = (
        (FIXTURES[-1] / "consensus.sql")
        .read_text()
        .replace(f"user_version = {FORMAT_VERSION}", f"user_version = {version}")
    )
    (tmp_path / "changed" / "blob").mkdir(parents=True)
    (tmp_path / "changed" / "consensus.sql").write_text(sql)
    restore(tmp_path / "changed", tmp_path / "made")
    with pytest.raises(error, match=f"has format {version}"):
        SqliteConsensus(tmp_path / "made" / "consensus.sqlite")


def test_a_fixture_that_is_there_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    before = [sums(fixture) for fixture in FIXTURES]
    assert main() == 2
    assert "never changes" in capsys.readouterr().err
    assert [sums(fixture) for fixture in FIXTURES] == before


@EACH
def test_a_fixture_has_one_of_everything(fixture: Path, folder: Path) -> None:
    """Else it would prove less than it says."""
    with PersistClient.open(folder.as_uri(), mode="read") as client:
        states = {name: state_of(client, shard) for name, shard in client.names().items()}
        assert client.location.consensus.heads(["lock"])
    parts = {
        name: [part for batch in state.batches for part in batch.parts] for name, state in states.items()
    }
    assert all(part.inline is not None for part in parts["inline"])
    assert all(part.blob_key is not None for part in parts["stored"])
    assert {part.schema_id for part in parts["evolved"]} == {1, 2, 3}
    assert {part.inline is None for part in parts["evolved"]} == {True, False}
    stored = states["stored"]
    assert stored.garbage
    assert stored.rollups
    assert stored.gc_seqno > 1
    assert {batch.level > 0 for batch in stored.batches} == {True, False}
    assert any(len(run) > 1 for batch in stored.batches for run in batch.runs)
    assert {hold.opaque for hold in stored.critical_readers.values()} == {b"token 1", b""}
    assert states["inline"].leased_readers
    assert states["inline"].writers
    waiting = [part for batch in states["pending"].pending.values() for part in batch.parts]
    assert {part.inline is None for part in waiting} == {True, False}
    named = {part.blob_key for part in parts["pending"] if part.blob_key}
    assert named & {part.blob_key for part in waiting}
    assert states["finalized"].finalized
    assert [schema.codec for schema in states["coded"].schemas.values()] == [(Names.name, 1), (Names.name, 2)]
