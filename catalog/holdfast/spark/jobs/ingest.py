"""The ingestion job: feeds a collection from a source, step by step.

    python -m holdfast.spark.jobs.ingest '<JSON spec, or the path of a spec>'

- The driver runs the loop of `holdfast ingest`: it reads the bindings, asks the source what is new, chooses
  ranges, and commits each step with its bindings in one multi-write.
- Executors read and decode the ranges, one task for each. Messages never pass through the JVM. Without an
  envelope the executors also upload the rows. For Upsert they return the rows, and the driver merges them
  with the contents of the collection: with a copy of them, or those of the keys (`UpsertState`).
- The driver itself reads a table of Postgres, and another collection.
- Any number of drivers may run, also `holdfast ingest` in another process. The commits decide, and who loses
  deletes its uploads. Uploads of a killed driver are swept after the leases of its writers.
- If another rendition takes over, as after a restore, the driver feeds that one from then on.
- The record of the job is not part of a commit. The driver looks every few seconds whether its attempt is
  still the recorded one, and ends if it isn't.

- With `forget` the driver reads nothing. It deletes the consumer group or the replication slots, or
  releases the hold on a collection.

The record's result, with `once`: `upper`, below which the contents are complete, and the numbers of
`messages`, `updates` and `errors`.

Exit codes: 0 it reached the end of the source; 1 it failed and a new attempt may succeed; 2 the spec, or what
it asks for, is wrong; 3 the store failed; 4 fenced; 143 it was terminated.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from typing import Final

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, StorageController
from holdfast.collections.rendition_writer import RenditionWriter
from holdfast.errors import CLOSED, HoldfastError, StorageError
from holdfast.ingest import IngestStep, StepOutcome, ingestion_of
from holdfast.ingest.ingestion import IngestTotal
from holdfast.ingest.opened import opened_source
from holdfast.ingest.reading import LocalRunner, Order, RangeReader, RangeWork
from holdfast.ingest.schema_texts import MissingTexts, SchemaTexts
from holdfast.ingest.source import Range, reader_id
from holdfast.ingest.spec import CollectionSourceSpec, IngestSpec, PostgresSpec
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient
from holdfast.spark.jobs import program
from holdfast.spark.jobs.program import Say, assigned, on_record, session, unless_committed
from holdfast.spark.jobs.reading import Ingesting, read_task
from holdfast.spark.jobs.spec import IngestJobSpec
from holdfast.spark.jobs.tasks import run_tasks

LOOK_S: Final = 5.0
"""Seconds between two checks of the driver whether its attempt is the recorded one."""


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes. Returns the exit code."""
    return program.main(arguments, IngestJobSpec, lambda spec, say: run(spec, say=say))


def run(
    spec: IngestJobSpec,
    *,
    say: Say,
    spark: SparkSession | None = None,
    stopped: Callable[[float], bool] | None = None,
) -> None:
    """Run the spec unless this attempt is done. Raises `Fenced` if it isn't the current attempt.

    `say` is called with the progress. Runs on `spark`, or on its own session. `stopped(seconds)` waits so
    long or less, and returns True to end. By default it sleeps. An error of the work itself is recorded as
    the attempt's failure before it is raised.
    """
    with spec.place.open_to_write(maintenance="background") as client:
        controller = StorageController(client)
        if (info := assigned(controller, spec, say)) is None:
            return
        if spec.forget:
            with unless_committed(controller, spec, say), on_record(controller, spec):
                forget(controller, info, spec.parsed)
                controller.finish_job(spec.job_id, spec.attempt, {})
            return
        with unless_committed(controller, spec, say):
            with on_record(controller, spec), session(spec, spark) as running:
                total = IngestTotal()
                watch = _Watch(controller, spec, say, total)
                # A snapshot and the changes of a table belong to the connection of one process. A collection
                # is read and committed by whole times.
                source = spec.parsed
                is_shared = not isinstance(source.source, CollectionSourceSpec | PostgresSpec)
                runner = SparkRunner(running, client, info, spec) if is_shared else None
                _feed(controller, info, spec, runner, watch, Waits(say), stopped)
            if spec.once:
                controller.finish_job(spec.job_id, spec.attempt, asdict(total))
            say(f"fed {info.name} with {total.messages:,} messages")


def _feed(
    controller: StorageController,
    info: CollectionInfo,
    spec: IngestJobSpec,
    runner: "SparkRunner | None",
    watch: "_Watch",
    waits: Waits,
    stopped: Callable[[float], bool] | None,
) -> None:
    """Feed the rendition of the spec, and then each one that takes over."""
    # One that took over and retired since is not fed any more.
    known = info.find(spec.rendition) if spec.rendition else None
    rendition = "" if known is not None and known.held_to < CLOSED else spec.rendition
    while True:
        with ingestion_of(
            controller,
            info.collection_id,
            spec.parsed,
            runner=runner,
            rendition=rendition,
            anew=spec.anew,
            continues=not spec.once,
            waits=waits,
        ) as ingestion:
            ingestion.run(once=spec.once, stopped=stopped, on_step=watch.step)
        if not watch.was_handed_over:
            return
        rendition = ""


