"""`holdfast-operator console`: serves the pages for a cluster until it is stopped.

Invariants
- The process only reads. It takes no Lease, and it neither knows nor disturbs the operator.
- It listens before it knows the resources, and `/readyz` fails until it does. `/healthz` is on a port of
  its own, because a request for the pages must name the console by one of its hosts.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web
from kubernetes.config import ConfigException

from holdfast.console.context import LOOPBACK, Console
from holdfast.console.places import ShownPlaces
from holdfast.console.server import application
from holdfast.console.serving import ConsoleRunner
from holdfast_operator.console.access import ClusterAccess
from holdfast_operator.console.locations import Locations
from holdfast_operator.console.resources import Resources
from holdfast_operator.console.reviews import Reviews
from holdfast_operator.engine import logging as logs
from holdfast_operator.engine.kube import Kube
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.server import Server
from holdfast_operator.places import own_credentials, own_password

log = logging.getLogger(__name__)

Address = tuple[str, int]

_CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ConsoleOptions:
    """The options of the console."""

    listen: Address
    health: Address
    hosts: frozenset[str] = frozenset()
    """Names under which the console is reached, in addition to those of this host."""
    namespaces: tuple[str, ...] = ()
    """The namespaces to show. Empty means all namespaces."""
    data_dir: Path | None = None
    """The operator's volume, for catalogs whose spec names no storage."""
    allowed_locations: tuple[str, ...] = ()
    """URLs below which locations are opened. Empty means anywhere."""
    own_credentials_anywhere: bool = False
    """Whether all namespaces may use the credentials of this process at any location."""


class ClusterConsole:
    """The console of a cluster, from `start` to `stop`."""

    def __init__(self, options: ConsoleOptions, kube: Kube) -> None:
        self._options = options
        self._kube = kube
        self._stop = asyncio.Event()
        self.resources = Resources(kube, options.namespaces)
        self.locations = Locations(
            kube, self.resources, data_dir=options.data_dir, allowed=options.allowed_locations
        )
        self._console = Console(
            places=ShownPlaces(self.locations),
            access=ClusterAccess(Reviews(kube), self.resources),
            cluster=self.resources,
            hosts=LOOPBACK | options.hosts,
        )
        self._health = Server(Metrics(), healthy=lambda: "", ready=self._unready, refresh=lambda: None)
        self._runner = ConsoleRunner(application(self._console))
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0

    async def start(self) -> None:
        """Starts to listen and to follow the cluster. Raises `OSError` if it can't listen."""
        await self._health.start(*self._options.health)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._options.listen).start()
        self.port = int(self._runner.addresses[0][1])
        self._tasks = [
            asyncio.create_task(self.resources.run(self._stop)),
            asyncio.create_task(self.locations.run(self._stop)),
        ]
        log.info("the console is on http://%s:%d", self._options.listen[0], self.port)

    async def stop(self) -> None:
        """Stops. Doesn't wait for calls to stores that run."""
        self._stop.set()
        await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
        await self._runner.cleanup()
        await self._health.stop()
        self.locations.close()
        self._kube.close()

    async def serve(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises `OSError` if it can't listen."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await self.start()
        await stopped.wait()
        log.info("stopping")
        await self.stop()

    def _unready(self) -> str:
        missing = self.resources.unlisted()
        return f"not listed yet: {', '.join(missing)}" if missing else ""


def run(options: ConsoleOptions) -> int:
    """Runs the console. Returns the exit code."""
    try:
        own_credentials.check(
            os.environ,
            namespaces=options.namespaces,
            places=options.allowed_locations,
            permitted=options.own_credentials_anywhere,
        )
        if not options.allowed_locations:
            own_password.keep(os.environ)
        kube = Kube.connect()
    except ValueError as error:
        print(f"holdfast-operator: {error}", file=sys.stderr)
        return 2
    except ConfigException as error:
        print(f"holdfast-operator: no cluster to connect to: {error}", file=sys.stderr)
        print("  hint: set KUBECONFIG, or run it in a pod with a service account", file=sys.stderr)
        return 2

    async def serve() -> None:
        await ClusterConsole(options, kube).serve()

    try:
        asyncio.run(serve())
    except OSError as error:
        print(f"holdfast-operator: the console can't listen: {error}", file=sys.stderr)
        print(
            "  hint: choose other addresses with --listen and --health; port 0 is a free port",
            file=sys.stderr,
        )
        return 2
    sys.stderr.flush()
    # Otherwise the interpreter would wait for threads whose stores don't respond.
    os._exit(0)


def options_of(args: argparse.Namespace) -> ConsoleOptions:
    """Returns the options of a parsed command line."""
    return ConsoleOptions(
        listen=args.listen,
        health=args.health,
        hosts=frozenset(each.lower() for each in args.host_name),
        namespaces=tuple(args.namespace),
        data_dir=args.data_dir,
        allowed_locations=tuple(args.allow_location),
        own_credentials_anywhere=args.own_credentials_anywhere,
    )


def run_from(args: argparse.Namespace) -> int:
    """Runs the console with a parsed command line. Returns the exit code."""
    logs.configure(logs.LogFormat(args.log_format), level=args.log_level)
    return run(options_of(args))
