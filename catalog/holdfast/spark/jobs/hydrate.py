"""The hydration job: fills a rendition of recipe COPY with the contents of its collection.

    python -m holdfast.spark.jobs.hydrate '<JSON spec, or the path of a spec>'

- Executors read pieces of the collection, sort them and upload the results for writers of the driver. The
  driver stages each piece once it is uploaded (`holdfast.collections.staging`), and commits once: all pieces,
  together with the change of the JobRecord from Running(attempt) to Done.
- If an attempt ends before that, what is staged stays. The next attempt reads at the same time, and does the
  other pieces.
- An attempt that is no longer the recorded one can't commit. Uploads that were not staged before an attempt
  was killed, and those of tasks that ran twice, are swept after the leases of their writers.
- The rendition itself holds what is read, from its creation until it is current or aborted.
- Executors also copy the rows that were written during the job, until few are left. The driver copies these.
  That is not on record: any process may do it.

The record's result: `upper`, below which the contents are complete, and `rows`.

Exit codes: 0 the contents are committed (now, or before by the same attempt); 1 it failed and a new attempt
may succeed; 2 the spec, or what it asks for, is wrong; 3 the store failed; 4 fenced; 143 it was terminated.
"""

import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, CollectionPart, RenditionInfo, StorageController
from holdfast.collections.changes import plan_changes
from holdfast.collections.frontiers import common_upper
from holdfast.collections.hydration import Hydration, Steps
from holdfast.collections.rendition_copy import OnProgress, hold_moved, kept_builders, rendition_hold
from holdfast.collections.staging import MOST_PLAN_BYTES, FillPlan, Staging, agreed
from holdfast.errors import CLOSED, HoldfastError, StorageError, UpperMismatch
from holdfast.persist import PersistClient, Prepared, Upload, WriteHandle
from holdfast.spark import scan
from holdfast.spark.jobs import program
from holdfast.spark.jobs.filling import Filling, fill_changes, fill_task
from holdfast.spark.jobs.program import Say, assigned, on_record, session
from holdfast.spark.jobs.spec import HydrateSpec
from holdfast.spark.jobs.tasks import run_tasks
from holdfast.spark.options import tasks_worth

T = TypeVar("T")

LEAST_CHANGES: Final = 5_000_000
"""The driver copies fewer changes by itself, in about half a minute."""


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes. Returns the exit code."""
    return program.main(arguments, HydrateSpec, lambda spec, say: run(spec, say=say))


def run(spec: HydrateSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Run the spec unless this attempt is done. Raises `Fenced` if it isn't the current attempt.

    `say` is called with the progress. Runs on `spark`, or on its own session. An error of the work itself is
    recorded as the attempt's failure before it is raised.
    """
    started = time.monotonic()
    with spec.place.open_to_write() as client:
        controller = StorageController(client)
        if (info := assigned(controller, spec, say)) is None:
            return
        with on_record(controller, spec), ExitStack() as stack:
            running = functools.cache(lambda: stack.enter_context(session(spec, spark)))
            job = _Job(client, controller, spec, say, running)
            hydration = Hydration(
                controller, info, spec.rendition, fill=job.filled, follow=job.follow, attempt=spec.attempt
            )
            upper = hydration.run()
    say(f"rendition {spec.rendition} is complete before {upper}, {time.monotonic() - started:.1f} s")


