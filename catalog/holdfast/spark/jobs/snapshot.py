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

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import BadInput, Fenced, HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.spark import scan
from holdfast.spark.jobs import folder as folders
from holdfast.spark.jobs.export import export
from holdfast.spark.jobs.folder import AttemptTaken
from holdfast.spark.jobs.hold import hold
from holdfast.spark.jobs.spec import SnapshotSpec, load_spec
from holdfast.spark.options import ReadOptions
from holdfast.spark.session import configure
from holdfast.storage import JobRecord, JobState, StorageController
from holdfast.storage.manifest import SnapshotManifest, checksum_text

_MAX_ERROR = 1000
# No row passes through the JVM: it starts in half the time when it doesn't compile for the long run.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Say = Callable[[str], None]


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes and return the exit code."""
    try:
        if len(arguments) != 1:
            raise BadInput(f"expected one argument, the job spec, and got {len(arguments)}")
        run(load_spec(arguments[0]), say=_say)
    except HoldfastError as error:
        print(f"snapshot: {error}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def run(spec: SnapshotSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Do what the spec says unless this attempt has done it; `Fenced` when it isn't the current one.

    `say` is told how far it is. Runs on `spark`, or on a session of its own. An error of the work itself is
    put on record as the attempt's failure before it is raised.
    """
    started = time.monotonic()
    # Compaction is the writers' business; a job reads and goes.
    with PersistClient.open(spec.url, config=PersistConfig(maintenance="off")) as client:
        controller = StorageController(client)
        if _committed(controller, spec):
            say(f"attempt {spec.attempt} of job {spec.job_id} has committed before; nothing to do")
            return
        try:
            manifest, path = _write(client, controller, spec, say, spark)
        except AttemptTaken:
            raise
        except Exception as error:
            with suppress(HoldfastError):
                controller.fail_job(spec.job_id, spec.attempt, _one_line(error))
            raise
        say(f"{manifest.rows:,} rows are written, committing")
        _commit(controller, spec, path.parent, _result(manifest, path))
        folders.discard_earlier(path.parent, spec.attempt)
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
) -> tuple[SnapshotManifest, Path]:
    """Everything but the commit: files and manifest, durable, in the folder of this attempt."""
    found = scan.find(
        ReadOptions(url=spec.url, collection=spec.collection, as_of=spec.as_of, partitions=spec.partitions)
    )
    info = controller.describe(found.collection_id)
    folder = folders.claim(spec.destination, spec.job_id, spec.attempt)
    try:
        with hold(client, info, found.as_of, job_id=spec.job_id, attempt=spec.attempt):
            # Whoever ended the attempt before it held anything has released nothing.
            _committed(controller, spec)
            tasks = scan.plan(found)
            say(f"{found.name} as of {found.as_of}: {len(tasks)} tasks into {folder}")
            with _session(spec, spark) as session:
                files = export(
                    session.sparkContext,
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
        return manifest, folders.publish(folder, manifest)
    except BaseException:
        folders.discard(folder)
        raise


def _committed(controller: StorageController, spec: SnapshotSpec) -> bool:
    """Whether this attempt is Done; False while it is Running, `Fenced` when it is neither."""
    record = controller.job(spec.job_id)
    if record is None:
        raise BadInput(f"there is no job {spec.job_id}", hint="start it with StorageController.start_job")
    if record.attempt < spec.attempt:
        raise BadInput(f"attempt {spec.attempt} of job {spec.job_id} was never started: {_state(record)}")
    if record.attempt == spec.attempt and record.state is JobState.DONE:
        return True
    if record.attempt != spec.attempt or record.state is not JobState.RUNNING:
        raise Fenced(f"attempt {spec.attempt}", _state(record), what=f"job {spec.job_id}")
    return False


def _commit(controller: StorageController, spec: SnapshotSpec, folder: Path, result: dict[str, Any]) -> None:
    try:
        controller.finish_job(spec.job_id, spec.attempt, result)
    except Fenced:
        folders.discard(folder)
        raise


@contextmanager
def _session(spec: SnapshotSpec, given: SparkSession | None) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    builder = SparkSession.builder.appName(f"holdfast-snapshot-{spec.job_id}-{spec.attempt}")
    spark = configure(builder.config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _result(manifest: SnapshotManifest, path: Path) -> dict[str, Any]:
    return {
        "as_of": manifest.as_of,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "checksum": checksum_text(manifest.checksum),
        "path": str(path.parent),
        "manifest": str(path),
    }


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_ERROR] or type(error).__name__


def _state(record: JobRecord) -> str:
    return f"attempt {record.attempt} is {record.state.name.lower()}"


def _say(text: str) -> None:
    print(f"snapshot: {text}", flush=True)


if __name__ == "__main__":
    # So that a pod that is told to end leaves neither hold nor files.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
