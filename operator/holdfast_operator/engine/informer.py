"""The informer: watches the operator's own kinds with kopf. It decides nothing and stores nothing on objects.

Invariants
- It runs in its own thread and event loop, because kopf cancels every task of its loop at its end.
- It only passes events on. The queue decides what to do.
- It writes nothing. kopf adds no annotation and no finalizer to objects that have only event handlers. It
  would even remove its own finalizer from them, so the operator's finalizer must have another name.
- kopf lists again when it can't continue a watch. It passes the listed objects on, but doesn't report which
  ones are gone, and nothing at all of an empty list. So the informer reports each list (`on_list`).
- It ends at the first response of the API server that kopf can't handle. The caller then starts a new one.
- If a watch fails, kopf tries again for ever and reports nothing. So the informer follows kopf's requests
  itself, and says which watches are down (`down`).
"""

import asyncio
import json
import logging
import threading
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import kopf

from holdfast_operator.api.names import GROUP, VERSION, Kind
from holdfast_operator.engine.kube import ObjectKey, configuration, resource_type
from holdfast_operator.engine.lists import CHUNK, PAGE, ListReader, lines, own, packed, parsed, unpacked
from holdfast_operator.engine.watches import SILENCE_SECONDS, Watches

Json = dict[str, Any]
OnEvent = Callable[[ObjectKey, str | None, Json], None]
"""Called with the object, the type (ADDED, MODIFIED, DELETED, or None if it was listed), and the body."""

log = logging.getLogger(__name__)

_JOIN_SECONDS: Final = 8.0
_END_SECONDS: Final = 4.0
"""The time that kopf's tasks have to end. Its watches end their own tasks within 2 s."""
_CLEAR_SECONDS: Final = 2.0
"""The time that the tasks have that are left then, before the thread ends without them."""
_REQUEST_SECONDS: Final = 60.0
"""The time limit of a request. It is long for lists of many objects. A watch has only a limit on silence."""
_CONNECT_SECONDS: Final = 10.0
_READ_BY_KOPF: Final = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_PACKED: Final = "packed"
_LISTEN_SECONDS: Final = 1.0
_LEFT_SECONDS: Final = 10.0
"""For how long a watch that is known to be dead stays open."""


