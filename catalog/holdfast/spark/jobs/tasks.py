"""Runs tasks on Spark's executors. Each task runs in one Python process, so no row passes through the JVM.

Each task has one result, which comes from an attempt that succeeded.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from holdfast.errors import HoldfastError

T = TypeVar("T")
R = TypeVar("R")

_POLL_S = 0.2
_ERROR_LINE = re.compile(r"^\s*holdfast\.errors\.\w+: (.+)$", re.MULTILINE)


def run_tasks(
    context: SparkContext,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    what: str,
    progress: Callable[[int], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[R]:
    """Do `work` on each task and return the results in order. `what` is the description in Spark's UI.

    `progress` is called with the number of tasks done, and `meanwhile` is called often, both in this thread.
    An error from them cancels all tasks. Raises `HoldfastError` with the message of a task that failed.
    """
    spread = context.parallelize(list(tasks), max(1, len(tasks))).map(work)
    group = f"holdfast-{uuid.uuid4()}"

    def collect() -> list[R]:
        # Set the group in this thread, because a job group belongs to a thread, and each Python thread has
        # its own thread in the JVM.
        context.setJobGroup(group, what, interruptOnCancel=True)
        return spread.collect()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        told = 0
        try:
            while True:
                try:
                    return running.result(timeout=_POLL_S)
                except NotYet:
                    meanwhile()
                    if (done := _tasks_done(context, group)) > told:
                        told = done
                        progress(done)
        except (PySparkException, Py4JJavaError) as error:
            if found := _ERROR_LINE.findall(str(error)):
                raise HoldfastError(f"a task failed: {found[-1]}") from None
            raise
        except BaseException:
            context.cancelJobGroup(group)
            raise


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
