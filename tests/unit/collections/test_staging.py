"""Hydration in pieces: what an attempt has staged stays, and each row counts once."""

import json
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import JobState, RenditionState, StorageController, job_id
from holdfast.collections.collection_snapshot import CollectionPart
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.collections.staging import FillPlan
from holdfast.errors import BadInput, Fenced
from holdfast.persist.admin.verify import verify
from holdfast.persist.parts.snapshot import SnapshotPart
from testbed.hydrations import hydrate_in_pieces
from unit.collections.stores import SPEC, Row, Stores, counted, updates

ROWS = [(number, "x" * 40 + str(number), number % 10, 1) for number in range(300)]
JOB = job_id("c1", "hydrate", "r2")
MOST = 12


class Killed(BaseException):
    """The process of an attempt is gone."""


@pytest.fixture
def stores() -> Stores:
    stores = Stores()
    controller = opened(stores)
    controller.create_collection(SPEC)
    writer = controller.writer("flights", purpose="test")
    # Parts of 30 rows, so that there is something to cut.
    for first in range(0, 300, 30):
        writer.append(updates([(*row[:2], first, 1) for row in ROWS[first : first + 30]]), first, first + 30)
    controller.renditions.create("flights", shards=2)
    controller.start_job("c1", "hydrate", "r2", spec={})
    return stores


def opened(stores: Stores) -> StorageController:
    """A process whose uploads are blobs."""
    return StorageController(stores.open(inline_max_bytes=0))


def run(
    stores: Stores, attempt: int, done: list[int] | None = None, *, kill_at: int | None = None, **on: Any
) -> int:
    """Run an attempt, perhaps kill it before its nth task, and note the pieces that it uploads."""
    tasks = 0

    def task(number: int) -> None:
        nonlocal tasks
        if tasks == kill_at:
            raise Killed
        tasks += 1
        if done is not None:
            done.append(number)

    controller = opened(stores)
    return hydrate_in_pieces(controller, "flights", "r2", attempt, most=MOST, on_task=task, **on)


def killed(stores: Stores, attempt: int, after: int) -> None:
    with pytest.raises(Killed):
        run(stores, attempt, kill_at=after)


def retried(stores: Stores, attempt: int) -> int:
    return opened(stores).retry_job(JOB, abandoned=attempt).attempt


def shards_of(controller: StorageController, rendition: str = "r2") -> tuple[str, ...]:
    return controller.describe("flights").rendition(rendition).shards


def staged(stores: Stores) -> list[int]:
    """How many pieces each shard of the rendition has staged."""
    controller = opened(stores)
    return [len(controller.client.staged(shard)) for shard in shards_of(controller)]


def check_contents(stores: Stores, upper: int = 300) -> None:
    """The rendition has what the collection has, each row once, and nothing is staged any more."""
    controller = opened(stores)
    record = controller.job(JOB)
    assert record is not None
    assert record.state is JobState.DONE
    found: Counter[Row] = Counter()
    for shard in shards_of(controller):
        controller.client.maintain(shard)
        assert verify(controller.client, shard).findings == ()
        with controller.client.reader(shard, purpose="look") as reader:
            found.update(counted(reader.snapshot(upper - 1).to_table()))
    with controller.reader("flights", purpose="look") as source:
        wanted = counted(source.snapshot(upper - 1).to_table())
    assert found == wanted
    assert record.result == {"upper": upper, "rows": wanted.total()}
    assert staged(stores) == [0, 0]


def test_the_next_attempt_uploads_only_what_is_not_staged(stores: Stores) -> None:
    killed(stores, 1, 5)
    assert staged(stores) == [5, 5]
    controller = opened(stores)
    assert {*controller.client.recent_uppers(shards_of(controller)).values()} == {0}
    done: list[int] = []
    assert run(stores, retried(stores, 1), done) == 300
    assert done == [*range(5, MOST)]
    check_contents(stores)


