"""A real registry of images and charts for tests, on loopback. It keeps everything in memory."""

import contextlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testbed import build
from testbed.errors import Unavailable
from testbed.postgres import free_port
from testbed.process import Child

_LOOPBACK: Final = "127.0.0.1"
_BOOT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Serve a registry, and yield its address (host and port). It ends with the context.

    `build.CRANE` must be built. Raises `Unavailable` if it doesn't respond.
    """
    address = f"{_LOOPBACK}:{free_port(_LOOPBACK)}"
    with tempfile.TemporaryDirectory(prefix="holdfast-registry-") as home:
        command: list[str | Path] = [build.CRANE.path, "registry", "serve", "--address", address]
        server = Child("registry", command, log=Path(home) / "log")
        try:
            _wait(server, address)
            yield address
        finally:
            server.kill()


def _wait(server: Child, address: str) -> None:
    end = time.monotonic() + _BOOT_SECONDS
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
            return
        time.sleep(_POLL_SECONDS)
    raise Unavailable(f"the registry at {address} does not respond:\n{server.tail(5)}")


def crane(*arguments: str | Path) -> str:
    """Run one command of the registry's client, and return what it prints."""
    return subprocess.run(
        [build.CRANE.path, *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout
