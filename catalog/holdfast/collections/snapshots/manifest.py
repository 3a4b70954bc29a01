"""The manifest of a snapshot, and the check that its files still are what was written. Needs no Spark.

A snapshot is a folder of Parquet files and one `_manifest.json`, which is written last. The files contain the
rows of a collection at one time, in no order and with the column types of the collection. A row that occurs n
times is written n times. `schema` names the types as `holdfast.persist.rows.schema` does. If there are no
rows, one file has only the columns. Readers of a folder of Parquet files skip names that begin with `_`.

A snapshot of a collection that a pipeline feeds also has the bindings and the errors of that time, in two
Parquet files. Such a manifest has version 2, so that no earlier build restores the rows without them.

The checksum shows whether two sets of rows are equal. Their order and their files don't matter. It
is the sum, modulo 2^64, of the row hash of every row over all columns in the order of `schema`. The row hash
is defined in FORMAT.md (xxh3_64, seed 0, over the canonical bytes). The checksum is written as 16 hexadecimal
digits. The checksum of a file is the same over its rows, so the sum of these is the checksum of the snapshot.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.collections.pipeline import PIPELINE_SCHEMAS
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.errors import BadInput, CorruptBlob, VersionTooNew
from holdfast.persist.rows.row_hash import row_hash
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.stored import stored_rows

MANIFEST_NAME: Final = "_manifest.json"
MANIFEST_FORMAT: Final = "holdfast-snapshot"
MANIFEST_VERSION: Final = 2
_ROWS_ONLY_VERSION: Final = 1
PIPELINE_NAMES: Final = ("_remap", "_errors")
"""The names of the files for the shards of a pipeline, in the order of `PipelineShards.all`."""
_MODULUS: Final = 1 << 64
_VERIFY_ROWS: Final = 262_144

Rows: TypeAlias = pa.Table | pa.RecordBatch


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """One Parquet file, by its name in the snapshot's folder. `checksum` is over its rows."""

    name: str
    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True, kw_only=True)
class SnapshotPipeline:
    """What the pipeline of the collection kept: its bindings and errors at the time of the rows.

    `made_from` is that of the rendition.
    """

    made_from: str
    remap: SnapshotFile
    errors: SnapshotFile

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        """Both files, in the order of `PipelineShards.all`."""
        return (self.remap, self.errors)


@dataclass(frozen=True, kw_only=True)
class SnapshotManifest:
    """What a snapshot was taken from, and what it contains.

    `pipeline` is None if no pipeline fed the collection, or if an earlier build took the snapshot.
    """

    location_id: str
    collection_id: str
    collection: str
    as_of: int
    job_id: str
    attempt: int
    schema: Schema
    files: tuple[SnapshotFile, ...]
    created_ms: int
    pipeline: SnapshotPipeline | None = None

    @property
    def all_files(self) -> tuple[SnapshotFile, ...]:
        """The files with rows, and those of the pipeline."""
        return (*self.files, *(self.pipeline.files if self.pipeline else ()))

    @property
    def rows(self) -> int:
        """The number of rows, including repetitions."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """The size of the files with rows, in bytes."""
        return sum(file.bytes for file in self.files)

    @property
    def checksum(self) -> int:
        """The checksum over all rows."""
        return sum(file.checksum for file in self.files) % _MODULUS

    def to_json(self) -> str:
        """The text of `_manifest.json`."""
        return json.dumps(
            {
                "format": MANIFEST_FORMAT,
                "version": MANIFEST_VERSION if self.pipeline else _ROWS_ONLY_VERSION,
                "location_id": self.location_id,
                "collection_id": self.collection_id,
                "collection": self.collection,
                "as_of": self.as_of,
                "job_id": self.job_id,
                "attempt": self.attempt,
                "schema": {
                    "key": [dataclasses.asdict(column) for column in self.schema.key],
                    "value": [dataclasses.asdict(column) for column in self.schema.value],
                },
                "rows": self.rows,
                "bytes": self.bytes,
                "checksum": checksum_text(self.checksum),
                "files": [_file_to_json(file) for file in self.files],
                "created_ms": self.created_ms,
                **(
                    {
                        "pipeline": {
                            "made_from": self.pipeline.made_from,
                            "remap": _file_to_json(self.pipeline.remap),
                            "errors": _file_to_json(self.pipeline.errors),
                        }
                    }
                    if self.pipeline
                    else {}
                ),
            },
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str, *, where: str = MANIFEST_NAME) -> "SnapshotManifest":
        """Parse a manifest.

        Raises `BadInput` if it is invalid or inconsistent, `VersionTooNew` for a newer one.
        """
        try:
            given = json.loads(text)
            if given["format"] != MANIFEST_FORMAT:
                raise BadInput(f"{where} is not a snapshot manifest: its format is {given['format']!r}")
            if given["version"] > MANIFEST_VERSION:
                raise VersionTooNew(
                    f"{where} has version {given['version']}, newer than {MANIFEST_VERSION}",
                    hint="upgrade Holdfast to restore this snapshot",
                )
            manifest = cls(
                location_id=given["location_id"],
                collection_id=given["collection_id"],
                collection=given["collection"],
                as_of=_number(given["as_of"]),
                job_id=given["job_id"],
                attempt=_number(given["attempt"]),
                schema=Schema(_columns(given["schema"]["key"]), _columns(given["schema"]["value"])),
                files=tuple(_file(file, where) for file in given["files"]),
                created_ms=_number(given["created_ms"]),
                pipeline=_pipeline(given["pipeline"], where)
                if given["version"] > _ROWS_ONLY_VERSION
                else None,
            )
            claimed = (given["rows"], given["checksum"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadInput(f"{where} is not a snapshot manifest: {type(error).__name__} {error}") from None
        if claimed != (manifest.rows, checksum_text(manifest.checksum)):
            raise BadInput(
                f"{where} is inconsistent: its files have {manifest.rows} rows with checksum"
                f" {checksum_text(manifest.checksum)}, but it claims {claimed[0]} with {claimed[1]}",
                hint="the file was changed after the snapshot: restore it from a copy, or use another"
                " snapshot",
            )
        return manifest


def file_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the files of a snapshot. Parquet has no seconds, so they are milliseconds."""
    return pa.schema([_file_field(field) for field in schema.arrow])


