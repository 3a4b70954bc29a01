"""Snapshots in a folder, as the snapshot job writes them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.collections import RestoreSource
from holdfast.collections.snapshots.manifest import MANIFEST_NAME, SnapshotFile, SnapshotManifest, checksum_of
from holdfast.persist import Schema
from unit.collections.stores import SCHEMA, Row


def snapshot(folder: Path, rows: list[Row], schema: Schema = SCHEMA, *, files: int = 2) -> RestoreSource:
    """Write rows of (id, name), a row that occurs n times n times, to some files and a manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for index in range(files):
        part = [{"id": id_, "name": name} for id_, name in rows[index::files]]
        table = pa.Table.from_pylist(part, schema=schema.arrow)
        path = folder / f"part-{index}.parquet"
        pq.write_table(table, path)
        written.append(
            SnapshotFile(
                name=path.name,
                rows=len(part),
                bytes=path.stat().st_size,
                checksum=checksum_of(table, schema),
            )
        )
    manifest = SnapshotManifest(
        location_id="l",
        collection_id="c1",
        collection="flights",
        as_of=77,
        job_id="j",
        attempt=1,
        schema=schema,
        files=tuple(written),
        created_ms=1,
    )
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return RestoreSource.open(folder)
