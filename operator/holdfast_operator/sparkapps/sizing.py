"""The size of a Spark job: its number of tasks, and the memory of its pods outside of the heap. Pure.

No row passes through the JVM. Each running task has its own Python process, which reads, merges, sorts and
uploads. The memory of this process doesn't grow with the amount of data, because the rest goes to temporary
files.
"""

from typing import Final

from holdfast.persist import StoredSize
from holdfast.spark.options import MAX_PARTITIONS, tasks_worth
from holdfast_operator.api.spark import SparkExecutors, SparkTemplate, mib

_SMALL_TASKS: Final = 256
_MOST_GROWTH: Final = 32
"""How many times as large as the smallest task a task gets before there are more of them."""

_PYTHON_MIB: Final = 640
_LEAST_JVM_MIB: Final = 384
_JVM_SHARE: Final = 10
_OVERHEADS: Final = ("memoryOverhead", "memoryOverheadFactor", "minMemoryOverhead", "pyspark.memory")
_OVERHEAD_OF_ALL: Final = "spark.kubernetes.memoryOverheadFactor"


def tasks(stored: StoredSize, executors: SparkExecutors) -> int:
    """Returns the maximum number of tasks that read a collection of this size.

    - There is one task for each 64 MiB or million rows. In memory that is a few times as large, and a task
      sorts 128 MiB at a time. So its temporary files take a few hundred MiB, and a lost task costs seconds.
    - Up to 256, the number is a multiple of the number of cores, so that no core is idle at the end.
    - Each task costs the driver some memory and time, and leaves a file in a snapshot, or a part in every
      shard of a new rendition. So there are at most 256 tasks of less than 2 GiB or 32 million rows: above
      16 GiB, tasks are larger. Above 512 GiB, there are more of them.
    """
    at_once = cores(executors)
    worth = tasks_worth(stored.rows, stored.size_bytes)
    needed = min(worth, max(_SMALL_TASKS, _ceil(worth, _MOST_GROWTH)))
    return min(MAX_PARTITIONS, max(_SMALL_TASKS, needed), _ceil(needed, at_once) * at_once)


def cores(executors: SparkExecutors) -> int:
    """Returns the number of tasks that run at the same time."""
    return executors.instances * executors.cores


def spark_memory(memory: str) -> str:
    """Returns an amount of memory in Spark's notation."""
    return f"{mib(memory)}m"


def driver_overhead(template: SparkTemplate) -> str | None:
    """Returns the memory of the driver's pod in addition to its heap, or None if the settings set it.

    The driver plans, commits, and copies the rows written during the job, in one Python process.
    """
    driver = template.driver
    return _overhead(template, "driver", driver.memory_overhead, driver.memory, 1)


def executor_overhead(template: SparkTemplate) -> str | None:
    """Returns the memory of an executor's pod in addition to its heap, or None if the settings set it.

    Each core has a Python process that takes 520 to 600 MiB. Spark's default is a fraction of the heap. With
    that default, the pod would be killed as soon as all cores are busy.
    """
    executor = template.executor
    return _overhead(template, "executor", executor.memory_overhead, executor.memory, executor.cores)


def one_pod_heap(template: SparkTemplate) -> int:
    """Returns the MiB of heap if driver and executor are one JVM: the sum of both."""
    return mib(template.driver.memory) + mib(template.executor.memory)


def one_pod_memory(template: SparkTemplate) -> int:
    """Returns the MiB of a pod in which driver and executor are one JVM: the sum of their separate pods."""
    driver, executor = template.driver, template.executor
    beside = (
        _beside(driver.memory, 1) if driver.memory_overhead is None else mib(driver.memory_overhead),
        _beside(executor.memory, executor.cores)
        if executor.memory_overhead is None
        else mib(executor.memory_overhead),
    )
    return one_pod_heap(template) + sum(beside)


def _overhead(template: SparkTemplate, role: str, given: str | None, heap: str, processes: int) -> str | None:
    if given is not None:
        return spark_memory(given)
    told = {_OVERHEAD_OF_ALL, *(f"spark.{role}.{name}" for name in _OVERHEADS)}
    if told & template.spark_conf.keys():
        return None
    return f"{_beside(heap, processes)}m"


def _beside(heap: str, processes: int) -> int:
    """Returns the MiB in addition to a heap: Spark's overhead for the JVM, plus the Python processes."""
    return max(_LEAST_JVM_MIB, mib(heap) // _JVM_SHARE) + processes * _PYTHON_MIB


def _ceil(number: int, of: int) -> int:
    return -(-number // of)
