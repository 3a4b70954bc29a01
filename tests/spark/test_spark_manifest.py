"""The manifest of a snapshot: its checksum, a round trip, and damage that is found."""

import datetime as dt
import json
import math
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections.snapshots.folder import LocalFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.collections.snapshots.manifest import (
    SnapshotManifest,
    checksum_of,
    read_manifest,
    verify_snapshot,
)
from holdfast.collections.snapshots.parquet import write_rows
from holdfast.errors import BadInput, CorruptBlob, HoldfastError, VersionTooNew
from holdfast.persist import Schema
from holdfast.spark.jobs import folder as folders

SCHEMA = Schema.of(
    key={"id": "uint64"},
    value={
        "name": "string?",
        "price": "decimal128(9,2)",
        "x": "float64",
        "at": "timestamp_utc",
        "day": "timestamp",
    },
)
NOON = dt.datetime.fromisoformat("2026-01-01T12:00:00+00:00")
JOB = "6b1f9c52-3f0d-5d1c-9f39-1d8a3a4b2c10"


def rows(ids: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "id": i,
                "name": None if i % 3 == 0 else f"n{i}",
                "price": Decimal(i) / 4,
                "x": float("nan") if i % 5 == 0 else i / 8,
                "at": NOON,
                "day": NOON.replace(tzinfo=None),
            }
            for i in ids
        ],
        schema=SCHEMA.arrow,
    )


def write(folder: Path, pieces: list[list[int]]) -> SnapshotManifest:
    place = LocalFolder(folder)
    files = [write_rows([rows(ids)], SCHEMA, place, index) for index, ids in enumerate(pieces)]
    manifest = SnapshotManifest(
        location_id="00000000-0000-0000-0000-000000000001",
        collection_id="u1",
        collection="orders",
        as_of=41,
        job_id=JOB,
        attempt=2,
        schema=SCHEMA,
        files=tuple(file for file in files if file is not None),
        created_ms=1,
    )
    folders.publish(place, manifest)
    return manifest


def test_the_checksum_can_be_computed_from_its_definition() -> None:
    schema = Schema.of(key={"id": "int64"}, value={"name": "string?"})
    contents = [(7, "ab"), (-1, None)]
    total = 0
    for number, text in contents:
        canonical = b"\x01" + number.to_bytes(8, "little", signed=True)
        canonical += b"\x00" if text is None else b"\x01" + len(text).to_bytes(4, "little") + text.encode()
        total += xxhash.xxh3_64_intdigest(canonical, seed=0)
    table = pa.Table.from_pylist([{"id": i, "name": n} for i, n in contents], schema=schema.arrow)
    assert checksum_of(table, schema) == total % 2**64


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_checksum_depends_on_the_rows_only(ids: list[int], random: object) -> None:
    shuffled = list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = len(ids) // 2
    parts = checksum_of(rows(shuffled[:cut]), SCHEMA) + checksum_of(rows(shuffled[cut:]), SCHEMA)
    assert checksum_of(rows(ids), SCHEMA) == parts % 2**64
    assert checksum_of(rows([*ids, ids[0]]), SCHEMA) != checksum_of(rows(ids), SCHEMA)


def test_what_is_written_is_verified_and_has_the_collections_own_types(tmp_path: Path) -> None:
    manifest = write(tmp_path, [[1, 2, 3, 3], [5, 6]])
    assert verify_snapshot(tmp_path) == read_manifest(f"file://{tmp_path}") == manifest
    assert (manifest.rows, len(manifest.files)) == (6, 2)
    assert manifest.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    whole = pa.concat_tables(pq.read_table(tmp_path / file.name) for file in manifest.files)
    assert whole.schema.equals(SCHEMA.arrow)
    assert sorted(whole.column("id").to_pylist()) == [1, 2, 3, 3, 5, 6]
    assert checksum_of(whole, SCHEMA) == manifest.checksum


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    assert write_rows([], SCHEMA, LocalFolder(tmp_path), 0) is None
    assert write_rows([rows([])], SCHEMA, LocalFolder(tmp_path), 0) is None
    assert list(tmp_path.iterdir()) == []
    assert verify_snapshot_of_nothing(tmp_path).rows == 0


def verify_snapshot_of_nothing(folder: Path) -> SnapshotManifest:
    write(folder, [])
    return verify_snapshot(folder)


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def breaking() -> object:
        yield rows([1])
        raise HoldfastError("the store is gone")

    with pytest.raises(HoldfastError, match="the store is gone"):
        write_rows(breaking(), SCHEMA, LocalFolder(tmp_path), 0)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_files_of_dead_task_attempts_are_gone_from_a_published_snapshot(tmp_path: Path) -> None:
    write_rows([rows([1])], SCHEMA, LocalFolder(tmp_path), 0)
    manifest = write(tmp_path, [[1]])
    assert {path.name for path in tmp_path.iterdir()} == {"_manifest.json", manifest.files[0].name}


def truncate(path: Path, manifest: SnapshotManifest) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path, manifest: SnapshotManifest) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def remove(path: Path, manifest: SnapshotManifest) -> None:
    path.unlink()


def swap(path: Path, manifest: SnapshotManifest) -> None:
    other = path.with_name(manifest.files[1].name)
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("damage", [truncate, flip, remove, swap])
def test_damage_is_found(tmp_path: Path, damage: Callable[[Path, SnapshotManifest], None]) -> None:
    manifest = write(tmp_path, [[1, 2, 3], [4, 5, 6]])
    damage(tmp_path / manifest.files[0].name, manifest)
    with pytest.raises(CorruptBlob, match=manifest.files[0].name):
        verify_snapshot(tmp_path)


FILE = {"name": "part-0.parquet", "rows": 3, "bytes": 1, "checksum": "00"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": 4}, BadInput, "is inconsistent"),
        ({"checksum": "0" * 16}, BadInput, "is inconsistent"),
        ({"format": "other"}, BadInput, "its format is 'other'"),
        ({"version": 3}, VersionTooNew, "newer than 2"),
        (
            {"files": [{"name": "../x", "rows": 3, "bytes": 1, "checksum": "00"}]},
            BadInput,
            "not a file in its folder",
        ),
        ({"schema": None}, BadInput, "not a snapshot manifest"),
        *(
            ({"files": [FILE | {name: number}]}, BadInput, "not a snapshot manifest")
            for name in ("rows", "bytes")
            for number in (None, "3", 3.0, math.inf, -3, True)
        ),
        *(
            ({name: number}, BadInput, "not a snapshot manifest")
            for name in ("as_of", "attempt", "created_ms")
            for number in (None, "3", math.inf, -3)
        ),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    tmp_path: Path, change: dict[str, object], error: type[HoldfastError], message: str
) -> None:
    write(tmp_path, [[1, 2, 3]])
    path = tmp_path / "_manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(error, match=message):
        verify_snapshot(tmp_path)


def test_a_manifest_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_manifest.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match="not a snapshot manifest"):
        read_manifest(tmp_path)


def test_a_folder_without_a_manifest_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="never finished"):
        read_manifest(tmp_path)


def test_an_attempt_is_taken_once_and_its_predecessors_can_go(tmp_path: Path) -> None:
    first = folders.claim(str(tmp_path / "new" / "place"), JOB, 1)
    with pytest.raises(folders.AttemptTaken, match=r"attempt 1 of job .* was already started"):
        folders.claim(f"file://{tmp_path}/new/place", JOB, 1)
    tenth = folders.claim(str(tmp_path / "new" / "place"), JOB, 10)
    later = folders.claim(str(tmp_path / "new" / "place"), JOB, 11)
    folders.discard_earlier(str(tmp_path / "new" / "place"), JOB, 10)
    assert [Path(str(folder)).exists() for folder in (first, tenth, later)] == [False, True, True]


@pytest.mark.parametrize("location", ["gs://secret@bucket/x", "file://host/x", "relative/x", "", "s3://B/x"])
def test_only_folders_and_prefixes_of_buckets_are_destinations(location: str) -> None:
    with pytest.raises(BadInput, match=r"is not a folder|relative path|name of an S3 bucket") as refused:
        folder_at(location)
    assert "secret" not in str(refused.value)


def test_a_destination_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="can't write to the destination"):
        folders.claim(str(tmp_path / "file"), JOB, 1)


def test_the_fields_of_a_file_have_the_comments_of_their_columns(tmp_path: Path) -> None:
    file = write_rows([rows([1, 2])], SCHEMA, LocalFolder(tmp_path), 0, {"name": "who it is ✈"})
    assert file is not None
    written = pq.read_table(tmp_path / file.name)
    assert written.schema.equals(SCHEMA.arrow)
    assert {field.name: field.metadata for field in written.schema if field.metadata} == {
        "name": {b"comment": "who it is ✈".encode()}
    }
