"""The commit of a snapshot to an Iceberg table: once for each job, and only over what the collection was.

- The id of the job is in the summary of the Iceberg snapshot. Whoever commits for a job looks for it first,
  in the very metadata that the commit then requires to be current: of drivers of one job that commit at once
  one succeeds, and the others find what it did. pyiceberg's own retries would not look: they aren't used.
- A commit whose outcome is unknown is looked for, and not sent again: it may land as long as nothing else
  has, and then whoever comes next finds it.
- Whether the attempt is the current one is asked after the metadata was loaded. One that is replaced after
  that can commit only where nobody else has since, and its successor finds that commit and only records it.
- It replaces only what the collection itself was: a table without rows, or whose last change of rows is a
  snapshot of this very collection. The commit requires that one to be still current.
- The contents of a table go forward: what a collection was as of a time never replaces what it was later.
- One commit replaces all rows. What goes is named by its metadata; no row is read.
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

from holdfast.collections.record.comments import Comments
from holdfast.collections.snapshots.manifest import SnapshotManifest, checksum_text
from holdfast.errors import BadInput, HoldfastError, Indeterminate
from holdfast.spark.jobs.icebergfiles import IcebergFile
from holdfast.spark.jobs.icebergtable import evolve, load_table, unusable
from holdfast.spark.jobs.spec import IcebergTarget

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
    """What a table is to have: the files of one run of a job, and what they were written as."""

    manifest: SnapshotManifest
    run: str
    files: Sequence[IcebergFile]
    written_as: IcebergSchema
    comments: Comments = field(default_factory=dict)


def committed_by(table: Table, job_id: str) -> Snapshot | None:
    """What the job has committed to the table; None where it has not, or the table has forgotten it."""
    return next((each for each in table.metadata.snapshots if _told(each).get(_KEY) == job_id), None)


def result_of(target: IcebergTarget, table: Table, snapshot: Snapshot) -> dict[str, Any]:
    """The result of the job, as the summary of its Iceberg snapshot tells it."""
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
    """Which run of its job has committed it."""
    return _told(snapshot)[_RUN]


def commit(
    catalog: Catalog, target: IcebergTarget, wanted: Replacement, check_current: Callable[[], object]
) -> tuple[Table, Snapshot]:
    """Make the files the contents of the table, unless the job has done so; its snapshot.

    `check_current` raises `Fenced` where the attempt is not the current one. Raises `BadInput` as
    `check_replaceable`, and where the table has got columns that the files were not written for. With both
    nothing was committed; `Indeterminate` where that is not known.
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
            continue  # to look at what is there
        time.sleep(random.uniform(0, min(_LONGEST_WAIT_S, 0.05 * 2**attempt)))  # noqa: S311 - no secret
    raise HoldfastError(f"the Iceberg table {target} was changed by others each of {_TRIES} times")


def collection_key(location_id: UUID | str, collection_id: str) -> str:
    """What names a collection for ever, in the summary of a snapshot; another one may get its name."""
    return f"{location_id}/{collection_id}"


def check_replaceable(table: Table, target: IcebergTarget, *, key: str, collection: str, as_of: int) -> None:
    """Refuse a table whose rows are not the collection's, or what it was after `as_of`, with `BadInput`.

    Whose they are is told by the last snapshot that changed rows: others may rewrite files, and roll back.
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
            f" that is not replaced by collection {collection} ({key})",
            hint="name another table, or drop this one"
            if mine is None
            else f"name another table, or roll this one back to its snapshot {mine.snapshot_id}",
        )
    if int(told[_AS_OF]) > as_of:
        raise BadInput(
            f"the Iceberg table {target} has collection {collection} as of {told[_AS_OF]}:"
            f" it is not replaced by what it was as of {as_of}",
            hint="name another table, or roll this one back first",
        )


def _commit_to(table: Table, target: IcebergTarget, wanted: Replacement) -> bool:
    """Commit on top of what was loaded; False where somebody else has changed that."""
    transaction = table.transaction()
    if evolve(transaction, target, wanted.manifest.schema, wanted.comments) != wanted.written_as:
        raise BadInput(f"the columns of the Iceberg table {target} were changed while its rows were written")
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
    # A transaction that commits by itself does so again on top of what it has not looked at, and removes its
    # files where a service says that it failed.
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
            raise Indeterminate(f"{said}; whether the snapshot was committed is not known") from error
    return True


def _landed(catalog: Catalog, target: IcebergTarget, wanted: Replacement) -> bool:
    """Whether a commit of unknown outcome is seen; False proves nothing."""
    try:
        return committed_by(load_table(catalog, target), wanted.manifest.job_id) is not None
    except HoldfastError:
        return False


def _rewrites(snapshot: Snapshot) -> bool:
    """Whether it has other files with the same rows, as a compaction makes them."""
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
