"""The client of the Kubernetes API: few verbs, JSON in and out, errors as exceptions.

Invariants
- Calls block in their own thread pool, never on the event loop or in the stores' threads.
- Errors are `Gone`, `Conflict`, `Invalid`, `Forbidden`, `Exists` and other `KubeError`s. Callers never see
  codes.
- No message contains a body that was sent, so no secret gets into a log. A message is the same at each
  attempt that fails for the same reason.
- A process that may not write changes nothing. This is checked right before each request.
- If the server, or a proxy before it, doesn't know a path, this does not mean that the object is gone. If the
  CRD is gone, it does.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import load_incluster_config, load_kube_config
from urllib3 import Retry
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError
from urllib3.exceptions import TimeoutError as NoAnswer

from holdfast_operator.api.names import FIELD_MANAGER, GROUP, VERSION, Kind

Json = dict[str, Any]

_SECONDS: Final = 20.0
_THREADS: Final = 8
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MERGE: Final = "application/merge-patch+json"


class KubeError(Exception):
    """A request failed, for a reason that no other class describes. A retry may help."""


class Gone(KubeError):
    """The object doesn't exist."""


class NotServed(KubeError):
    """The API server doesn't serve this type (yet, or any more). Nothing is known about its objects."""


class NotLeading(KubeError):
    """This process doesn't lead any more. Nothing was sent."""


class Exists(KubeError):
    """An object of that name exists already."""


class Conflict(KubeError):
    """The object has changed since it was read."""


class Invalid(KubeError):
    """The API server rejects the content."""


class Forbidden(KubeError):
    """The operator's role doesn't allow the request."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """The name of a Holdfast resource."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A type of objects in the API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        """Returns the path of one object, or of all objects in one namespace or in all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, *(["namespaces", quote(namespace)] if namespace else []), self.plural]
        return "/".join([*parts, *([quote(name)] if name else []), *([sub] if sub else [])])


DEFINITIONS: Final = ResourceType("apiextensions.k8s.io", "v1", "customresourcedefinitions")
EVENTS: Final = ResourceType("", "v1", "events")
SECRETS: Final = ResourceType("", "v1", "secrets")


def resource_type(kind: Kind) -> ResourceType:
    """Returns the type of a Holdfast kind."""
    return ResourceType(GROUP, VERSION, kind.plural)


def configuration() -> Configuration:
    """Returns how to reach the API server: from `$KUBECONFIG`, the pod's account, or the user's kubeconfig.

    Raises `kubernetes.config.ConfigException`.
    """
    found = Configuration()
    if not os.environ.get("KUBECONFIG") and _ACCOUNT.is_dir():
        load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    else:
        load_kube_config(client_configuration=found)  # type: ignore[no-untyped-call]
    return found


