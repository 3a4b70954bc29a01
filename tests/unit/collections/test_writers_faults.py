"""Death and unknown outcomes at every write of a pipeline and a replica. Its successor makes one history."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast.collections import Recipe, RenditionState, StorageController
from holdfast.errors import HandedOver, HandleExpired, StorageError, UpperMismatch
from testbed.faults import Fault, FaultPlan, ProcessDeath, ScriptedPlan
from unit.collections.listeners import contents
from unit.collections.stores import SPEC, Stores, counted, updates

FAULTS = [Fault.DEATH_BEFORE, Fault.DEATH_AFTER, Fault.INDETERMINATE_AFTER]
BORDERS = [(100, 110), (110, 5_000), (5_000, 12_000), (12_000, 30_000)]


def opened(stores: Stores, plan: FaultPlan | None = None) -> StorageController:
    return StorageController(stores.open(plan))


def at_every_write(fault: Fault, work: Callable[[Stores, FaultPlan | None], object]) -> None:
    """Run the work with a fault at its n-th write, and again without one, for each n that there is."""
    for number in range(100):
        stores = Stores()
        opened(stores).create_collection(SPEC)
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        with suppress(StorageError, HandleExpired, ProcessDeath):
            work(stores, plan)
        work(stores, None)
        if plan.seen <= number:
            assert number > len(BORDERS)
            return
    raise AssertionError("the work never ends")


def named(rendition_id: str, lower: int) -> list[tuple[int, str | None, int, int]]:
    return [(lower, rendition_id, lower, 1), (1, "all", lower, 1)]


def pipeline(controller: StorageController, rendition_id: str) -> None:
    """What a process does that feeds a rendition: go on where it is, up to where it holds."""
    writer = controller.rendition_writer("flights", rendition_id, purpose="pipeline")
    for lower, upper in BORDERS:
        if writer.upper() > lower:
            continue
        try:
            writer.append(updates(named(rendition_id, lower)), lower, upper)
        except HandedOver as over:
            rows = [row for row in named(rendition_id, lower) if row[2] < over.at]
            if lower < over.at:
                writer.append(updates(rows), lower, over.at)
            return


@pytest.mark.parametrize("fault", FAULTS)
def test_pipelines_and_their_handover(fault: Fault) -> None:
    def work(stores: Stores, plan: FaultPlan | None) -> None:
        controller = opened(stores, plan)
        for rendition_id in ("r2", "r3"):
            if len(controller.describe("flights").renditions) < int(rendition_id[1:]):
                controller.renditions.create("flights", shards=2, recipe=Recipe.SOURCE)
            pipeline(controller, rendition_id)
            if controller.describe("flights").rendition(rendition_id).state is RenditionState.HYDRATING:
                controller.renditions.hand_over("flights", rendition_id)
        with suppress(HandedOver):
            controller.rendition_writer("flights", "r2", purpose="end").seal(
                controller.describe("flights").holding.held_from
            )
        if plan is None:
            info = opened(stores).describe("flights")
            first, second = (info.rendition(each).held_from for each in ("r2", "r3"))
            assert (first, second) == (101, 30_000)
            rows = [row for lower, _ in BORDERS for row in named("r2", lower)]
            assert contents(controller, 29_999) == counted(updates(rows))
            opened(stores).rendition_writer("flights", "r3", purpose="end").seal(30_001)
            rows = [row for lower, _ in BORDERS for row in named("r3", lower)]
            assert contents(controller) == counted(updates(rows))

    at_every_write(fault, work)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_replica_that_does_all_of_it_again(fault: Fault) -> None:
    def work(stores: Stores, plan: FaultPlan | None) -> None:
        other = opened(stores).writer("flights", purpose="other", replicated=True)
        with suppress(UpperMismatch):
            other.append(updates(named("row", 100)), 0, 105)
        writer = opened(stores, plan).writer("flights", purpose="replica", replicated=True)
        writer.append(updates([]), 0, 100)
        for lower, upper in BORDERS:
            writer.append(updates(named("row", lower)), lower, upper)
        if plan is None:
            rows = [row for lower, _ in BORDERS for row in named("row", lower)]
            assert contents(opened(stores)) == counted(updates(rows))
            assert opened(stores).describe("flights").holding.suspect == ""

    at_every_write(fault, work)
