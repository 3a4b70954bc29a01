"""The common part of the programs of all jobs: how a program starts, shows its progress, and ends.

- The one argument is the spec, or `--help`. Each line of the job itself begins with its name. Spark's own log
  and progress are printed between these lines.
- An attempt that fails records that, and only the record counts. If a spec doesn't match its job's record,
  nothing is recorded, because that record belongs to another job.
- A process that is terminated removes its files, and leaves its attempt Running with its hold.
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

# No row passes through the JVM, so it need not optimize code for long runs. Without that it starts twice as
# fast.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Say = Callable[[str], None]


def main(arguments: Sequence[str], kind: type[Spec], run: Callable[[Spec, Say], None]) -> int:
    """Run the job that the one argument describes, or print the help of its module. Returns the exit code."""
    name = kind.KIND
    if list(arguments) in (["--help"], ["-h"]):
        print(getdoc(getmodule(run)))
        return 0
    try:
        if len(arguments) != 1:
            raise BadInput(f"expected one argument, the job spec, but got {len(arguments)}")
        run(load_spec(arguments[0], kind), lambda text: print(f"{name}: {text}", flush=True))
    except HoldfastError as error:
        print(f"{name}: {error}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def end_when_told() -> None:
    """Exit normally on SIGTERM, so that a terminated pod leaves no files."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def assigned(controller: StorageController, spec: JobSpec, say: Say) -> CollectionInfo | None:
    """The collection that an attempt must work on. None, with a message, if the attempt is already Done.

    Raises `BadInput` unless the recorded job is the spec's, `CollectionNotFound`, and like
    `StorageController.check_attempt`.
    """
    info = controller.describe(spec.collection)
    job = controller.job(spec.job_id)
    if job is not None:
        spec.check_job(job, info)
    if controller.check_attempt(spec.job_id, spec.attempt).state is JobState.DONE:
        say(f"attempt {spec.attempt} of job {spec.job_id} has already committed; nothing to do")
        return None
    return info


def committed(controller: StorageController, spec: JobSpec) -> bool:
    """Whether this attempt is Done. Another driver of it may have finished it."""
    job = controller.job(spec.job_id)
    return job is not None and (job.state, job.attempt) == (JobState.DONE, spec.attempt)


@contextmanager
def unless_committed(controller: StorageController, spec: JobSpec, say: Say) -> Iterator[None]:
    """A block in which another driver of this attempt may commit first.

    That prints a message, and is no error.
    """
    try:
        yield
    except Fenced:
        if not committed(controller, spec):
            raise
        say(f"another driver of attempt {spec.attempt} of job {spec.job_id} has committed")


@contextmanager
def on_record(controller: StorageController, spec: JobSpec) -> Iterator[None]:
    """Record an error in the block as the attempt's failure."""
    try:
        yield
    except AttemptTaken:
        raise
    except Exception as error:
        # The error of the work matters more than an error while recording it.
        with suppress(HoldfastError):
            controller.fail_job(spec.job_id, spec.attempt, one_line(error))
        raise


@contextmanager
def session(spec: JobSpec, given: SparkSession | None) -> Iterator[SparkSession]:
    """The given session, or a new one for the block."""
    if given is not None:
        yield given
        return
    builder = SparkSession.builder.appName(f"holdfast-{spec.kind}-{spec.job_id}-{spec.attempt}")
    spark = configure(builder.config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