class Kube:
    """A connection to the API server."""

    def __init__(
        self,
        client: ApiClient,
        *,
        seconds: float = _SECONDS,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Wraps a client. `seconds` is the time limit of a request. `may_write` is called in threads."""
        self._client = client
        self._seconds = seconds
        self._may_write = may_write
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kube")

    @classmethod
    def connect(
        cls, *, seconds: float = _SECONDS, retries: int = 2, may_write: Callable[[], bool] = lambda: True
    ) -> "Kube":
        """Connects with the settings of `configuration`, and raises its errors."""
        found = configuration()
        found.connection_pool_maxsize = _THREADS
        # Ignore Retry-After headers, which could block a thread for minutes. The queue decides when to retry.
        found.retries = Retry(retries, respect_retry_after_header=False)
        return cls(ApiClient(found), seconds=seconds, may_write=may_write)

    async def get(self, key: ObjectKey) -> Json:
        """Reads one Holdfast object. Raises `Gone` if it, or the CRD of its kind, doesn't exist."""
        type_ = resource_type(key.kind)
        try:
            return await self.request("GET", type_.path(key.namespace, key.name))
        except NotServed as error:
            if await self.is_undefined(type_):
                raise Gone(str(error)) from None
            raise

    async def list(
        self, type_: ResourceType, namespace: str | None, *, labels: str | None = None
    ) -> list[Json]:
        """Returns all objects of a type, in one namespace or in all."""
        query = {"labelSelector": labels} if labels else {}
        answer = await self.request("GET", type_.path(namespace), query=query)
        return list(answer["items"])

    async def is_undefined(self, type_: ResourceType) -> bool:
        """Returns whether the CRD of a custom type doesn't exist, so that it has no objects either.

        If the role doesn't allow reading CRDs, this uses the list of types that the server serves for the
        group. Raises `KubeError` if neither is known.
        """
        query = {"fieldSelector": f"metadata.name={type_.plural}.{type_.group}"}
        try:
            found = await self.request("GET", DEFINITIONS.path(None), query=query)
        except Forbidden:
            return await self._is_left_out(type_)
        return not found["items"]

    async def _is_left_out(self, type_: ResourceType) -> bool:
        """Returns whether other types of the group are served, but this one in no version."""
        served: set[str] = set()
        for version in (await self.request("GET", f"/apis/{type_.group}"))["versions"]:
            served |= await self._served(version["groupVersion"])
        return bool(served) and type_.plural not in served

    async def is_served(self, type_: ResourceType) -> bool:
        """Returns whether the API server serves a type."""
        try:
            return type_.plural in await self._served(f"{type_.group}/{type_.version}")
        except (Gone, NotServed):
            return False

    async def _served(self, group_version: str) -> set[str]:
        """Returns the names of the types that the server serves for a version of a group."""
        there = await self.request("GET", f"/apis/{group_version}")
        return {each["name"] for each in there["resources"]}

    async def get_of(self, type_: ResourceType, namespace: str, name: str) -> Json:
        """Reads one object of any type. Raises `Gone`."""
        return await self.request("GET", type_.path(namespace, name))

    async def create(self, type_: ResourceType, namespace: str, body: Json) -> Json:
        """Creates an object. Raises `Exists`, and `NotServed` if its type isn't served."""
        try:
            return await self.request("POST", type_.path(namespace), body=body)
        except Conflict as error:
            raise Exists(str(error)) from None

    async def patch(self, type_: ResourceType, namespace: str, name: str, body: Json) -> Json:
        """Applies a merge patch. Raises `Gone`, and `Conflict` if `body` has an old resourceVersion."""
        return await self.request("PATCH", type_.path(namespace, name), body=body)

    async def patch_status(self, key: ObjectKey, body: Json) -> Json:
        """Applies a merge patch to the status of a Holdfast object. Raises like `patch`, and `Invalid`."""
        path = resource_type(key.kind).path(key.namespace, key.name, "status")
        return await self.request("PATCH", path, body=body)

    async def delete(self, type_: ResourceType, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Deletes an object, and its dependents in the background. Does nothing if it is already gone.

        With `uid`, deletes it only if it has this uid.
        """
        body: Json = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        with contextlib.suppress(Gone, NotServed, Conflict):
            await self.request("DELETE", type_.path(namespace, name), body=body)

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """Sends a request and returns the JSON response. Raises `NotLeading` for a forbidden write."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._request, method, path, dict(query or {}), body)

    def _request(self, method: str, path: str, query: dict[str, str], body: Json | None) -> Json:
        if method in {"POST", "PATCH"}:
            query["fieldManager"] = FIELD_MANAGER
        url_path = f"{path}?{urlencode(query)}" if query else path
        headers = {
            "Accept": "application/json",
            "Content-Type": _MERGE if method == "PATCH" else "application/json",
        }
        try:
            verb, url, headers, _, _ = self._client.param_serialize(
                method, url_path, header_params=headers, auth_settings=["BearerToken"]
            )
            if method != "GET" and not self._may_write():
                raise NotLeading(
                    f"{method} {path} was not sent: this operator is no longer the leader, and the new leader"
                    " decides again"
                )
            answer = self._client.call_api(verb, url, headers, body=body, _request_timeout=self._seconds)
            content = answer.read()  # type: ignore[no-untyped-call]
        except (ApiException, HTTPError, OSError) as error:
            host = self._client.configuration.host
            raise KubeError(f"{method} {path}: no response from {host}{_why(error)}") from error
        if 200 <= answer.status < 300:
            return dict(json.loads(content)) if content else {}
        raise _refusal(answer.status, f"{method} {path}: {answer.status} {_message(content)}", content)

    def close(self) -> None:
        """Closes the connection. Doesn't wait for running calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()  # type: ignore[no-untyped-call]


def _why(error: Exception) -> str:
    """Returns why there is no response, without the number of attempts and the time, which vary."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    # In urllib3, a refused connection is a subclass of a connection that timed out.
    if isinstance(error, (NoAnswer, TimeoutError)) and not isinstance(error, NewConnectionError):
        return " in time"
    causes = (each for each in (error.__cause__, *error.args, error) if isinstance(each, Exception))
    cause = next(causes)
    return f": {getattr(cause, 'strerror', None) or getattr(cause, 'reason', None) or cause}"


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content).get("message", ""))
    except (ValueError, AttributeError):
        return content[:200].decode(errors="replace").strip()


def _reason(content: bytes) -> str:
    """Returns the reason in a Status object, or empty if the response is something else."""
    try:
        return str(json.loads(content).get("reason", ""))
    except (ValueError, AttributeError):
        return ""


def _refusal(status: int, message: str, content: bytes) -> KubeError:
    match status:
        case 403:
            return Forbidden(message)
        case 404:
            return Gone(message) if _reason(content) == "NotFound" else NotServed(message)
        case 409:
            return Conflict(message)
        case 400 | 422:
            return Invalid(message)
        case _:
            return KubeError(message)
