"""The data files of an Iceberg table: Parquet with the ids of the columns.

- A file doesn't count until a commit names it. Each run has its own folder.
- Writing a file returns all that its commit needs, so no file is read again.
"""

import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final, cast

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from holdfast.collections.snapshots.manifest import SnapshotFile
from holdfast.collections.snapshots.parquet import part_name, write_groups
from holdfast.errors import HoldfastError
from holdfast.persist.rows.schema import Schema

_RUN: Final = re.compile(r"attempt-(\d+)-[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class TableLocation:
    """Where files are written and how: a folder, how to open it, and the schema and settings of the table."""

    folder: str
    location: str
    opening: Mapping[str, Any]
    schema: IcebergSchema
    settings: Mapping[str, str]

    @classmethod
    def of(cls, table: Table, schema: IcebergSchema, folder: str) -> "TableLocation":
        """The location of a folder in the table's data.

        The properties that open it may contain credentials of the catalog.
        """
        return cls(
            folder=table.location_provider().new_data_location(folder),
            location=table.metadata_location,
            opening=table.io.properties,
            schema=schema,
            settings=table.properties,
        )

    def discard(self) -> None:
        """Remove the folder, as far as possible. Only pyarrow's file systems can list it."""
        found = _listed(load_file_io(dict(self.opening), self.location), self.folder)
        if found is not None:
            with suppress(OSError):
                found[0].delete_dir(found[1])


@dataclass(frozen=True)
class IcebergFile:
    """One data file: its facts for the snapshot, its path, and its column statistics for Iceberg."""

    file: SnapshotFile
    path: str
    statistics: Mapping[str, Any]

    def data_file(self, spec_id: int) -> DataFile:
        """The description of the file in a commit.

        `spec_id` is the table's partition spec, which must have no fields.
        """
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=self.file.bytes,
            sort_order_id=None,
            spec_id=spec_id,
            equality_ids=None,
            key_metadata=None,
            **self.statistics,
        )


def run_name(attempt: int) -> str:
    """The folder name of one process that runs an attempt, below the folder of the job."""
    return f"attempt-{attempt}-{uuid.uuid4().hex[:12]}"


def discard_earlier(table: Table, job_id: str, attempt: int, *, kept: str) -> None:
    """Remove what earlier attempts left, except the run whose files the table has.

    Call it only after a commit of the job, when none of them can commit any more. Raises `OSError`.
    """
    found = _listed(table.io, table.location_provider().new_data_location(job_id))
    if found is None:
        return
    filesystem, path = found
    for each in filesystem.get_file_info(FileSelector(path, allow_not_found=True)):
        run = _RUN.fullmatch(each.base_name)
        if run and int(run[1]) < attempt and each.base_name != kept:
            filesystem.delete_dir(each.path)


def write_file(
    index: int, first: pa.Table, more: Iterable[pa.Table], *, schema: Schema, place: TableLocation
) -> IcebergFile:
    """Write tables with the columns of `schema` to one file. Raises `HoldfastError` if that fails."""
    name = part_name(index)
    path = f"{place.folder}/{name}"
    target = schema_to_pyarrow(place.schema)
    try:
        output = load_file_io(dict(place.opening), place.location).new_output(path)
        with output.create() as out:
            sink = cast("IO[bytes]", out)
            rows, checksum, metadata = write_groups(sink, first, more, schema, target)
        size = len(output)
    except (OSError, pa.ArrowException) as error:
        raise HoldfastError(f"can't write {path}: {' '.join(str(error).split())}") from error
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=compute_statistics_plan(place.schema, dict(place.settings)),
        parquet_column_mapping=parquet_path_to_id_mapping(place.schema),
    )
    file = SnapshotFile(name=name, rows=rows, bytes=size, checksum=checksum)
    return IcebergFile(file, path, statistics.to_serialized_dict())


def _listed(io: FileIO, folder: str) -> tuple[FileSystem, str] | None:
    """The file system of a folder and its path there. None if the folder can't be listed."""
    if not isinstance(io, PyArrowFileIO):
        return None
    scheme, host, path = io.parse_location(folder, io.properties)
    return io.fs_by_scheme(scheme, host), path
