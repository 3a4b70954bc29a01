"""FORMAT.md and the code agree on what is frozen: tags, keys, purposes, magics, footer keys, names."""

import json
import re
from pathlib import Path

from holdfast._pb import consensus_pb2, controller_pb2
from holdfast.catalog import config
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind
from holdfast.catalog.stores import persist as shard
from holdfast.catalog.stores import store
from holdfast.catalog.upgrade import objects
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.collections import (
    CollectionSpec,
    StorageController,
    capabilities,
    controller_log,
    rendition_copy,
)
from holdfast.collections.record import codec
from holdfast.errors import BadInput, Fenced, HoldfastError, StorageError
from holdfast.persist import PersistClient
from holdfast.persist.handles import names
from holdfast.persist.rows import column_types, part
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.state import codec as statecodec
from holdfast.persist.state import lock
from holdfast.persist.stores import location, log_codec, log_state, sqlite, url
from holdfast.stash import DEFAULT_SCHEMA, pg_schema, sqlite_file, sqlite_record, stash

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "reference" / "FORMAT.md").read_text()


def section(heading: str) -> str:
    """What stands between a heading and the next of any level."""
    _, found, rest = TEXT.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    blocks = section(heading).split("\n\n")
    lines = next(block for block in blocks if block.lstrip().startswith("| ")).strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(cells: list[str]) -> list[str]:
    """All words in backticks."""
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_catalog_kinds() -> None:
    documented = {
        int(tag): kind.replace(" ", "_").upper()
        for row in table("## Catalog")
        for tag, kind in zip(row[::2], row[1::2], strict=True)
        if tag
    }
    assert documented == {int(kind): kind.name for kind in Kind}
    assert shard.SCHEMA.codec == ("holdfast.catalog", 1)
    assert "codec `holdfast.catalog` version 1" in section("## Catalog")


def test_catalog_versions() -> None:
    line = r"^\| (\d+) \| (JSON|\[`objects_v(\d+)\.proto`\])"
    rows = re.findall(line, section("## Catalog"), re.MULTILINE)
    assert [int(version) for version, _, _ in rows] == list(range(MIN_VERSION, CATALOG_VERSION + 1))
    assert [int(of) for _, _, of in rows if of] == list(range(objects.JSON_VERSION + 1, CATALOG_VERSION + 1))
    fixed = section("## Catalog").partition("Tags, and the messages of ")[2].partition(", are the same")[0]
    names = {kind.name.lower().replace("_", " ") for kind, row in OBJECT_TYPES.items() if not row.migratable}
    assert set(re.split(", | and ", fixed)) == names


def test_config_keys() -> None:
    rows = re.findall(r"^\| `([a-z_]+/?)(?:<id>)?`", section("### Config"), re.MULTILINE)
    known = {value for name, value in vars(config).items() if name.isupper() and isinstance(value, str)}
    assert set(rows) == known
    booleans = re.findall(r"^\| `([a-z_]+)`[^|]*\| boolean", section("### Config"), re.MULTILINE)
    assert set(booleans) == config.BOOLEANS


def test_controller_kinds() -> None:
    rows = table("## Controller shard")
    fields = controller_pb2.Row.DESCRIPTOR.oneofs[0].fields
    assert [row[1] for row in rows] == [field.name for field in fields]
    assert [int(row[0]) for row in rows] == [codec._COLLECTION, codec._COMMAND, codec._JOB]
    assert codec.CODEC == ("holdfast.controller", 1)
    assert "codec `holdfast.controller` version 1" in section("## Controller shard")


def test_purposes_of_critical_holds(tmp_path: Path) -> None:
    documented = quoted([row[0] for row in table("## Critical holds")])
    kept = store.kept_name(7).replace("7", "<n>")
    assert documented[1:4] == [shard.RETENTION_PURPOSE, kept, controller_log._RETENTION_PURPOSE]
    with PersistClient.open(tmp_path.as_uri()) as client, StorageController(client) as storage:
        info = storage.create_collection(CollectionSpec("c1", "c", Schema.of({"a": "int64"}), shards=2))
        job = storage.start_job("c1", "snapshot", "monday", spec={"as_of": 0})
        taken = documented[4].replace("<id>", job.job_id).replace("<n>", "1")
        for each in (info.metadata_shard, *info.data_shards):
            found = {held.purpose for held in client.inspect(each).holds if held.kind == "critical"}
            assert found == ({documented[0], taken} if each == info.metadata_shard else {documented[0]})
    assert documented[6:] == [capabilities.read_purpose("<purpose>"), rendition_copy.rendition_hold("<id>")]
    keeps = [row[2] for row in table("## Critical holds")]
    assert (
        f"the last {shard.RETAIN_VERSIONS:,} versions, moved in steps of {shard.RETENTION_STEP}" == keeps[1]
    )
    assert f"in steps of {controller_log._TRAIL_EVERY} versions" in keeps[3]


def test_magics_and_versions() -> None:
    magic, version = table("## Shard state")[:2]
    assert [word.replace("\\n", "\n").encode() for word in quoted(magic)] == [
        statecodec.DIFF_MAGIC,
        statecodec.ROLLUP_MAGIC,
        lock.LOCK_MAGIC,
    ]
    assert version[1] == f"format version ({statecodec.FORMAT_VERSION})"
    assert f"`application_id` 0x{sqlite.APPLICATION_ID:08X}" in TEXT
    assert f"`user_version` {sqlite.FORMAT_VERSION}" in TEXT


