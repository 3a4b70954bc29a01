"""What the operator decides about a CatalogMigration, as a table of situations."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.catalog import CATALOG_VERSION
from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import STEPS, Backend, Strategy
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import ContentsDiffer, MigrationConflict, MigrationTimedOut, StoreUnreachable
from holdfast_operator.api.base import Condition
from holdfast_operator.api.catalog import CatalogFence
from holdfast_operator.api.migration import CatalogMigrationSpec, CatalogMigrationStatus, Verify
from holdfast_operator.api.names import ConditionType, Kind, Reason
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.engine.deletion import LIMIT, Deletion
from holdfast_operator.engine.events import transitions
from holdfast_operator.engine.failures import reason_of
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.steps import Decision, Keep, Release, Rhythm, Settle, Wait, reconciling, stalled
from holdfast_operator.migrations.facts import (
    Course,
    DryRunResult,
    MigrationView,
    MoveState,
    RequestedMove,
    migration_id,
)
from holdfast_operator.migrations.plan import plan
from holdfast_operator.migrations.status import resting
from holdfast_operator.migrations.steps import (
    Abandon,
    BeginMove,
    CloseShadow,
    DryRun,
    OpenShadow,
    Stop,
    TakeStep,
)
from holdfast_operator.places.storage import StashLocation, Storage

RHYTHM = Rhythm(unsteady=2.0, steady=60.0)
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
OPENING = Opening(
    Storage(url="file:///data/here"),
    "6f1d7c1e-2b8a-4f5e-9d43-0c5b8f3a7e21",
    0,
    "default",
    (),
    "me",
    "operator for Catalog ns/demo",
    stash=StashLocation("sqlite:///data/stash"),
)
ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES


def spec(**fields: Any) -> CatalogMigrationSpec:
    return CatalogMigrationSpec.model_validate(
        {"catalogRef": {"name": "demo"}, "target": "Persist", **fields}
    )


def move(**fields: Any) -> RequestedMove:
    asked = spec(**fields)
    return RequestedMove("ns/move", Backend(asked.target), asked.rollback, asked.verify, "me", OPENING)


UNTOUCHED = MoveState(ONE, Backend.STASH, 3, 3, None, CATALOG_VERSION)
RUNNING = replace(UNTOUCHED, record=Record.RUNNING)
DONE = replace(UNTOUCHED, record=Record.DONE, truth=Backend.PERSIST)
ROLLED_BACK = replace(UNTOUCHED, record=Record.ROLLED_BACK)
FRESH = MigrationView(name="ns/move", spec=spec(), now=NOW, move=move(), state=UNTOUCHED)
BEGUN = replace(FRESH, course=Course(move(), strategy=ONE))


def asked(seen: MigrationView, **fields: Any) -> MigrationView:
    """The same with another spec."""
    return replace(seen, spec=spec(**fields), move=move(**fields))


def after(number: int, *, strategy: Strategy = ONE, **fields: Any) -> MigrationView:
    """After so many steps of a move."""
    target = move(**fields)
    done = STEPS[strategy, target.destination][number - 1] if number else None
    course = Course(target, calls=number, strategy=strategy, done=done, truth=Backend.STASH, epoch=5)
    return replace(asked(FRESH, **fields), state=RUNNING, course=course)


def decided(seen: MigrationView) -> Decision:
    return plan(seen, RHYTHM)


def rest(seen: MigrationView) -> Settle:
    step = decided(seen)
    assert isinstance(step, Settle)
    return step


def told(seen: MigrationView) -> tuple[Phase, Reason]:
    return rest(seen).health.phase, rest(seen).health.reason


def shown(seen: MigrationView, **fields: Any) -> MigrationView:
    return replace(seen, shown=CatalogMigrationStatus(**fields))


def test_operators_that_take_a_migration_from_each_other_come_to_rest() -> None:
    fence = CatalogFence(time=NOW, holder="other, me", epoch=4, generation=1)
    assert decided(replace(BEGUN, fences=(fence, fence))) == TakeStep(move(), BEGUN)
    fought = replace(FRESH, state=RUNNING, fences=(fence,) * 3)
    assert told(fought) == (Phase.STALLED, Reason.FENCED_BY_OTHER)
    assert "other, me" in rest(fought).health.message
    assert rest(fought).fields["fencedBy"][0]["epoch"] == 4
    assert decided(replace(fought, course=Course(move()))) == Stop()
    # It may have come to its end meanwhile.
    assert told(replace(fought, state=DONE)) == (Phase.READY, Reason.MIGRATION_COMPLETED)


@pytest.mark.parametrize("record", [Record.RUNNING, Record.DONE, Record.ROLLED_BACK])
def test_the_id_of_a_move_to_the_other_store_is_refused(record: Record) -> None:
    other = replace(FRESH, state=replace(UNTOUCHED, record=record, target=Backend.STASH))
    assert told(other) == (Phase.STALLED, Reason.CONFLICT)
    assert "ns/move already has the target Stash" in rest(other).health.message
    # Deleting it leaves that one alone.
    assert decided(replace(other, deleting=True)) == Release()
    same = replace(FRESH, state=replace(DONE, target=Backend.PERSIST))
    assert told(same) == (Phase.READY, Reason.MIGRATION_COMPLETED)


def test_the_way_of_a_migration() -> None:
    assert decided(replace(FRESH, has_finalizer=False)) == Keep()
    assert decided(FRESH) == BeginMove(move())
    assert told(replace(BEGUN, catalog_open=True)) == (Phase.RECONCILING, Reason.MIGRATION_PENDING)
    assert decided(BEGUN) == TakeStep(move(), BEGUN)
    for number in range(1, 7):
        assert decided(after(number)) == TakeStep(move(), after(number))
    assert decided(replace(after(6), state=DONE)) == Stop()
    assert told(replace(FRESH, state=DONE)) == (Phase.READY, Reason.MIGRATION_COMPLETED)


@pytest.mark.parametrize(
    ("seen", "phase", "reason"),
    [
        (replace(FRESH, spec=None, problem="spec.target"), Phase.STALLED, Reason.INVALID_SPEC),
        (
            replace(FRESH, no_catalog=stalled(Reason.CATALOG_NOT_FOUND, "none"), move=None),
            Phase.STALLED,
            Reason.CATALOG_NOT_FOUND,
        ),
        (
            replace(FRESH, state=None, trouble=stalled(Reason.STORE_UNREACHABLE, "no answer")),
            Phase.STALLED,
            Reason.STORE_UNREACHABLE,
        ),
        (replace(FRESH, state=MoveState()), Phase.RECONCILING, Reason.MIGRATION_PENDING),
        (asked(FRESH, suspend=True), Phase.SUSPENDED, Reason.SUSPENDED),
        (replace(FRESH, rival="CatalogMigration ns/other"), Phase.STALLED, Reason.CONFLICT),
        (replace(FRESH, state=replace(UNTOUCHED, other="ns/other")), Phase.STALLED, Reason.CONFLICT),
        (replace(FRESH, catalog_deleting=True), Phase.STALLED, Reason.CATALOG_DELETING),
        (asked(FRESH, rollback=True), Phase.STALLED, Reason.INVALID_SPEC),
        (
            replace(asked(FRESH, verify="Shadow"), catalog_observed=True),
            Phase.STALLED,
            Reason.NOT_SUPPORTED,
        ),
        (
            replace(FRESH, catalog_observed=True, state=replace(UNTOUCHED, version=CATALOG_VERSION - 1)),
            Phase.STALLED,
            Reason.UPGRADE_PENDING,
        ),
        (shown(replace(FRESH, state=RUNNING), deadline=NOW), Phase.STALLED, Reason.MIGRATION_TIMED_OUT),
        (replace(asked(FRESH, rollback=True), state=ROLLED_BACK), Phase.READY, Reason.ROLLED_BACK),
        # An id that was rolled back does nothing any more, whatever is asked.
        (replace(FRESH, state=ROLLED_BACK), Phase.READY, Reason.ROLLED_BACK),
    ],
)
def test_why_it_rests(seen: MigrationView, phase: Phase, reason: Reason) -> None:
    assert told(seen) == (phase, reason)
    # What rests has nothing to do with the catalog any more, once the step under way is over.
    ended = replace(seen, course=Course(move(), calls=1))
    assert decided(ended) == Stop()
    stepping = replace(ended, stepping=True)
    assert decided(stepping) == TakeStep(move(), stepping)


def test_nothing_is_begun_in_stores_that_went_back() -> None:
    """As after a backup was restored while no operator ran: what is moved then might be the wrong state."""
    back = replace(FRESH, known_epoch=4)
    assert told(back) == (Phase.STALLED, Reason.FENCE_REGRESSED)
    assert "fence" in rest(back).health.message
    assert "--at-least 4" in rest(back).health.message
    assert decided(replace(back, state=replace(UNTOUCHED, stash_epoch=4))) == BeginMove(move())
    assert decided(replace(back, catalog_observed=True)) == BeginMove(move()), (
        "its own process looks after it"
    )
    assert isinstance(decided(replace(BEGUN, known_epoch=4)), TakeStep)
    again = replace(asked(back, rollback=True), state=DONE)
    assert told(again) == (Phase.STALLED, Reason.FENCE_REGRESSED)
    assert decided(replace(back, state=RUNNING)) == BeginMove(move()), "what has begun is on record in both"


def test_a_format_is_upgraded_only_where_opening_it_would_do_that() -> None:
    older = replace(FRESH, state=replace(UNTOUCHED, version=CATALOG_VERSION - 1))
    assert isinstance(decided(older), BeginMove)
    manual = replace(move(), opening=replace(OPENING, upgrade=False))
    assert told(replace(older, move=manual)) == (Phase.STALLED, Reason.UPGRADE_PENDING)


def test_no_time_is_over_after_the_spec_was_changed() -> None:
    late = shown(replace(FRESH, state=RUNNING), deadline=NOW)
    assert decided(replace(late, changed=True)) == BeginMove(move())
    assert replace(late, changed=True).deadline == NOW + timedelta(minutes=10)
    assert late.deadline == NOW
    assert told(replace(late, now=NOW - timedelta(seconds=1), catalog_open=True, course=BEGUN.course)) == (
        Phase.RECONCILING,
        Reason.MIGRATION_PENDING,
    )


def test_a_rollback_begins_anew_from_wherever_it_is() -> None:
    back = move(rollback=True)
    # In the middle, after the end, and where the process was started since.
    for state, course in ((RUNNING, after(4).course), (DONE, None), (RUNNING, None)):
        seen = replace(asked(FRESH, rollback=True), state=state, course=course)
        assert decided(seen) == (Stop() if course else BeginMove(back))
    assert decided(replace(after(4), spec=spec(rollback=True), move=back, stepping=True)) == TakeStep(
        move(), FRESH
    )


@pytest.mark.parametrize("strategy", [ONE, TWO])
def test_shadowing_is_before_the_last_step(strategy: Strategy) -> None:
    last = len(STEPS[strategy, Backend.PERSIST])
    way = {"verify": "Shadow", "shadowFor": "90s"}
    for number in range(last - 1):
        assert isinstance(decided(after(number, strategy=strategy, **way)), TakeStep)
    copied = after(last - 1, strategy=strategy, **way)
    assert isinstance(decided(copied), OpenShadow)
    assert copied.course is not None
    until = NOW + timedelta(seconds=30)
    both = replace(copied, course=replace(copied.course, shadow_until=until), catalog_open=True)
    assert (rest(both).health.reason, rest(both).requeue_after) == (Reason.SHADOWING, 30.0)
    # The Catalog closed it, for new credentials. It begins again, and doesn't wait for the end of that time.
    assert decided(replace(both, catalog_open=False)) == Stop()
    over = replace(both, now=until)
    assert decided(over) == CloseShadow()
    assert over.course is not None
    closed = replace(over, course=replace(over.course, shadowed=True), catalog_open=False)
    assert isinstance(decided(closed), TakeStep)
    # Nothing is done twice on the way back.
    back = after(last - 1, strategy=strategy, rollback=True, **way)
    assert isinstance(decided(back), TakeStep)


def test_no_shadow_begins_while_others_take_the_catalog_over() -> None:
    fences = (CatalogFence(time=NOW, holder="app", epoch=4, generation=1),) * 3
    shadow = replace(asked(FRESH, verify="Shadow"), catalog_fences=fences)
    waiting = rest(shadow)
    assert (waiting.health.phase, waiting.health.reason) == (Phase.STALLED, Reason.FENCED_BY_OTHER)
    assert "annotation holdfast.dev/reopen of the Catalog" in waiting.health.message
    # The Catalog closes an open one. The migration stops, and does not copy everything again and again.
    copied = replace(after(4, verify="Shadow"), catalog_fences=fences)
    assert copied.course is not None
    both = replace(copied, course=replace(copied.course, shadow_until=NOW + timedelta(minutes=5)))
    for seen in (copied, both, replace(both, catalog_open=True)):
        assert decided(seen) == Stop()
    # It needs no shadow, or no longer.
    assert isinstance(decided(replace(shadow, catalog_fences=fences[:2])), BeginMove)
    assert isinstance(decided(replace(FRESH, catalog_fences=fences)), BeginMove)
    assert isinstance(
        decided(replace(asked(shadow, verify="Shadow", rollback=True), state=RUNNING)), BeginMove
    )
    over = replace(both, course=replace(copied.course, shadowed=True))
    assert isinstance(decided(over), TakeStep)


def test_a_dry_run_takes_no_step() -> None:
    dry = asked(FRESH, dryRun=True)
    assert decided(dry) == DryRun(move(dryRun=True), dry)
    found = DryRunResult(("a", "b"), Backend.STASH, ONE, {"items": Size(2, 30)})
    step = rest(replace(dry, planned=found))
    assert (step.health.phase, step.health.reason) == (Phase.READY, Reason.MIGRATION_PLANNED)
    assert step.fields is not None
    assert (step.fields["plan"], step.fields["rows"], step.fields["phase"]) == (["a", "b"], 2, "Planned")
    refused = replace(dry, planned=replace(found, refused="it is too new"))
    assert told(refused) == (Phase.STALLED, Reason.MIGRATION_REFUSED)
    assert decided(replace(dry, deleting=True)) == Release()


def test_what_is_over_stays_so_without_its_catalog() -> None:
    gone = replace(
        FRESH,
        move=None,
        state=None,
        no_catalog=stalled(Reason.CATALOG_NOT_FOUND, "none"),
        catalog_missing=True,
    )
    assert decided(shown(gone, phase="Completed")) == Wait()
    assert told(replace(shown(gone, phase="Completed"), changed=True))[1] is Reason.CATALOG_NOT_FOUND
    assert told(shown(gone, phase="Migrating"))[1] is Reason.CATALOG_NOT_FOUND


NO_SECRET = stalled(Reason.SECRET_NOT_FOUND, "none")
DEAF = stalled(Reason.STORE_UNREACHABLE, "no answer")
UNKNOWN = (
    replace(FRESH, state=None, move=None, no_catalog=NO_SECRET),
    replace(FRESH, state=None, trouble=DEAF),
)
"""Where nobody can say what the stores hold."""


def ended(seen: MigrationView, *types: ConditionType, **fields: Any) -> MigrationView:
    """The same with a status whose conditions of these types are true."""
    conditions = [
        Condition(type=each, status="True", last_transition_time=NOW, reason="MigrationCompleted", message="")
        for each in types
    ]
    return shown(seen, conditions=conditions, start_time=NOW, **fields)


@pytest.mark.parametrize("seen", UNKNOWN)
def test_what_is_over_stays_so_while_its_stores_are_silent(seen: MigrationView) -> None:
    over = ended(seen, ConditionType.COMPLETED, phase="Completed")
    assert decided(over) == Wait()
    # Somebody wants it back, which takes the stores; that it was moved stays true.
    back = replace(over, spec=spec(rollback=True), changed=True)
    assert told(back)[0] is Phase.STALLED
    assert conditions(rest(back))[ConditionType.COMPLETED][0] == "True"
    assert conditions(rest(back))[ConditionType.ROLLED_BACK][0] == "False"
    undone = replace(ended(back, ConditionType.ROLLED_BACK, phase="RolledBack"), changed=False)
    assert decided(undone) == Wait()


DELETING = replace(FRESH, deleting=True)


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_a_deletion_of_what_is_over_waits_for_no_store(unknown: MigrationView) -> None:
    # Kubernetes counts a deletion as a change of the spec.
    seen = replace(unknown, deleting=True, changed=True)
    assert decided(ended(seen, ConditionType.COMPLETED)) == Release()
    back = replace(seen, spec=spec(rollback=True))
    assert decided(ended(back, ConditionType.ROLLED_BACK)) == Release()
    # It may have begun to go back.
    assert told(ended(back, ConditionType.COMPLETED))[0] is Phase.STALLED
    assert told(ended(seen))[0] is Phase.STALLED
    assert rest(ended(seen)).retry
    course = Course(move(), calls=1)
    assert decided(replace(ended(seen, ConditionType.COMPLETED), course=course)) == Stop()


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        (DELETING, Release()),
        (replace(DELETING, course=Course(move())), Stop()),
        (replace(DELETING, state=DONE), Release()),
        (replace(asked(DELETING, rollback=True), state=DONE), Release()),
        (replace(DELETING, state=RUNNING), BeginMove(move())),
        (replace(DELETING, state=replace(RUNNING, record=Record.ROLLING_BACK)), BeginMove(move())),
        (replace(DELETING, state=RUNNING, course=Course(move())), Abandon(move(), DELETING)),
        (replace(DELETING, state=RUNNING, course=Course(move()), stepping=True), TakeStep(move(), DELETING)),
        (replace(DELETING, state=None, move=None, catalog_missing=True), Release()),
    ],
)
def test_a_deletion_leaves_nothing_on_record(seen: MigrationView, step: Decision) -> None:
    assert decided(seen) == step


def test_a_deletion_waits_until_nobody_else_uses_the_catalog() -> None:
    begun = replace(DELETING, state=RUNNING)
    for waits in (
        replace(begun, rival="CatalogMigration ns/other"),
        replace(begun, course=Course(move()), catalog_open=True),
    ):
        assert told(waits) == (Phase.RECONCILING, Reason.ABANDONING)
        assert "waits" in rest(waits).health.message


def test_a_deletion_waits_for_the_stores_until_somebody_abandons_it() -> None:
    deaf = replace(DELETING, state=None, trouble=DEAF)
    assert told(deaf) == (Phase.STALLED, Reason.STORE_UNREACHABLE)
    assert rest(deaf).retry
    for deletion in (Deletion(LIMIT, "no answer"), Deletion(asked=True)):
        assert told(replace(deaf, deletion=deletion)) == (Phase.STALLED, Reason.STORE_UNREACHABLE)
    late = decided(replace(deaf, deletion=Deletion(0, "no answer", asked=True)))
    assert isinstance(late, Release)
    assert [note.reason for note in late.notes] == [Reason.DELETION_INCOMPLETE]
    started = shown(replace(DELETING, state=None, move=None, catalog_missing=True), start_time=NOW)
    assert [note.reason for note in decided(started).notes] == [Reason.DELETION_INCOMPLETE]  # type: ignore[attr-defined]


def fields_of(seen: MigrationView, settle: Settle | None = None) -> dict[str, Any]:
    settle = settle or rest(seen)
    assert settle.fields is not None
    return dict(settle.fields)


def test_the_status_tells_how_far_it_is() -> None:
    seen = after(5)
    assert seen.course is not None
    course = replace(seen.course, sizes={"items": Size(3, 40), "roles": Size(1, 5), "comments": Size()})
    seen = replace(seen, course=course)
    said = resting(seen, reconciling(Reason.MIGRATION_RUNNING, "at work"))
    assert fields_of(seen, said) == {
        "phase": "Migrating",
        "migrationId": "ns/move",
        "step": "5. replace the contents of the persist catalog",
        "strategy": "OneTombstone",
        "sourceOfTruth": "Stash",
        "stashEpoch": 5,
        "persistEpoch": 5,
        "rows": 4,
        "bytes": 45,
        "objects": {"items": {"rows": 3, "bytes": 40}, "roles": {"rows": 1, "bytes": 5}},
        "startTime": "2026-11-22T12:00:00Z",
        "deadline": "2026-11-22T12:10:00Z",
    }
    # What was read stays when the migration is over, and another process tells the rest.
    before = CatalogMigrationStatus.model_validate(fields_of(seen, said))
    over = fields_of(replace(FRESH, state=DONE, shown=before, now=NOW + timedelta(seconds=9)))
    assert (over["rows"], over["step"], over["phase"]) == (4, before.step, "Completed")
    assert (over["sourceOfTruth"], over["completionTime"]) == ("Persist", "2026-11-22T12:00:09Z")
    assert "deadline" not in over
    again = CatalogMigrationStatus.model_validate(over)
    assert fields_of(replace(FRESH, state=DONE, shown=again, now=NOW + timedelta(hours=1))) == over


def conditions(settle: Settle) -> dict[str, tuple[str, Reason]]:
    return {condition.type: (condition.status, condition.reason) for condition in settle.conditions}


def test_the_conditions_of_a_migration() -> None:
    seen = after(6)
    assert seen.course is not None
    seen = replace(seen, course=replace(seen.course, compared="the same 4 rows"))
    said = resting(seen, reconciling(Reason.MIGRATION_RUNNING, "at work"))
    assert conditions(said) == {
        ConditionType.PROGRESSING: ("True", Reason.MIGRATION_RUNNING),
        ConditionType.VERIFIED: ("True", Reason.CONTENTS_EQUAL),
        ConditionType.COMPLETED: ("False", Reason.MIGRATION_RUNNING),
    }
    over = rest(replace(FRESH, state=DONE))
    assert conditions(over)[ConditionType.COMPLETED] == ("True", Reason.MIGRATION_COMPLETED)
    assert conditions(over)[ConditionType.PROGRESSING] == ("False", Reason.MIGRATION_COMPLETED)
    back = rest(replace(asked(FRESH, rollback=True), state=ROLLED_BACK))
    assert conditions(back)[ConditionType.ROLLED_BACK] == ("True", Reason.ROLLED_BACK)
    assert conditions(back)[ConditionType.COMPLETED] == ("False", Reason.ROLLED_BACK)
    differ = resting(seen, stalled(Reason.CONTENTS_DIFFER, "items"))
    assert conditions(differ)[ConditionType.VERIFIED] == ("False", Reason.CONTENTS_DIFFER)
    # One Event for what they tell together.
    notes = transitions([], over.health, over.conditions)
    assert [note.reason for note in notes] == [Reason.MIGRATION_COMPLETED]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MigrationConflict("another"), Reason.CONFLICT),
        (MigrationTimedOut("a", "3"), Reason.MIGRATION_TIMED_OUT),
        (ContentsDiffer(["items"], "a", "b"), Reason.CONTENTS_DIFFER),
        (StoreUnreachable("gone"), Reason.STORE_UNREACHABLE),
    ],
)
def test_what_an_error_is_shown_as(error: Any, reason: Reason) -> None:
    assert reason_of(error) is reason


def test_the_id_of_a_migration_is_of_its_uid_and_fits_into_the_records() -> None:
    key = ObjectKey(Kind.CATALOG_MIGRATION, "ns", "move")
    assert migration_id(key, "u-1", spec(), None) == "u-1/ns/move"
    assert migration_id(key, "u-1", spec(migrationId="for-all"), "u-1/ns/move") == "for-all"
    # What an earlier version began goes on under its name; any other name in a status is a lie.
    assert migration_id(key, "u-1", spec(), "ns/move") == "ns/move"
    assert migration_id(key, "u-1", spec(), "ns/other") == "u-1/ns/move"
    long = ObjectKey(Kind.CATALOG_MIGRATION, "n" * 63, "m" * 253)
    ids = {migration_id(long, str(uuid.UUID(int=number)), spec(), None) for number in range(2)}
    assert len(ids) == 2
    assert {len(each) <= 200 for each in ids} == {True}


def test_the_spec_in_seconds() -> None:
    assert (spec().timeout_seconds, spec().shadow_seconds) == (600.0, 0.0)
    assert (
        spec(verify="Shadow").shadow_seconds,
        spec(verify=Verify.SHADOW, shadowFor="90s").shadow_seconds,
    ) == (
        300.0,
        90.0,
    )
