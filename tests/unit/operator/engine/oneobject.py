"""A stand-in for an API server that has one object, and the services of a handler that works with it."""

from collections.abc import Sequence
from typing import Any

from kubernetes.client import ApiClient

from holdfast_operator.api.names import Kind
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.events import EventSink
from holdfast_operator.engine.handler import Services
from holdfast_operator.engine.kube import Conflict, Gone, Kube, KubeError, ObjectKey, resource_type
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.resources import is_deleting
from holdfast_operator.engine.status_writer import StatusWriter

Json = dict[str, Any]
KEY = ObjectKey(Kind.CATALOG, "ns", "demo")
PATH = resource_type(KEY.kind).path(KEY.namespace, KEY.name)


class OneObject(Kube):
    """An API server with one object, which forgets Events.

    It refuses changes of its metadata with what is in `refusals`.
    """

    def __init__(self, finalizers: Sequence[str], *, deleting: bool = False) -> None:
        super().__init__(ApiClient())
        self.refusals: list[KubeError] = []
        self.metadata: Json = {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}
        self.metadata |= {"resourceVersion": "1", "finalizers": list(finalizers)}
        if deleting:
            self.metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.status: Json = {}

    async def request(self, method: str, path: str, *, query: Any = None, body: Json | None = None) -> Json:
        if not path.startswith(PATH):
            return {}
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


def services(server: OneObject, seen: list[Json]) -> Services:
    """What a handler works with; it adds to `seen` how the object is after each write of ours."""
    metrics, clock = Metrics(), SystemClock()
    return Services(
        kube=server,
        status=StatusWriter(server, metrics),
        events=EventSink(server, clock),
        clock=clock,
        metrics=metrics,
        enqueue=lambda *_: None,
        look=lambda _: None,
        seen=lambda _, body: seen.append(body),
    )
