"""The client of the Kubernetes API: few verbs, JSON in and out, errors as exceptions.

Invariants
- Calls block in their own thread pool, never on the event loop or in the stores' threads.
- Errors are `Gone`, `Conflict`, `Invalid`, `Forbidden`, `AdmissionDenied`, `Exists` and other `KubeError`s.
  Callers never see codes.
- No message contains a body that was sent, so no secret gets into a log. A message is the same at each
  attempt that fails for the same reason.
- A process that may not write changes nothing. This is checked right before each request.
- If the server, or a proxy before it, doesn't know a path, this does not mean that the object is gone. If the
  CRD is gone, it does.
- Objects that watches follow are read from memory (see `known` and `followed`). Others are requested.
- If the server asks to wait (`Retry-After`), no request is sent before that time, of whatever kind.
- The times in objects, such as `creationTimestamp`, are of the API server's clock. They are compared with
  `server_time`, never with this host's clock. That may be set at any moment, and a reconciliation from memory
  has no response that would show it. Before an irreversible step, another response confirms the time.
"""

import asyncio
import builtins
import contextlib
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.client.rest import RESTResponse
from kubernetes.config import load_incluster_config, load_kube_config
from urllib3 import Retry
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError
from urllib3.exceptions import TimeoutError as NoAnswer

from holdfast_operator.api.names import FIELD_MANAGER, GROUP, VERSION, Kind
from holdfast_operator.engine.followed import FollowedObjects, versions
from holdfast_operator.engine.known import KnownObjects, is_same, record, version_of
from holdfast_operator.engine.lists import CHUNK, PAGE, ListReader, own, packed, parsed, unmanaged, unpacked

Json = dict[str, Any]
T = TypeVar("T")

_SECONDS: Final = 20.0
_LONGEST_WAIT: Final = 60.0
"""The longest time that a `Retry-After` header delays requests."""
_TRIES: Final = 3
"""How often a request is sent that the server asks to send later."""
_WAIT_JITTER: Final = 0.1
_SAME_TIME: Final = timedelta(seconds=5)
"""By how much two responses may differ in what they show of the server's clock."""
_TOO_LARGE: Final = "request is too large"
"""In the error of etcd for an object that the API server has accepted."""
_ANEW: Final = 3
"""How often a list begins again whose version the server no longer has."""
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_THREADS: Final = 8
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MERGE: Final = "application/merge-patch+json"
_FOR_NOW: Final = re.compile(r"exceeded quota: |status unknown for quota: |failed calling webhook ")
_PARSING: Final = Lock()
"""Held while a response is parsed, so that only one object at a time has its `managedFields`."""
_DENIED: Final = re.compile(rf"{_FOR_NOW.pattern}|failed quota: | denied (the )?request\b")
"""In the message of a response that admission made. Its status code may be that of other errors."""


class KubeError(Exception):
    """A request failed, for a reason that no other class describes. A retry may help."""


class Gone(KubeError):
    """The object doesn't exist."""


class Expired(KubeError):
    """The version to list or to watch from is too old. List again."""


