"""Interrupts upgrades at every durable operation, and lets upgrades race."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, OpenMode, config
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores import persist as shard
from holdfast.catalog.stores.preamble import preamble_of
from holdfast.catalog.upgrade import runner
from holdfast.errors import Fenced, Indeterminate, UniquenessViolation
from testbed.faults import Fault, Operation, ProcessDeath, ScriptedPlan
from testbed.oldcatalogs import rows_of, upgraded
from testbed.oldstores import MemoryPlace, Place, StashPlace, begin, but_fence, contents, durable

ENOUGH = 100  # more durable operations than an upgrade has; each test checks that it is


def few(version: int) -> Iterator[Row]:
    """Some rows of each kind."""
    seen: Counter[Kind] = Counter()
    for row in rows_of(version, items=8):
        seen[row.kind] += 1
        if seen[row.kind] <= 3 or row.kind is Kind.ID_ALLOCATOR:
            yield row


ROWS = tuple(few(MIN_VERSION))
STRAIGHT = {
    version: but_fence(upgraded(ROWS, MIN_VERSION, version))
    for version in range(MIN_VERSION, CATALOG_VERSION + 1)
}


@pytest.fixture(params=["persist", "stash"])
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """Makes places with the catalog at its oldest version."""

    def new() -> Place:
        place = MemoryPlace() if request.param == "persist" else StashPlace.in_folder(tmp_path)
        begin(place.store(), ROWS)
        return place

    return new


def upgrade_to_the_end(place: Place) -> None:
    """By a process without faults; what the catalog then holds, and held at each time, is as it should be."""
    with place.catalog().open(OpenMode.WRITABLE, holder="after", purpose="test") as catalog:
        assert catalog.catalog_version == CATALOG_VERSION
    assert_straight(place)
    assert contents(place.store()) == STRAIGHT[CATALOG_VERSION]


def assert_straight(place: Place) -> None:
    """At each time the catalog is at one version, as the straight upgrade has it, and never skips one."""
    store = place.store()
    last = MIN_VERSION
    for time in range(store.upper()):
        rows = list(store.rows(time))
        seen = preamble_of(time + 1, rows)
        assert seen.token is not None
        version = seen.config[config.USER_VERSION]
        assert version in (last, last + 1)
        assert but_fence(rows) == STRAIGHT[version]
        last = version


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("fault", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER])
@pytest.mark.long
def test_an_upgrade_goes_on_after_a_death_at_any_operation(
    fault: Fault, big: bool, new_place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    if big:
        # What has more rows than this goes through temporary files.
        monkeypatch.setattr(shard, "BATCH_ROWS", 7)
    for number in range(ENOUGH):
        place = new_place()
        plan = ScriptedPlan({number: fault}, matches=durable)
        died = False
        try:
            place.catalog(plan).open(OpenMode.WRITABLE, holder="me", purpose="test")
        except ProcessDeath:
            died = True
        assert_straight(place)
        upgrade_to_the_end(place)
        if plan.seen <= number:
            assert not died
            break
        assert died
    else:
        pytest.fail("an upgrade has more operations than were tried")


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER])
def test_the_same_process_goes_on_after_an_unknown_outcome(
    fault: Fault, new_place: Callable[[], Place]
) -> None:
    for number in range(ENOUGH):
        place = new_place()
        plan = ScriptedPlan({number: fault}, matches=durable)
        catalog = place.catalog(plan)
        try:
            opened = catalog.open(OpenMode.WRITABLE, holder="me", purpose="test")
        except Indeterminate:
            opened = catalog.open(OpenMode.WRITABLE, holder="me", purpose="test")
        opened.confirm_leadership()
        assert opened.catalog_version == CATALOG_VERSION
        assert_straight(place)
        if plan.seen <= number:
            break
    else:
        pytest.fail("an upgrade has more operations than were tried")


def test_of_two_upgraders_one_is_fenced_and_the_catalog_is_upgraded_once(
    new_place: Callable[[], Place],
) -> None:
    outcomes = set()
    for number in range(ENOUGH):
        place = new_place()
        plan = BeforeOperation(number, lambda: upgrade_to_the_end(place))  # noqa: B023
        try:
            slower = place.catalog(plan).open(OpenMode.WRITABLE, holder="slower", purpose="test")
        except Fenced:
            outcomes.add("fenced")
        else:
            outcomes.add("above the winner")
            slower.confirm_leadership()
        assert_straight(place)
        assert contents(place.store()) == STRAIGHT[CATALOG_VERSION]
        if not plan.acted:
            break
    else:
        pytest.fail("an upgrade has more operations than were tried")
    assert outcomes == {"fenced", "above the winner"}


@pytest.mark.parametrize("number", range(4))
def test_an_upgrader_may_die_in_the_middle_of_the_upgrade_of_another(
    number: int, new_place: Callable[[], Place]
) -> None:
    place = new_place()
    mortal = ScriptedPlan({number: Fault.DEATH_AFTER}, matches=durable)

    def start_another() -> None:
        with pytest.raises(ProcessDeath):
            place.catalog(mortal).open(OpenMode.WRITABLE, holder="other", purpose="test")

    plan = BeforeOperation(5, start_another)
    with suppress(Fenced):
        place.catalog(plan).open(OpenMode.WRITABLE, holder="me", purpose="test")
    assert plan.acted
    assert_straight(place)
    upgrade_to_the_end(place)


def test_a_process_that_changes_objects_meanwhile_is_upgraded_with_its_changes(
    new_place: Callable[[], Place],
) -> None:
    place = new_place()
    writes = iter(range(1000))

    def change() -> None:
        store = place.store()
        number = next(writes)
        row = Row(Kind.SYSTEM_CONFIGURATION.tag + b'{"name":"n%d"}' % number, b'{"value":"v"}')
        begin(store, [row])

    # The old process commits right before each of the first attempts to fence it.
    plan = BeforeEvery(change, times=2 + runner.PLANS_BEFORE_FENCE)
    catalog = place.catalog(plan).open(OpenMode.WRITABLE, holder="me", purpose="test")
    names = {row.key.name for row in catalog.get_system_configurations()}  # type: ignore[attr-defined]
    assert names == {f"n{number}" for number in range(next(writes))}
    assert len(names) == plan.times


def test_a_refusal_after_the_fence_leaves_all_but_the_epoch(
    new_place: Callable[[], Place],
) -> None:
    place = new_place()
    taken = iter(range(1000))

    def take_a_name() -> None:
        number = next(taken)
        row = Row(Kind.ROLE.tag + b'{"id":"u%d"}' % (900 + number), b'{"name":"the same"}')
        begin(place.store(), [row])

    plan = BeforeEvery(take_a_name, times=runner.PLANS_BEFORE_FENCE)
    with pytest.raises(UniquenessViolation):
        place.catalog(plan).open(OpenMode.WRITABLE, holder="me", purpose="test")
    assert place.catalog().config(config.USER_VERSION) == MIN_VERSION
    assert len(contents(place.store())) == len(but_fence(ROWS)) + next(taken)


class BeforeOperation:
    """Lets another process act once, right before durable operation number `at` of this one."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self._at, self._act = at, act
        self._seen = 0
        self.acted = False

    def decide(self, operation: Operation) -> Fault:
        if durable(operation):
            number, self._seen = self._seen, self._seen + 1
            if number == self._at:
                self.acted = True
                self._act()
        return Fault.NONE


class BeforeEvery:
    """Lets another process act right before durable operations of this one, so many times."""

    def __init__(self, act: Callable[[], object], *, times: int) -> None:
        self._act = act
        self.times = times
        self._left = times

    def decide(self, operation: Operation) -> Fault:
        if durable(operation) and self._left:
            self._left -= 1
            self._act()
        return Fault.NONE
