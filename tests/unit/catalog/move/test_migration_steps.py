"""The steps of a migration: both strategies and directions, interrupted and resumed after each step."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, config
from holdfast.catalog.move.attempt import Verify
from holdfast.catalog.move.link import Linked, Terms
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.migration_status import migration_status
from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import STEPS, Action, Backend, Strategy
from holdfast.catalog.move.two_stores import TwoStores, take_over_both
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.catalog.stores.preamble import config_row
from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    ContentsDiffer,
    CorruptBlob,
    Deprecated,
    Fenced,
    LinkConflict,
    MigrationConflict,
    MigrationTimedOut,
    StrategyMismatch,
    Uninitialized,
    VersionTooNew,
)
from testbed.linkedstores import WHO, LinkedPlace, claim, stored_contents
from testbed.oldcatalogs import rows_of, upgraded

WAYS = [(strategy, target) for strategy in Strategy for target in Backend]
VERIFIED = (Verify.NONE, Verify.COMPARE)
every_way = pytest.mark.parametrize(("strategy", "target"), WAYS, ids=str)
every_verify = pytest.mark.parametrize("verify", VERIFIED, ids=lambda verify: verify.value)

Contents = frozenset[Row]


class Catalog:
    """A catalog in one of two stores, and what is done to it."""

    def __init__(self, place: LinkedPlace, strategy: Strategy | None = None) -> None:
        self.place = place
        self.strategy = strategy
        self.now_ms = 1_000_000

    @property
    def stores(self) -> TwoStores:
        """See `TwoStored`."""
        return self.place.stores(Terms(strategy=self.strategy))

    def migration(self, target: Backend, **options: Any) -> BackendMigration:
        options = {"migration_id": "m", "holder": "me", "now_ms": lambda: self.now_ms, **options}
        return BackendMigration(self, target=target, sleep=lambda _: None, **options)

    def truth(self) -> Backend:
        """The source of truth, which both stores agree about."""
        linked = self.stores.linkage(self.place.seen())
        assert isinstance(linked, Linked)
        return linked.truth

    def contents(self, backend: Backend) -> Contents:
        store = self.stores.of(backend)
        return stored_contents(store, store.upper())

    def write(self, name: str) -> None:
        """Somebody takes the catalog over and writes."""
        taken = take_over_both(self.stores, claim(holder="a writer"))
        backend, seen = taken.link.truth, taken.seen.of(taken.link.truth)
        row = encode(SETTINGS, pb.SettingKey(name=name), pb.SettingValue(value="written"))
        self.stores.of(backend).append([RowUpdate(row, 1)], seen.upper, fence=seen.fence_row)

    def record(self) -> Record | None:
        return migration_status(self).records.get("m")

    def check_ended(self, record: Record | None, truth: Backend) -> None:
        """One source of truth that says so itself, and nothing that shuts anybody out."""
        assert (self.record(), self.truth()) == (record, truth)
        configs = self.place.configs()
        assert [configs[backend].get(config.TRUTH) for backend in (truth, truth.other)] == [1, None]
        assert config.MIGRATION_DEADLINE not in configs[Backend.STASH]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def begun(place: LinkedPlace, strategy: Strategy, source: Backend) -> Catalog:
    """A catalog that is linked, in the source."""
    place.alone(source).initialize(**WHO)
    catalog = Catalog(place, strategy)
    catalog.write("at the source")
    return catalog


@every_way
@every_verify
def test_a_migration_and_its_way_back(
    place: LinkedPlace, strategy: Strategy, target: Backend, verify: Verify
) -> None:
    catalog = begun(place, strategy, target.other)
    for rollback, leads_to in ((False, target), (True, target.other)):
        before = catalog.contents(leads_to.other)
        done = []
        outcome = catalog.migration(target, verify=verify, rollback=rollback).run(done.append)
        assert [each.step for each in done] == list(STEPS[strategy, leads_to])
        moves = [one.truth is not other.truth for one, other in pairwise(done)]
        assert sum(moves) == 1
        assert done[0].truth is leads_to.other
        last = Record.ROLLED_BACK if rollback else Record.DONE
        assert (outcome.truth, outcome.record, outcome.moved) == (leads_to, last, True)
        catalog.check_ended(last, leads_to)
        assert catalog.contents(leads_to) == before
        read = next(each for each in done if each.step.action is Action.READ)
        assert read.sizes is not None
        assert sum(size.rows for size in read.sizes.values()) == len(before)
        catalog.write(f"after {leads_to.value}")
    # Both writes are there.
    names = {row.value for row in catalog.contents(target.other) if row.key[:2] == SETTINGS.kind.tag}
    assert len(catalog.contents(target.other)) == len(catalog.contents(target)) + 1
    assert names


@every_way
@every_verify
@pytest.mark.long
def test_one_that_breaks_off_after_any_step_is_resumed_rolled_back_or_abandoned(
    tmp_path: Path, strategy: Strategy, target: Backend, verify: Verify
) -> None:
    ends = ("resume", "roll back", "abandon", "resume after a write")
    steps_of = STEPS[strategy, target]
    # Before the replace verification makes no difference.
    first = len(steps_of) - 1 if verify is Verify.NONE else 1
    shift = WAYS.index((strategy, target))
    for steps in range(first, len(steps_of)):
        # Every end after every step, but half of them in each way.
        for end in ends[(steps + shift) % 2 :: 2]:
            folder = tmp_path / f"{steps} {end}"
            folder.mkdir()
            place = LinkedPlace(folder)
            catalog = begun(place, strategy, target.other)
            migration = catalog.migration(target, verify=verify)
            for _ in range(steps):
                assert migration.advance() is not None
            moved = catalog.truth() is target
            assert catalog.record() is (
                Record.DONE if moved and _records(strategy, target) else Record.RUNNING
            )
            match end:
                case "resume":
                    before = catalog.contents(catalog.truth())
                    catalog.migration(target, verify=verify).run()
                    catalog.check_ended(Record.DONE, target)
                case "resume after a write":
                    catalog.write("between")
                    before = catalog.contents(catalog.truth())
                    if not moved:
                        with pytest.raises(Fenced):
                            migration.run()
                    catalog.migration(target, verify=verify).run()
                    catalog.check_ended(Record.DONE, target)
                case "roll back":
                    before = catalog.contents(catalog.truth())
                    catalog.migration(target, verify=verify, rollback=True).run()
                    catalog.check_ended(Record.ROLLED_BACK, target.other)
                case _:
                    before = catalog.contents(catalog.truth())
                    truth = catalog.migration(target, verify=verify).abandon()
                    assert truth is (target if moved else target.other)
                    if not (moved and _records(strategy, target)):
                        catalog.check_ended(Record.DONE if moved else None, truth)
            assert catalog.contents(catalog.truth()) == before
            migration.close()
            place.close()


def _records(strategy: Strategy, target: Backend) -> bool:
    """Whether the record is in the commit that moves the truth."""
    return STEPS[strategy, target][-1].store is Backend.STASH


@every_way
def test_a_way_back_that_breaks_off_and_is_abandoned_leaves_a_migration_that_is_done(
    place: LinkedPlace, strategy: Strategy, target: Backend
) -> None:
    catalog = begun(place, strategy, target.other)
    catalog.migration(target).run()
    back = catalog.migration(target, rollback=True)
    for _ in range(4):
        back.advance()
    assert catalog.record() is Record.ROLLING_BACK
    with pytest.raises(MigrationConflict, match="is being rolled back"):
        catalog.migration(target).run()
    assert catalog.migration(target).abandon() is target
    catalog.check_ended(Record.DONE, target)
    with pytest.raises(Fenced):
        back.run()
    assert catalog.migration(target, rollback=True).run().truth is target.other


@every_way
def test_what_has_ended_does_nothing(place: LinkedPlace, strategy: Strategy, target: Backend) -> None:
    catalog = begun(place, strategy, target.other)
    catalog.migration(target).run()
    before = place.uppers()
    again = catalog.migration(target).run()
    assert (again.record, again.truth, again.moved) == (Record.DONE, target, False)
    assert catalog.migration(target).plan().steps == ()
    assert catalog.migration(target).abandon() is target
    assert catalog.migration(target, migration_id="never").abandon() is target
    assert place.uppers() == before
    catalog.migration(target, rollback=True).run()
    before = place.uppers()
    for rollback in (False, True):
        again = catalog.migration(target, rollback=rollback).run()
        assert (again.record, again.truth, again.moved) == (Record.ROLLED_BACK, target.other, False)
    assert place.uppers() == before


@pytest.mark.parametrize("target", Backend)
def test_what_has_ended_keeps_its_target(place: LinkedPlace, target: Backend) -> None:
    catalog = begun(place, Strategy.ONE_TOMBSTONE, target.other)

    def other_target_is_refused() -> None:
        before = place.uppers()
        for rollback in (False, True):
            asked = catalog.migration(target.other, rollback=rollback)
            with pytest.raises(
                MigrationConflict, match=f"with target {target.value}, not {target.other.value}"
            ):
                asked.plan()
            with pytest.raises(MigrationConflict, match=f"with target {target.value}"):
                asked.run()
        assert place.uppers() == before

    for rollback, leads_to in ((False, target), (True, target.other)):
        assert catalog.migration(target, rollback=rollback).run().truth is leads_to
        other_target_is_refused()
        assert migration_status(catalog).targets == {"m": target}
    # An id that was taken back is free for another target.
    with catalog.migration(target, migration_id="n") as given_up:
        given_up.advance()
        assert given_up.abandon() is target.other
    assert catalog.migration(target.other, migration_id="n").run().record is Record.DONE


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf"), 1e300, 1e9 + 1])
def test_a_timeout_that_is_none(place: LinkedPlace, timeout_s: float) -> None:
    with pytest.raises(
        BadInput, match="the timeout of a migration must be more than 0 and at most 1,000,000,000"
    ):
        Catalog(place).migration(Backend.PERSIST, timeout_s=timeout_s)
    Catalog(place).migration(Backend.PERSIST, timeout_s=1e9).close()


@every_way
def test_one_to_where_the_truth_is_already_moves_nothing(
    place: LinkedPlace, strategy: Strategy, target: Backend
) -> None:
    catalog = begun(place, strategy, target)
    before = catalog.contents(target)
    done = []
    planned = catalog.migration(target).plan()
    outcome = catalog.migration(target).run(done.append)
    assert done[-1].step.action is Action.CHECK
    assert planned.steps == tuple(each.step for each in done)
    assert not outcome.moved
    catalog.check_ended(Record.DONE, target)
    assert catalog.contents(target) == before


@every_way
def test_a_plan_tells_what_it_would_do_and_writes_nothing(
    tmp_path: Path, place: LinkedPlace, strategy: Strategy, target: Backend
) -> None:
    place.alone(target.other).initialize(**WHO)
    catalog = Catalog(place, strategy)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.sqlite")}
    found = catalog.migration(target).plan()
    assert (found.source, found.destination, found.strategy) == (target.other, target, strategy)
    assert (found.links, found.record, found.refused, found.upgrade) == (True, None, None, None)
    assert found.steps == STEPS[strategy, target]
    assert found.sizes["databases"].rows == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.sqlite")} == before
    assert place.uppers() == (0, 1) if target is Backend.STASH else (1, 0)
    done = []
    catalog.migration(target).run(done.append)
    assert [each.step for each in done] == list(found.steps)


def test_a_plan_tells_that_it_would_be_refused(place: LinkedPlace) -> None:
    catalog = begun(place, Strategy.ONE_TOMBSTONE, Backend.STASH)
    store = catalog.stores.stash
    store.append([RowUpdate(Row(SETTINGS.kind.tag + b"\xff", b""), 1)], store.upper())
    found = catalog.migration(Backend.PERSIST).plan()
    assert isinstance(found.refused, CorruptBlob)
    before = place.uppers()
    with pytest.raises(CorruptBlob):
        catalog.migration(Backend.PERSIST).run()
    assert place.uppers() == before


def test_nothing_is_written_by_what_is_refused(place: LinkedPlace) -> None:
    empty = Catalog(place)
    with pytest.raises(Uninitialized):
        empty.migration(Backend.PERSIST).run()
    assert place.uppers() == (0, 0)
    catalog = begun(place, Strategy.TWO_TOMBSTONES, Backend.STASH)
    running = catalog.migration(Backend.PERSIST)
    running.advance()
    before = place.uppers()
    for refused, error in (
        (catalog.migration(Backend.PERSIST, migration_id="other"), MigrationConflict),
        (catalog.migration(Backend.STASH), MigrationConflict),
        (catalog.migration(Backend.STASH, migration_id="other", rollback=True), MigrationConflict),
        (Catalog(place, Strategy.ONE_TOMBSTONE).migration(Backend.PERSIST), StrategyMismatch),
    ):
        with pytest.raises(error):
            refused.run()
        with pytest.raises(error):
            refused.plan()
        assert place.uppers() == before
    running.run()
    with pytest.raises(BadInput, match="no migration never"):
        catalog.migration(Backend.PERSIST, migration_id="never", rollback=True).run()
    place.set_config(Backend.STASH, link=7)
    before = place.uppers()
    with pytest.raises(LinkConflict):
        catalog.migration(Backend.STASH, migration_id="other").run()
    assert isinstance(migration_status(catalog).conflict, LinkConflict)
    assert place.uppers() == before


@pytest.mark.parametrize("version", [CATALOG_VERSION + 1, MIN_VERSION - 1])
def test_a_source_of_a_version_that_is_not_read_is_refused_and_a_target_of_one_replaced(
    place: LinkedPlace, version: int
) -> None:
    catalog = begun(place, Strategy.ONE_TOMBSTONE, Backend.STASH)
    catalog.migration(Backend.PERSIST).run()
    place.set_config(Backend.STASH, user_version=version)
    store = catalog.stores.stash
    store.append([RowUpdate(Row(b"\xff\xff", b"of the future"), 1)], store.upper())
    before = catalog.contents(Backend.PERSIST)
    catalog.migration(Backend.PERSIST, rollback=True).run()
    assert catalog.contents(Backend.STASH) == before
    place.set_config(Backend.STASH, user_version=version)
    uppers = place.uppers()
    with pytest.raises((VersionTooNew, Deprecated), match=f"version {version}"):
        catalog.migration(Backend.PERSIST, migration_id="n").run()
    assert place.uppers() == uppers


@pytest.mark.parametrize("version", [MIN_VERSION, CATALOG_VERSION - 1])
@pytest.mark.parametrize("target", Backend)
def test_an_older_source_is_upgraded_before_it_is_read(
    place: LinkedPlace, version: int, target: Backend
) -> None:
    rows = tuple(rows_of(version, items=5))
    place.stores().of(target.other).append([RowUpdate(row, 1) for row in rows], 0, take_hold=True)
    catalog = Catalog(place)
    assert catalog.migration(target).plan().upgrade == (version, CATALOG_VERSION)
    catalog.migration(target).run()
    wanted = {row for row in upgraded(rows, version) if row.key[:2] != b"\x00\x01"}
    assert catalog.contents(target) == wanted == catalog.contents(target.other)


def test_a_generation_below_the_durable_one_is_fenced_and_writes_nothing(place: LinkedPlace) -> None:
    catalog = begun(place, Strategy.ONE_TOMBSTONE, Backend.STASH)
    take_over_both(catalog.stores, claim(3))
    before = place.uppers()
    with pytest.raises(Fenced):
        catalog.migration(Backend.PERSIST, deploy_generation=2).run()
    assert place.uppers() == before
    assert catalog.migration(Backend.PERSIST, deploy_generation=3).run().truth is Backend.PERSIST


@every_way
def test_who_resumes_it_fences_who_ran_it(place: LinkedPlace, strategy: Strategy, target: Backend) -> None:
    catalog = begun(place, strategy, target.other)
    first, second = catalog.migration(target), catalog.migration(target)
    for _ in range(3):
        first.advance()
    for _ in range(4):
        second.advance()
    with pytest.raises(Fenced):
        first.advance()
    # After the error it begins at the first step, and fences the other one.
    progress = first.advance()
    assert progress is not None
    assert progress.step.number == 1
    with pytest.raises(Fenced):
        second.advance()
    assert first.run().moved
    assert not second.run().moved
    catalog.check_ended(Record.DONE, target)


def test_its_time_is_over_before_the_next_step_and_it_can_be_resumed(place: LinkedPlace) -> None:
    catalog = begun(place, Strategy.ONE_TOMBSTONE, Backend.STASH)
    migration = catalog.migration(Backend.PERSIST, timeout_s=10)
    migration.advance()
    running = migration_status(catalog).running
    assert running is not None
    assert running.deadline_ms == catalog.now_ms + 10_000
    assert migration_status(catalog).holder == "me"
    catalog.now_ms += 10_000
    with pytest.raises(MigrationTimedOut, match="before step 2"):
        migration.advance()
    assert catalog.record() is Record.RUNNING
    assert catalog.truth() is Backend.STASH
    assert migration.run().moved
    catalog.check_ended(Record.DONE, Backend.PERSIST)


def test_a_time_that_is_over_does_not_stop_what_has_moved(place: LinkedPlace) -> None:
    catalog = begun(place, Strategy.TWO_TOMBSTONES, Backend.STASH)
    migration = catalog.migration(Backend.PERSIST, verify=Verify.NONE, timeout_s=10)
    for _ in range(6):
        migration.advance()
    assert catalog.truth() is Backend.PERSIST
    catalog.now_ms += 20_000
    assert migration.run().moved
    catalog.check_ended(Record.DONE, Backend.PERSIST)


@every_way
@pytest.mark.long
def test_times_never_go_back(place: LinkedPlace, strategy: Strategy, target: Backend) -> None:
    catalog = begun(place, strategy, target.other)
    for number in range(30):
        catalog.write(f"{number}")
    for rollback, leads_to in ((False, target), (True, target.other)):
        source = place.seen().of(leads_to.other).upper
        catalog.migration(target, rollback=rollback).run()
        after = place.seen()
        assert after.of(leads_to).upper > after.of(leads_to.other).upper > source
        since = after.of(leads_to).config[config.TRUTH_SINCE]
        # Beyond all that anybody can have seen at the source.
        assert since > source + 1
        store = catalog.stores.of(leads_to)
        assert contents_at(store, since) == catalog.contents(leads_to)


def contents_at(store: Any, time: int) -> Contents:
    return stored_contents(store, time + 1)


@every_way
def test_a_target_that_is_not_what_was_written_is_found_before_the_truth_moves(
    place: LinkedPlace, strategy: Strategy, target: Backend
) -> None:
    catalog = begun(place, strategy, target.other)
    migration = catalog.migration(target)
    while (step := migration.next_step) is None or step is not STEPS[strategy, target][-1]:
        migration.advance()
    store = catalog.stores.of(target)
    store.append([RowUpdate(config_row("somebody's", 1), 1)], store.upper())
    with pytest.raises(ContentsDiffer, match="config"):
        migration.advance()
    assert catalog.truth() is target.other
    assert migration.run().moved
    assert config_row("somebody's", 1) not in catalog.contents(target)


@every_way
def test_a_source_that_changes_without_a_fence_is_found(
    place: LinkedPlace, strategy: Strategy, target: Backend
) -> None:
    catalog = begun(place, strategy, target.other)
    migration = catalog.migration(target)
    while (progress := migration.advance()) is not None and progress.step.action is not Action.READ:
        pass
    store = catalog.stores.of(target.other)
    store.append([RowUpdate(config_row("somebody's", 1), 1)], store.upper())
    with pytest.raises(CatalogOutOfSync, match="changed after it was read"):
        migration.advance()
    assert migration.run().moved
    assert config_row("somebody's", 1) in catalog.contents(target)


def test_what_is_equal_is_not_written_again(place: LinkedPlace) -> None:
    catalog = begun(place, Strategy.ONE_TOMBSTONE, Backend.STASH)
    catalog.migration(Backend.PERSIST).run()
    catalog.write("one more")
    store = catalog.stores.stash
    lower = store.upper()
    catalog.migration(Backend.PERSIST, rollback=True).run()
    changed = [update for _, updates in store.changes(lower, store.upper()) for update in updates]
    settings = [row for row, _ in changed if row.key[:2] == SETTINGS.kind.tag]
    assert len(settings) == 1
    assert {row.key[:2] for row, _ in changed} == {b"\x00\x01", b"\x00\x02", SETTINGS.kind.tag}


@pytest.mark.parametrize(
    "options", [{"migration_id": "a b"}, {"timeout_s": 0}, {"holder": ""}, {"purpose": ""}], ids=str
)
def test_bad_input(place: LinkedPlace, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Catalog(place).migration(Backend.PERSIST, **options)
