"""Reads and changes the objects of one namespace, without a kubectl process for each request.

Invariants
- A request uses a connection that stays open. A wait repeats the request until the condition is true.
- A wait means the same as `kubectl wait`: a condition counts only for the generation that it was observed at.
- Tests use kubectl for what users see of it: apply, refusals and tables.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

from testbed.errors import KubectlError
from testbed.kube import ControlPlane

Json = dict[str, Any]

_OURS: Final = "/apis/holdfast.dev/v1alpha1"
_WHERE: Final = {
    **dict.fromkeys(("catalog", "catalogs"), (_OURS, "catalogs")),
    **dict.fromkeys(("coll", "storagecollection", "storagecollections"), (_OURS, "storagecollections")),
    **dict.fromkeys(
        ("collsnap", "collectionsnapshot", "collectionsnapshots"), (_OURS, "collectionsnapshots")
    ),
    **dict.fromkeys(("catmig", "catalogmigration", "catalogmigrations"), (_OURS, "catalogmigrations")),
    "configmaps": ("/api/v1", "configmaps"),
    "deployments": ("/apis/apps/v1", "deployments"),
    "events": ("/api/v1", "events"),
    "jobs": ("/apis/batch/v1", "jobs"),
    "lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "resourcequotas": ("/api/v1", "resourcequotas"),
    "serviceaccount": ("/api/v1", "serviceaccounts"),
    "pods": ("/api/v1", "pods"),
    "sparkapplications": ("/apis/sparkoperator.k8s.io/v1beta2", "sparkapplications"),
    "sparkapplications.spark.apache.org": ("/apis/spark.apache.org/v1", "sparkapplications"),
}
"""By the name that kubectl takes: the path of the group, and the plural."""
_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.05
_REQUEST_S: Final = 30.0
_MERGE: Final = "application/merge-patch+json"
_PART: Final = re.compile(r'\.(\w+)|\[\?\(@\.(\w+)=="([^"]*)"\)\]|\[(-?\d+):\]')


class Objects:
    """The objects of one namespace; `close` ends the connection."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self._client = cluster.api()
        self._namespace = namespace

    def make_namespace(self) -> None:
        """Make the namespace, and wait until objects can be made in it at once."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
        self._request("POST", "/api/v1/namespaces", body=body)
        self._until("serviceaccount/default", lambda found: found is not None, "to be there")

    def delete_namespace(self) -> None:
        """Delete the namespace; that isn't waited for. One that is being deleted stays so."""
        try:
            self._request("DELETE", f"/api/v1/namespaces/{self._namespace}")
        except KubectlError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    def find(self, what: str) -> Json | None:
        """An object, `kind/name`; None where there is none."""
        return self._request("GET", self._path(what))

    def get(self, what: str) -> Json:
        """An object that is there."""
        found = self.find(what)
        assert found is not None, f"there is no {what} in {self._namespace}"
        return found

    def list(self, kind: str, **query: str) -> list[Json]:
        """All objects of a kind; none where no objects of that kind can be."""
        found = self._request("GET", self._path(kind), query=query)
        return [] if found is None else list(found["items"])

    def make(self, body: Json) -> None:
        """Make an object. Raises `KubectlError` with what the API server says against it."""
        self._request(
            "POST", self._path(body["kind"].lower()), query={"fieldValidation": "Strict"}, body=body
        )

    def patch(self, what: str, change: Mapping[str, Any]) -> None:
        """Merge a change into an object. Raises `KubectlError` with what the API server says against it."""
        if self._request("PATCH", self._path(what), body=change) is None:
            raise KubectlError(f"there is no {what} in {self._namespace}", 404)

    def delete(self, *what: str, wait: bool = True) -> None:
        """Delete objects. By default, wait until they are gone."""
        for each in what:
            self._request("DELETE", self._path(each))
        for each in what if wait else ():
            self.wait_gone(each)

    def wait_gone(self, what: str) -> None:
        """Wait until there is no such object."""
        self._until(what, lambda body: body is None, "to be gone")

    def wait_for(self, what: str, path: str, value: object) -> None:
        """Wait until what is at a path, as kubectl's JSONPath has it, shows as this."""
        self._until(what, lambda body: str(value) in map(str, at_path(body, path)), f"for {path} = {value}")

    def wait_for_any(self, what: str, path: str) -> None:
        """Wait until something is at a path."""
        self._until(what, lambda body: bool(at_path(body, path)), f"for any {path}")

    def wait_until(self, what: str, condition: str) -> None:
        """Wait until a condition is true of the object as it is now."""
        self._until(what, lambda body: is_so(body, condition), f"to be {condition}")

    def _until(self, what: str, holds: Callable[[Json | None], bool], why: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not holds(body := self.find(what)):
            assert time.monotonic() < deadline, f"waited for {what} {why}, but it is {_told(body)}"
            threading.Event().wait(_POLL_S)

    def _path(self, what: str) -> str:
        kind, _, name = what.partition("/")
        group, plural = _WHERE[kind]
        return f"{group}/namespaces/{self._namespace}/{plural}" + (f"/{name}" if name else "")

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Json | None:
        """The JSON of an answer; None for "not found". Raises `KubectlError` for what is refused."""
        verb, url, headers, _, _ = self._client.param_serialize(
            method,
            f"{path}?{urlencode(query)}" if query else path,
            header_params={
                "Accept": "application/json",
                "Content-Type": _MERGE if method == "PATCH" else "application/json",
            },
            auth_settings=["BearerToken"],
        )
        answer = self._client.call_api(verb, url, headers, body=body, _request_timeout=_REQUEST_S)
        text = answer.read()  # type: ignore[no-untyped-call]
        if answer.status == 404:
            # Where the definitions are gone, it is no JSON.
            return None
        content = json.loads(text)
        if answer.status >= 300:
            raise KubectlError(str(content.get("message", content)), answer.status)
        return dict(content)

    def close(self) -> None:
        """End the connection."""
        self._client.close()  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def new_namespace(cluster: ControlPlane, name: str) -> Iterator[None]:
    """A namespace, in which objects can be made at once; its deletion isn't waited for."""
    with Objects(cluster, name) as objects:
        objects.make_namespace()
        try:
            yield
        finally:
            objects.delete_namespace()


def at_path(body: Json | None, path: str) -> list[Any]:
    """What is at a path like `.status.conditions[?(@.type=="Ready")].reason`; empty where nothing is."""
    found: list[Any] = [] if body is None else [body]
    end = 0
    for part in _PART.finditer(path):
        assert part.start() == end, f"not understood: {path[end:]}"
        end = part.end()
        field, key, value, first = part.groups()
        if field is not None:
            found = [each[field] for each in found if field in each]
        elif key is not None:
            found = [each for several in found for each in several if each.get(key) == value]
        else:
            found = [each for several in found for each in several[int(first) :]]
    assert end == len(path), f"not understood: {path[end:]}"
    return found


def is_so(body: Json | None, condition: str) -> bool:
    """Whether a condition is true of the generation of an object that is there now."""
    if body is None:
        return False
    status = body.get("status", {})
    for each in status.get("conditions", ()):
        if each["type"] == condition:
            seen = each.get("observedGeneration", status.get("observedGeneration"))
            return each["status"] == "True" and seen in (None, body["metadata"].get("generation"))
    return False


def _told(body: Json | None) -> str:
    return "not there" if body is None else json.dumps({"metadata": body["metadata"], **_status(body)})


def _status(body: Json) -> Json:
    return {key: body[key] for key in ("spec", "status") if key in body}
