"""The Kubernetes API as the operator uses it: few verbs, JSON in and out, errors by meaning.

Invariants
- Calls block in a thread pool of their own, never on the event loop and never on the store's threads.
- An answer is one of ours (`Gone`, `Conflict`, `Invalid`, `Forbidden`, `Exists`, `KubeError`): nobody above
  looks at codes.
- No message holds a body that was sent, so no secret gets into a log; it is the same at each try that fails
  for the same reason.
- Nothing is changed by a process that may not: that is asked right before a request goes out.
- That the server, or something before it, knows no such path is not the answer that an object is gone: that
  its definition is gone is.
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
    """The API server didn't do it, for a reason that isn't one of the others; trying again may help."""


class Gone(KubeError):
    """There is no such object."""


class NotServed(KubeError):
    """There is no such path: the resource isn't served (any more, or yet); nothing is said of its objects."""


class NotLeading(KubeError):
    """This process may not act any more: nothing was sent."""


class Exists(KubeError):
    """An object of that name is there already."""


class Conflict(KubeError):
    """The object changed since it was read."""


class Invalid(KubeError):
    """The API server finds the content invalid."""


class Forbidden(KubeError):
    """The operator's role doesn't allow it."""


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Names one of our resources."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ResourceType:
    """Where the objects of a type are in the API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        """The path of one object, of the collection of a namespace, or of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, *(["namespaces", quote(namespace)] if namespace else []), self.plural]
        return "/".join([*parts, *([quote(name)] if name else []), *([sub] if sub else [])])


DEFINITIONS: Final = ResourceType("apiextensions.k8s.io", "v1", "customresourcedefinitions")
EVENTS: Final = ResourceType("", "v1", "events")
SECRETS: Final = ResourceType("", "v1", "secrets")


def resource_type(kind: Kind) -> ResourceType:
    """The type of one of our kinds."""
    return ResourceType(GROUP, VERSION, kind.plural)


def configuration() -> Configuration:
    """How to reach the API server: by `$KUBECONFIG`, else as the pod's account, else as the user does.

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
        """`seconds` is what a request may take; `may_write` is asked in threads."""
        self._client = client
        self._seconds = seconds
        self._may_write = may_write
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kube")

    @classmethod
    def connect(
        cls, *, seconds: float = _SECONDS, retries: int = 2, may_write: Callable[[], bool] = lambda: True
    ) -> "Kube":
        """Connect as `configuration` says; raises what it raises."""
        found = configuration()
        found.connection_pool_maxsize = _THREADS
        # How long to wait is the queue's business: a server that asks for minutes would get a thread for it.
        found.retries = Retry(retries, respect_retry_after_header=False)
        return cls(ApiClient(found), seconds=seconds, may_write=may_write)

    async def get(self, key: ObjectKey) -> Json:
        """One of our objects, read fresh. Raises `Gone`, also where its kind isn't defined any more."""
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
        """All objects of a type, in one namespace or in all."""
        query = {"labelSelector": labels} if labels else {}
        answer = await self.request("GET", type_.path(namespace), query=query)
        return list(answer["items"])

    async def is_undefined(self, type_: ResourceType) -> bool:
        """Whether there is no definition of a custom type; its objects went before it.

        Who may not read definitions goes by what the server says that it serves of the group. Raises
        `KubeError` where that can't be told.
        """
        query = {"fieldSelector": f"metadata.name={type_.plural}.{type_.group}"}
        try:
            found = await self.request("GET", DEFINITIONS.path(None), query=query)
        except Forbidden:
            return await self._is_left_out(type_)
        return not found["items"]

    async def _is_left_out(self, type_: ResourceType) -> bool:
        """Whether other types of a group are served, and this one in no version."""
        served: set[str] = set()
        for version in (await self.request("GET", f"/apis/{type_.group}"))["versions"]:
            served |= await self._served(version["groupVersion"])
        return bool(served) and type_.plural not in served

    async def is_served(self, type_: ResourceType) -> bool:
        """Whether there are objects of a type to be asked for."""
        try:
            return type_.plural in await self._served(f"{type_.group}/{type_.version}")
        except (Gone, NotServed):
            return False

    async def _served(self, group_version: str) -> set[str]:
        """The names of what the server says that it serves of a version of a group."""
        there = await self.request("GET", f"/apis/{group_version}")
        return {each["name"] for each in there["resources"]}

    async def get_of(self, type_: ResourceType, namespace: str, name: str) -> Json:
        """One object of any type. Raises `Gone`."""
        return await self.request("GET", type_.path(namespace, name))

    async def create(self, type_: ResourceType, namespace: str, body: Json) -> Json:
        """Create an object. Raises `Exists`, `NotServed` where its type isn't served."""
        try:
            return await self.request("POST", type_.path(namespace), body=body)
        except Conflict as error:
            raise Exists(str(error)) from None

    async def patch(self, type_: ResourceType, namespace: str, name: str, body: Json) -> Json:
        """Merge `body` into an object. Raises `Gone`; `Conflict` where `body` has an old resourceVersion."""
        return await self.request("PATCH", type_.path(namespace, name), body=body)

    async def patch_status(self, key: ObjectKey, body: Json) -> Json:
        """Merge `body` into the status of one of our objects. Raises as `patch`, and `Invalid`."""
        path = resource_type(key.kind).path(key.namespace, key.name, "status")
        return await self.request("PATCH", path, body=body)

    async def delete(self, type_: ResourceType, namespace: str, name: str, *, uid: str | None = None) -> None:
        """Delete an object, and what it owns in the background; one that is gone already is fine.

        With `uid` only that incarnation of it.
        """
        body: Json = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        with contextlib.suppress(Gone, NotServed, Conflict):
            await self.request("DELETE", type_.path(namespace, name), body=body)

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        """One request; the JSON of its answer. Raises `NotLeading` for a change that is not ours to make."""
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
                raise NotLeading(f"{method} {path} is left to whoever leads now")
            answer = self._client.call_api(verb, url, headers, body=body, _request_timeout=self._seconds)
            content = answer.read()  # type: ignore[no-untyped-call]
        except (ApiException, HTTPError, OSError) as error:
            host = self._client.configuration.host
            raise KubeError(f"{method} {path}: no answer from {host}{_why(error)}") from error
        if 200 <= answer.status < 300:
            return dict(json.loads(content)) if content else {}
        raise _refusal(answer.status, f"{method} {path}: {answer.status} {_message(content)}", content)

    def close(self) -> None:
        """End the connection; calls that are under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()  # type: ignore[no-untyped-call]


def _why(error: Exception) -> str:
    """Why there is no answer, without how often it was asked and how long it was waited for."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    # Who has no connection is one whose connection took too long, to urllib3.
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
    """Why a Status object says no; empty where it is something else that answers."""
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
