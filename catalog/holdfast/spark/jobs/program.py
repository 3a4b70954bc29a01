"""What the programs of all jobs have in common: how one starts, says how far it is, and ends.

- The one argument is the spec, or `--help`. Each line that the job itself says begins with its name; Spark's
  own log and its progress stand between them.
- An attempt that fails says so in its record, which is all that anybody believes. A spec whose job is another
  one than it tells of says nothing there: that record is somebody else's.
- A process that is told to end takes its files away, and leaves its attempt Running with what that holds.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import getdoc, getmodule

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, JobState, StorageController
from holdfast.collections.record.jobs import one_line
from holdfast.errors import BadInput, Fenced, HoldfastError
from holdfast.spark.jobs.folder import AttemptTaken
from holdfast.spark.jobs.spec import JobSpec, Spec, load_spec
from holdfast.spark.session import configure

# No row passes through the JVM: it starts in half the time when it doesn't compile for the long run.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Say = Callable[[str], None]


def main(arguments: Sequence[str], kind: type[Spec], run: Callable[[Spec, Say], None]) -> int:
    """Run the job that the one argument describes and return the exit code; or tell what its module does."""
    name = kind.KIND
    if list(arguments) in (["--help"], ["-h"]):
        print(getdoc(getmodule(run)))
        return 0
    try:
        if len(arguments) != 1:
            raise BadInput(f"expected one argument, the job spec, and got {len(arguments)}")
        run(load_spec(arguments[0], kind), lambda text: print(f"{name}: {text}", flush=True))
    except HoldfastError as error:
        print(f"{name}: {error}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def end_when_told() -> None:
    """So that a pod that is told to end leaves no files."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def assigned(controller: StorageController, spec: JobSpec, say: Say) -> CollectionInfo | None:
    """The collection that an attempt is to work on; None, and that is said, where it is Done.

    Raises `BadInput` unless the job on record is the spec's, `CollectionNotFound`, and as
    `StorageController.check_attempt`.
    """
    info = controller.describe(spec.collection)
    job = controller.job(spec.job_id)
    if job is not None:
        spec.check_job(job, info)
    if controller.check_attempt(spec.job_id, spec.attempt).state is JobState.DONE:
        say(f"attempt {spec.attempt} of job {spec.job_id} has committed before; nothing to do")
        return None
    return info


def committed(controller: StorageController, spec: JobSpec) -> bool:
    """Whether this attempt is Done, by whichever of its drivers."""
    job = controller.job(spec.job_id)
    return job is not None and (job.state, job.attempt) == (JobState.DONE, spec.attempt)


@contextmanager
def unless_committed(controller: StorageController, spec: JobSpec, say: Say) -> Iterator[None]:
    """A block that may lose to another driver of this attempt; that is said, and no error."""
    try:
        yield
    except Fenced:
        if not committed(controller, spec):
            raise
        say(f"another driver of attempt {spec.attempt} of job {spec.job_id} has committed")


@contextmanager
def on_record(controller: StorageController, spec: JobSpec) -> Iterator[None]:
    """Put an error in the block on record as the attempt's failure."""
    try:
        yield
    except AttemptTaken:
        raise
    except Exception as error:
        # The work's error matters more than that it could not be put on record.
        with suppress(HoldfastError):
            controller.fail_job(spec.job_id, spec.attempt, one_line(error))
        raise


@contextmanager
def session(spec: JobSpec, given: SparkSession | None) -> Iterator[SparkSession]:
    """The session that was given, or one for the block."""
    if given is not None:
        yield given
        return
    builder = SparkSession.builder.appName(f"holdfast-{spec.kind}-{spec.job_id}-{spec.attempt}")
    spark = configure(builder.config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