class Informer:
    """Watches Holdfast's kinds, from `start` to `stop`."""

    def __init__(
        self,
        *,
        namespaces: Sequence[str],
        on_event: OnEvent,
        on_list: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Prepares the watches. `start`'s event loop calls `on_event`, `on_list` and `on_end`."""
        self._namespaces = list(namespaces)
        self._on_event = on_event
        self._on_list = on_list
        self._on_end = on_end
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._over = threading.Event()
        self._registry = self._register()
        self._thread = threading.Thread(target=self._run, name="informer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: Collection[asyncio.Task[Any]] = ()
        """The tasks that `_operate` has started and that have not ended with it."""
        self._watches = Watches(())
        self._access: tuple[kopf.ConnectionInfo, kopf.AiohttpSession] | None = None
        """The last access, and what it was made with."""

    @property
    def running(self) -> bool:
        """Whether it watches."""
        return self._started.is_set() and not self._over.is_set()

    def down(self) -> list[str]:
        """Returns the paths of the watches that don't work, as far as is known yet."""
        return self._watches.down()

    def start(self, kinds: Collection[Kind]) -> None:
        """Starts the watches. `kinds` are those that have a CRD."""
        self._loop = asyncio.get_running_loop()
        namespaces = self._namespaces or (None,)
        self._watches = Watches(resource_type(kind).path(where) for kind in kinds for where in namespaces)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the watches."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        error: BaseException | None = None
        try:
            error = loop.run_until_complete(self._operate())
        except Exception as caught:  # noqa: BLE001 - whatever it is, the watches are over
            error = caught
        self._over.set()
        if not self._stopping.is_set():
            self._tell(self._on_end, error)
        _clear(loop, self._left)

    async def _operate(self) -> BaseException | None:
        """Watches until the first of kopf's tasks ends, and returns the error of that task, if any.

        kopf's own runner would then wait for the other tasks, and some of them wait for ever for a connection
        that the first one closed.
        """
        spawned = await kopf.spawn_tasks(
            registry=self._registry,
            settings=_settings(scan=not self._namespaces),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stopping,
            ready_flag=self._started,
        )
        tasks = [*spawned, asyncio.create_task(self._listen())]
        done, self._left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next((error for each in done if not each.cancelled() and (error := each.exception())), None)

    async def _listen(self) -> None:
        while True:
            self._watches.listen()
            await asyncio.sleep(_LISTEN_SECONDS)

    def _register(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(self._login)
        for kind in Kind:
            where = (GROUP, VERSION, kind.plural)
            kopf.on.event(*where, registry=registry, id="seen")(self._seen(kind))
        return registry

    def _seen(self, kind: Kind) -> Any:
        async def seen(event: Any, body: kopf.Body, **_: Any) -> None:
            self._tell(self._take, _key(kind, body), event["type"], dict(event["object"]))

        return seen

    def _take(self, key: ObjectKey, type_: str | None, body: Json) -> None:
        """Passes an object on, in the event loop of `start`."""
        self._on_event(key, type_, unpacked(b64decode(body[_PACKED])))

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """Returns the same access as `Kube` has. kopf calls it again when a token is refused."""
        found = configuration()
        scheme, _space, token = (found.get_api_key_with_prefix("BearerToken") or "").rpartition(" ")
        info = kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            username=found.username or None,
            password=found.password or None,
            scheme=scheme or None,
            token=token or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
        )
        if self._access is not None and self._access[0] == info:
            # The API server has refused it. kopf recognizes that, and ends instead of asking for ever.
            return self._access[1]
        root = urlsplit(found.host).path.rstrip("/")
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            trace_configs=[self._trace(root)],
            response_class=self._response(root),
        )
        access = kopf.AiohttpSession(server=found.host, aiohttp_session=session)
        self._access = (info, access)
        return access

    def _trace(self, root: str) -> aiohttp.TraceConfig:
        """Reports the requests of a session to `Watches`. `root` is the path of the server's URL."""
        watches, trace = self._watches, aiohttp.TraceConfig()

        async def ask(_session: Any, _context: Any, sent: aiohttp.TraceRequestStartParams) -> None:
            watches.ask(sent.url.path.removeprefix(root))

        async def answer(_session: Any, _context: Any, sent: aiohttp.TraceRequestEndParams) -> None:
            path = sent.url.path.removeprefix(root)
            content = sent.response.content
            size = (lambda: content.total_bytes) if "watch" in sent.url.query else None
            watches.answer(path, sent.response.status, size)

        async def fail(_session: Any, _context: Any, sent: aiohttp.TraceRequestExceptionParams) -> None:
            watches.fail(sent.url.path.removeprefix(root))

        trace.on_request_start.append(ask)
        trace.on_request_end.append(answer)
        trace.on_request_exception.append(fail)
        return trace

    def _response(self, root: str) -> type[aiohttp.ClientResponse]:
        """Returns a class of responses that packs objects, and reports lists to `Watches`.

        kopf would parse a whole page, and keep events for a while. It ends at an object that is nested too
        deep. So it gets only the metadata that it needs, and passes on the rest as it is.
        """
        informer = self

        class Response(aiohttp.ClientResponse):
            async def start(self, connection: Any) -> aiohttp.ClientResponse:
                await super().start(connection)
                if self.status == 200 and "watch" in self.url.query:
                    self.content = _Events(self.content)  # type: ignore[assignment]
                return self

            async def json(self, **_: Any) -> Any:
                path = self.url.path.removeprefix(root)
                reader = ListReader(_wrapped if path.startswith(f"/apis/{GROUP}/") else dict)
                async for chunk in self.content.iter_chunked(CHUNK):
                    reader.feed(chunk)
                found = reader.close()
                if informer._watches.complete(path):
                    informer._tell(informer._on_list)
                return found

        return Response

    def _tell(self, listener: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(listener, *args)
        except RuntimeError:
            # The loop is closed, because the operator has ended.
            log.debug("an event came after the end of the operator")


class _NoDiffs(kopf.DiffBaseStorage):
    """Compares nothing. Only other kinds of handlers see differences, and copies cost most of an event."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Stores nothing."""


def _clear(loop: asyncio.AbstractEventLoop, first: Collection[asyncio.Task[Any]]) -> None:
    """Cancels the remaining tasks of a loop and closes it. Leaves tasks that ignore the cancellation.

    The tasks in `first` end the tasks that they have started. If all were cancelled at once, a watch would
    wait for ever for its task that cleans up.
    """
    loop.set_exception_handler(_after_the_end)
    _cancel(loop, first, _END_SECONDS)
    _cancel(loop, asyncio.all_tasks(loop), _CLEAR_SECONDS)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=seconds))


def _after_the_end(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs what kopf leaves open. It is never a reason to act, because the watches have ended."""
    log.debug("after the end of the watches: %s", context["message"])


def _wrapped(body: Json) -> Json:
    """Returns an object as kopf gets it: with the metadata that kopf reads, and everything in a text."""
    metadata = {name: body["metadata"][name] for name in _READ_BY_KOPF if name in body["metadata"]}
    kind: Json = {name: body[name] for name in ("apiVersion", "kind") if name in body}
    return {**kind, "metadata": metadata, _PACKED: b64encode(packed(own(body))).decode()}


class _Events:
    """The content of a watch: each event with its object as `_wrapped` returns it."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    @property
    def total_bytes(self) -> int:
        return self._content.total_bytes

    def exception(self) -> BaseException | None:
        return self._content.exception()

    def set_exception(self, *causes: Any) -> None:
        self._content.set_exception(*causes)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for line in lines(self._content, size):
            event = parsed(line.decode())
            if event["object"].get("metadata", {}).get("name"):
                event["object"] = _wrapped(event["object"])
            yield json.dumps(event).encode() + b"\n"


def _key(kind: Kind, body: kopf.Body) -> ObjectKey:
    return ObjectKey(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def _settings(*, scan: bool) -> kopf.OperatorSettings:
    """Returns kopf's settings. `scan` watches namespaces and CRDs, which needs a cluster-wide role.

    Without such a role, kopf would retry for a minute before it watches anything.
    """
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.scanning.disabled = not scan
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None
    settings.watching.chunk_size = PAGE
    settings.watching.inactivity_timeout = SILENCE_SECONDS + _LEFT_SECONDS
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _CONNECT_SECONDS
    return settings