def test_an_attempt_that_was_killed_before_its_commit_leaves_no_task_to_do(stores: Stores) -> None:
    def die(_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        run(stores, 1, on_staged=die)
    done: list[int] = []
    run(stores, retried(stores, 1), done)
    assert done == []
    check_contents(stores)


def test_an_earlier_attempt_goes_on_beside_its_successor_and_each_row_counts_once(stores: Stores) -> None:
    def successor(number: int) -> None:
        if number == 3:
            with pytest.raises(Killed):
                run(stores, retried(stores, 1), kill_at=4)

    refused: list[int] = []
    # It has its own uploads of the pieces that the successor has staged, and stages the rest.
    with pytest.raises(Fenced, match="attempt 1"):
        run(stores, 1, refused, on_uploaded=successor)
    assert refused == [*range(MOST)]
    assert staged(stores) == [MOST, MOST]
    controller = opened(stores)
    parts = [
        meta.key
        for shard in shards_of(controller)
        for meta in controller.client.location.blob.list(shard)
        if "/w" in meta.key
    ]
    assert len(parts) == 2 * MOST, "what was refused is deleted"
    done: list[int] = []
    run(stores, retried(stores, 2), done)
    assert done == []
    check_contents(stores)


def test_writes_meanwhile_are_copied_after_it(stores: Stores) -> None:
    killed(stores, 1, 5)
    writer = opened(stores).writer("flights", purpose="test")
    writer.append(updates([(1000, "new", 300, 1), (*ROWS[0][:2], 301, -1)]), 300, 400)
    done: list[int] = []
    assert run(stores, retried(stores, 1), done) == 400
    assert len(done) == MOST - 5
    record = opened(stores).job(JOB)
    assert record is not None
    assert record.result == {"upper": 300, "rows": 300}
    found: Counter[Row] = Counter()
    controller = opened(stores)
    for shard in shards_of(controller):
        with controller.client.reader(shard, purpose="look") as reader:
            found.update(counted(reader.snapshot(399).to_table()))
    with controller.reader("flights", purpose="look") as source:
        assert found == counted(source.snapshot(399).to_table())


def test_a_plan_whose_time_is_gone_is_replaced_and_what_was_staged_is_dropped(stores: Stores) -> None:
    zombies: list[int] = []

    def lose(number: int) -> None:
        """The hold moves, and so does the collection. Another attempt begins anew."""
        if number != 4:
            return
        controller = opened(stores)
        client, info = controller.client, controller.describe("flights")
        controller.writer("flights", purpose="test").append(updates([(1000, "new", 350, 1)]), 300, 400)
        purpose = rendition_hold("r2")
        client.multi_write([client.prepare_downgrade_critical(info.metadata_shard, 390, purpose=purpose)])
        controller.set_retention_hold("flights", 390)
        assert controller.frontiers("flights").since == 390
        with pytest.raises(Killed):
            run(stores, retried(stores, 1), zombies, kill_at=2)
        assert staged(stores) == [2, 2]

    with pytest.raises(Fenced, match="attempt 1"):
        run(stores, 1, on_uploaded=lose)
    assert zombies == [0, 1]
    # The first attempt went on with pieces of its plan, which is not on record any more.
    assert staged(stores) > [2, 2]
    done: list[int] = []
    assert run(stores, retried(stores, 2), done) == 400
    assert done == [*range(2, MOST)]
    check_contents(stores, 400)


@pytest.mark.parametrize("how", ["abort", "drop"])
def test_what_is_staged_ends_with_the_rendition(stores: Stores, how: str) -> None:
    killed(stores, 1, 5)
    controller = opened(stores)
    shards = shards_of(controller)
    if how == "abort":
        controller.renditions.abort("flights", "r2")
        assert controller.describe("flights").rendition("r2").state is RenditionState.ABORTED
    else:
        controller.drop_collection("flights", force=True)
    for shard in shards:
        machine = controller.client.session.machine(shard)
        assert not machine.refresh().pending
        controller.client.maintain(shard)
        assert not [each for each in controller.client.location.blob.list(shard) if "/w" in each.key]


def test_a_process_that_copies_everything_by_itself_needs_nothing_of_it(stores: Stores) -> None:
    killed(stores, 1, 5)
    assert opened(stores).hydrate("flights", "r2") == 300
    check_contents(stores)


def test_ten_kills_at_random_cost_little(stores: Stores) -> None:
    chance = random.Random(4)
    done: list[int] = []
    attempt = 1
    for _ in range(10):
        try:
            run(stores, attempt, done, kill_at=chance.randint(0, 3))
        except Killed:
            attempt = retried(stores, attempt)
    run(stores, attempt, done)
    # A task is killed before it uploads here, so no piece is uploaded twice.
    assert sorted(done) == [*range(MOST)]
    check_contents(stores)


def test_a_plan_stays_with_the_job_until_it_is_done(stores: Stores) -> None:
    controller = opened(stores)
    first = controller.plan_job(JOB, 1, {"pieces": 1})
    assert (first.plan, first.outcome) == ({"pieces": 1}, {})
    assert controller.plan_job(JOB, 1, {"pieces": 2}).plan == {"pieces": 1}
    assert controller.plan_job(JOB, 1, {"pieces": 2}, instead_of={"pieces": 3}).plan == {"pieces": 1}
    controller.fail_job(JOB, 1, "no luck")
    with pytest.raises(Fenced):
        controller.plan_job(JOB, 1, {"pieces": 2}, instead_of={"pieces": 1})
    assert controller.retry_job(JOB).plan == {"pieces": 1}
    with pytest.raises(Fenced):
        controller.plan_job(JOB, 1, {"pieces": 2}, instead_of={"pieces": 1})
    assert controller.plan_job(JOB, 2, {"pieces": 2}, instead_of={"pieces": 1}).plan == {"pieces": 2}
    done = controller.finish_job(JOB, 2, {"rows": 0})
    assert (done.plan, done.outcome) == (None, {"rows": 0})
    with pytest.raises(BadInput, match="there is no job"):
        controller.plan_job(job_id("c1", "hydrate", "r3"), 1, {})


LIMITS = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.booleans(),
    st.decimals(allow_nan=False, allow_infinity=False),
)


@given(
    pieces=st.lists(
        st.lists(
            st.builds(
                SnapshotPart, st.sampled_from(["s1", "s2"]), st.just(7), LIMITS, LIMITS, st.integers(1, 2)
            ),
            min_size=1,
            max_size=3,
        ),
        max_size=4,
    )
)
def test_a_recorded_plan_is_the_same_plan(pieces: list[list[SnapshotPart]]) -> None:
    plan = FillPlan(7, tuple(CollectionPart("c1", 7, tuple(parts)) for parts in pieces))
    again = FillPlan.of("c1", json.loads(json.dumps(plan.recorded())))
    assert again == plan
    assert again.names == plan.names
    assert repr(again) == repr(plan)
    assert len({*plan.names}) == len(pieces)


def test_other_plans_have_other_names() -> None:
    def plan(as_of: int, upper: object) -> FillPlan:
        part = SnapshotPart("s1", as_of, None, upper)
        return FillPlan(as_of, (CollectionPart("c1", as_of, (part,)),))

    plans = [plan(7, 1), plan(8, 1), plan(7, 2), plan(7, "1"), plan(7, b"1"), plan(7, Decimal(1))]
    assert len({name for each in plans for name in each.names}) == len(plans)
