"""The hydration job: a rendition of recipe COPY gets the contents of its collection.

    python -m holdfast.spark.jobs.hydrate '<JSON spec or the path of one>'

- Executors read pieces of the collection, sort them and upload what they become, for writers of the driver.
  It commits once: what was uploaded, with the step of the JobRecord from Running(attempt) to Done.
- An attempt that isn't the record's any more is fenced. What it uploaded goes with it; what is left of one
  that was killed, and of tasks that ran twice, is swept when its writers' leases are over.
- What is read is held by the rendition itself, from when it was made until it takes over or is aborted.
- What was written meanwhile is caught up with in the driver. That needs no job: it may be done by anybody.

The record's result: `upper` that the contents are complete before, and `rows`.

Exit codes: 0 the contents are committed (now, or before by the same attempt); 1 it failed and a new attempt
may succeed; 2 the spec or what it asks for is wrong; 3 the store failed; 4 fenced; 143 it was told to end.
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, RenditionInfo, StorageController
from holdfast.collections.bringing import Progress, hold_moved, rendition_hold
from holdfast.collections.hydration import Hydration
from holdfast.errors import StorageError
from holdfast.persist import PersistClient, Prepared, WriteHandle
from holdfast.spark import scan
from holdfast.spark.jobs import program
from holdfast.spark.jobs.filling import Filling, fill_task
from holdfast.spark.jobs.program import Say, assigned, on_record, session
from holdfast.spark.jobs.spec import HydrateSpec
from holdfast.spark.jobs.tasks import run_tasks


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes and return the exit code."""
    return program.main(arguments, HydrateSpec, lambda spec, say: run(spec, say=say))


def run(spec: HydrateSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Do what the spec says unless this attempt has done it; `Fenced` when it isn't the current one.

    `say` is told how far it is. Runs on `spark`, or on a session of its own. An error of the work itself is
    put on record as the attempt's failure before it is raised.
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
    progress: Progress,
) -> Iterator[Callable[[], list[Prepared]]]:
    """What takes an empty rendition to `upper`, all of it uploaded by executors; as `bringing.brought`."""
    found = scan.find(spec.reading(info.collection_id, upper - 1))
    parts = [task.part for task in scan.plan(found)]
    # Read after the parts were planned: their schemas lead to it.
    schema = controller.describe(info.collection_id).schema
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
        rows = sum(each.rows for of_task in uploads for each in of_task)
        progress(rows, rows)
        say(f"{rows:,} rows are uploaded, committing")
        yield lambda: [*appends, hold_moved(client, info, rendition, upper)]


def _keep_alive(writers: Sequence[WriteHandle]) -> None:
    """So that no sweeper takes what is uploaded for them."""
    for writer in writers:
        # The next call tries again; long before the lease is over.
        with suppress(StorageError):
            writer.keep_alive()


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
