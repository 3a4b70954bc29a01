"""Opens a page in Chromium as a person does, and reports what a person would object to."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import BrowserContext, Page, Request

VENDOR: Final = Path(__file__).parent / "vendor"
SCREENSHOTS: Final = Path(__file__).parents[2] / "screenshots"
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
PATIENCE_MS: Final = 10_000
_WIDTHS: Final = """() => ({page: document.documentElement.scrollWidth,
                        window: document.documentElement.clientWidth})"""
_OVERFLOWING: Final = """() => [...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1
                    && !each.closest("[data-scrolls], .scroll"))
  .slice(0, 5)
  .map((each) => each.outerHTML.slice(0, 120))"""
_CUT: Final = """() => [...document.querySelectorAll(".cards td, .cards th, .tile dt, .tile dd, .facts dd")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .slice(0, 5)
  .map((each) => each.outerHTML.slice(0, 200))"""
_VIOLATIONS: Final = """async (rules) => (await axe.run(document, {
    resultTypes: ["violations"],
    ...(rules ? {runOnly: {type: "rule", values: rules}} : {}),
  })).violations.map(
  (each) => `${each.id}: ${each.help}: ${each.nodes.slice(0, 4).map(
    (node) => node.html.slice(0, 160) + " | " + (node.any[0]?.message ?? node.failureSummary)
  ).join("; ")}`)"""


class Look:
    """One tab, which loads from the console only. Whatever it logs, and asks of others, is kept."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.origin = origin
        self.messages: list[str] = []
        self.foreign: list[str] = []
        self._refused = 0
        context.add_init_script(path=VENDOR / "axe.min.js")
        context.route(lambda url: not self._is_own(url), lambda route: route.abort())
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"uncaught: {error}"))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._asked)

    def open(self, path: str, *, status: int = 200, live: bool = True) -> Page:
        """Go to a page of the console, and check the status of the response.

        A page that follows changes is replaced when its stream opens. With `live`, this waits for that.
        """
        response = self.page.goto(self.origin + path)
        assert response is not None
        assert response.status == status, (path, response.status, self.page.inner_text("body")[:500])
        # Chromium logs each page that comes with an error.
        self._refused = status if status >= 400 else 0
        if live and self.page.locator("body[data-follow]").count():
            self.page.locator("#live:not([hidden])", has_text="Live").wait_for(state="attached")
        return self.page

    def check(self, name: str) -> None:
        """Check the present page in light, in dark and on a phone, and keep a screenshot of each."""
        page = self.page
        SCREENSHOTS.mkdir(exist_ok=True)
        found: list[str] = []
        # In dark only the colours differ.
        for scheme, rules in (("light", None), ("dark", ["color-contrast"])):
            page.emulate_media(color_scheme=scheme)
            found += [f"{scheme}: {each}" for each in page.evaluate(_VIOLATIONS, rules)]
            self._keep(f"{name}-{scheme}")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        self._keep(f"{name}-phone")
        found += [f"phone, too wide: {each}" for each in self.overflowing()]
        found += [f"phone, over its neighbour: {each}" for each in page.evaluate(_CUT)]
        page.set_viewport_size(DESKTOP)
        found += [f"desktop, too wide: {each}" for each in self.overflowing()]
        assert not found, "\n".join(found)
        self.check_clean()

    def check_clean(self) -> None:
        """Check that the page logged nothing, ran no script of others, and asked only the console."""
        known = f"error: Failed to load resource: the server responded with a status of {self._refused}"
        found = [each for each in self.messages if not self._refused or not each.startswith(known)]
        found += [f"asked {each}" for each in self.foreign]
        if self.page.title() == "owned":
            found.append("a script of others ran: owned")
        assert not found, "\n".join(found)

    def overflowing(self) -> list[str]:
        """What makes the page wider than the window."""
        widths: Mapping[str, int] = self.page.evaluate(_WIDTHS)
        if widths["page"] <= widths["window"]:
            return []
        wide: list[Any] = self.page.evaluate(_OVERFLOWING)
        return [f"{widths['page']} px instead of {widths['window']} px", *wide]

    def _keep(self, name: str) -> None:
        # A page may be long, and a picture of all of it is no help then.
        self.page.screenshot(
            path=SCREENSHOTS / f"{name}.png", full_page=True, animations="disabled", caret="hide"
        )

    def _asked(self, request: Request) -> None:
        if not self._is_own(request.url):
            self.foreign.append(request.url)

    def _is_own(self, url: str) -> bool:
        return url == self.origin or url.startswith(f"{self.origin}/") or bool(re.match("data:|blob:", url))