class RetryLater(KubeError):
    """The API server asks to send the request again later. It did nothing."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


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
    """The operator's role doesn't allow the request, or admission denies it."""


class AdmissionDenied(Forbidden):
    """A quota, a policy or a webhook denies the request. The message names it. It may allow it later."""

    @property
    def for_now(self) -> bool:
        """Whether it is likely to pass by itself: a quota without room, or a webhook that doesn't respond."""
        return _FOR_NOW.search(str(self)) is not None


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
        patient: bool = True,
    ) -> None:
        """Wraps a client. `seconds` is the time limit of a request. `may_write` is called in threads.

        `patient` sends a request again when the server asks for that. Otherwise the caller must do so.
        """
        self._client = client
        self._seconds = seconds
        self._may_write = may_write
        self._patient = patient
        self._quiet_until = 0.0
        """Until when the server asked not to send requests, by the monotonic clock."""
        self._origin = _host_time() - timedelta(seconds=time.monotonic())
        """What the server's clock showed when the monotonic clock showed 0, as far as responses prove it.
        Before the first one, this host's clock stands in."""
        self._shown = 0.0
        """When the latest request was sent whose response showed that."""
        self.known: KnownObjects[ObjectKey] = KnownObjects()
        """The Holdfast objects."""
        self.followed: dict[tuple[ResourceType, str | None], FollowedObjects] = {}
        """Other objects, by type and namespace. None stands for all namespaces."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kube")

    @classmethod
    def connect(
        cls,
        *,
        seconds: float = _SECONDS,
        retries: int = 2,
        may_write: Callable[[], bool] = lambda: True,
        patient: bool = True,
    ) -> "Kube":
        """Connects with the settings of `configuration`, and raises its errors."""
        found = configuration()
        found.connection_pool_maxsize = _THREADS
        # `request` waits for Retry-After. Here a thread would wait, and could block for minutes.
        found.retries = Retry(retries, respect_retry_after_header=False)
        return cls(ApiClient(found), seconds=seconds, may_write=may_write, patient=patient)

    def server_time(self) -> datetime:
        """Returns the time of the API server's clock: that of the latest response, plus the time since.

        An irreversible step must not depend on it before `known.are_current` has confirmed it.
        """
        origin, now = self._origin, time.monotonic()
        record(("server time", origin), partial(self._confirms, origin, now))
        return origin + timedelta(seconds=now)

    async def _confirms(self, origin: datetime, read: float) -> bool:
        """Returns whether a response to a request after `read` shows the same time. Sends one if needed."""
        if self._shown <= read:
            # A refusal shows the time too.
            with contextlib.suppress(Forbidden, Gone, NotServed):
                await self.request("GET", "/version")
        return abs(self._origin - origin) <= _SAME_TIME

    async def get(self, key: ObjectKey, *, fresh: bool = False) -> Json:
        """Returns one Holdfast object as it is known, or else reads it. Raises like `read`.

        With `fresh`, it is read anyway. An irreversible step must not depend on it before `known.are_current`
        has confirmed it.
        """
        body = None if fresh else self.known.get(key)
        if body is None:
            body = await self.read(key)
        record(key, partial(self.is_current, key, body))
        return body

    async def read(self, key: ObjectKey) -> Json:
        """Reads one Holdfast object. Raises `Gone` if it, or the CRD of its kind, doesn't exist."""
        type_, asked = resource_type(key.kind), self.known.now()
        try:
            found = await self.request("GET", type_.path(key.namespace, key.name))
        except Gone:
            self.known.drop(key)
            raise
        except NotServed as error:
            if await self.is_undefined(type_):
                self.known.drop(key)
                raise Gone(str(error)) from None
            raise
        newest = self.known.learn(key, found, asked)
        if newest is None:
            raise Gone(f"{key} was deleted meanwhile")
        return newest

    async def is_current(self, key: ObjectKey, body: Json) -> bool:
        """Returns whether this is still the state of a Holdfast object. Reads it if that isn't certain."""
        if self.known.follows and self.known.is_confirmed(key):
            return self.known.shows(key, body)
        try:
            return is_same(await self.read(key), body)
        except Gone:
            return False

    async def list(
        self, type_: ResourceType, namespace: str | None, *, labels: str | None = None, fresh: bool = False
    ) -> Sequence[Json]:
        """Returns all objects of a type, in one namespace or in all. Don't change them.

        They are those that a watch follows, if one does. With `fresh`, they are requested anyway.
        """
        followed = self._follows(type_, namespace, labels)
        if followed is None:
            found, _ = await self.list_pages(type_, namespace, labels=labels)
            return found
        if not followed.served:
            raise NotServed(f"{type_.plural} of {type_.group}/{type_.version} are not served")
        if not fresh:
            found = followed.select(namespace, labels)
            record((type_, namespace, labels), partial(self._lists_same, type_, namespace, labels, found))
            return found
        found, version = await self.list_each(type_, namespace, followed.kept, labels=labels)
        followed.replace(found, version, namespace, labels or "")
        return found

    async def list_pages(
        self,
        type_: ResourceType,
        namespace: str | None,
        *,
        labels: str | None = None,
        fields: str | None = None,
    ) -> tuple[Sequence[Json], int]:
        """Requests all objects of a type in pages, and returns them with the version of the list.

        They are trimmed, as `lists.own` and `lists.unmanaged` say. `labels` and `fields` are selectors.
        """
        return await self.list_each(type_, namespace, lambda body: body, labels=labels, fields=fields)

    async def list_each(
        self,
        type_: ResourceType,
        namespace: str | None,
        keep: Callable[[Json], T],
        *,
        labels: str | None = None,
        fields: str | None = None,
        brief: bool = False,
    ) -> tuple[builtins.list[T], int]:
        """Like `list_pages`, but returns only what `keep` returns for each object.

        It is called as soon as a page arrives, so thousands of objects are never in memory at once. If the
        list begins again, it is called again too. With `brief`, the objects have only their metadata. See
        `lists.PAGE` for the memory that a page takes.
        """
        trim = own if type_.group == GROUP else unmanaged
        query = {
            "limit": str(PAGE),
            **({"labelSelector": labels} if labels else {}),
            **({"fieldSelector": fields} if fields else {}),
        }
        extra: dict[str, Any] = {"accept": _METADATA} if brief else {}
        found: builtins.list[T] = []
        left = _ANEW
        while True:
            try:
                page = await self.request(
                    "GET",
                    type_.path(namespace),
                    query=query,
                    keep=lambda body: packed(trim(body)),
                    **extra,
                )
            except Expired:
                if "continue" not in query or not left:
                    raise
                # The server no longer has the version of the first page.
                left -= 1
                del query["continue"]
                found.clear()
                continue
            # A brief list without objects has null.
            found += (keep(unpacked(content)) for content in page["items"] or ())
            metadata = page.get("metadata", {})
            if not metadata.get("continue"):
                return found, version_of({"metadata": metadata})
            query["continue"] = metadata["continue"]
            del page

    def _follows(
        self, type_: ResourceType, namespace: str | None, labels: str | None
    ) -> FollowedObjects | None:
        found = self._followed_in(type_, namespace)
        return found if found is not None and found.covers(labels) else None

    def _followed_in(self, type_: ResourceType, namespace: str | None) -> FollowedObjects | None:
        found = self.followed.get((type_, None)) or self.followed.get((type_, namespace))
        return found if found is not None and (found.synced or not found.served) else None

    def followed_with_uid(self, type_: ResourceType, namespace: str, uid: str) -> Json | None:
        """Returns an object that a watch follows, or None."""
        followed = self._followed_in(type_, namespace)
        return None if followed is None else followed.with_uid(uid)

    async def _lists_same(
        self, type_: ResourceType, namespace: str | None, labels: str | None, before: Sequence[Json]
    ) -> bool:
        """Returns whether a list still has the same objects in the same versions."""
        now = await self.list(type_, namespace, labels=labels, fresh=True)
        return versions(now) == versions(before)

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
            made = await self.request("POST", type_.path(namespace), body=body)
        except Conflict as error:
            raise Exists(str(error)) from None
        if (followed := self._followed_in(type_, namespace)) is not None:
            followed.put(made)
        return made

    async def patch(self, type_: ResourceType, namespace: str, name: str, body: Json) -> Json:
        """Applies a merge patch. Raises `Gone`, and `Conflict` if `body` has an old resourceVersion."""
        change = self.request("PATCH", type_.path(namespace, name), body=body)
        kind = next((each for each in Kind if resource_type(each) == type_), None)
        return await change if kind is None else await self._note(ObjectKey(kind, namespace, name), change)

    async def patch_status(self, key: ObjectKey, body: Json) -> Json:
        """Applies a merge patch to the status of a Holdfast object. Raises like `patch`, and `Invalid`."""
        path = resource_type(key.kind).path(key.namespace, key.name, "status")
        return await self._note(key, self.request("PATCH", path, body=body))

    async def _note(self, key: ObjectKey, change: Awaitable[Json]) -> Json:
        """Waits for the response to a change of a Holdfast object, and records it."""
        asked = self.known.now()
        try:
            written = await change
        except KubeError:
            # It has changed, or the change was made and its response was lost.
            self.known.doubt(key)
            raise
        self.known.put(key, written, asked=asked)
        if written["metadata"].get("deletionTimestamp"):
            # Its last finalizer may be gone, and with it the object.
            self.known.doubt(key)
        return written

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
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        accept: str | None = None,
        keep: Callable[[Json], Any] | None = None,
    ) -> Json:
        """Sends a request and returns the JSON response. Raises `NotLeading` for a forbidden write.

        With `keep`, the response is a list, and its `items` are what `keep` returns for each object. It is
        called in a thread.

        If the server asks to wait, this and all other requests wait for that time, and it is sent again.
        """
        loop = asyncio.get_running_loop()
        send = partial(self._request, method, path, dict(query or {}), body, accept, keep)
        for last in (*([False] * (_TRIES - 1) if self._patient else ()), True):
            if self._patient and (left := self._quiet_until - time.monotonic()) > 0:
                jitter = 1 + _WAIT_JITTER * random.random()  # noqa: S311 - spreads requests
                await asyncio.sleep(left * jitter)
            try:
                return await loop.run_in_executor(self._threads, send)
            except RetryLater as error:
                seconds = min(error.seconds, _LONGEST_WAIT)
                self._quiet_until = max(self._quiet_until, time.monotonic() + seconds)
                if last:
                    raise
        raise AssertionError(path)

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Json | None,
        accept: str | None,
        keep: Callable[[Json], Any] | None,
    ) -> Json:
        if method in {"POST", "PATCH"}:
            query["fieldManager"] = FIELD_MANAGER
        url_path = f"{path}?{urlencode(query)}" if query else path
        headers = {
            "Accept": accept or "application/json",
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
            sent = time.monotonic()
            answer = self._client.call_api(verb, url, headers, body=body, _request_timeout=self._seconds)
            received = time.monotonic()
            succeeded = 200 <= answer.status < 300
            content, found = _content(answer, keep if succeeded else None)
        except (ApiException, HTTPError, OSError) as error:
            host = self._client.configuration.host
            raise KubeError(f"{method} {path}: no response from {host}{_why(error)}") from error
        if found is not None and (succeeded or found.get("kind") == "Status"):
            # It is the API server's, and not that of a proxy whose clock may be wrong.
            self._origin = clock_origin(answer.headers.get("Date"), sent, received, self._origin)
            self._shown = sent
        if succeeded and content and found is None:
            raise KubeError(
                f"{method} {path}: {answer.status} with a response that is no object of Kubernetes"
            )
        if succeeded:
            return found or {}
        message = f"{method} {path}: {answer.status} {_message(content)}"
        if (seconds := retry_after(answer.status, answer.headers.get("Retry-After"))) is not None:
            raise RetryLater(message, seconds)
        raise refusal(answer.status, message, content)

    def close(self) -> None:
        """Closes the connection. Doesn't wait for running calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()  # type: ignore[no-untyped-call]


def clock_origin(date: str | None, sent: float, received: float, believed: datetime) -> datetime:
    """Returns what a server's clock showed when the monotonic clock showed 0.

    The server wrote `date`, its time in whole seconds, between `sent` and `received` of the monotonic clock.
    Of all values that this allows, the one that is nearest to `believed` is returned. Without a date that a
    clock may show, it is `believed`.
    """
    try:
        told = parsedate_to_datetime(date or "")
        least, most = told - timedelta(seconds=received), told + timedelta(seconds=1 - sent)
    except (ValueError, OverflowError):
        return believed
    if told.tzinfo is None or told.year == MAXYEAR:
        return believed
    return max(least, min(believed, most))


def retry_after(status: int, header: str | None) -> float | None:
    """Returns the seconds after which a response asks to send the request again, or None.

    Kubernetes sends seconds, never a date.
    """
    asks = status in {429, 503} and header is not None and header.strip().isdecimal()
    return float(header.strip()) if asks and header is not None else None


def _host_time() -> datetime:
    return datetime.now(UTC)


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


def _content(answer: RESTResponse, keep: Callable[[Json], Any] | None) -> tuple[bytes, Json | None]:
    """Returns a response and its JSON object, as `_parsed` does. What `keep` takes apart is not returned."""
    if keep is None:
        content: bytes = answer.read()  # type: ignore[no-untyped-call]
        return content, _parsed(content)
    reader = ListReader(keep)
    last = b""
    for last in answer.response.stream(CHUNK):
        reader.feed(last)
    try:
        return last, reader.close()
    except ValueError:
        return last, None


def _parsed(content: bytes) -> Json | None:
    """Returns the JSON object of a response without `managedFields`, or None if it is something else."""
    with _PARSING:
        try:
            found = parsed(content.decode())
        except ValueError:
            return None
        if not isinstance(found, dict):
            return None
        found.get("metadata", {}).pop("managedFields", None)
        return found


def _message(content: bytes) -> str:
    if (found := _parsed(content)) is not None:
        return str(found.get("message", ""))
    return content[:200].decode(errors="replace").strip()


def _reason(content: bytes) -> str:
    """Returns the reason in a Status object, or empty if the response is something else."""
    return str((_parsed(content) or {}).get("reason", ""))


def refusal(status: int, message: str, content: bytes) -> KubeError:
    """Returns the error for the status code of a response."""
    if status in {400, 403, 422, 500} and _DENIED.search(message):
        return AdmissionDenied(message)
    if status == 413 or (status == 500 and _TOO_LARGE in message):
        return Invalid(message)
    match status:
        case 403:
            return Forbidden(message)
        case 404:
            return Gone(message) if _reason(content) == "NotFound" else NotServed(message)
        case 409:
            return Conflict(message)
        case 410:
            return Expired(message)
        case 400 | 422:
            return Invalid(message)
        case _:
            return KubeError(message)
