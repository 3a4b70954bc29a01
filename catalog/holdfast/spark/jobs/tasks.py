"""Runs tasks on Spark's executors. Each task runs in one Python process, so no row passes through the JVM.

Each task has one result, which comes from an attempt that succeeded.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam
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
    each: Callable[[int, R], None] | None = None,
) -> list[R]:
    """Do `work` on each task and return the results in order. `what` is the description in Spark's UI.

    `progress` is called with the number of tasks done, and `meanwhile` is called often. `each` is called once
    with the index and the result of each task, soon after it is done. All of them are called in this thread.
    An error from them cancels all tasks. Raises `HoldfastError` with the message of a task that failed.
    """
    early: _Early[T, R] | None = _Early(context, each) if each is not None else None
    spread = (
        context.parallelize(list(tasks), max(1, len(tasks))).map(work)
        if early is None
        else context.parallelize([*enumerate(tasks)], max(1, len(tasks))).map(early.sending(work))
    )
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
                    results = running.result(timeout=_POLL_S)
                except NotYet:
                    meanwhile()
                    if early is not None:
                        early.give()
                    if (done := _tasks_done(context, group)) > told:
                        told = done
                        progress(done)
                else:
                    if early is not None:
                        early.give_rest(results)
                    return results
        except (PySparkException, Py4JJavaError) as error:
            if found := _ERROR_LINE.findall(str(error)):
                raise HoldfastError(f"a task failed: {found[-1]}") from None
            raise
        except BaseException:
            context.cancelJobGroup(group)
            raise


class _Early(Generic[T, R]):
    """Gives the results of tasks to a function while other tasks run, each of them once."""

    def __init__(self, context: SparkContext, each: Callable[[int, R], None]) -> None:
        self._each = each
        # Spark keeps it until the process ends, so this is for jobs that run tasks once.
        self._arrived: Accumulator[list[tuple[int, R]]] = context.accumulator([], _Appended())
        self._seen = 0
        self._given: set[int] = set()

    def sending(self, work: Callable[[T], R]) -> Callable[[tuple[int, T]], R]:
        """The work on a numbered task, which also sends its result."""
        arrived = self._arrived

        def sent(task: tuple[int, T]) -> R:
            result = work(task[1])
            arrived.add([(task[0], result)])
            return result

        return sent

    def give(self) -> None:
        """Give what has arrived."""
        arrived = self._arrived.value
        while self._seen < len(arrived):
            index, result = arrived[self._seen]
            self._seen += 1
            self._give_once(index, result)

    def give_rest(self, results: Sequence[R]) -> None:
        """Give what did not arrive: Spark only logs it if it can't send something."""
        for index, result in enumerate(results):
            self._give_once(index, result)

    def _give_once(self, index: int, result: R) -> None:
        if index not in self._given:
            self._given.add(index)
            self._each(index, result)


class _Appended(AccumulatorParam[list[Any]]):
    """A list to which tasks append."""

    def zero(self, value: list[Any]) -> list[Any]:
        return value[:0]

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        value1.extend(value2)
        return value1


def _tasks_done(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
