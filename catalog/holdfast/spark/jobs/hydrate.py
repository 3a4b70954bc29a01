"""The hydration job: fills a rendition of recipe COPY with the contents of its collection.

    python -m holdfast.spark.jobs.hydrate '<JSON spec, or the path of a spec>'

- Executors read pieces of the collection, sort them and upload the results for writers of the driver. The
  driver commits once: the uploads, together with the change of the JobRecord from Running(attempt) to Done.
- An attempt that is no longer the recorded one is fenced, and deletes its uploads. Uploads of attempts that
  were killed, and of tasks that ran twice, are swept after the leases of their writers.
- The rendition itself holds what is read, from its creation until it is current or aborted.
- The driver then copies the rows that were written during the job. That needs no job: any process may do it.

The record's result: `upper`, below which the contents are complete, and `rows`.

Exit codes: 0 the contents are committed (now, or before by the same attempt); 1 it failed and a new attempt
may succeed; 2 the spec, or what it asks for, is wrong; 3 the store failed; 4 fenced; 143 it was terminated.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, RenditionInfo, StorageController
from holdfast.collections.hydration import Hydration
from holdfast.collections.rendition_copy import OnProgress, hold_moved, kept_builders, rendition_hold
from holdfast.errors import StorageError
from holdfast.persist import PersistClient, Prepared, WriteHandle
from holdfast.spark import scan
from holdfast.spark.jobs import program
from holdfast.spark.jobs.filling import Filling, fill_task
from holdfast.spark.jobs.program import Say, assigned, on_record, session
from holdfast.spark.jobs.spec import HydrateSpec
from holdfast.spark.jobs.tasks import run_tasks


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
        with on_record(controller, spec):
            fill = functools.partial(_filled, client, controller, spec, say, spark)
            upper = Hydration(controller, info, spec.rendition, fill=fill, attempt=spec.attempt).run()
    say(f"rendition {spec.rendition} is complete before {upper}, {time.monotonic() - started:.1f} s")


@contextmanager
def _filled(
    client: PersistClient,
    controller: StorageController,
    spec: HydrateSpec,
    say: Say,
    spark: SparkSession | None,
    info: CollectionInfo,
    rendition: RenditionInfo,
    upper: int,
    progress: OnProgress,
) -> Iterator[Callable[[], list[Prepared]]]:
    """The steps that fill an empty rendition up to `upper`, uploaded by executors. See `prepared_copy`."""
    found = scan.find(spec.reading(info.collection_id, upper - 1))
    parts = [task.part for task in scan.plan(found)]
    # Read after the parts were planned, so their schemas are this one or earlier ones.
    schema = controller.describe(info.collection_id).stored_schema
    purpose = rendition_hold(rendition.id)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(client.writer(shard, schema, purpose=purpose)) for shard in rendition.shards
        ]
        tickets = tuple(writer.upload_ticket() for writer in writers)
        say(f"{info.name} as of {upper - 1}: {len(parts)} tasks into {len(writers)} shards of {rendition.id}")
        filling = Filling(spec.place, client.location_id, rendition, tickets)
        with session(spec, spark) as running:
            uploads = run_tasks(
                running.sparkContext,
                parts,
                functools.partial(fill_task, filling=filling),
                what=f"hydrate {info.name} {rendition.id}",
                progress=lambda done: say(f"{done} of {len(parts)} tasks are done"),
                meanwhile=lambda: _keep_alive(writers),
            )
        appends = []
        for index, writer in enumerate(writers):
            append = writer.prepare_uploads([each[index] for each in uploads], 0, upper).keep()
            stack.callback(append.abandon)
            appends.append(append)
        now = controller.describe(info.collection_id)
        for builder in kept_builders(stack, client, now, rendition, 0, upper):
            append = builder.prepare_append(0, upper).keep()
            stack.callback(append.abandon)
            appends.append(append)
        rows = sum(each.rows for of_task in uploads for each in of_task)
        progress(rows, rows)
        say(f"{rows:,} rows are uploaded, committing")
        yield lambda: [*appends, hold_moved(client, info, rendition, upper)]


def _keep_alive(writers: Sequence[WriteHandle]) -> None:
    """Renew the leases, so that no sweep deletes the uploads."""
    for writer in writers:
        # The next call tries again, long before the lease ends.
        with suppress(StorageError):
            writer.keep_alive()


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
