"""Exports a table to an Iceberg table, in this process, without Spark.

- The id of the export follows from the table and the time. It is in the summary of the Iceberg snapshot, so a
  repeated export finds the commit of the first one (`holdfast.tables.iceberg.commits`).
- A later export replaces all rows, in one commit. An export of an earlier time is refused.
- A killed export leaves files that no snapshot names. The next export of that time removes them.
- Rows are streamed into files of about 1 GiB, with bounded memory. The table keeps its hold until they are
  written.
"""

import time
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from holdfast.collections.collection_snapshot import CollectionSnapshot
from holdfast.collections.snapshots.manifest import SnapshotManifest
from holdfast.collections.snapshots.parquet import groups_of
from holdfast.errors import BadInput, Indeterminate
from holdfast.tables.exported import Exported
from holdfast.tables.iceberg.commits import (
    Replacement,
    check_replaceable,
    collection_key,
    commit,
    committed_by,
    result_of,
    run_of,
)
from holdfast.tables.iceberg.files import IcebergFile, TableLocation, discard_earlier, run_name, write_file
from holdfast.tables.iceberg.schemas import evolve, make_table, open_catalog
from holdfast.tables.iceberg.target import IcebergTarget
from holdfast.tables.opened import OpenTable
from holdfast.tables.scan import snapshot_of, stored_rows_of_contents

_GROUP_ROWS = 256 * 1024
_GROUP_BYTES = 64 << 20
_FILE_BYTES = 1 << 30


def export_iceberg(
    table: OpenTable, time_ms: int | None, target: IcebergTarget, progress: Callable[[int], object]
) -> Exported:
    """Make the rows at a time (None: the latest) the contents of an Iceberg table. See `Table.export`."""
    catalog = open_catalog(target)
    _, snapshot = table.reading.begin(lambda reader: snapshot_of(reader, time_ms))
    try:
        if snapshot is None:
            raise BadInput(f"table {table.name} can't be exported: nothing has been written yet")
        info = table.describe()
        comments, names = info.comments, info.names.at(snapshot.as_of)
        iceberg = make_table(catalog, target, snapshot.schema, comments)
        collection, as_of = table.info.collection_id, snapshot.as_of
        key = collection_key(table.client.location_id, collection)
        check_replaceable(iceberg, target, key=key, collection=table.name, as_of=as_of)
        job = str(uuid.uuid5(table.client.location_id, f"export {collection} {as_of}"))
        if (before := committed_by(iceberg, job)) is not None:
            return _exported(target, iceberg, before)
        run = run_name(1)
        written_as = evolve(iceberg.transaction(), target, snapshot.schema, comments, names)
        place = TableLocation.of(iceberg, written_as, f"{job}/{run}")
        try:
            files = tuple(_written(table, snapshot, place, progress))
            manifest = SnapshotManifest(
                location_id=str(table.client.location_id),
                collection_id=collection,
                collection=table.name,
                as_of=as_of,
                job_id=job,
                attempt=1,
                schema=snapshot.schema,
                files=tuple(each.file for each in files),
                created_ms=time.time_ns() // 1_000_000,
            )
            wanted = Replacement(manifest, run, files, place.schema, comments, names)
            iceberg, found = commit(catalog, target, wanted, lambda: None)
        except Indeterminate:
            # The table may have the files.
            raise
        except BaseException:
            place.discard()
            raise
        # No export of this time can commit any more.
        discard_earlier(iceberg, job, 2, kept=run_of(found))
    finally:
        table.reading.end()
    return _exported(target, iceberg, found)


def _exported(target: IcebergTarget, iceberg: IcebergTable, snapshot: Snapshot) -> Exported:
    result = result_of(target, iceberg, snapshot)
    return Exported(str(target), result["as_of"], result["rows"], snapshot.snapshot_id)


def _written(
    table: OpenTable, snapshot: CollectionSnapshot, place: TableLocation, progress: Callable[[int], object]
) -> Iterator[IcebergFile]:
    batches = stored_rows_of_contents(table, iter(snapshot), snapshot.schema.names)
    groups = groups_of(batches, _GROUP_ROWS, _GROUP_BYTES)
    rows = index = 0
    while (first := next(groups, None)) is not None:
        file = write_file(index, first, _fitting(groups, first.nbytes), schema=snapshot.schema, place=place)
        yield file
        index, rows = index + 1, rows + file.file.rows
        progress(rows)


def _fitting(groups: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The next groups, until the file has many rows."""
    while size < _FILE_BYTES and (group := next(groups, None)) is not None:
        size += group.nbytes
        yield group
