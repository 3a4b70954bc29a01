"""`holdfast console`: a read-only web page about locations, on this host."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import re
import signal
import socket
import sys
import webbrowser
from typing import TYPE_CHECKING

import click

from holdfast.cli.location import (
    CONSENSUS_VARIABLE,
    URL_VARIABLES,
    complete_names,
)
from holdfast.cli.progress import note, quiet_option
from holdfast.errors import BadInput, StoreUnreachable
from holdfast.extras import needs

if TYPE_CHECKING:
    from holdfast.console.places import ShownPlaces
    from holdfast.console.server import Console

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})  # noqa: S104 - nothing listens there because of this


@click.command(short_help="Show collections, catalogs and shards in a browser.")
@click.argument(
    "urls",
    metavar="[URL]...",
    nargs=-1,
    shell_complete=complete_names,
)
@click.option(
    "--consensus",
    metavar="URL",
    envvar=CONSENSUS_VARIABLE,
    show_envvar=True,
    help="The consensus store, if the only URL names only a blob store.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="A name or address under which others reach the console. Requests for other names than this, --host "
    "and localhost are refused. Can be repeated.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="The port to listen on. Default: any free port.",
)
@click.option("--no-browser", is_flag=True, help="Open no browser. Only print the address.")
@quiet_option
def console(
    urls: tuple[str, ...],
    consensus: str | None,
    host: str,
    host_names: tuple[str, ...],
    port: int,
    no_browser: bool,
) -> None:
    """Show one or more locations in a browser, until Ctrl-C.

    \b
    holdfast console /data/shop
    holdfast console s3://bucket/prefix @prod --port 8080 --no-browser

    The console opens the locations for reading only, and writes nothing. Without --host, only this host can
    reach it. The address that it prints has a random token. It lets everybody read all rows of the locations,
    so don't share it.
    """  # noqa: D301 - the escape is for the formatter of the help
    urls = urls or tuple([os.environ[each] for each in URL_VARIABLES if os.environ.get(each)][:1])
    if not urls:
        raise BadInput(
            "URL is missing: it names the location", hint="give a folder, a URL or @NAME, or set HOLDFAST_URL"
        )
    if consensus is not None and len(urls) > 1:
        raise BadInput(
            "--consensus belongs to one location, and several were given",
            hint="name the others in the configuration file, and give @NAME",
        )
    names = [_host_name(each) for each in host_names]
    with needs("console", "holdfast console"):
        import aiohttp
        import jinja2  # noqa: F401 - what the pages are made with
    assert aiohttp is not None
    from holdfast.console.access import LocalAccess
    from holdfast.console.context import LOOPBACK
    from holdfast.console.places import ShownPlaces
    from holdfast.console.server import Console

    places = ShownPlaces.named(urls, consensus)
    try:
        _open(places)
        access = LocalAccess()
        with contextlib.closing(_listen(host, port)) as listening:
            shown = Console(places, access, hosts=LOOPBACK | {host.lower(), *names})
            # No browser of another host can open an address that stands for all of them.
            reached = names[0] if names and host in _ALL_ADDRESSES else host
            address = _address(reached, listening.getsockname()[1])
            note(f"The console of {', '.join(each.url for each in places)} is at")
            click.echo(f"{address}/?token={access.token}")
            note("Ctrl-C ends it.")
            if not no_browser:
                webbrowser.open(f"{address}/?token={access.once()}")
            asyncio.run(_serve(shown, listening))
    finally:
        places.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Otherwise the interpreter would wait for threads whose stores don't respond.
    os._exit(0)


def _host_name(given: str) -> str:
    """A name or an address as browsers send it. Raises `BadInput` for anything else."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.IPv6Address(given))
    if _NAME.fullmatch(given) is None:
        raise BadInput(
            f"--host-name: {given!r} is neither a name nor an address",
            hint="give it without a scheme or port",
        )
    return given.lower()


def _open(places: "ShownPlaces") -> None:
    """Open the locations. One of several that can't be opened is an error on the page.

    Raises `BadInput` for a wrong URL, and the first error if no location can be opened.
    """
    failed: list[StoreUnreachable] = []
    for place in places:
        try:
            _ = place.client
        except StoreUnreachable as error:
            if isinstance(error, BadInput):
                raise
            failed.append(error)
            if len(failed) == len(places):
                raise failed[0] from None
            note(f"can't open {place.url}: {error}")


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        is_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        # Python adds the address to the text of the system.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise StoreUnreachable(
            f"can't listen on {host} port {port}: {why}",
            hint="choose another --port" if is_port else "give --host an address of this machine",
        ) from error


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(console: "Console", listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    from aiohttp import web

    from holdfast.console.server import application
    from holdfast.console.serving import ConsoleRunner

    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    runner = ConsoleRunner(application(console), shutdown_s=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await ended.wait()
    finally:
        await runner.cleanup()
