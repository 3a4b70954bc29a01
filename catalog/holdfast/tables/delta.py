"""Exports a table to a Delta table, in this process, without Spark. Needs the extra `delta`.

- The commit names the table and the time, in Delta's own record of applications (`txn`). A repeated export
  looks there first, and writes nothing.
- A later export replaces all rows and the schema, in one commit. An export of an earlier time is refused, and
  so is a Delta table whose rows somebody else wrote.
- The commit requires the version that was checked. If somebody else was faster, the export looks again.
- A killed export leaves files that no version names. `VACUUM` of Delta removes them.
- Rows are streamed. The table keeps its hold until they are written.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.collections.snapshots.locate import local_folder
from holdfast.errors import BadInput, HoldfastError
from holdfast.extras import needs
from holdfast.persist.rows.schema import Schema
from holdfast.persist.stores.s3_place import S3Place
from holdfast.tables.exported import Exported
from holdfast.tables.opened import OpenTable
from holdfast.tables.scan import rows_of_contents, snapshot_of
from holdfast.text import with_date, without_passwords

if TYPE_CHECKING:
    from deltalake import DeltaTable

_COLLECTION: Final = "holdfast.collection-id"
_AS_OF: Final = "holdfast.as-of"
_NAME: Final = "holdfast.collection"
_UPKEEP: Final = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "FSCK", "SET TBLPROPERTIES", "CREATE TABLE"}
)
"""Operations that change no row."""
_TRIES: Final = 20
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")


def export_delta(
    table: OpenTable, time_ms: int | None, target: str, progress: Callable[[int], object]
) -> Exported:
    """Make the rows at a time (None: the latest) the contents of a Delta table. See `Table.export`."""
    with needs("delta", "an export to Delta"):
        import deltalake
        from deltalake.exceptions import DeltaError
    where, options = _place(target)
    key = f"{table.client.location_id}/{table.info.collection_id}"
    _, snapshot = table.reading.begin(lambda reader: snapshot_of(reader, time_ms))
    try:
        if snapshot is None:
            raise BadInput(f"table {table.name} can't be exported: nothing has been written yet")
        as_of = snapshot.as_of
        columns = delta_schema(snapshot.schema)
        record = deltalake.CommitProperties(
            custom_metadata={_COLLECTION: key, _AS_OF: str(as_of), _NAME: table.name},
            max_commit_retries=0,
            app_transactions=[deltalake.Transaction(f"holdfast/{key}", as_of)],
        )
        for _ in range(_TRIES):
            delta = _opened(where, options, target)
            if delta is not None and (done := _found(delta, target, table.name, key, as_of)) is not None:
                return done
            failed: list[BaseException] = []
            batches = rows_of_contents(table, snapshot.schema, iter(snapshot), snapshot.schema.names)
            rows = _keeping(failed, _cast(batches, columns, progress))
            try:
                deltalake.write_deltalake(
                    where if delta is None else delta,
                    pa.RecordBatchReader.from_batches(columns, rows),
                    mode="error" if delta is None else "overwrite",
                    schema_mode=None if delta is None else "overwrite",
                    storage_options=options,
                    commit_properties=record,
                )
            except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
                if failed:
                    raise failed[0] from None
                now = _opened(where, options, target)
                if (None if now is None else now.version()) == (None if delta is None else delta.version()):
                    raise _unusable(error, target) from None
                # Somebody has committed, and it may have been this export. Look again.
    finally:
        table.reading.end()
    raise HoldfastError(
        f"the Delta table {target} was changed by others during all {_TRIES} tries",
        hint="nothing was committed; export again while fewer processes write to the table",
    )


def delta_schema(schema: Schema) -> pa.Schema:
    """The columns of a Delta table that hold every value of a schema. Raises `BadInput` if there are none."""
    return pa.schema(
        [
            pa.field(column.name, _type(column.name, column.arrow.type), nullable=column.nullable)
            for column in schema.columns
        ]
    )


_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def _type(name: str, type_: pa.DataType) -> pa.DataType:
    if type_ in _WIDER:
        return _WIDER[type_]
    if pa.types.is_timestamp(type_) and type_.unit != "ns":
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_type(name, type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_type(name, field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_type(name, type_.key_type), type_.item_field.with_type(_type(name, type_.item_type)))
    if pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        raise BadInput(
            f"column {name!r}: Delta has no type that holds every {type_}",
            hint="export to parquet, which has this type",
        )
    return type_


def _cast(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, progress: Callable[[int], object]
) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        yield batch.select(columns.names).cast(columns)
        rows += batch.num_rows
        progress(rows)


def _keeping(failed: list[BaseException], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. An error of theirs is kept, because deltalake raises another one with its text."""
    try:
        yield from batches
    except Exception as error:
        failed.append(error)
        raise


