"""The catalog if the process dies or the store gives no answer at any write, and races at exact points."""

import uuid
from collections.abc import Callable

import pytest

from holdfast.catalog import Catalog, FenceToken, IdKind, OpenMode, persist_catalog
from holdfast.catalog.objects.registry import AUDIT_LOG, ITEMS
from holdfast.errors import Fenced, FenceRegressed, Indeterminate, StorageError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from testbed.faults import (
    Fault,
    FaultPlan,
    FaultyBlob,
    FaultyConsensus,
    Operation,
    ProcessDeath,
    ScriptedPlan,
)

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
NAMES = ("a", "b", "c")
ENOUGH = 40  # more writes than the work below needs; each test checks that it is


class Store:
    """One location that any number of processes open, each with its own faults."""

    def __init__(self) -> None:
        self._blob, self._consensus = MemoryBlob(), MemoryConsensus()
        self._location_id = Location.of(self._blob, self._consensus).location_id

    def client(self, plan: FaultPlan | None = None, retry_deadline_s: float = 10.0) -> PersistClient:
        plan = plan or ScriptedPlan({})
        location = Location(
            FaultyBlob(self._blob, plan), FaultyConsensus(self._consensus, plan), self._location_id
        )
        config = PersistConfig(maintenance="off", debug_validate=True, retry_deadline_s=retry_deadline_s)
        return PersistClient(location, config=config)

    def forget_last_commit(self, shard_id: str) -> None:
        """What a consensus store does that is restored from an older copy."""
        self._consensus._logs[shard_id].pop()


def opened(client: PersistClient, holder: str = "me") -> Catalog:
    return persist_catalog(client, ORG).open(OpenMode.WRITABLE, holder=holder, purpose="test")


def writes(operation: Operation) -> bool:
    return operation.name == "consensus.compare_and_set"


@pytest.mark.parametrize(
    "fault", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER, Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER]
)
def test_what_was_acknowledged_outlives_a_fault_at_any_write(fault: Fault) -> None:
    for number in range(ENOUGH):
        store = Store()
        plan = ScriptedPlan({number: fault}, matches=writes)
        made: dict[str, str] = {}
        died = False
        try:
            catalog = opened(store.client(plan))
            for name in NAMES:
                made[name] = catalog.ensure_item("holdfast", "public", name)
        except ProcessDeath:
            died = True
        after = opened(store.client(), "after")
        found = {item.value.name: f"u{item.key.id.user}" for item in after.objects(ITEMS)}
        assert made.items() <= found.items()
        assert len(found) <= len(made) + 1
        assert len(set(found.values())) == len(found)
        events = sorted(event.key.id for event in after.stream(AUDIT_LOG))
        assert events == list(range(1, 5 + len(found)))  # 4 of the initial objects, one for each item
        assert died or found == made
        assert {name: after.ensure_item("holdfast", "public", name) for name in found} == found
        if plan.seen <= number:
            assert not died
            break
    else:
        pytest.fail("the work has more writes than were tried")


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER])
def test_after_a_commit_of_unknown_outcome_the_handle_finds_out(fault: Fault) -> None:
    store = Store()
    plan = ArmedPlan(fault)
    catalog = opened(store.client(plan, retry_deadline_s=0.0))
    token = catalog.fence_token()
    assert catalog.allocate_ids(IdKind.USER_ITEM, 2) == [1, 2]
    plan.armed = True
    with pytest.raises(Indeterminate):
        catalog.allocate_ids(IdKind.USER_ITEM, 2)
    plan.armed = False
    landed = fault is Fault.INDETERMINATE_AFTER
    assert catalog.allocate_ids(IdKind.USER_ITEM) == [5 if landed else 3]
    catalog.confirm_leadership()
    assert catalog.fence_token() == token


