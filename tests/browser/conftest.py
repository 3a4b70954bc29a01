"""The console as people run it: a process of its own on a location with data, and a tab that shows it."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import shop
from testbed.process import Child

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from browser.looking import Look

_BOOT_SECONDS = 60.0
_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/\?token=\S+")


@dataclass(frozen=True)
class RunningConsole:
    """A console that responds."""

    origin: str
    address: str
    """What the command printed: it has the token."""
    child: Child


@contextmanager
def console_of(folder: Path, *arguments: str) -> Iterator[RunningConsole]:
    """Run `holdfast console` until the end of the block."""
    program = "from holdfast.cli.program import run; run()"
    command = [sys.executable, "-c", program, "console", *arguments, "--port", "0", "--no-browser"]
    child = Child("console", command, log=folder / "console.log", env=dict(os.environ), cwd=folder)
    try:
        deadline = time.monotonic() + _BOOT_SECONDS
        while (found := _ADDRESS.search(child.tail(100))) is None:
            assert child.poll() is None, child.tail(100)
            assert time.monotonic() < deadline, child.tail(100)
            time.sleep(0.05)
        yield RunningConsole(found[1], found[0], child)
    finally:
        child.stop()


@pytest.fixture(scope="session")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the shop in files and SQLite, in `shop`."""
    folder = tmp_path_factory.mktemp("browser")
    shop.build(f"file://{folder}/shop", folder=folder / "clicks")
    return folder


@pytest.fixture(scope="session")
def console(shop_folder: Path) -> Iterator[RunningConsole]:
    """A console on the shop."""
    with console_of(shop_folder, f"file://{shop_folder}/shop") as running:
        yield running


@pytest.fixture
def looks(chromium: "Browser") -> Iterator[Callable[[RunningConsole], "Look"]]:
    """Returns a new tab of somebody who has opened the address that a console printed."""
    from browser.looking import DESKTOP, Look

    contexts = []

    def opened(console: RunningConsole) -> "Look":
        context = chromium.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
        contexts.append(context)
        look = Look(context, console.origin)
        # The cookie is enough: each test opens the page that it is about.
        assert context.request.get(console.address).ok
        return look

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def look(console: RunningConsole, looks: Callable[[RunningConsole], "Look"]) -> "Look":
    """A tab that shows the console on the shop."""
    return looks(console)