def test_log_of_objects() -> None:
    names = quoted([row[0] for row in table("## Log of objects")])
    assert [name.partition("<")[0] for name in names] == [
        log_codec.LOG_FOLDER,
        log_codec.CHECKPOINT_FOLDER,
        log_codec.FLOOR_NAME,
    ]
    rows = re.findall(r"^\| `(HF.\\n)` \| `(\w+)`", section("## Log of objects"), re.MULTILINE)
    assert [(magic.replace("\\n", "\n").encode(), message) for magic, message in rows] == [
        (log_codec.OBJECT_MAGIC, "LogObject"),
        (log_codec.CHECKPOINT_MAGIC, "LogCheckpoint"),
        (log_codec.FLOOR_MAGIC, "LogFloor"),
    ]
    assert {message for _, message in rows} <= set(consensus_pb2.DESCRIPTOR.message_types_by_name)
    assert f"format version {log_codec.FORMAT_VERSION} " in section("## Log of objects")
    assert f"of the last {log_state.RECENT:,} steps" in section("## Log of objects")
    assert log_codec.object_name(7) == "log/" + "7".zfill(20)
    assert f"`prefix/{url.BLOB_FOLDER}/<key>`" in TEXT
    assert f"`prefix/{url.LOG_FOLDER}/`" in TEXT


def test_location_keys() -> None:
    assert quoted(table("## Location")[0][:1]) == [location.BLOB_KEY, location.CONSENSUS_KEY]


def test_footer_keys() -> None:
    keys = [key.encode() for key in quoted([row[0] for row in table("## Parts")])]
    assert keys == [
        part.KEY_FORMAT_VERSION,
        part.KEY_SCHEMA_ID,
        part.KEY_SCHEMA,
        part.KEY_HAS_NAN,
        part.KEY_BLOCKS,
    ]
    stored = json.loads(part.schema_json(shard.SCHEMA))
    assert list(stored) == ["key", "value", "codec"]
    assert stored["codec"] == ["holdfast.catalog", 1]
    assert list(stored["key"][0]) == ["name", "type", "nullable"]


def test_type_names() -> None:
    (line,) = re.findall(r"^Type names: (.*?)\.$", TEXT, re.MULTILINE | re.DOTALL)
    known = []
    for each in re.findall(r"`[a-z_0-9]+`(?: to `[a-z_0-9]+`)?|`decimal128\(p,s\)`", line):
        first, *last = re.findall(r"`([^`]+)`", each)
        kind = first.rstrip("0123456789")
        widths = [8, 16, 32, 64] if last else []
        known += [f"{kind}{width}" for width in widths] if last else [first]
    assert sorted(known) == sorted(column_types.TYPE_NAMES)
    assert all(Schema((Column("a", name.replace("p,s", "5,2"), nullable=True),), ()) for name in known)


def test_exit_codes() -> None:
    codes = [int(row[0]) for row in table("## What the tools print")]
    assert codes == [0, HoldfastError.exit_code, BadInput.exit_code, StorageError.exit_code, Fenced.exit_code]


def test_the_names_shard(tmp_path: Path) -> None:
    columns = [*names.NAMES_SCHEMA.key, *names.NAMES_SCHEMA.value]
    assert quoted([section("## Names shard")])[:2] == [f"{column.name}: {column.type}" for column in columns]
    assert not any(column.nullable for column in columns)
    assert names.NAMES_SCHEMA.key_names == ("name",)
    assert f"1 to {names.MOST_CHARACTERS} printable characters" in section("## Names shard")
    documented = quoted([row[0] for row in table("## Critical holds")])
    with PersistClient.open(tmp_path.as_uri()) as client:
        client.create_or_load("n", Schema.of({"a": "int64"}))
        (hold,) = client.inspect(names.names_shard_id(client.location_id)).holds
    assert documented[5] == hold.purpose


def test_the_stash() -> None:
    text = section("## Stash")
    rows = table("## Stash")
    assert frozenset(quoted([row[0] for row in rows])) == pg_schema.TABLES
    for row in rows:
        (create,) = (each for each in pg_schema.CREATE if f"TABLE {{schema}}.{quoted(row)[0]} " in each)
        columns = quoted([row[1]])
        assert re.findall(r"(\w+) (?:integer|text|bytea|bigint)", create) == columns
    assert f"a stash has layout version {pg_schema.LAYOUT_VERSION}:" in text
    assert f"The layout version is {sqlite_file.LAYOUT_VERSION}." in text
    assert f"the last {sqlite_record.RECENT_COMMITS} commits" in text
    assert f"`application_id` 0x{sqlite_file.APPLICATION_ID:08X}" in text
    assert f"(`{DEFAULT_SCHEMA}` if not given)" in text
    assert f"{stash.MAX_ROW_BYTES:,} bytes together" in text
    assert stash.MAX_TIME == (1 << 63) - 2
    assert f"The last {store.RETAIN_VERSIONS:,} versions" in text
    assert f"in steps of {store.RETENTION_STEP}." in text