def forget(controller: StorageController, info: CollectionInfo, source: IngestSpec) -> None:
    """Delete what the source keeps for the renditions of a collection, which need nothing any more."""
    for rendition in info.renditions:
        with closing(opened_source(controller, source, info, rendition.id, Waits())) as opened:
            opened.forget()


class SparkRunner:
    """Reads the ranges of a step in Spark's executors."""

    def __init__(
        self, spark: SparkSession, client: PersistClient, info: CollectionInfo, spec: IngestJobSpec
    ) -> None:
        self._context = spark.sparkContext
        self._client = client
        self._info = info
        self._spec = spec
        self._source = spec.parsed

    def read(self, order: Order, source: RangeReader, writer: RenditionWriter, /) -> list[RangeWork]:
        """Read ranges, each in a task. Of those that are whole, such as files, it reads at most `partitions`.

        The driver reads the empty ones, which only bind where a partition begins. It reads all of them, in
        the step that needs them: a partition that is left out would begin elsewhere later. Ranges that belong
        together are all read. The tasks share `max_bytes` evenly.

        If tasks meet schemas that are not known, the step is read again with them. So only the driver asks
        the registry, and all tasks use the same texts.
        """
        empty = [each for each in order.ranges if not each.whole and each.begin == each.end]
        bound = LocalRunner().read(replace(order, ranges=empty), source, writer)
        order = replace(order, ranges=self._tasks(order))
        if not order.ranges:
            return bound
        source.texts.begin()
        while True:
            done = self._run(order, source.texts.copy(), writer)
            failed = [each for each in done if isinstance(each, HoldfastError)]
            missing = {id_ for each in done if isinstance(each, MissingTexts) for id_ in each.ids}
            work = [each for each in done if isinstance(each, RangeWork)]
            if not failed and not missing:
                if not order.in_sequence or None not in done:
                    return bound + work
                usable = done.index(None)
                self._client.discard(upload for each in work[usable:] for upload in each.uploads)
                return bound + work[:usable]
            self._client.discard(upload for each in work for upload in each.uploads)
            if failed:
                raise failed[0]
            source.texts.require(missing)

    def _tasks(self, order: Order) -> list[Range]:
        """The ranges that executors read in this step."""
        ranges = [each for each in order.ranges if each.whole or each.begin < each.end]
        whole = [each for each in ranges if each.whole]
        late = [] if order.together else whole[self._spec.partitions :]
        return [each for each in ranges if each not in late] if late else ranges

    def _run(
        self, order: Order, texts: SchemaTexts, writer: RenditionWriter
    ) -> list[RangeWork | HoldfastError | MissingTexts | None]:
        ranges = order.ranges
        ingesting = Ingesting(
            self._spec.place,
            self._client.location_id,
            self._info.name,
            reader_id(self._info.collection_id, writer.rendition.id),
            self._source,
            writer.schema,
            writer.rendition,
            writer.upload_tickets(),
            order.at,
            max(1, order.max_bytes // len(ranges)),
            texts,
        )
        return run_tasks(
            self._context,
            [(each, each.partition in order.known) for each in ranges],
            functools.partial(read_task, ingesting=ingesting),
            what=f"ingest into {self._info.name} at {order.at}",
            progress=lambda _: None,
            meanwhile=lambda: _keep_alive(writer),
        )


class _Watch:
    """Adds the steps up, shows each of them, and looks after the attempt."""

    def __init__(
        self, controller: StorageController, spec: IngestJobSpec, say: Say, total: IngestTotal
    ) -> None:
        self._controller = controller
        self._spec = spec
        self._say = say
        self._total = total
        self._looked_s = time.monotonic()
        self.was_handed_over = False
        """Whether the last step found that another rendition took over."""

    def step(self, step: IngestStep) -> None:
        self._total.add(step)
        self.was_handed_over = step.outcome is StepOutcome.HANDED_OVER
        if step.outcome is StepOutcome.COMMITTED and step.messages:
            behind = f", {step.behind:,} messages behind" if step.behind else ""
            self._say(
                f"{step.messages:,} messages, {step.updates:,} updates, {step.errors:,} bad records:"
                f" complete before {step.upper}{behind}"
            )
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._controller.check_attempt(self._spec.job_id, self._spec.attempt)
            self._looked_s = time.monotonic()


def _keep_alive(writer: RenditionWriter) -> None:
    """Renew the leases, so that no sweep deletes the uploads."""
    # The next call tries again, long before the lease ends.
    with suppress(StorageError):
        writer.keep_alive()


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
