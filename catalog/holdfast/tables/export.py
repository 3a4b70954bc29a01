"""Exports a table to a folder of Parquet files, as a snapshot that `holdfast collection restore` also takes.

- The manifest is written last. It is the record of the export: with it, the folder is complete, and a
  repeated export changes nothing.
- A record in the folder claims it for one table and one time. If an export was killed, the next run for the
  same table and time finishes it. Such runs may overlap: each writes its own files, the first manifest
  counts, and the files that it doesn't name are removed.
- The table keeps its hold at the time until the last row is read. Memory is bounded, as in a scan.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from holdfast.collections.collection_snapshot import CollectionSnapshot
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.collections.snapshots.manifest import (
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotManifest,
    file_schema,
    read_manifest,
)
from holdfast.collections.snapshots.parquet import groups_of, write_groups
from holdfast.errors import BadInput, StorageError
from holdfast.extras import needs
from holdfast.tables.exported import Exported
from holdfast.tables.opened import OpenTable
from holdfast.tables.scan import snapshot_of, stored_rows_of_contents
from holdfast.text import naming, with_date

_RECORD: Final = "_export.json"
"""Which table and time a folder is for."""

_GROUP_ROWS: Final = 256 * 1024
_GROUP_BYTES: Final = 64 << 20
_FILE_BYTES: Final = 1 << 30


def export_to(
    table: OpenTable,
    time_ms: int | None,
    target: str,
    progress: Callable[[int], object],
    form: str,
    properties: Mapping[str, str],
) -> SnapshotManifest | Exported:
    """Export a table at a time (None: the latest) to a target of this format. Raises like `Table.export`."""
    match form:
        case "delta":
            from holdfast.tables.delta import export_delta

            return export_delta(table, time_ms, target, progress)
        case "iceberg":
            from holdfast.tables.iceberg.target import IcebergTarget

            catalog, _, name = target.partition(".")
            if "." not in name or not all(target.split(".")):
                raise BadInput(
                    f"the target {target!r} is not a table of an Iceberg catalog",
                    hint="write it as catalog.namespace.table, such as lake.shop.orders",
                )
            given = IcebergTarget(catalog=catalog, table=name, properties=properties)
            with needs("iceberg", "an Iceberg table"):
                from holdfast.tables.iceberg.exports import export_iceberg
            return export_iceberg(table, time_ms, given, progress)
        case _:
            return export(table, time_ms, target, progress)


def export(
    table: OpenTable, time_ms: int | None, target: str | Path, progress: Callable[[int], object]
) -> SnapshotManifest:
    """Export a table at a time (None: the latest). `progress` is called with the number of rows so far.

    Raises like `Table.export`.
    """
    with naming(f"table {table.name}"), _telling(target):
        folder = folder_at(target if "://" in str(target) else Path(target).absolute())
        if time_ms is not None and (done := _exported(table, time_ms, folder)) is not None:
            return done
    _, snapshot = table.reading.begin(lambda reader: snapshot_of(reader, time_ms))
    try:
        if snapshot is None:
            raise BadInput(f"table {table.name} can't be exported: nothing has been written yet")
        with naming(f"table {table.name}"), _telling(target):
            if time_ms is None and (done := _exported(table, snapshot.as_of, folder)) is not None:
                return done
            is_new = _claim(table, snapshot.as_of, folder)
        try:
            manifest = _written(table, snapshot, folder, progress)
            is_ours = folder.create(MANIFEST_NAME, manifest.to_json().encode())
        except BaseException as error:
            if isinstance(error, OSError) and (done := _exported(table, snapshot.as_of, folder)) is not None:
                # The run that was faster has removed a file of this one.
                return done
            if is_new:
                _give_up(folder)
            raise
        if not is_ours:
            found = _exported(table, snapshot.as_of, folder)
            if found is None:
                raise BadInput(
                    f"another run of this export failed, and removed {folder}", hint="export again"
                )
            manifest = found
        # What killed runs left, or this one if another was faster.
        folder.keep_only({MANIFEST_NAME, _RECORD, *(each.name for each in manifest.files)})
    finally:
        table.reading.end()
    return manifest


@contextmanager
def _telling(target: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"can't write to {target}: {error.strerror or error}") from None


def _exported(table: OpenTable, time_ms: int | None, folder: SnapshotFolder) -> SnapshotManifest | None:
    """What an earlier export wrote to the folder, or None. Raises `BadInput` if that was something else."""
    if folder.read(MANIFEST_NAME) is None:
        return None
    found = read_manifest(folder)
    where = (str(table.client.location_id), table.info.collection_id)
    if (found.location_id, found.collection_id) != where:
        raise BadInput(f"{folder} has an export of another table, {found.collection}", hint=_ANOTHER)
    if found.as_of != time_ms:
        hint = f"{_ANOTHER}, or export as of {found.as_of} to repeat it"
        raise BadInput(f"{folder} has an export as of {with_date(found.as_of)}", hint=hint)
    return found


_ANOTHER: Final = "give another folder"


def _claim(table: OpenTable, as_of: int, folder: SnapshotFolder) -> bool:
    """Claim the folder for the export of the table at a time. Returns False if an earlier run claimed it so.

    Raises `BadInput` if the folder is used for something else.
    """
    wanted = {
        "location_id": str(table.client.location_id),
        "collection_id": table.info.collection_id,
        "as_of": as_of,
    }
    if folder.claim():
        return folder.create(_RECORD, json.dumps(wanted).encode())
    record = folder.read(_RECORD)
    if record is None:
        raise BadInput(
            f"{folder} exists, and has no finished export",
            hint="give a folder that doesn't exist; if an export was killed, remove what it left",
        )
    try:
        found = json.loads(record)
        same = {name: found[name] for name in wanted}
    except (ValueError, TypeError, KeyError):
        raise BadInput(f"{folder} has a damaged {_RECORD}", hint=_ANOTHER) from None
    if same == wanted:
        return False
    if same == {**wanted, "as_of": same["as_of"]}:
        hint = f"export as of {same['as_of']} to finish it, or {_ANOTHER}"
        raise BadInput(f"{folder} has an unfinished export as of {with_date(same['as_of'])}", hint=hint)
    raise BadInput(f"{folder} has an unfinished export of another table", hint=_ANOTHER)


def _give_up(folder: SnapshotFolder) -> None:
    """Remove the folder of a failed export, unless another run has finished it."""
    with suppress(OSError, StorageError):
        # No other run can finish the export once it has a manifest.
        if folder.create(MANIFEST_NAME, b""):
            folder.discard()


def _written(
    table: OpenTable, snapshot: CollectionSnapshot, folder: SnapshotFolder, progress: Callable[[int], object]
) -> SnapshotManifest:
    """Write all rows. Returns the manifest, which is not written yet."""
    schema, attempt = snapshot.schema, uuid.uuid4().hex
    batches = stored_rows_of_contents(table, iter(snapshot), schema.names)
    groups = _counted(groups_of(batches, _GROUP_ROWS, _GROUP_BYTES), progress)
    files: list[SnapshotFile] = []
    group = next(groups, None)
    # Without rows, one file has only the columns.
    while group is not None or not files:
        name = f"part-{len(files):05}-{attempt}.parquet"
        first = schema.arrow_diff.empty_table() if group is None else group
        with folder.writing(name) as out:
            rows, checksum, _ = write_groups(out, first, _fitting(groups, out), schema, file_schema(schema))
            size = out.tell()
        files.append(SnapshotFile(name=name, rows=rows, bytes=size, checksum=checksum))
        group = next(groups, None)
    return SnapshotManifest(
        location_id=str(table.client.location_id),
        collection_id=table.info.collection_id,
        collection=table.name,
        as_of=snapshot.as_of,
        job_id=attempt,
        attempt=1,
        schema=schema,
        files=tuple(files),
        created_ms=time.time_ns() // 1_000_000,
    )


def _counted(groups: Iterator[pa.Table], progress: Callable[[int], object]) -> Iterator[pa.Table]:
    """Groups, and the progress after each one was written."""
    rows = 0
    for group in groups:
        yield group
        rows += group.num_rows
        progress(rows)


def _fitting(groups: Iterator[pa.Table], out: IO[bytes]) -> Iterator[pa.Table]:
    """The next groups, until the file is large."""
    while out.tell() < _FILE_BYTES and (group := next(groups, None)) is not None:
        yield group
