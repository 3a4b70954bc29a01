"""Creates a table from a file: its columns come from the file, and its rows are loaded.

- The creation and the rows are one commit. If anything fails, or the process is killed, there is no table.
- All rows are read and checked before anything is written. So that no key occurs twice, 8 bytes of each key
  are in memory.
"""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.collections import CollectionInfo, CollectionSpec, StorageController
from holdfast.collections.first_rows import FirstRows
from holdfast.collections.periods import NEW_TABLE, Period, period_ms
from holdfast.errors import BadInput, NoLocation, UniquenessViolation
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.row_hash import row_hash
from holdfast.tables.changes import check_unique
from holdfast.tables.files.inference import schema_of_file
from holdfast.tables.files.source import RowSource, Told
from holdfast.tables.files.written import WRITE, record_of_file
from holdfast.tables.listing import list_tables
from holdfast.tables.opening import enter, table
from holdfast.tables.table import Table
from holdfast.text import naming

_CANDIDATES: Final = 1024
"""So many hashes of keys are looked at in one more pass over a file."""


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table to be created from a file. Its rows were read and checked."""

    spec: CollectionSpec
    file: Path
    form: str | None

    def source(self) -> RowSource:
        """The rows of the file."""
        return RowSource(self.file, self.form, self.spec.schema)


def table_of_file(
    name: str,
    file: Path,
    form: str | None = None,
    *,
    key: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    shards: int = 1,
    comments: Mapping[str, str] | None = None,
    retain: Period | None = None,
    collection_id: str = "",
    told: Told = lambda *_: None,
) -> FileTable:
    """Read a file, and decide which table it makes. Raises `BadInput` if it can't make one.

    `told` is called with the progress of reading.
    """
    if str(file) == "-":
        raise BadInput("a table can't be created from standard input", hint="give the name of a file")
    spec = CollectionSpec(
        collection_id or str(uuid.uuid4()),
        name,
        schema_of_file(file, form, key=key, columns=columns),
        shards,
        comments=comments or {},
        retain_ms=period_ms(NEW_TABLE if retain is None else retain),
    )
    found = FileTable(spec, file, form)
    names = spec.schema.key_names
    hashes = [np.empty(0, np.uint64)]
    with found.source() as source:
        for piece in source.pieces(told):
            with naming(str(file)):
                rows = prepare_updates(spec.schema, piece, default_time=0)
            if names:
                hashes.append(row_hash(pa.Table.from_batches([rows]), names))
    _check_keys(found, np.concatenate(hashes))
    return found


def _check_keys(given: FileTable, hashes: npt.NDArray[np.uint64]) -> None:
    """Raise `BadInput` if a key occurs twice. The hashes of all keys take less memory than the keys."""
    hashes.sort()
    again = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    schema = given.spec.schema
    # Different keys may have the same hash.
    for start in range(0, len(again), _CANDIDATES):
        found = []
        with given.source() as source:
            for piece in source.pieces():
                rows = pa.Table.from_batches([prepare_updates(schema, piece, default_time=0)])
                keys = rows.select(schema.key_names)
                is_wanted = np.isin(row_hash(keys, schema.key_names), again[start : start + _CANDIDATES])
                found.append(keys.filter(pa.array(is_wanted)))
        check_unique(
            given.spec.name, pa.concat_tables(found), str(given.file), "choose other key columns, or none"
        )


def create(
    controller: StorageController, given: FileTable, told: Told = lambda *_: None
) -> tuple[CollectionInfo, int]:
    """Create the table with its rows. Returns it, and the number of rows.

    Raises `UniquenessViolation` if there is a table with the name.
    """
    client = controller.client
    with (
        given.source() as source,
        FirstRows(client, given.spec, purpose=controller.purpose_of("load")) as rows,
    ):
        contents = source.fingerprint()
        for piece in source.pieces(told):
            rows.bulk.add(piece)
        if contents is not None and rows.bulk.rows:
            record = record_of_file(source, rows.bulk.rows, client.config.hostname)
            rows.file = (WRITE, contents, *record)
        rows.upload(client.now_ms())
        return controller.create_collection(given.spec, rows=rows), rows.bulk.rows


def refuse_taken(list_names: Callable[[], Sequence[str]], name: str) -> None:
    """Raise `UniquenessViolation` if a location has a table with this name. There may be no location."""
    try:
        taken = name in list_names()
    except NoLocation:
        return
    if taken:
        raise UniquenessViolation(
            f"there is a table {name!r}", hint="choose another name; 'holdfast write' adds rows to a table"
        )


def create_table(
    url: str | os.PathLike[str],
    name: str,
    file: str | os.PathLike[str],
    *,
    key: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    format: str | None = None,  # noqa: A002 - the word of the command
    shards: int = 1,
    comments: Mapping[str, str] | None = None,
    retain: Period | None = None,
    consensus: str | None = None,
) -> Table:
    """Create a table from a file of CSV, JSON lines, Parquet or Arrow, and load its rows. Returns it, open.

    The columns and their types come from the whole file. `columns` has types that replace those that were
    found, such as `{"price": "decimal128(10,2)"}`. `key` names the key columns, which must not be null, and
    each key must occur once; all other columns may be null. `format` is that of the file (None: by its name).
    The other arguments are as for `holdfast.table`. The rows and the table become visible at one time, or not
    at all.

    Raises:
        BadInput: the file can't be read, or can't become a table. Nothing was written.
        UniquenessViolation: there is a table with this name. Nothing was written.
    """
    if not isinstance(file, str | os.PathLike):
        raise BadInput(
            f"create_table makes a table of a file, not of {type(file).__name__}",
            hint="for rows in memory: holdfast.table(url, name, columns=pa.table(rows).schema).append(rows)",
        )
    if isinstance(key, str):
        key = [key]
    refuse_taken(lambda: [each.name for each in list_tables(url, consensus=consensus)], name)
    given = table_of_file(
        name, Path(file), format, key=key, columns=columns, shards=shards, comments=comments, retain=retain
    )
    controller, leave = enter(url, "write", create=True, consensus=consensus)
    try:
        create(controller, given)
        return table(url, name, consensus=consensus)
    finally:
        leave()
