"""The snapshot job: a collection as of one time, as Parquet files with a manifest.

    python -m holdfast.spark.jobs.snapshot '<JSON spec or the path of one>'

- It commits once, by the step of its JobRecord from Running(attempt) to Done. Files and manifest are
  durable before; without that step they are nothing, and a later attempt removes them.
- An attempt that isn't the record's any more is fenced: it takes its own files away and changes nothing.
- What it reads is under its own critical hold, from before the first read until the files are written.

The record's result: `as_of`, `rows`, `bytes`, `files` (how many), `checksum` (16 hex digits), `path` of the
folder, `manifest` (its path).

Exit codes: 0 the snapshot is committed (now, or before by the same attempt); 1 it failed and a new attempt
may succeed; 2 the spec or what it asks for is wrong; 3 the store failed; 4 fenced; 143 it was told to end.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import Fenced, StorageError
from holdfast.persist import PersistClient
from holdfast.spark import scan
from holdfast.spark.jobs import folder as folders
from holdfast.spark.jobs import program
from holdfast.spark.jobs.export import export
from holdfast.spark.jobs.hold import hold
from holdfast.spark.jobs.program import Say, committed, on_record, session
from holdfast.spark.jobs.spec import SnapshotSpec
from holdfast.storage import StorageController
from holdfast.storage.jobs import one_line
from holdfast.storage.manifest import MANIFEST_NAME, SnapshotManifest, checksum_text
from holdfast.storage.snapshotfolder import SnapshotFolder


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes and return the exit code."""
    return program.main(arguments, SnapshotSpec, lambda spec, say: run(spec, say=say))


def run(spec: SnapshotSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Do what the spec says unless this attempt has done it; `Fenced` when it isn't the current one.

    `say` is told how far it is. Runs on `spark`, or on a session of its own. An error of the work itself is
    put on record as the attempt's failure before it is raised.
    """
    started = time.monotonic()
    with spec.place.open_to_write() as client:
        controller = StorageController(client)
        if committed(controller, spec):
            say(f"attempt {spec.attempt} of job {spec.job_id} has committed before; nothing to do")
            return
        with on_record(controller, spec):
            manifest, folder = _write(client, controller, spec, say, spark)
        say(f"{manifest.rows:,} rows are written, committing")
        _commit(controller, spec, folder, _result(manifest, folder))
        _discard_earlier(spec, say)
    say(
        f"committed {manifest.rows:,} rows in {len(manifest.files)} files, {manifest.bytes:,} bytes, "
        f"checksum {checksum_text(manifest.checksum)}, {time.monotonic() - started:.1f} s"
    )


def _write(
    client: PersistClient,
    controller: StorageController,
    spec: SnapshotSpec,
    say: Say,
    spark: SparkSession | None,
) -> tuple[SnapshotManifest, SnapshotFolder]:
    """Everything but the commit: files and manifest, durable, in the folder of this attempt."""
    found = scan.find(spec.reading(spec.collection, spec.as_of))
    info = controller.describe(found.collection_id)
    folder = folders.claim(spec.destination, spec.job_id, spec.attempt)
    try:
        with hold(client, info, found.as_of, job_id=spec.job_id, attempt=spec.attempt):
            # Whoever ended the attempt before it held anything has released nothing.
            committed(controller, spec)
            tasks = scan.plan(found)
            say(f"{found.name} as of {found.as_of}: {len(tasks)} tasks into {folder}")
            with session(spec, spark) as running:
                files = export(
                    running.sparkContext,
                    tasks,
                    found.schema,
                    folder,
                    progress=lambda done: say(f"{done} of {len(tasks)} tasks are done"),
                )
        manifest = SnapshotManifest(
            location_id=str(client.location_id),
            collection_id=found.collection_id,
            collection=found.name,
            as_of=found.as_of,
            job_id=spec.job_id,
            attempt=spec.attempt,
            schema=found.schema,
            files=files,
            created_ms=time.time_ns() // 1_000_000,
        )
        folders.publish(folder, manifest)
    except BaseException:
        folder.discard()
        raise
    return manifest, folder


def _commit(
    controller: StorageController, spec: SnapshotSpec, folder: SnapshotFolder, result: dict[str, Any]
) -> None:
    try:
        controller.finish_job(spec.job_id, spec.attempt, result)
    except Fenced:
        folder.discard()
        raise


def _discard_earlier(spec: SnapshotSpec, say: Say) -> None:
    try:
        folders.discard_earlier(spec.destination, spec.job_id, spec.attempt)
    except (StorageError, OSError) as error:
        # It is committed all the same.
        say(f"what earlier attempts left is still there: {one_line(error)}")


def _result(manifest: SnapshotManifest, folder: SnapshotFolder) -> dict[str, Any]:
    return {
        "as_of": manifest.as_of,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "checksum": checksum_text(manifest.checksum),
        "path": str(folder),
        "manifest": str(folder.below(MANIFEST_NAME)),
    }


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
