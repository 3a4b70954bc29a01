"""The HTTP endpoint of the operator: `/healthz`, `/readyz` and `/metrics`.

Invariants
- Healthy means that the queue makes progress, not only that the process answers.
- It runs on the event loop of the queue: where that hangs, the probe fails too.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast_operator.engine.metrics import Metrics

Check = Callable[[], str]
"""Says what is wrong; empty where nothing is."""


class Server:
    """Serves the three paths until `stop`."""

    def __init__(
        self, metrics: Metrics, *, healthy: Check, ready: Check, refresh: Callable[[], None]
    ) -> None:
        self._metrics = metrics
        self._refresh = refresh
        application = web.Application()
        application.router.add_get("/healthz", lambda _: _answer(healthy))
        application.router.add_get("/readyz", lambda _: _answer(ready))
        application.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is a free one where 0 was asked for. Raises `OSError`."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Listen no more."""
        await self._runner.cleanup()

    async def _scrape(self, _: web.Request) -> web.Response:
        self._refresh()
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _answer(check: Check) -> web.Response:
    wrong = check()
    return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)