def _opened(where: str, options: dict[str, str], target: str) -> "DeltaTable | None":
    """The Delta table as it is now. None if there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(where, storage_options=options)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise _unusable(error, target) from None


def _found(delta: "DeltaTable", target: str, name: str, key: str, as_of: int) -> Exported | None:
    """What an earlier export of this table at this time wrote. None if this export may replace the rows.

    Raises `BadInput` if the rows are not those of this table, or of a later time.
    """
    version = 0
    for entry in delta.history():
        version = entry["version"]
        if entry.get("operation") in _UPKEEP:
            continue
        if entry.get(_COLLECTION) != key:
            whose = f"table {entry[_NAME]}" if _NAME in entry else "somebody else"
            raise BadInput(
                f"the Delta table {target} has rows of {whose} (version {version}):"
                f" table {name} can't replace them",
                hint="give another target",
            )
        found = int(entry[_AS_OF])
        if found > as_of:
            raise BadInput(
                f"the Delta table {target} has table {name} as of {with_date(found)}: it can't be replaced by"
                f" the rows as of {with_date(as_of)}",
                hint="give another target",
            )
        return Exported(target, as_of, _rows(entry), version) if found == as_of else None
    if version:
        raise BadInput(
            f"the log of the Delta table {target} doesn't show whose rows it has", hint="give another target"
        )
    return None


def _rows(entry: dict[str, Any]) -> int:
    """The number of rows that a commit added."""
    return int(entry["operationMetrics"]["num_added_rows"])


def _place(target: str) -> tuple[str, dict[str, str]]:
    """The address of a Delta table as deltalake takes it, and its options, without secrets."""
    if "://" not in target:
        return str(Path(target).absolute()), {}
    parts = urlsplit(target)
    if parts.scheme == "file":
        return str(local_folder(target)), {}
    if parts.scheme != "s3":
        raise BadInput(
            f"a {parts.scheme}:// URL can't be exported to", hint="give a path, a file:// or an s3:// URL"
        )
    place = S3Place.of(parts)
    options = {}
    if place.endpoint:
        options["AWS_ENDPOINT_URL"] = place.endpoint
        options["AWS_ALLOW_HTTP"] = str(place.endpoint.startswith("http://")).lower()
    if place.region:
        options["AWS_REGION"] = place.region
    return f"s3://{parts.netloc}{parts.path}", options


def _said(text: str) -> str:
    """An error of deltalake in one line. It writes each cause in a line of its own, in colours."""
    if "\u21b3" not in text:
        return text.strip().partition("\n")[0]
    causes = _COLOUR.sub("", text).split("\u21b3")
    return ": ".join(" ".join(each.split()) for each in causes)


def _unusable(error: Exception, target: str) -> HoldfastError:
    """The error to raise for an error of deltalake: one line, without passwords."""
    said = without_passwords(_said(str(error)) or type(error).__name__)
    return HoldfastError(
        f"can't export to the Delta table {target}: {said}",
        hint="run the same export again: it writes no row twice",
    )
