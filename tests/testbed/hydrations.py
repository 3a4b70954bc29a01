"""Hydrations in pieces, as the Spark job does them, with all tasks in this process, one after the other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from holdfast.collections import CollectionInfo, RenditionInfo, StorageController, job_id
from holdfast.collections.hydration import HYDRATE, Hydration, Steps
from holdfast.collections.rendition_copy import OnProgress, hold_moved
from holdfast.collections.staging import FillPlan, Staging, agreed
from holdfast.collections.uploads import upload_part


def hydrate_in_pieces(
    controller: StorageController,
    collection: str,
    rendition: str,
    attempt: int,
    *,
    most: int,
    on_task: Callable[[int], object] = lambda _: None,
    on_uploaded: Callable[[int], object] = lambda _: None,
    on_staged: Callable[[Staging], object] = lambda _: None,
) -> int:
    """Run an attempt whose plan, if it makes one, has at most this many pieces. Returns the upper.

    Calls `on_task` with the number of each piece before its task, and `on_uploaded` after it, before the
    piece is staged. Calls `on_staged` once all pieces are staged.
    """
    client = controller.client
    info = controller.describe(collection)
    job = job_id(info.collection_id, HYDRATE, rendition)

    @contextmanager
    def fill(
        info: CollectionInfo, into: RenditionInfo, upper: int, progress: OnProgress
    ) -> Iterator[tuple[int, Steps]]:
        def make() -> FillPlan:
            with controller.reader(collection, purpose="plan") as reader:
                return FillPlan(upper - 1, tuple(reader.snapshot_parts(upper - 1, most)))

        plan = agreed(controller, info, into, job=job, attempt=attempt, make=make)
        with ExitStack() as stack:
            schema = controller.describe(collection).stored_schema
            staging = Staging(stack, client, into, schema, plan)
            tickets = [writer.upload_ticket() for writer in staging.writers]
            for number in staging.missing:
                on_task(number)
                uploads = upload_part(client, plan.pieces[number], into, tickets)
                on_uploaded(number)
                staging.stage(number, uploads)
            on_staged(staging)
            controller.check_attempt(job, attempt)
            rows = staging.rows()
            progress(rows, rows)
            appends = staging.appends()
            yield plan.as_of + 1, lambda: [*appends, hold_moved(client, info, into, plan.as_of + 1)]

    return Hydration(controller, info, rendition, fill=fill, attempt=attempt).run()
