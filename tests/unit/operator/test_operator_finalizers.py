"""The finalizer is put on and taken off by the operator itself, and a refused write comes again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast_operator.api.names import FINALIZER, Kind
from holdfast_operator.reconcile.handler import Handler, Services, has_finalizer, is_deleting
from holdfast_operator.reconcile.steps import Keep, Release, Settle, Step, ready
from holdfast_operator.runtime.clock import SystemClock
from holdfast_operator.runtime.events import EventSink
from holdfast_operator.runtime.kube import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    KubeError,
    ObjectKey,
    resource_type,
)
from holdfast_operator.runtime.metrics import Metrics
from holdfast_operator.runtime.queue import Result
from holdfast_operator.runtime.status import StatusWriter

Json = dict[str, Any]
KEY = ObjectKey(Kind.CATALOG, "ns", "demo")
PATH = resource_type(KEY.kind).path(KEY.namespace, KEY.name)


class OneObject(Kube):
    """An API server with one object; it refuses changes of its metadata with what is in `refusals`."""

    def __init__(self, finalizers: Sequence[str], *, deleting: bool = False) -> None:
        super().__init__(ApiClient())
        self.refusals: list[KubeError] = []
        self.metadata: Json = {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}
        self.metadata |= {"resourceVersion": "1", "finalizers": list(finalizers)}
        if deleting:
            self.metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.status: Json = {}

    async def request(self, method: str, path: str, *, query: Any = None, body: Json | None = None) -> Json:
        if is_deleting(self.body) and not self.metadata["finalizers"]:
            raise Gone(path)
        if method == "PATCH":
            assert body is not None
            if path.endswith("/status"):
                self.status = body["status"]
            elif self.refusals:
                raise self.refusals.pop()
            elif body["metadata"].pop("resourceVersion") != self.metadata["resourceVersion"]:
                raise Conflict(path)
            self.metadata |= body.get("metadata", {})
            self.metadata["resourceVersion"] = str(int(self.metadata["resourceVersion"]) + 1)
        return self.body

    @property
    def body(self) -> Json:
        return {"metadata": dict(self.metadata), "spec": {}, "status": self.status}


class Kept(Handler[Json]):
    """Asks for the finalizer, and for nothing else."""

    kind = Kind.CATALOG

    async def observe(self, key: ObjectKey, body: Json) -> Json:
        return body

    def plan(self, observed: Json) -> Step:
        if is_deleting(observed):
            return Release()
        return Settle(ready("fine")) if has_finalizer(observed) else Keep()

    async def apply(self, key: ObjectKey, body: Json, step: Step) -> None:
        raise AssertionError(step)

    async def gone(self, key: ObjectKey) -> None:
        """Nothing was kept."""


def reconciled(server: OneObject) -> tuple[Result, list[Json]]:
    """One reconcile, and what was seen of the object after a write of ours."""
    metrics, clock, seen = Metrics(), SystemClock(), []
    services = Services(
        kube=server,
        status=StatusWriter(server, metrics),
        events=EventSink(server, clock),
        clock=clock,
        metrics=metrics,
        enqueue=lambda *_: None,
        look=lambda _: None,
        seen=lambda _, body: seen.append(body),
    )
    return asyncio.run(Kept(services).reconcile(KEY)), seen


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
    assert reconciled(server)[0] == Result()
    assert server.metadata["finalizers"] == []
    assert reconciled(server)[0] == Result()


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
