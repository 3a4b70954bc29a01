"""When an operator that is fenced again and again stops taking the catalog back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs import fencing
from holdfast_operator.catalogs.facts import CatalogFacts, CatalogView, Opening
from holdfast_operator.catalogs.plan import plan
from holdfast_operator.catalogs.status import status_fields
from holdfast_operator.catalogs.steps import Close, Open
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.steps import Rhythm, Settle
from holdfast_operator.places.storage import Storage

NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, UTC)
ORGANIZATION = "6f1d7c1e-2b8a-4f5e-9d43-0c5b8f3a7e21"
HERE = Storage(url="file:///data/here")
SPEC = CatalogSpec.model_validate({"organizationId": ORGANIZATION})
OPENING = Opening(HERE, ORGANIZATION, 0, "default", (), "me", "operator for Catalog ns/demo")
FACTS = CatalogFacts(ORGANIZATION, "s1", 3, 0, 15, 1, 7, (("items", 2),))
FRESH = CatalogView(name="ns/demo", spec=SPEC, storage=HERE, holder="me")


def fenced(*minutes: float, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A Catalog that was taken from us so many minutes after noon."""
    body = body or {"metadata": {"generation": 1}, "status": {}}
    for minute in minutes:
        fences = fencing.with_fence(body, "app, a job", 2, NOON + timedelta(minutes=minute))
        stored = [each.model_dump(mode="json", by_alias=True) for each in fences]
        body = {**body, "status": {"fencedBy": stored}}
    return body


@pytest.mark.parametrize(
    ("minutes", "stopped"),
    [
        ((0,), False),
        ((0, 1), False),
        ((0, 1, 2), True),
        ((0, 5, 10), True),
        ((0, 5, 10.1), False),
        ((0, 5, 11, 14), True),
        ((0, 20, 40, 60, 80), False),
    ],
)
def test_three_within_ten_minutes_are_a_fight(minutes: tuple[float, ...], stopped: bool) -> None:
    fences = fencing.fences_of(fenced(*minutes))
    assert fencing.has_stopped(fences) is stopped
    assert len(fences) <= fencing.MOST
    health = fencing.health(fences)
    assert health.phase is (Phase.STALLED if stopped else Phase.RECONCILING)
    assert health.reason is Reason.FENCED_BY_OTHER
    assert "app, a job (epoch 2)" in health.message
    assert ("holdfast.dev/reopen" in health.message) is stopped


@pytest.mark.parametrize(
    "metadata", [{"generation": 2}, {"generation": 1, "annotations": {"holdfast.dev/reopen": "1"}}]
)
def test_a_change_of_the_spec_or_the_annotation_is_a_new_start(metadata: dict[str, Any]) -> None:
    changed = {**fenced(0, 1, 2), "metadata": metadata}
    assert fencing.fences_of(changed) == ()
    again = fenced(3, 4, body=changed)
    assert not fencing.has_stopped(fencing.fences_of(again))
    assert fencing.has_stopped(fencing.fences_of(fenced(5, body=again)))


def test_what_cannot_be_read_counts_for_nothing() -> None:
    body = {"metadata": {"generation": 1}, "status": {"fencedBy": [{"time": "yesterday"}] * 3}}
    assert fencing.fences_of(body) == ()
    assert len(fencing.with_fence(body, "x", 1, NOON)) == 1


def test_both_who_fight_come_to_rest_and_say_the_same() -> None:
    fences = fencing.fences_of(fenced(0, 1, 2))
    loser = plan(replace(FRESH, fences=fences), Rhythm())
    assert isinstance(loser, Settle)
    assert (loser.health.phase, loser.health.reason) == (Phase.STALLED, Reason.FENCED_BY_OTHER)
    assert not loser.retry
    assert plan(replace(FRESH, fences=fences, opened=OPENING, facts=FACTS), Rhythm()) == Close()


def test_before_that_it_is_taken_back_and_the_status_goes_on_counting() -> None:
    fences = fencing.fences_of(fenced(0, 1))
    assert isinstance(plan(replace(FRESH, fences=fences), Rhythm()), Open)
    ready = plan(replace(FRESH, fences=fences, opened=OPENING, facts=FACTS), Rhythm())
    assert isinstance(ready, Settle)
    assert ready.fields is not None
    shown = {"metadata": {"generation": 1}, "status": dict(ready.fields)}
    assert fencing.fences_of(shown) == fences
    assert "fencedBy" not in status_fields(FACTS, ())


def test_no_text_of_the_other_one_keeps_a_fence_from_being_counted() -> None:
    """The CRD takes 1024 characters of each; a token that others stored, and an annotation, may have more."""
    metadata = {"generation": 1, "annotations": {"holdfast.dev/reopen": "x" * 5000}}
    body: dict[str, Any] = {"metadata": metadata, "status": {}}
    for minute in range(3):
        fences = fencing.with_fence(body, "h" * 2_000_000, 2, NOON + timedelta(minutes=minute))
        stored = [each.model_dump(mode="json", by_alias=True) for each in fences]
        body = {"metadata": metadata, "status": {"fencedBy": stored}}
    assert fencing.has_stopped(fencing.fences_of(body))
    assert {len(each[field]) for each in stored for field in ("holder", "reopen")} == {1024}
    assert fences[0].holder.endswith("h…")
