# ruff: noqa: D102 - the base class documents its methods
"""An Iceberg table as the target of a snapshot."""

from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.table import Table
from pyspark import SparkContext

from holdfast.collections.record.column_names import PLAIN_NAMES
from holdfast.collections.record.comments import NO_COMMENTS
from holdfast.collections.record.jobs import one_line
from holdfast.collections.snapshots.manifest import SnapshotFile, SnapshotManifest
from holdfast.errors import BadInput, Fenced
from holdfast.spark import scan
from holdfast.spark.jobs import iceberg_files
from holdfast.spark.jobs.program import Say
from holdfast.spark.jobs.spec import SnapshotSpec
from holdfast.spark.jobs.target import Target
from holdfast.tables.iceberg import commits, files
from holdfast.tables.iceberg.files import IcebergFile, TableLocation
from holdfast.tables.iceberg.schemas import evolve, make_table, open_catalog
from holdfast.tables.iceberg.target import IcebergTarget


class IcebergTableTarget(Target):
    """A table whose contents an attempt replaces. `check_current` raises `Fenced` if the attempt may not."""

    def __init__(
        self, spec: SnapshotSpec, target: IcebergTarget, check_current: Callable[[], object]
    ) -> None:
        self._target = target
        self._job_id, self._attempt = spec.job_id, spec.attempt
        # Two processes may run one attempt, so each has its own folder.
        self._run = files.run_name(spec.attempt)
        self._check_current = check_current
        self._catalog = open_catalog(target)
        self._comments = NO_COMMENTS
        self._names = PLAIN_NAMES
        self._place: TableLocation | None = None
        self._files: tuple[IcebergFile, ...] = ()
        self._table: Table | None = None
        self._committed = ""
        """The run whose files the table has."""

    def __str__(self) -> str:
        return str(self._target)

    def begin(self, found: scan.Scan) -> dict[str, Any] | None:
        table = self._table = make_table(self._catalog, self._target, found.schema, found.comments)
        if (before := commits.committed_by(table, self._job_id)) is not None:
            self._committed = commits.run_of(before)
            return commits.result_of(self._target, table, before)
        commits.check_replaceable(
            table,
            self._target,
            key=commits.collection_key(found.location_id, found.collection_id),
            collection=found.name,
            as_of=found.as_of,
        )
        self._comments, self._names = found.comments, found.names
        written_as = evolve(table.transaction(), self._target, found.schema, found.comments, found.names)
        self._place = TableLocation.of(table, written_as, f"{self._job_id}/{self._run}")
        return None

    def export(
        self,
        context: SparkContext,
        tasks: Sequence[scan.ScanTask],
        found: scan.Scan,
        *,
        progress: Callable[[int], None],
    ) -> tuple[SnapshotFile, ...]:
        assert self._place is not None
        self._files = iceberg_files.export(context, tasks, found.schema, self._place, progress=progress)
        return tuple(each.file for each in self._files)

    def publish(self, manifest: SnapshotManifest) -> dict[str, Any]:
        assert self._place is not None
        # A later error may come after the commit. So discard only if certainly nothing was committed.
        place, self._place = self._place, None
        wanted = commits.Replacement(
            manifest, self._run, self._files, place.schema, self._comments, self._names
        )
        try:
            table, snapshot = commits.commit(self._catalog, self._target, wanted, self._check_current)
        except (BadInput, Fenced):
            place.discard()
            raise
        self._table, run = table, commits.run_of(snapshot)
        if run != self._run:
            place.discard()
        self._committed = run
        return commits.result_of(self._target, table, snapshot)

    def discard(self) -> None:
        if self._place is not None:
            self._place.discard()

    def clear_up(self, say: Say) -> None:
        try:
            assert self._table is not None
            files.discard_earlier(self._table, self._job_id, self._attempt, kept=self._committed)
        except OSError as error:
            say(f"can't remove what earlier attempts left: {one_line(error)}")