@dataclass(frozen=True)
class _Job:
    client: PersistClient
    controller: StorageController
    spec: HydrateSpec
    say: Say
    spark: Callable[[], SparkSession]

    @contextmanager
    def filled(
        self, info: CollectionInfo, rendition: RenditionInfo, upper: int, progress: OnProgress
    ) -> Iterator[tuple[int, Steps]]:
        """The steps that fill an empty rendition with what executors upload. See `prepared_copy`."""
        plan = agreed(
            self.controller,
            info,
            rendition,
            job=self.spec.job_id,
            attempt=self.spec.attempt,
            make=functools.partial(self._planned, info, upper),
        )
        filled = plan.as_of + 1
        # Read after the pieces were planned, so their schemas are this one or earlier ones.
        schema = self.controller.describe(info.collection_id).stored_schema
        with ExitStack() as stack:
            staging = Staging(stack, self.client, rendition, schema, plan)
            self._stage(info, rendition, plan, staging)
            # An attempt with another plan has dropped what this one has staged.
            self.controller.check_attempt(self.spec.job_id, self.spec.attempt)
            rows = staging.rows()
            progress(rows, rows)
            appends = [*staging.appends(), *self._kept(stack, info, rendition, 0, filled)]
            self.say(f"{rows:,} rows are staged, committing")
            yield filled, lambda: [*appends, hold_moved(self.client, info, rendition, filled)]

    def _planned(self, info: CollectionInfo, upper: int) -> FillPlan:
        """A plan for the contents before `upper`, of at most as many pieces as the spec allows."""
        found = scan.find(self.spec.reading(info.collection_id, upper - 1))
        while True:
            parts = [task.part for task in scan.plan(found)]
            plan = FillPlan(upper - 1, tuple(part for part in parts if isinstance(part, CollectionPart)))
            if len(parts) <= 1 or len(json.dumps(plan.recorded())) <= MOST_PLAN_BYTES:
                return plan
            found = replace(found, partitions=len(parts) // 2)

    def _stage(
        self, info: CollectionInfo, rendition: RenditionInfo, plan: FillPlan, staging: Staging
    ) -> None:
        """Let executors upload the pieces that are not staged, and stage each of them when it is uploaded."""
        missing = staging.missing
        if len(missing) < len(plan.pieces):
            self.say(f"{staging.progress} already")

        def stage(index: int, uploads: tuple[Upload, ...]) -> None:
            staging.stage(missing[index], uploads)
            self.say(staging.progress)

        if missing:
            self._run(
                info,
                rendition,
                plan.as_of,
                staging.writers,
                [plan.pieces[number] for number in missing],
                fill_task,
                each=stage,
            )

    def follow(self) -> None:
        """Let executors copy what was written meanwhile, until that is little, or isn't less than before."""
        before = CLOSED
        while True:
            view = self.controller.renditions.look(self.spec.collection)
            rendition = view.info.rendition(self.spec.rendition)
            lower = common_upper(view.info, rendition, self.client.recent_uppers)
            rows = self._changes(lower, view.upper)
            if rows < LEAST_CHANGES or rows >= before:
                return
            before = rows
            try:
                self._bring(view.info, rendition, lower, view.upper, rows)
            except UpperMismatch:
                # Another process was faster.
                continue
            except HoldfastError:
                # Tasks read the newest columns. The writers may have earlier ones.
                now = self.controller.describe(self.spec.collection)
                if now.stored_schema == view.info.stored_schema:
                    raise

    def _changes(self, lower: int, upper: int) -> int:
        """About how many updates came in `[lower, upper)`."""
        if not 0 < lower < upper:
            return 0
        with self.controller.reader(self.spec.collection, purpose="hydrate") as reader:
            return sum(count for time, count in reader.change_counts(lower - 1) if time < upper)

    def _bring(
        self, info: CollectionInfo, rendition: RenditionInfo, lower: int, upper: int, rows: int
    ) -> None:
        worth = math.ceil(rows / min(self.spec.partitions, tasks_worth(rows, 0)))
        with self.controller.reader(self.spec.collection, purpose="hydrate") as reader:
            parts = plan_changes(reader, lower - 1, upper - 1, worth)
        work = functools.partial(fill_changes, time=upper - 1)
        with self._uploaded(info, rendition, lower, upper, parts, work) as (appends, rows):
            self.say(f"{rows:,} changes are uploaded, committing")
            self.client.multi_write([*appends, hold_moved(self.client, info, rendition, upper)])

    @contextmanager
    def _uploaded(
        self,
        info: CollectionInfo,
        rendition: RenditionInfo,
        lower: int,
        upper: int,
        parts: Sequence[T],
        work: Callable[..., tuple[Upload, ...]],
    ) -> Iterator[tuple[list[Prepared], int]]:
        """The appends of what tasks upload of the parts, for the block, and the number of their rows."""
        # Read after the parts were planned, so their schemas are this one or earlier ones.
        schema = self.controller.describe(info.collection_id).stored_schema
        purpose = rendition_hold(rendition.id)
        with ExitStack() as stack:
            writers = [
                stack.enter_context(self.client.writer(shard, schema, purpose=purpose))
                for shard in rendition.shards
            ]
            uploads = self._run(
                info,
                rendition,
                upper - 1,
                writers,
                parts,
                work,
                progress=lambda done: self.say(f"{done} of {len(parts)} tasks are done"),
            )
            appends: list[Prepared] = []
            for index, writer in enumerate(writers):
                append = writer.prepare_uploads([each[index] for each in uploads], lower, upper).keep()
                stack.callback(append.abandon)
                appends.append(append)
            appends += self._kept(stack, info, rendition, lower, upper)
            yield appends, sum(each.rows for of_task in uploads for each in of_task)

    def _kept(
        self, stack: ExitStack, info: CollectionInfo, rendition: RenditionInfo, lower: int, upper: int
    ) -> list[Prepared]:
        """The appends of what a pipeline keeps, if one continues the rendition."""
        now = self.controller.describe(info.collection_id)
        appends = []
        for builder in kept_builders(stack, self.client, now, rendition, lower, upper):
            append = builder.prepare_append(lower, upper).keep()
            stack.callback(append.abandon)
            appends.append(append)
        return appends

    def _run(
        self,
        info: CollectionInfo,
        rendition: RenditionInfo,
        as_of: int,
        writers: Sequence[WriteHandle],
        parts: Sequence[T],
        work: Callable[..., tuple[Upload, ...]],
        *,
        progress: Callable[[int], None] = lambda _: None,
        each: Callable[[int, tuple[Upload, ...]], None] | None = None,
    ) -> list[tuple[Upload, ...]]:
        """Let executors upload the parts for the shards of the writers. `each` is as for `run_tasks`."""
        tickets = tuple(writer.upload_ticket() for writer in writers)
        into = f"{len(writers)} shards of {rendition.id}"
        self.say(f"{info.name} as of {as_of}: {len(parts)} tasks into {into}")
        filling = Filling(self.spec.place, self.client.location_id, rendition, tickets)
        return run_tasks(
            self.spark().sparkContext,
            parts,
            functools.partial(work, filling=filling),
            what=f"hydrate {info.name} {rendition.id}",
            progress=progress,
            meanwhile=lambda: _keep_alive(writers),
            each=each,
        )


def _keep_alive(writers: Sequence[WriteHandle]) -> None:
    """Renew the leases, so that no sweep deletes the uploads."""
    for writer in writers:
        # The next call tries again, long before the lease ends.
        with suppress(StorageError):
            writer.keep_alive()


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
