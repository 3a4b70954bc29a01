"""Follows the objects of one type: lists them in pages, and then watches them.

kopf watches the operator's own kinds. It keeps no objects, and ends if a role doesn't allow a watch. So this
module follows what belongs to the jobs: applications, Jobs and pods.

Invariants
- The server selects the objects by label. A cluster has many other Jobs and pods.
- A watch that was cut continues where it was. If its version is too old, everything is listed again.
- After a watch has failed, nothing is known until one delivers something: an event, or the line that the
  server sends each minute. A watch without a line for `SILENCE_SECONDS` has failed.
- A type that isn't served, or that the role doesn't allow to watch, is tried again from time to time. While
  it can't be watched, `Kube.list` requests it each time.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import aiohttp

from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.followed import FollowedObjects
from holdfast_operator.engine.kube import (
    Expired,
    Forbidden,
    Kube,
    KubeError,
    NotServed,
    ResourceType,
    RetryLater,
    configuration,
    refusal,
    retry_after,
)
from holdfast_operator.engine.lists import CHUNK, lines, parsed
from holdfast_operator.engine.schedule import Backoff
from holdfast_operator.engine.watches import SILENCE_SECONDS

Json = dict[str, Any]
OnChange = Callable[[ResourceType, Json], None]
"""Called with the type and the last state of an object that is new, has changed, or is gone."""

log = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 300
_UNSERVED_SECONDS: Final = 10.0
_FORBIDDEN_SECONDS: Final = 60.0


class Follower:
    """Keeps the objects of one type with some labels up to date in `Kube.followed`, while `run` runs."""

    def __init__(
        self,
        kube: Kube,
        type_: ResourceType,
        namespace: str | None,
        objects: FollowedObjects,
        on_change: OnChange,
        on_served: Callable[[], None],
        clock: Clock,
        *,
        fields: str = "",
    ) -> None:
        """`namespace` None stands for all namespaces. The event loop of `run` calls the callbacks.

        `objects` says what to follow, and keeps it. `on_served` is called if the type wasn't served, and now
        it is. `fields` is a field selector.
        """
        self._kube = kube
        self._type = type_
        self._namespace = namespace
        self._on_change = on_change
        self._on_served = on_served
        self._clock = clock
        self._fields = fields
        self._backoff = Backoff(first=0.2, limit=30.0)
        self._rng = random.Random()  # noqa: S311 - spreads requests
        self._objects = kube.followed[type_, namespace] = objects

    async def run(self, stop: asyncio.Event) -> None:
        """Follows the objects until `stop` is set or the task is cancelled."""
        try:
            await self._follow(stop)
        except Exception:
            log.exception(
                "the watch of %s failed; they are requested each time from now on", self._type.plural
            )
        finally:
            self._lose(served=True)

    async def _follow(self, stop: asyncio.Event) -> None:
        failures = 0
        version: int | None = None
        async with _session() as session:
            while not stop.is_set():
                try:
                    if version is None:
                        version = await self._list()
                    failures = 0
                    async for event in self._watch(session, version):
                        version = self._take(event) or version
                        self._objects.synced = True
                    pause = 0.0
                except Expired:
                    version, pause = None, 0.0
                except NotServed:
                    self._lose(served=False)
                    version, pause = None, _UNSERVED_SECONDS
                except Forbidden as error:
                    if self._objects.synced or not failures:
                        log.info(
                            "%s can't be watched, and are requested each time: %s", self._type.plural, error
                        )
                    self._lose(served=True)
                    failures += 1
                    version, pause = None, _FORBIDDEN_SECONDS
                except (KubeError, aiohttp.ClientError, OSError, ValueError) as error:
                    failures += 1
                    self._objects.synced = False
                    pause = self._backoff.delay(failures, self._rng)
                    if isinstance(error, RetryLater):
                        pause = max(pause, error.seconds)
                    log.debug("the watch of %s ended: %s", self._type.plural, error)
                await self._clock.wait(stop, pause)

    async def _list(self) -> int:
        selector, known = self._objects.selector, self._objects
        found, version = await self._kube.list_each(
            self._type, self._namespace, known.kept, labels=selector, fields=self._fields
        )
        changed = known.replace(found, version, self._namespace, selector)
        is_new, known.synced, known.served = not known.served, True, True
        for body in changed:
            self._on_change(self._type, body)
        if is_new:
            self._on_served()
        return version

    def _lose(self, *, served: bool) -> None:
        self._objects.synced, self._objects.served = False, served

    def _take(self, event: Json) -> int:
        """Records an event of the watch. Returns its version. Raises `Expired`."""
        body = event["object"]
        match event["type"]:
            case "ERROR":
                raise refusal(int(body.get("code", 0)), f"the watch ended: {body.get('message', '')}", b"")
            case "BOOKMARK":
                pass
            case "DELETED":
                if self._objects.drop(body):
                    self._on_change(self._type, body)
            case _:
                if self._objects.put(body):
                    self._on_change(self._type, body)
        return int(body["metadata"]["resourceVersion"])

    async def _watch(self, session: aiohttp.ClientSession, version: int) -> AsyncIterator[Json]:
        """Yields the events of one watch request, until the server ends it. Raises `KubeError`."""
        found = configuration()
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "labelSelector": self._objects.selector,
            **({"fieldSelector": self._fields} if self._fields else {}),
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        headers = {"Accept": "application/json"}
        if token := found.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        url = found.host.rstrip("/") + self._type.path(self._namespace)
        async with session.get(url, params=query, headers=headers, timeout=timeout) as response:
            if response.status != 200:
                content = await response.read()
                message = f"GET {url}: {response.status}"
                if (seconds := retry_after(response.status, response.headers.get("Retry-After"))) is not None:
                    raise RetryLater(message, seconds)
                raise refusal(response.status, message, content)
            async for line in lines(response.content, CHUNK):
                yield dict(parsed(line.decode()))


def _session() -> aiohttp.ClientSession:
    found = configuration()
    context = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if not found.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))
