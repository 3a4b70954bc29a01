"""The HTTP endpoint of the operator: `/healthz`, `/readyz` and `/metrics`.

Invariants
- Healthy means that the queue makes progress, not only that the process responds.
- The endpoint runs on the event loop of the queue. So if the loop hangs, the probe fails too.
"""

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from holdfast_operator.engine.metrics import Metrics

Check = Callable[[], str]
"""Returns the problem, or empty if there is none."""


class Server:
    """Serves the three paths from `start` to `stop`."""

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
        """Starts to listen, and returns the port. Port 0 chooses a free port. Raises `OSError`."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stops listening."""
        await self._runner.cleanup()

    async def _scrape(self, _: web.Request) -> web.Response:
        self._refresh()
        # For thousands of objects, this takes a tenth of a second.
        body = await asyncio.to_thread(generate_latest, self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _answer(check: Check) -> web.Response:
    wrong = check()
    return web.Response(text=(wrong or "ok") + "\n", status=503 if wrong else 200)
