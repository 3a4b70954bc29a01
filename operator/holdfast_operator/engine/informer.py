"""kopf, as the informer; it decides nothing and stores nothing on objects.

Invariants
- It runs in a thread and an event loop of its own, because at its end every task of its loop is cancelled.
- An event is only told on; what is done about it is the queue's business.
- It writes nothing: whatever has no handlers but of events gets no annotation from kopf and no finalizer. It
  would also take its own finalizer off then, so ours must have another name than that of kopf's settings.
- It ends with the first answer of the API server that kopf has no answer to: whoever started it starts
  another one.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import kopf

from holdfast_operator.api.names import GROUP, LABEL_MANAGED_BY, MANAGED_BY, VERSION, Kind
from holdfast_operator.engine.kube import ObjectKey, ResourceType, configuration

Json = dict[str, Any]
OnEvent = Callable[[ObjectKey, str | None, Json], None]
"""Told the object, ADDED, MODIFIED, DELETED or None for one that was there before, and the body."""
OnLook = Callable[[ObjectKey], None]
"""Told an object that is to be looked at though it is as before: a child of it changed."""

log = logging.getLogger(__name__)

_JOIN_SECONDS: Final = 8.0
_CLEAR_SECONDS: Final = 5.0
_REQUEST_SECONDS: Final = 60.0
"""A list of many objects may take long; a watch has no such limit, but one for how long it may be silent."""
_CONNECT_SECONDS: Final = 10.0


class Informer:
    """Watches our kinds and their children, from `start` to `stop`."""

    def __init__(
        self,
        *,
        namespaces: Sequence[str],
        children: Sequence[ResourceType],
        on_event: OnEvent,
        on_look: OnLook,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """`on_event`, `on_look` and `on_end` are called in the loop that `start` is called in."""
        self._namespaces = list(namespaces)
        self._on_event = on_event
        self._on_look = on_look
        self._on_end = on_end
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._over = threading.Event()
        self._registry = self._register(children)
        self._thread = threading.Thread(target=self._run, name="informer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether it watches."""
        return self._started.is_set() and not self._over.is_set()

    def start(self) -> None:
        """Begin to watch."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the watches."""
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
        _clear(loop)

    async def _operate(self) -> BaseException | None:
        """Watch until the first of kopf's tasks ends; what it failed with.

        kopf's own runner then waits for the others, some of which wait for ever for a connection that the
        first one closed.
        """
        tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=_settings(scan=not self._namespaces),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stopping,
            ready_flag=self._started,
        )
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next((error for each in done if not each.cancelled() and (error := each.exception())), None)

    def _register(self, children: Sequence[ResourceType]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(_login)
        for kind in Kind:
            where = (GROUP, VERSION, kind.plural)
            kopf.on.event(*where, registry=registry, id="seen")(self._seen(kind))
        for child in children:
            kopf.on.event(
                child.group,
                child.version,
                child.plural,
                registry=registry,
                id="child",
                labels={LABEL_MANAGED_BY: MANAGED_BY},
            )(self._child_seen)
        return registry

    def _seen(self, kind: Kind) -> Any:
        async def seen(event: Any, body: kopf.Body, **_: Any) -> None:
            self._tell(self._on_event, _key(kind, body), event["type"], dict(event["object"]))

        return seen

    async def _child_seen(self, body: kopf.Body, **_: Any) -> None:
        for owner in body["metadata"].get("ownerReferences", []):
            if owner.get("apiVersion") == f"{GROUP}/{VERSION}" and owner.get("kind") in set(Kind):
                key = ObjectKey(Kind(owner["kind"]), body["metadata"]["namespace"], owner["name"])
                self._tell(self._on_look, key)

    def _tell(self, listener: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(listener, *args)
        except RuntimeError:
            # The loop is closed: the operator has ended and waits for nobody.
            log.debug("nobody listens any more")


def _clear(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left in a loop, and close it; what doesn't let itself be cancelled is left."""
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=_CLEAR_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _key(kind: Kind, body: kopf.Body) -> ObjectKey:
    return ObjectKey(kind, body["metadata"]["namespace"], body["metadata"]["name"])


def _login(**_: Any) -> kopf.ConnectionInfo:
    """The same access as `Kube` has; asked for again when a token is refused."""
    found = configuration()
    scheme, _space, token = (found.get_api_key_with_prefix("BearerToken") or "").rpartition(" ")
    return kopf.ConnectionInfo(
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


def _settings(*, scan: bool) -> kopf.OperatorSettings:
    """`scan`: whether namespaces and CRDs are watched, which takes a role in the whole cluster.

    Without one kopf would ask in vain for a minute before it watches anything.
    """
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = not scan
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None
    settings.networking.request_timeout = _REQUEST_SECONDS
    settings.networking.connect_timeout = _CONNECT_SECONDS
    return settings