def _file_field(field: pa.Field) -> pa.Field:
    type_ = field.type
    if pa.types.is_list(type_):
        type_ = pa.list_(_file_field(type_.value_field))
    elif pa.types.is_struct(type_):
        type_ = pa.struct([_file_field(each) for each in type_])
    elif pa.types.is_map(type_):
        type_ = pa.map_(_file_field(type_.key_field).type, _file_field(type_.item_field))
    elif pa.types.is_timestamp(type_) and type_.unit == "s":
        type_ = pa.timestamp("ms", type_.tz)
    elif type_ == pa.time32("s"):
        type_ = pa.time32("ms")
    return field.with_type(type_)


def checksum_of(rows: Rows, schema: Schema) -> int:
    """The checksum of stored rows (all columns of `schema`, in any order)."""
    if rows.num_rows == 0:
        return 0
    return int(row_hash(rows, schema.names).sum(dtype=np.uint64))


def checksum_text(checksum: int) -> str:
    """A checksum as text: 16 hexadecimal digits."""
    return f"{checksum:016x}"


def read_manifest(location: str | Path | SnapshotFolder) -> SnapshotManifest:
    """Read the manifest of the snapshot in this folder. Raises `BadInput` if there is none."""
    folder = _folder(location)
    where = str(folder.below(MANIFEST_NAME))
    try:
        data = folder.read(MANIFEST_NAME)
        if data is None:
            raise BadInput(
                f"there is no {where}: it is not a snapshot, or the snapshot was never finished",
                hint="give the folder of a finished snapshot",
            )
        text = data.decode()
    except OSError as error:
        raise BadInput(f"can't read {where}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"can't read {where}: {error}") from None
    return SnapshotManifest.from_json(text, where=where)


def verify_snapshot(location: str | Path | SnapshotFolder) -> SnapshotManifest:
    """Read all files of a snapshot again. Return its manifest if every row is as it was written.

    Raises `CorruptBlob`, naming the first file that is missing or has a different size, schema, number of
    rows or checksum. Otherwise raises like `read_manifest`.
    """
    folder = _folder(location)
    manifest = read_manifest(folder)
    files = [(file, manifest.schema) for file in manifest.files]
    if manifest.pipeline is not None:
        files += zip(manifest.pipeline.files, PIPELINE_SCHEMAS, strict=True)
    for file, schema in files:
        for _ in read_rows(folder, file, schema, batch_rows=_VERIFY_ROWS):
            pass
    return manifest


def read_rows(
    folder: SnapshotFolder, file: SnapshotFile, schema: Schema, *, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of one file of a snapshot.

    Raises `CorruptBlob` if the file is missing or has a different size or schema, and at its end if it has a
    different number of rows or checksum.
    """
    where = str(folder.below(file.name))
    rows = checksum = 0
    try:
        with folder.open(file.name) as (opened, size):
            if size != file.bytes:
                raise CorruptBlob(where, f"{file.bytes} bytes", f"{size}")
            with pq.ParquetFile(opened) as parquet:
                found = parquet.schema_arrow.remove_metadata()
                if not found.equals(file_schema(schema)):
                    raise CorruptBlob(where, f"the schema {schema}", " ".join(str(found).split()))
                for read in parquet.iter_batches(batch_size=batch_rows):
                    batch = stored_rows(read, schema)
                    rows += batch.num_rows
                    checksum = (checksum + checksum_of(batch, schema)) % _MODULUS
                    yield batch
    except (OSError, pa.ArrowException) as error:
        raise CorruptBlob(where, "a readable Parquet file", " ".join(str(error).split())) from None
    if (rows, checksum) != (file.rows, file.checksum):
        raise CorruptBlob(
            where,
            f"{file.rows} rows with checksum {checksum_text(file.checksum)}",
            f"{rows} with {checksum_text(checksum)}",
        )


def _folder(location: str | Path | SnapshotFolder) -> SnapshotFolder:
    return location if isinstance(location, SnapshotFolder) else folder_at(location)


def _columns(given: list[dict[str, Any]]) -> tuple[Column, ...]:
    return tuple(Column(**column) for column in given)


def _file_to_json(file: SnapshotFile) -> dict[str, Any]:
    return {**dataclasses.asdict(file), "checksum": checksum_text(file.checksum)}


def _pipeline(given: dict[str, Any], where: str) -> SnapshotPipeline:
    made_from = given["made_from"]
    if type(made_from) is not str:
        raise ValueError(f"{made_from!r} instead of a text")
    remap, errors = (_file(given[name], where) for name in ("remap", "errors"))
    return SnapshotPipeline(made_from=made_from, remap=remap, errors=errors)


def _file(given: dict[str, Any], where: str) -> SnapshotFile:
    file = SnapshotFile(**{**given, "checksum": int(given["checksum"], 16)})
    if Path(file.name).name != file.name:
        raise BadInput(f"{where} names {file.name!r}, which is not a file in its folder")
    _number(file.rows)
    _number(file.bytes)
    return file


def _number(given: Any) -> int:
    """A number from a manifest. Raises `ValueError` if it is not a whole number, or negative."""
    if type(given) is not int or given < 0:
        raise ValueError(f"{given!r} instead of a whole number")
    return given
