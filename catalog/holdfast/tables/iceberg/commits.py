"""Commits a snapshot to an Iceberg table, once for each job. Replaces only contents of the same collection.

- The id of the job is in the summary of the Iceberg snapshot. A driver that commits first looks for it, in
  the same metadata that the commit then requires to be current. So if several drivers of one job commit at
  once, one succeeds and the others find its commit. pyiceberg's own retries would not look, so they aren't
  used.
- If the outcome of a commit is unknown, the driver looks for it and does not send it again. It may still take
  effect as long as nothing else has, and then the next driver finds it.
- The driver checks that its attempt is current after it has loaded the metadata. An attempt that is replaced
  after that can commit only if nobody else has since. Its successor finds that commit and only records it.
- It replaces only contents of the same collection: the table has no rows, or its last change of rows is a
  snapshot of this very collection. The commit requires that change to be still current.
- The contents of a table go forward in time: an earlier state of a collection never replaces a later one.
- One commit replaces all rows. The metadata names the files that are removed; no row is read.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import AssertTableUUID

from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames
from holdfast.collections.record.comments import Comments
from holdfast.collections.snapshots.manifest import SnapshotManifest, checksum_text
from holdfast.errors import BadInput, HoldfastError, Indeterminate
from holdfast.tables.iceberg.files import IcebergFile
from holdfast.tables.iceberg.schemas import evolve, load_table, unusable
from holdfast.tables.iceberg.target import IcebergTarget

_PREFIX: Final = "holdfast."
_KEY: Final = f"{_PREFIX}job-id"
_RUN: Final = f"{_PREFIX}run"
_AS_OF: Final = f"{_PREFIX}as-of"
_COLLECTION: Final = f"{_PREFIX}collection-id"
_COLLECTION_NAME: Final = f"{_PREFIX}collection"
_TRIES: Final = 20
_LONGEST_WAIT_S: Final = 1.0


@dataclass(frozen=True)
class Replacement:
    """The new contents of a table: the files of one run of a job, and the schema they were written with."""

    manifest: SnapshotManifest
    run: str
    files: Sequence[IcebergFile]
    written_as: IcebergSchema
    comments: Comments = field(default_factory=dict)
    names: ColumnNames = PLAIN_NAMES


def committed_by(table: Table, job_id: str) -> Snapshot | None:
    """The snapshot that the job committed to the table.

    None if there is none, or the table has expired it.
    """
    return next((each for each in table.metadata.snapshots if _told(each).get(_KEY) == job_id), None)


def result_of(target: IcebergTarget, table: Table, snapshot: Snapshot) -> dict[str, Any]:
    """The result of the job, from the summary of its Iceberg snapshot."""
    told = _told(snapshot)
    numbers = {name: int(told[f"{_PREFIX}{name}"]) for name in ("rows", "bytes", "files")}
    return {
        "as_of": int(told[_AS_OF]),
        **numbers,
        "checksum": told[f"{_PREFIX}checksum"],
        "path": table.location(),
        "table": str(target),
        "snapshot_id": str(snapshot.snapshot_id),
    }


def run_of(snapshot: Snapshot) -> str:
    """The run that committed the snapshot."""
    return _told(snapshot)[_RUN]


def commit(
    catalog: Catalog, target: IcebergTarget, wanted: Replacement, check_current: Callable[[], object]
) -> tuple[Table, Snapshot]:
    """Make the files the contents of the table, unless the job has already done so.

    Returns the table and the snapshot.

    `check_current` raises `Fenced` if the attempt is not the current one. Raises `BadInput` like
    `check_replaceable`, and if the table has got columns that the files were not written for. Nothing was
    committed then. Raises `Indeterminate` if that is unknown.
    """
    manifest = wanted.manifest
    for attempt in range(_TRIES):
        table = load_table(catalog, target)
        if (found := committed_by(table, manifest.job_id)) is not None:
            return table, found
        check_current()
        check_replaceable(
            table,
            target,
            key=collection_key(manifest.location_id, manifest.collection_id),
            collection=manifest.collection,
            as_of=manifest.as_of,
        )
        if _commit_to(table, target, wanted):
            continue  # The next iteration finds and returns the commit.
        time.sleep(random.uniform(0, min(_LONGEST_WAIT_S, 0.05 * 2**attempt)))  # noqa: S311 - no secret
    raise HoldfastError(
        f"the Iceberg table {target} was changed by others during all {_TRIES} tries",
        hint="nothing was committed; run the snapshot again while fewer processes write to the table",
    )


def collection_key(location_id: UUID | str, collection_id: str) -> str:
    """The permanent name of a collection in the summary of a snapshot.

    Another collection may get its name.
    """
    return f"{location_id}/{collection_id}"


def check_replaceable(table: Table, target: IcebergTarget, *, key: str, collection: str, as_of: int) -> None:
    """Raise `BadInput` if the table's rows are not the collection's, or are its contents after `as_of`.

    The last snapshot that changed rows shows whose they are: others may rewrite files and roll back.
    """
    lineage = list(ancestors_of(table.current_snapshot(), table.metadata))
    if not lineage:
        return
    last = next((each for each in lineage if not _rewrites(each)), None)
    told = {} if last is None else _told(last)
    if told.get(_COLLECTION) != key:
        mine = next((each for each in lineage if _told(each).get(_COLLECTION) == key), None)
        raise BadInput(
            f"the Iceberg table {target} has {_whose(last)}:"
            f" collection {collection} ({key}) can't replace that",
            hint="name another table, or drop this one"
            if mine is None
            else f"name another table, or roll this one back to its snapshot {mine.snapshot_id}",
        )
    if int(told[_AS_OF]) > as_of:
        raise BadInput(
            f"the Iceberg table {target} has collection {collection} as of {told[_AS_OF]}:"
            f" it can't be replaced by the contents as of {as_of}",
            hint="name another table, or roll this one back first",
        )


def _commit_to(table: Table, target: IcebergTarget, wanted: Replacement) -> bool:
    """Commit on top of the loaded metadata. Returns False if somebody else has changed it."""
    transaction = table.transaction()
    schema, comments = wanted.manifest.schema, wanted.comments
    if evolve(transaction, target, schema, comments, wanted.names) != wanted.written_as:
        raise BadInput(
            f"the columns of the Iceberg table {target} were changed while its rows were written",
            hint="nothing was committed; run the snapshot again",
        )
    try:
        with transaction.update_snapshot(_summary(wanted)).overwrite() as overwrite:
            for file in wanted.files:
                overwrite.append_data_file(file.data_file(table.metadata.default_spec_id))
            head = table.current_snapshot()
            for each in () if head is None else head.manifests(table.io):
                if each.content is ManifestContent.DATA:
                    for entry in each.fetch_manifest_entry(table.io, discard_deleted=True):
                        overwrite.delete_data_file(entry.data_file)
    except OSError as error:
        raise unusable(error, f"the Iceberg table {target}") from error
    # If the transaction committed by itself, it would retry on top of metadata that it has not checked, and
    # remove its files if a service says that it failed.
    updates, requirements = transaction._updates, transaction._requirements  # noqa: SLF001
    try:
        table.catalog.commit_table(
            table, (*requirements, AssertTableUUID(uuid=table.metadata.table_uuid)), updates
        )
    except CommitFailedException:
        return False
    except Exception as error:
        if not _landed(table.catalog, target, wanted):
            said = unusable(error, f"the Iceberg table {target}")
            raise Indeterminate(f"{said}; it is unknown whether the snapshot was committed") from error
    return True


def _landed(catalog: Catalog, target: IcebergTarget, wanted: Replacement) -> bool:
    """Whether a commit with an unknown outcome is visible. False proves nothing."""
    try:
        return committed_by(load_table(catalog, target), wanted.manifest.job_id) is not None
    except HoldfastError:
        return False


def _rewrites(snapshot: Snapshot) -> bool:
    """Whether a snapshot only stores the same rows in other files, as after a compaction."""
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def _whose(last: Snapshot | None) -> str:
    if last is None:
        return "rewritten rows of a snapshot that is expired"
    told = _told(last)
    if _COLLECTION in told:
        return f"collection {told[_COLLECTION_NAME]} ({told[_COLLECTION]})"
    what = "" if last.summary is None else f", {last.summary.operation.value}"
    return f"rows that others wrote (snapshot {last.snapshot_id}{what})"


def _summary(wanted: Replacement) -> dict[str, str]:
    manifest = wanted.manifest
    return {
        _RUN: wanted.run,
        _KEY: manifest.job_id,
        _COLLECTION: collection_key(manifest.location_id, manifest.collection_id),
        _AS_OF: str(manifest.as_of),
        _COLLECTION_NAME: manifest.collection,
        f"{_PREFIX}rows": str(manifest.rows),
        f"{_PREFIX}bytes": str(manifest.bytes),
        f"{_PREFIX}files": str(len(manifest.files)),
        f"{_PREFIX}checksum": checksum_text(manifest.checksum),
    }


def _told(snapshot: Snapshot) -> dict[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties
