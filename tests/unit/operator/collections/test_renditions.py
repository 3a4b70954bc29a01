"""What the operator decides about the renditions of a StorageCollection, as a table of situations."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.collections import Recipe, RenditionState
from holdfast.collections.renditions import MAX_LAG_MS
from holdfast.errors import CLOSED
from holdfast.persist import Schema
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.api.rendition import RenditionPhase
from holdfast_operator.collections.facts import (
    CatalogState,
    CollectionFacts,
    CollectionView,
    HoldFacts,
    RenditionFacts,
)
from holdfast_operator.collections.plan import plan
from holdfast_operator.collections.renditions import filled_from_source, is_long_over, made_of
from holdfast_operator.collections.status import (
    collection_conditions,
    phase_of,
    rendition_notes,
    shown_phases,
    status_fields,
)
from holdfast_operator.collections.steps import (
    AbortRendition,
    Advance,
    CreateRendition,
    EvolveColumns,
    HandOver,
    Hydrate,
    MakeDifference,
    Retain,
)
from holdfast_operator.engine.events import transitions
from holdfast_operator.engine.health import Health, Phase
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.steps import Decision, Rhythm, Settle

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR_MS = 3_600_000
UPPER = 10 * MAX_LAG_MS
SCHEMA = Schema.of(key={"id": "int64"}, value={"note": "string?"})
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "note", "type": "string", "nullable": True}]
R1 = RenditionFacts("r1", 2, 5, UPPER, 12, 3456, hash_columns=("id",))
NEW = RenditionFacts(
    "spec-2",
    shards=4,
    state=RenditionState.HYDRATING,
    hash_columns=("id",),
    held_from=CLOSED,
)
READY = replace(NEW, upper=UPPER, rows=12, bytes=3500)
BEHIND = replace(NEW, upper=UPPER - MAX_LAG_MS - 1)
DRAGGING = replace(NEW, upper=UPPER - MAX_LAG_MS)
OLD = replace(R1, state=RenditionState.RETIRED, held_to=UPPER, upper=UPPER)
HELD = replace(READY, state=RenditionState.HOLDING, held_from=UPPER, held_to=CLOSED)
MANUAL = {"policy": "Manual"}


def spec(shards: int = 4, /, **fields: Any) -> StorageCollectionSpec:
    rendition = {"shards": shards, **fields.pop("rendition", {})}
    return StorageCollectionSpec.model_validate(
        {
            "catalogRef": {"name": "demo"},
            "columns": COLUMNS,
            "key": ["id"],
            "rendition": rendition,
            **fields,
        }
    )


def facts(*renditions: RenditionFacts, **fields: Any) -> CollectionFacts:
    (active,) = (each for each in renditions if each.state is RenditionState.HOLDING)
    return CollectionFacts(
        **{
            "collection_id": "c1",
            "name": "holdfast.public.flights",
            "schema": SCHEMA,
            "shards": active.shards,
            "dropped": False,
            "since": 5,
            "upper": UPPER,
            "active_rendition": active.id,
            "renditions": renditions,
            **fields,
        }
    )


def seen(there: CollectionFacts, asked: StorageCollectionSpec, **fields: Any) -> CollectionView:
    """Looked at after the status shows all of it, unless it says otherwise."""
    shown = {each.id: phase_of(there, each).value for each in there.renditions}
    return CollectionView(
        **{
            "name": "flights",
            "spec": asked,
            "catalog": CatalogState.OPEN,
            "catalog_open": True,
            "item_id": "u1",
            "collection_id": "c1",
            "facts": there,
            "shown": shown,
            "now": NOW,
            "reached": NOW,
            "created": True,
            **fields,
        }
    )


def decided(there: CollectionFacts, asked: StorageCollectionSpec, **fields: Any) -> Decision:
    return plan(seen(there, asked, **fields), Rhythm(unsteady=2.0, steady=60.0))


def rest(there: CollectionFacts, asked: StorageCollectionSpec, **fields: Any) -> Settle:
    step = decided(there, asked, **fields)
    assert isinstance(step, Settle), step
    return step


FOLDER = {"files": {"path": "/in"}, "format": {"json": {}}}


def test_rows_of_another_format_are_made_from_the_source_in_a_new_rendition() -> None:
    plain, upsert = spec(source=FOLDER), spec(source={**FOLDER, "envelope": "Upsert"})
    active = replace(R1, shards=4, is_fed=True, made_from=made_of(plain), recipe=Recipe.COPY)
    # What does not decide which rows a message makes needs no other rendition.
    assert isinstance(
        decided(facts(active, fed=True), spec(source={**FOLDER, "run": {"interval": "1s"}})), Settle
    )
    create = decided(facts(active, fed=True), upsert)
    assert create == CreateRendition("c1", "spec-2", 4, (), Recipe.SOURCE, made_of(upsert))
    filled = replace(
        BEHIND, id="spec-2", shards=4, recipe=Recipe.SOURCE, is_fed=True, made_from=made_of(upsert)
    )
    there = facts(active, filled, fed=True)
    assert filled_from_source(there, upsert) == "spec-2"
    waits = rest(there, upsert)
    assert waits.health.reason is Reason.HYDRATING_RENDITION
    assert "spec-2 (4 shards) is being filled; it waits for what its pipeline writes" in waits.health.message
    # Somebody changes their mind, once back and once on.
    assert decided(there, plain) == AbortRendition("c1", "spec-2")
    assert filled_from_source(there, plain) == ""
    assert decided(there, spec(source={**FOLDER, "onBadValue": "Keep", "envelope": "Upsert"})) == (
        AbortRendition("c1", "spec-2")
    )
    done = replace(filled, upper=UPPER)
    assert isinstance(decided(facts(active, done, fed=True), upsert), HandOver)
    # An older record, or a rendition that applications fill, says nothing.
    assert isinstance(decided(facts(replace(active, made_from=""), fed=True), upsert), Settle)
    by_others = replace(filled, made_from="")
    assert filled_from_source(facts(active, by_others, fed=True), upsert) == ""


COPY, SOURCE = Recipe.COPY, Recipe.SOURCE
CREATE = CreateRendition("c1", "spec-2", 4, (), COPY)


@pytest.mark.parametrize(
    ("there", "asked", "step"),
    [
        # A change of the layout makes a rendition, under an id that never was.
        (facts(R1), spec(), CREATE),
        (facts(R1), spec(rendition={"hashColumns": ["note"]}), replace(CREATE, hash_columns=("note",))),
        (
            facts(R1),
            spec(2, rendition={"hashColumns": ["note"]}),
            replace(CREATE, shards=2, hash_columns=("note",)),
        ),
        (facts(R1), spec(rendition={"recipe": "Source"}), replace(CREATE, recipe=SOURCE)),
        (facts(R1), spec(2, rendition={"recipe": "Source"}), replace(CREATE, shards=2, recipe=SOURCE)),
        (
            facts(R1, replace(NEW, state=RenditionState.ABORTED, shards=0)),
            spec(),
            replace(CREATE, rendition_id="spec-3"),
        ),
        # To change it back, or to another one, gives up the one that is being filled.
        (facts(R1, NEW), spec(2), AbortRendition("c1", "spec-2")),
        (facts(R1, READY), spec(3), AbortRendition("c1", "spec-2")),
        (facts(R1, READY), spec(rendition={"hashColumns": ["note"]}), AbortRendition("c1", "spec-2")),
        (facts(R1, NEW), spec(rendition={"recipe": "Source"}), AbortRendition("c1", "spec-2")),
        (facts(R1, replace(NEW, suspect="rows differ")), spec(2), AbortRendition("c1", "spec-2")),
        (
            facts(R1, replace(NEW, hash_columns=("note",))),
            spec(),
            AbortRendition("c1", "spec-2"),
        ),
        # What others make is left to them.
        (facts(R1, replace(NEW, id="r2")), spec(), replace(CREATE, rendition_id="spec-3")),
    ],
)
def test_what_is_done_about_renditions(
    there: CollectionFacts, asked: StorageCollectionSpec, step: Decision
) -> None:
    assert decided(there, asked) == step


AT = {"policy": "At", "at": "2026-05-01T12:00:00Z"}


@pytest.mark.parametrize(
    ("there", "asked", "step", "at"),
    [
        (facts(R1, NEW), spec(), Hydrate, None),
        (facts(R1, BEHIND), spec(), Hydrate, None),
        (facts(R1, READY), spec(), HandOver, None),
        (facts(R1, DRAGGING), spec(), HandOver, None),
        # Nothing was ever written: there is nothing to wait for.
        (facts(replace(R1, upper=0), NEW, upper=0), spec(), HandOver, None),
        (facts(R1, READY), spec(handover={**MANUAL, "to": "spec-2"}), HandOver, None),
        (facts(R1, replace(READY, id="r2")), spec(2, handover={**MANUAL, "to": "r2"}), HandOver, None),
        (facts(R1, READY), spec(handover=AT), HandOver, 1777636800000),
        (
            facts(R1, replace(READY, recipe=SOURCE)),
            spec(rendition={"recipe": "Source"}),
            HandOver,
            None,
        ),
        # While it waits for somebody's word it is kept near.
        (facts(R1, DRAGGING), spec(handover=MANUAL), Hydrate, None),
    ],
)
def test_what_may_take_long(
    there: CollectionFacts, asked: StorageCollectionSpec, step: type[Decision], at: int | None
) -> None:
    decision = decided(there, asked)
    assert isinstance(decision, Hydrate | HandOver)
    assert type(decision) is step
    assert decision.rendition_id == there.renditions[-1].id
    assert getattr(decision, "at", None) == at
    assert decision.resting is not None
    assert decision.resting.requeue_after == 2.0
    assert decision.resting.fields is not None
    assert decision.resting.health.phase is Phase.RECONCILING


def test_what_is_due_comes_first_and_is_shown_while_it_takes_long() -> None:
    """It took over, and the operator was killed before the rest was brought; or since has moved."""
    lacking = facts(OLD, replace(HELD, upper=UPPER - 7), due=("spec-2: bring what was written",))
    for asked in (spec(), spec(2)):
        step = decided(lacking, asked)
        assert isinstance(step, Advance)
        assert step.resting is not None
        assert step.resting.health.reason is Reason.HYDRATING_RENDITION
        assert "bring what was written" in step.resting.health.message
    done = facts(replace(OLD, held_to=5), HELD, replace(NEW, id="spec-3"), due=("r1: drop it",))
    step = decided(done, spec(3))
    assert isinstance(step, Advance)
    assert step.resting is not None
    assert step.resting.health.reason is Reason.RETIRING_RENDITION


def test_a_difference_that_nobody_made_is_made_when_nothing_else_is_to_do() -> None:
    """Whoever handed over was killed before it."""
    lacking = facts(OLD, HELD, lacks_difference=True)
    step = decided(lacking, spec())
    assert isinstance(step, MakeDifference)
    assert (step.collection_id, step.rendition_id) == ("c1", "spec-2")
    assert step.resting is not None
    assert (step.resting.health.phase, step.resting.health.reason) == (
        Phase.READY,
        Reason.RETIRING_RENDITION,
    )
    assert not is_long_over(lacking, spec())
    assert isinstance(decided(lacking, spec(3)), CreateRendition)
    assert isinstance(decided(replace(lacking, due=("r1: drop it",)), spec()), Advance)
    assert is_long_over(replace(lacking, lacks_difference=False), spec())


SUSPECT = replace(READY, suspect="two writers differ at 7")
DOUBTED = replace(R1, suspect="two writers differ at 7")


@pytest.mark.parametrize(
    ("there", "asked", "phase", "reason", "says"),
    [
        (
            facts(R1, READY),
            spec(handover=MANUAL),
            Phase.RECONCILING,
            Reason.WAITING_FOR_HANDOVER,
            "spec.handover.to: spec-2",
        ),
        (
            facts(R1, READY),
            spec(handover={**MANUAL, "to": "spec-9"}),
            Phase.RECONCILING,
            Reason.WAITING_FOR_HANDOVER,
            "spec.handover.to: spec-2",
        ),
        (
            facts(R1, READY),
            spec(handover={**AT, "at": "2026-05-01T12:00:01Z"}),
            Phase.RECONCILING,
            Reason.WAITING_FOR_HANDOVER,
            "at 2026-05-01T12:00:01Z",
        ),
        (
            facts(R1, replace(NEW, recipe=SOURCE)),
            spec(rendition={"recipe": "Source"}),
            Phase.RECONCILING,
            Reason.HYDRATING_RENDITION,
            "its pipeline",
        ),
        (facts(R1, SUSPECT), spec(), Phase.STALLED, Reason.RENDITION_SUSPECT, "two writers differ"),
        # One that is read already: it works, and somebody has to look at it.
        (facts(DOUBTED), spec(2), Phase.READY, Reason.RENDITION_SUSPECT, "two writers differ at 7; stop its"),
        (
            facts(R1, SUSPECT),
            spec(handover={**MANUAL, "to": "spec-2"}),
            Phase.STALLED,
            Reason.RENDITION_SUSPECT,
            "never takes over",
        ),
        (
            facts(R1),
            spec(maxBytes=2 * 3456 - 1),
            Phase.STALLED,
            Reason.OVER_MAX_BYTES,
            "can't create a rendition",
        ),
        (facts(OLD, HELD), spec(), Phase.READY, Reason.RETIRING_RENDITION, "spec.retention"),
        (
            facts(OLD, replace(HELD, recipe=SOURCE, upper=UPPER - 7)),
            spec(rendition={"recipe": "Source"}),
            Phase.RECONCILING,
            Reason.HYDRATING_RENDITION,
            f"before {UPPER}",
        ),
        (facts(R1), spec(2), Phase.READY, Reason.AVAILABLE, "2 shards"),
        (facts(R1), spec(2, maxBytes=1), Phase.READY, Reason.AVAILABLE, "2 shards"),
        (facts(replace(R1, hash_columns=("note",))), spec(2), Phase.READY, Reason.AVAILABLE, "2 shards"),
        (facts(R1, replace(NEW, id="r2")), spec(2), Phase.READY, Reason.AVAILABLE, "2 shards"),
    ],
)
def test_what_it_rests_at(
    there: CollectionFacts, asked: StorageCollectionSpec, phase: Phase, reason: Reason, says: str
) -> None:
    step = rest(there, asked)
    assert (step.health.phase, step.health.reason) == (phase, reason)
    assert says in step.health.message
    # A word or a change in the store is heard of; a time is waited for.
    waits = {"spec.handover.to: spec-2": None, "at 2026-05-01T12:00:01Z": 1.0}
    assert step.requeue_after == waits.get(says, 2.0 if phase is Phase.RECONCILING else None)


def test_a_copy_that_just_fits_is_begun() -> None:
    assert decided(facts(R1), spec(maxBytes=2 * 3456)) == CREATE


@pytest.mark.parametrize("candidate", [NEW, READY])
def test_a_phase_is_shown_before_what_follows_from_it(candidate: RenditionFacts) -> None:
    there = facts(R1, candidate)
    shown = {"r1": "Active"} if candidate is NEW else {"r1": "Active", "spec-2": "Hydrating"}
    step = rest(there, spec(), shown=shown)
    assert step.requeue_after == 0.0
    assert step.fields is not None
    assert shown_phases(step.fields)["spec-2"] == phase_of(there, candidate)
    (note,) = step.notes
    assert note.reason is (Reason.RENDITION_CREATED if candidate is NEW else Reason.HYDRATED)


def test_history_is_given_up_and_snapshots_are_made_while_a_rendition_is_filled() -> None:
    assert decided(facts(R1, NEW), spec(), retention_since=UPPER // 2) == Retain("c1", UPPER // 2)


@pytest.mark.parametrize(
    ("column", "schema"),
    [
        ({"name": "n", "type": "int32", "nullable": True}, {"note": "string?", "n": "int32?"}),
        ({"name": "n", "type": "int32"}, None),
    ],
)
def test_columns_are_added_before_renditions_are_looked_at(
    column: dict[str, Any], schema: dict[str, str] | None
) -> None:
    step = decided(facts(R1), spec(columns=[*COLUMNS, column]))
    if schema is not None:
        assert step == EvolveColumns("c1", SCHEMA, Schema.of(key={"id": "int64"}, value=schema))
    else:
        assert isinstance(step, Settle)
        assert step.health.reason is Reason.SCHEMA_MISMATCH
        assert "must be nullable" in step.health.message


def test_in_an_observed_catalog_nothing_of_it_is_done() -> None:
    watched = {"catalog_open": False, "catalog_observed": True}
    assert rest(facts(R1, READY), spec(), **watched).health.reason is Reason.SCHEMA_MISMATCH
    step = rest(facts(replace(OLD, held_to=1), HELD), spec(), **watched)
    assert step.health.phase is Phase.READY
    assert step.fields is not None
    assert shown_phases(step.fields) == {"r1": "Retiring", "spec-2": "Active"}


def test_the_status_tells_of_every_rendition_and_what_it_waits_for() -> None:
    holds = (
        HoldFacts("report", 9, ("r1",), host="host-1"),
        HoldFacts("mirror", 8, ("r1",), durable=True, who="ann", host="host-2", taken_ms=1777636800999),
    )
    gone = [
        RenditionFacts(f"spec-{number}", state=RenditionState.DROPPED, held_to=number)
        for number in (3, 4, 5, 6)
    ]
    there = facts(OLD, HELD, *gone, replace(NEW, id="spec-7"), holds=holds)
    fields = status_fields(there, "u1", spec())
    assert shown_phases(fields) == {
        "r1": "Retiring",
        "spec-2": "Active",
        **{f"spec-{number}": "Dropped" for number in (4, 5, 6)},
        "spec-7": "Hydrating",
    }
    assert (fields["activeRendition"], fields["shards"], fields["nextRendition"]) == ("spec-2", 4, "spec-7")
    assert fields["handover"] == {"from": "r1", "to": "spec-2", "at": UPPER}
    mirror = {"purpose": "mirror", "who": "ann", "host": "host-2", "durable": True, "since": 8}
    report = {"purpose": "report", "host": "host-1", "durable": False, "since": 9}
    assert fields["holds"] == [
        {**mirror, "heldSince": "2026-05-01T12:00:00Z", "renditions": ["r1"]},
        {**report, "renditions": ["r1"]},
    ]
    retired = next(each for each in fields["renditions"] if each["id"] == "r1")
    assert retired["waitsFor"] == (
        f"since to reach {UPPER}; 'mirror' of ann on host-2 holds 8, 'report' on host-1 holds 9"
    )
    assert next(each for each in fields["renditions"] if each["id"] == "spec-4") == {
        "id": "spec-4",
        "phase": "Dropped",
    }


def test_a_status_shows_the_oldest_of_many_holds_and_how_many_there_are() -> None:
    kept = tuple(f"r{number}" for number in range(100))
    holds = [HoldFacts("p" * 1024, 2000 - at, kept, who="w" * 5000, host="h" * 5000) for at in range(1500)]
    fields = status_fields(facts(OLD, HELD, holds=tuple(holds)), "u1", spec())
    assert [each["since"] for each in fields["holds"]] == list(range(501, 551))
    assert fields["holdsTotal"] == 1500
    first = fields["holds"][0]
    assert {len(first[name]) for name in ("purpose", "who", "host")} == {255}
    assert first["renditions"] == list(kept[:10])
    assert len(json.dumps(fields)) < 100_000
    assert "holdsTotal" not in status_fields(facts(OLD, HELD, holds=tuple(holds[:50])), "u1", spec())


def test_of_many_retired_renditions_the_oldest_are_shown_and_none_is_news() -> None:
    old = [replace(OLD, id=f"r{number}", held_from=number, held_to=number + 1) for number in range(80)]
    there = facts(*old, HELD, replace(NEW, id="spec-9"))
    fields = status_fields(there, "u1", spec())
    shown = shown_phases(fields)
    assert list(shown) == [*(f"r{number}" for number in range(50)), HELD.id, "spec-9"]
    assert fields["renditionsTotal"] == 82
    # Where one goes the next is shown, which was there before.
    fewer = facts(replace(old[0], state=RenditionState.DROPPED), *old[1:], HELD, replace(NEW, id="spec-9"))
    assert [note.reason for note in rendition_notes(shown, fewer)] == [Reason.RENDITION_DROPPED]
    again = status_fields(fewer, "u1", spec())
    assert set(shown_phases(again)) - set(shown) == {"r50"}
    assert rendition_notes(shown_phases(again), fewer) == ()
    assert again["renditionsTotal"] == 81


@pytest.mark.parametrize(
    ("shown", "there", "reasons"),
    [
        ({}, facts(R1, NEW), []),
        ({"r1": "Active"}, facts(R1, NEW), [Reason.RENDITION_CREATED]),
        ({"r1": "Active", "spec-2": "Hydrating"}, facts(R1, NEW), []),
        ({"r1": "Active", "spec-2": "Hydrating"}, facts(R1, READY), [Reason.HYDRATED]),
        ({"r1": "Active", "spec-2": "CaughtUp"}, facts(R1, BEHIND), []),
        ({"r1": "Active", "spec-2": "CaughtUp"}, facts(OLD, HELD), [Reason.HANDED_OVER]),
        # Nobody saw what was in between.
        (
            {"r1": "Active"},
            facts(OLD, HELD),
            [Reason.RENDITION_CREATED, Reason.HYDRATED, Reason.HANDED_OVER],
        ),
        (
            {"r1": "Retiring", "spec-2": "Active"},
            facts(replace(OLD, state=RenditionState.DROPPED), HELD),
            [Reason.RENDITION_DROPPED],
        ),
        (
            {"r1": "Active", "spec-2": "CaughtUp"},
            facts(R1, replace(NEW, state=RenditionState.ABORTED)),
            [Reason.RENDITION_ABORTED],
        ),
        ({"r1": "Active"}, facts(R1, SUSPECT), [Reason.RENDITION_CREATED]),
        ({"r1": "Active"}, facts(R1, replace(NEW, state=RenditionState.ABORTED)), []),
    ],
)
def test_events_tell_transitions(
    shown: dict[str, str], there: CollectionFacts, reasons: list[Reason]
) -> None:
    assert [note.reason for note in rendition_notes(shown, there)] == reasons


def test_size_and_suspicion_are_conditions_with_one_warning_each() -> None:
    health = Health(Phase.READY, Reason.AVAILABLE, "")
    before: list[dict[str, Any]] = [{"type": "Ready", "status": "True", "reason": "Available"}]
    within = collection_conditions(facts(R1), spec(maxBytes=3456), NOW)
    assert [(condition.type, condition.status) for condition in within] == [
        (ConditionType.OVER_MAX_BYTES, "False")
    ]
    assert transitions(before, health, within) == []
    over = collection_conditions(facts(R1, SUSPECT), spec(maxBytes=3456), NOW)
    assert [(condition.reason, condition.status) for condition in over] == [
        (Reason.OVER_MAX_BYTES, "True"),
        (Reason.RENDITION_SUSPECT, "True"),
    ]
    told = transitions(before, health, over)
    assert [(note.reason, note.warning) for note in told] == [
        (Reason.OVER_MAX_BYTES, True),
        (Reason.RENDITION_SUSPECT, True),
    ]
    shown = [
        {"type": condition.type.value, "status": "True", "reason": condition.reason.value}
        for condition in over
    ]
    assert transitions([*before, *shown], health, over) == []
    (back,) = transitions([*before, *shown], health, within)
    assert (back.reason, back.warning) == (Reason.WITHIN_MAX_BYTES, False)


def test_a_time_more_than_an_hour_ahead_is_a_condition() -> None:
    clock = int(NOW.timestamp() * 1000)
    for ahead_ms, upper in ((HOUR_MS, clock + HOUR_MS + 1), (0, 12), (0, CLOSED)):
        assert collection_conditions(replace(facts(R1), upper=upper), spec(), NOW) == (), ahead_ms
    late = replace(facts(R1), upper=clock + 3 * 24 * HOUR_MS)
    (told,) = collection_conditions(late, spec(), NOW)
    assert (told.type, told.status) == (ConditionType.TIME_AHEAD, "True")
    assert "3 d ahead of the clock" in told.message
    (note,) = transitions([], Health(Phase.READY, Reason.AVAILABLE, ""), (told,))[1:]
    assert (note.reason, note.warning) == (Reason.TIME_AHEAD, True)


def test_a_rendition_that_is_doubted_is_told_once_and_has_its_own_phase() -> None:
    step = rest(facts(DOUBTED), spec(2))
    before: list[dict[str, Any]] = [{"type": "Ready", "status": "True", "reason": "Available"}]
    (note,) = transitions(before, step.health, step.conditions)
    assert (note.reason, note.warning) == (Reason.RENDITION_SUSPECT, True)
    # What was the collection retires as ever.
    gone_by = replace(OLD, suspect="two writers differ at 7")
    there = facts(gone_by, HELD)
    assert phase_of(there, gone_by) is RenditionPhase.RETIRING
    step = rest(there, spec())
    assert step.health.reason is Reason.RETIRING_RENDITION
    assert f"it was active before {UPPER}" in step.conditions[0].message


def test_lag_is_shown_while_a_rendition_is_filled() -> None:
    metrics = Metrics()

    def lag() -> dict[str, float]:
        (family,) = metrics.rendition_lag.collect()
        return {sample.labels["rendition"]: sample.value for sample in family.samples}

    metrics.show_lags("ns", "flights", {"spec-2": 7, "spec-3": 9})
    metrics.show_lags("ns", "flights", {"spec-3": 2})
    assert lag() == {"spec-3": 2}
    metrics.forget("ns", "flights")
    assert lag() == {}


def test_at_is_kept_to_the_second_of_the_clock() -> None:
    asked = spec(handover=AT)
    early = decided(facts(R1, READY), asked, reached=NOW - timedelta(seconds=1))
    assert isinstance(early, Settle)
