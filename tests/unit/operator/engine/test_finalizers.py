"""The operator adds and removes the finalizer itself, and repeats a refused write."""

import asyncio
from typing import Any

import pytest

from holdfast_operator.api.names import FINALIZER, Kind
from holdfast_operator.engine.handler import Handler
from holdfast_operator.engine.kube import (
    AdmissionDenied,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    ObjectKey,
)
from holdfast_operator.engine.queue import Result
from holdfast_operator.engine.resources import has_finalizer, is_deleting
from holdfast_operator.engine.steps import Decision, Free, Keep, Release, Settle, ready
from unit.operator.engine.oneobject import KEY, OneObject, services

Json = dict[str, Any]


class Kept(Handler[Json]):
    """Asks for the finalizer, and for nothing else."""

    kind = Kind.CATALOG

    async def observe(self, key: ObjectKey, body: Json) -> Json:
        return body

    def plan(self, observed: Json) -> Decision:
        if is_deleting(observed):
            return Release()
        return Settle(ready("fine")) if has_finalizer(observed) else Keep()

    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        raise AssertionError(step)

    async def gone(self, key: ObjectKey) -> None:
        """Nothing was kept."""


def reconciled(server: OneObject) -> tuple[Result, list[Json]]:
    """One reconcile, and what was seen of the object after a write of ours."""
    seen: list[Json] = []
    return asyncio.run(Kept(services(server, seen)).reconcile(KEY)), seen


class Freed(Kept):
    """Needs no finalizer."""

    def plan(self, observed: Json) -> Decision:
        return Free() if has_finalizer(observed) else Settle(ready("fine"))


def test_a_finalizer_that_nothing_needs_is_taken_off_a_resource_that_stays() -> None:
    server = OneObject(["theirs/finalizer", FINALIZER])
    seen: list[Json] = []
    handler = Freed(services(server, seen))
    assert asyncio.run(handler.reconcile(KEY)) == Result()
    assert server.metadata["finalizers"] == ["theirs/finalizer"]
    # It goes on at once with the resource as it is then.
    assert server.status["conditions"]
    assert asyncio.run(handler.reconcile(KEY)) == Result()
    assert len(seen) == 2


class Noting(Kept):
    """Notes what is gone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.forgotten = 0

    async def gone(self, key: ObjectKey) -> None:
        self.forgotten += 1


def test_what_was_kept_for_an_object_is_dropped_when_another_one_has_its_name() -> None:
    server = OneObject([FINALIZER])
    handler = Noting(services(server, []))
    for uid, forgotten in (("u", 0), ("u", 0), ("v", 1), ("v", 1)):
        server.metadata["uid"] = uid
        asyncio.run(handler.reconcile(KEY))
        assert handler.forgotten == forgotten


REFUSALS = [KubeError("500"), Invalid("422"), Conflict("409"), Gone("404")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_a_finalizer_that_could_not_be_put_on_is_put_on_later(refusal: KubeError) -> None:
    server = OneObject(["theirs/finalizer"])
    server.refusals.append(refusal)
    refused, _ = reconciled(server)
    assert refused.retry or refused.requeue_after == 0.0
    assert server.metadata["finalizers"] == ["theirs/finalizer"]
    assert server.status == {}
    kept, seen = reconciled(server)
    assert server.metadata["finalizers"] == ["theirs/finalizer", FINALIZER]
    # And goes on with the object as it is then.
    assert (kept, [each["metadata"]["resourceVersion"] for each in seen]) == (Result(), ["2", "3"])
    assert server.status["conditions"]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_a_finalizer_that_could_not_be_taken_off_is_taken_off_later(refusal: KubeError) -> None:
    server = OneObject([FINALIZER], deleting=True)
    server.refusals.append(refusal)
    refused, _ = reconciled(server)
    assert refused.retry or refused.requeue_after == 0.0
    assert server.metadata["finalizers"] == [FINALIZER]
    assert reconciled(server)[0] == Result(requeue_after=0.0)
    assert server.metadata["finalizers"] == []
    assert reconciled(server)[0] == Result()


def test_what_was_kept_for_an_object_is_dropped_although_no_event_says_that_it_went() -> None:
    """The watches may be down at that moment; the next list doesn't have the object."""
    server = OneObject([FINALIZER], deleting=True)
    handler = Noting(services(server, []))
    assert asyncio.run(handler.reconcile(KEY)) == Result(requeue_after=0.0)
    assert handler.forgotten == 0
    assert asyncio.run(handler.reconcile(KEY)) == Result()
    assert handler.forgotten == 1


def test_what_others_keep_is_written_no_more_once_it_is_released() -> None:
    server = OneObject([FINALIZER, "theirs/finalizer"], deleting=True)
    reconciled(server)
    assert server.metadata["finalizers"] == ["theirs/finalizer"]
    version = server.metadata["resourceVersion"]
    assert reconciled(server)[0] == Result()
    assert server.metadata["resourceVersion"] == version


def test_a_role_that_lacks_the_right_is_told_in_the_status() -> None:
    server = OneObject([])
    server.refusals.append(Forbidden("403: catalogs may not be patched"))
    refused, _ = reconciled(server)
    assert refused.retry
    told = {each["type"]: each for each in server.status["conditions"]}
    assert told["Stalled"]["reason"] == "Forbidden"
    assert "may not be patched" in told["Stalled"]["message"]
    assert "allow this in the operator's role" in told["Stalled"]["message"]


def test_a_policy_that_denies_the_finalizer_is_told_in_the_status_once() -> None:
    server = OneObject([])
    denied = AdmissionDenied(
        "422 ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no finalizers"
    )
    server.refusals += [denied, denied]
    assert reconciled(server)[0].retry
    (said,) = {each["message"] for each in server.status["conditions"] if each["type"] == "Stalled"}
    assert "'p' with binding 'b'" in said
    assert said.endswith("no finalizers; the operator retries by itself")
    version = server.metadata["resourceVersion"]
    assert reconciled(server)[0].retry
    assert server.metadata["resourceVersion"] == version
