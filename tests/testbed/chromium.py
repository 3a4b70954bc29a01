"""A real Chromium without a window, which tests drive with Playwright.

Invariants
- The browser is the machine's. Playwright downloads none.
- It reaches loopback only, because it resolves no name. It has no profile of before: each start makes a new
  one, and removes it at the end.
- It ends with `stop`, or with this process.
- Playwright runs an event loop in this thread until `stop`. Until then, nothing else can run one here.
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from testbed import debian
from testbed.errors import Unavailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

NAMES: Final = ("chromium-headless-shell", "chromium", "google-chrome")
"""The programs that can be the browser, the best first."""
_FONTS: Final = Path("/usr/share/fonts/opentype/inter")
_PACKAGES: Final = ("chromium-headless-shell", "fonts-dejavu-core", "fonts-inter")
_FONT_SETTINGS: Final = Path(__file__).parent / "tools" / "chromium" / "fonts.conf"
_OPTIONS: Final = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find(env: Mapping[str, str] | None = None) -> Path | None:
    """The browser of the machine, or None."""
    path = (os.environ if env is None else env).get("PATH")
    found = next(filter(None, (shutil.which(name, path=path) for name in NAMES)), None)
    return Path(found) if found else None


def missing(env: Mapping[str, str] | None = None) -> str | None:
    """What a browser lacks here and how to get it; None if one can be started."""
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is missing: run make setup"
    if find(env) is None:
        return f"Chromium is missing: install it, such as with apt-get install {NAMES[0]}"
    return None


def impossible(env: Mapping[str, str] | None = None) -> str | None:
    """Why this machine can't have a browser, and what to do about it; None if it can."""
    path = (os.environ if env is None else env).get("PATH")
    can_install = os.geteuid() == 0 and shutil.which("apt-get", path=path) is not None
    return None if can_install else missing(env)


def provide() -> None:
    """Install the browser, and the fonts of screenshots, as root on Debian.

    Raises `Unavailable` where there is no browser then. A machine without these fonts uses its own.
    """
    said = debian.install(_PACKAGES, installed=lambda: find() is not None and _FONTS.exists())
    lack = missing()
    if lack:
        raise Unavailable(f"{lack}; it could not be installed:\n{said}" if said else lack)


class Chromium:
    """A running browser."""

    def __init__(self, playwright: "Playwright", browser: "Browser") -> None:
        """Use `start`."""
        self._playwright = playwright
        self.browser: Final = browser

    @classmethod
    def start(cls) -> Self:
        """Start the browser. Raises `Unavailable` if there is none."""
        lack = missing()
        if lack:
            raise Unavailable(lack)
        from playwright.sync_api import sync_playwright

        playwright = sync_playwright().start()
        try:
            browser = playwright.chromium.launch(
                executable_path=find(),
                # Root can't have the sandbox. The pages are ours.
                chromium_sandbox=False,
                args=list(_OPTIONS),
                env={**os.environ, "FONTCONFIG_FILE": str(_FONT_SETTINGS)},
            )
        except BaseException:
            playwright.stop()
            raise
        return cls(playwright, browser)

    def stop(self) -> None:
        """End the browser, and the event loop of this thread."""
        self.browser.close()
        self._playwright.stop()
