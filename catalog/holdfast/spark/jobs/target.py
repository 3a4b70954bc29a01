# ruff: noqa: D102 - the base class documents its methods
"""The target of a snapshot. The job decides the order of the steps, and the target does them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from pyspark import SparkContext

from holdfast.collections import CollectionInfo
from holdfast.collections.record.jobs import one_line
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.manifest import (
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotManifest,
    SnapshotPipeline,
    checksum_text,
)
from holdfast.errors import StorageError
from holdfast.persist import PersistClient
from holdfast.spark import scan
from holdfast.spark.jobs import folder as folders
from holdfast.spark.jobs.export import export
from holdfast.spark.jobs.program import Say
from holdfast.spark.jobs.spec import SnapshotSpec
from holdfast.spark.pipeline_files import write_pipeline


class Target(ABC):
    """The target of one attempt. Its `str` shows where the files go."""

    @abstractmethod
    def begin(self, found: scan.Scan) -> dict[str, Any] | None:
        """Get ready to write. Return the result of an earlier attempt that committed but wasn't recorded.

        Raises `BadInput` before anything is written if the collection can't be written there.
        """

    @abstractmethod
    def export(
        self,
        context: SparkContext,
        tasks: Sequence[scan.ScanTask],
        found: scan.Scan,
        *,
        progress: Callable[[int], None],
    ) -> tuple[SnapshotFile, ...]:
        """Let tasks write the files. Raises `HoldfastError` with the message of a task that failed."""

    def export_pipeline(
        self,
        client: PersistClient,  # noqa: ARG002 - only a folder has room for it
        info: CollectionInfo,  # noqa: ARG002
        as_of: int,  # noqa: ARG002
    ) -> SnapshotPipeline | None:
        """Write the bindings and errors of a collection that a pipeline feeds. None if there are none."""
        return None

    @abstractmethod
    def publish(self, manifest: SnapshotManifest) -> dict[str, Any]:
        """Publish the files as a snapshot. Return the result of the job."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what the attempt has written, unless it was committed."""

    @abstractmethod
    def clear_up(self, say: Say) -> None:
        """Remove the files of earlier attempts, after the commit."""


class FolderTarget(Target):
    """A folder of Parquet files with a manifest."""

    def __init__(self, spec: SnapshotSpec) -> None:
        assert spec.destination is not None
        self._spec = spec
        self._destination = spec.destination
        self._folder: SnapshotFolder | None = None

    def __str__(self) -> str:
        return str(self._folder)

    def begin(self, found: scan.Scan) -> dict[str, Any] | None:  # noqa: ARG002 - a folder takes every type
        self._folder = folders.claim(self._destination, self._spec.job_id, self._spec.attempt)
        return None

    def export(
        self,
        context: SparkContext,
        tasks: Sequence[scan.ScanTask],
        found: scan.Scan,
        *,
        progress: Callable[[int], None],
    ) -> tuple[SnapshotFile, ...]:
        return export(context, tasks, found, self._claimed, progress=progress)

    def export_pipeline(
        self, client: PersistClient, info: CollectionInfo, as_of: int
    ) -> SnapshotPipeline | None:
        return write_pipeline(client, info, as_of, self._claimed)

    def publish(self, manifest: SnapshotManifest) -> dict[str, Any]:
        folders.publish(self._claimed, manifest)
        return {
            "as_of": manifest.as_of,
            "rows": manifest.rows,
            "bytes": manifest.bytes,
            "files": len(manifest.files),
            "checksum": checksum_text(manifest.checksum),
            "path": str(self._claimed),
            "manifest": str(self._claimed.below(MANIFEST_NAME)),
        }

    def discard(self) -> None:
        self._claimed.discard()

    def clear_up(self, say: Say) -> None:
        try:
            folders.discard_earlier(self._destination, self._spec.job_id, self._spec.attempt)
        except (StorageError, OSError) as error:
            # The snapshot is already committed, so this is no error.
            say(f"what earlier attempts left is still there: {one_line(error)}")

    @property
    def _claimed(self) -> SnapshotFolder:
        assert self._folder is not None
        return self._folder
