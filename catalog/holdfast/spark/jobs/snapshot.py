"""The snapshot job: a collection at one time, as Parquet files with a manifest, or as an Iceberg table.

    python -m holdfast.spark.jobs.snapshot '<JSON spec, or the path of a spec>'

- It commits once, by the change of its JobRecord from Running(attempt) to Done. Files and manifest are
  durable before that. Without that change they don't count, and a later attempt removes them.
- A collection that a pipeline feeds also gets its bindings and errors of that time into the folder, so that a
  restored collection can be fed on from there. An Iceberg table has only the rows.
- For an Iceberg table it first commits to the table, and then to the record. A job commits to the table once,
  even if it has several attempts. An attempt that finds the commit of an earlier one only records it.
- An attempt that is no longer the recorded one is fenced. It removes its own files and changes nothing else.
- The attempt holds the time that it reads: from its start if the record has the time, otherwise from before
  the first read. The hold ends with the attempt's record. No driver releases it.

The record's result: `as_of`, `rows`, `bytes`, `files` (their number), `checksum` (16 hex digits), `path` of
the folder or of the table; and `manifest` (its path), or `table` (its name) and `snapshot_id`.

Exit codes: 0 the snapshot is committed (now, or before by the same attempt); 1 it failed and a new attempt
may succeed; 2 the spec, or what it asks for, is wrong; 3 the store failed; 4 fenced; 143 it was terminated.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, StorageController
from holdfast.collections.frontiers import latest
from holdfast.collections.snapshots.manifest import SnapshotManifest
from holdfast.errors import AsOfTooEarly, Fenced
from holdfast.extras import needs
from holdfast.persist import PersistClient
from holdfast.spark import scan
from holdfast.spark.jobs import program
from holdfast.spark.jobs.program import Say, assigned, committed, on_record, session, unless_committed
from holdfast.spark.jobs.spec import SnapshotSpec
from holdfast.spark.jobs.target import FolderTarget, Target


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes. Returns the exit code."""
    return program.main(arguments, SnapshotSpec, lambda spec, say: run(spec, say=say))


def run(spec: SnapshotSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Run the spec unless this attempt is done. Raises `Fenced` if it isn't the current attempt.

    `say` is called with the progress. Runs on `spark`, or on its own session. An error of the work itself is
    recorded as the attempt's failure before it is raised.
    """
    started = time.monotonic()
    with spec.place.open_to_write() as client:
        controller = StorageController(client)
        if (info := assigned(controller, spec, say)) is None:
            return
        with unless_committed(controller, spec, say):
            with on_record(controller, spec):
                target = _target(controller, spec)
                result = _write(client, controller, info, spec, target, say, spark)
            try:
                controller.finish_job(spec.job_id, spec.attempt, result)
            except Fenced:
                if not committed(controller, spec):
                    target.discard()
                raise
            target.clear_up(say)
            say(
                f"committed {result['rows']:,} rows in {result['files']} files, {result['bytes']:,} bytes, "
                f"checksum {result['checksum']}, {time.monotonic() - started:.1f} s"
            )


def _target(controller: StorageController, spec: SnapshotSpec) -> Target:
    if spec.iceberg is None:
        return FolderTarget(spec)
    with needs("iceberg", "an Iceberg table"):
        from holdfast.spark.jobs.iceberg_target import IcebergTableTarget
    return IcebergTableTarget(spec, spec.iceberg, lambda: controller.check_attempt(spec.job_id, spec.attempt))


def _held(controller: StorageController, info: CollectionInfo, spec: SnapshotSpec) -> int:
    """Hold the time to read for this attempt, and return it."""
    as_of = spec.as_of
    if as_of is None:
        as_of = latest(controller.frontiers(info.collection_id).upper)
    held = controller.hold_for_job(spec.job_id, spec.attempt, as_of)
    if spec.as_of is None:
        return held
    if held > as_of:
        raise AsOfTooEarly(as_of, held)
    return as_of


def _write(
    client: PersistClient,
    controller: StorageController,
    info: CollectionInfo,
    spec: SnapshotSpec,
    target: Target,
    say: Say,
    spark: SparkSession | None,
) -> dict[str, Any]:
    """Everything except the record. Returns the result."""
    found = scan.find(spec.reading(info.collection_id, _held(controller, info, spec)))
    if (before := target.begin(found)) is not None:
        say(f"{before['rows']:,} rows were committed by an earlier attempt, recording that")
        return before
    try:
        tasks = scan.plan(found)
        say(f"{found.name} as of {found.as_of}: {len(tasks)} tasks into {target}")
        with session(spec, spark) as running:
            files = target.export(
                running.sparkContext,
                tasks,
                found,
                progress=lambda done: say(f"{done} of {len(tasks)} tasks are done"),
            )
        # Read the record after the time was complete: it has the rendition that was current then.
        fed = controller.describe(info.collection_id)
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
            pipeline=target.export_pipeline(client, fed, found.as_of),
        )
        result = target.publish(manifest)
    except BaseException:
        target.discard()
        raise
    say(f"{manifest.rows:,} rows are written, committing")
    return result


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