@pytest.mark.parametrize("initialized", [False, True])
def test_an_open_that_loses_the_race_opens_above_the_winner(initialized: bool) -> None:
    for number in range(ENOUGH):
        store = Store()
        epoch = opened(store.client()).fence_token().epoch if initialized else 0
        winners: list[Catalog] = []
        plan = RacePlan(lambda: winners.append(opened(store.client(), "winner")), at=number)  # noqa: B023
        loser = opened(store.client(plan), "slower")
        if not winners:
            assert number > 0
            break
        assert (winners[0].fence_token().epoch, loser.fence_token().epoch) == (epoch + 1, epoch + 2)
        with pytest.raises(Fenced):
            winners[0].confirm_leadership()
        loser.confirm_leadership()
    else:
        pytest.fail("an open has more writes than were tried")


def test_a_commit_that_meets_another_open_is_fenced() -> None:
    store = Store()
    tokens: list[FenceToken] = []
    plan = RacePlan(lambda: tokens.append(opened(store.client(), "other").fence_token()), at=None)
    catalog = opened(store.client(plan))
    plan.at = plan.seen
    with pytest.raises(Fenced) as caught:
        catalog.ensure_item("holdfast", "public", "t")
    assert caught.value.durable == tokens[0]
    assert opened(store.client()).objects(ITEMS) == ()


def test_an_item_whose_commit_has_an_unknown_outcome_is_made_once() -> None:
    plan = ArmedPlan(Fault.INDETERMINATE_AFTER)
    catalog = opened(Store().client(plan, retry_deadline_s=0.0))
    plan.armed = True
    with pytest.raises(Indeterminate):
        catalog.ensure_item("holdfast", "public", "t")
    plan.armed = False
    assert catalog.ensure_item("holdfast", "public", "t") == "u1"
    assert [item.value.name for item in catalog.objects(ITEMS)] == ["t"]


@pytest.mark.parametrize("fault", [Fault.DETERMINATE, Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER])
def test_a_subscription_outlives_a_store_that_fails_at_any_call(fault: Fault) -> None:
    store = Store()
    catalog = opened(store.client())
    for number in range(ENOUGH):
        plan = ScriptedPlan({})
        reader = persist_catalog(store.client(plan, retry_deadline_s=0.0), ORG).open(OpenMode.READ_ONLY)
        subscription = reader.subscribe()
        failing = ScriptedPlan({number: fault})
        plan.decide = failing.decide  # type: ignore[method-assign]
        expected = [catalog.ensure_item("holdfast", "public", f"{number}.{step}") for step in range(3)]
        found: list[str] = []
        failed = 0
        while subscription.frontier < catalog.upper:
            try:
                changes = subscription.next(10)
            except StorageError:
                failed += 1
                continue
            found += [f"u{c.object.key.id.user}" for c in changes if c.collection is ITEMS]
        assert found == expected
        assert failed <= 1
        if failing.seen <= number:
            break
    else:
        pytest.fail("following has more calls than were tried")


def test_a_log_restored_from_an_older_copy_stops_who_wrote_before() -> None:
    store = Store()
    catalog = opened(store.client())
    catalog.allocate_ids(IdKind.USER_ITEM)
    store.forget_last_commit(catalog.place)
    with pytest.raises(FenceRegressed) as told:
        catalog.confirm_leadership()
    assert "persist recover URL --accept --yes && holdfast catalog fence --at-least 1 " in told.value.hint
    assert told.value.hint.endswith(f" --persist URL --organization-id {ORG}")
    with pytest.raises(FenceRegressed):
        catalog.get_items()


class ArmedPlan:
    """The fault for every write while `armed`."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.armed = False

    def decide(self, operation: Operation) -> Fault:
        return self._fault if self.armed and writes(operation) else Fault.NONE


class RacePlan:
    """Lets another process act once, right before write number `at` of this one."""

    def __init__(self, act: Callable[[], object], *, at: int | None) -> None:
        self._act = act
        self.at = at
        self.seen = 0

    def decide(self, operation: Operation) -> Fault:
        if writes(operation):
            number, self.seen = self.seen, self.seen + 1
            if number == self.at:
                self._act()
        return Fault.NONE
