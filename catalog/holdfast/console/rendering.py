"""Makes pages of templates. Everything that a template shows is escaped.

A text that a template shows has no secret of a location: neither a password nor a key. What must stay as it
is has the filter `as_is`: cells, names, addresses, and what the viewer typed. A name that has a word in
common with a password is still the name.

The filters are the one place that decides how numbers, sizes and times look.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.filters import do_urlencode
from markupsafe import Markup, escape

from holdfast.collections.complete_times import LEAST_MS
from holdfast.console.context import CONSOLE, VIEWER, Console, console_of, visible_places
from holdfast.console.places import ShownPlace, secrets_of_all
from holdfast.errors import CLOSED
from holdfast.text import age, shown_time, without_passwords

THIN: Final = "\N{NARROW NO-BREAK SPACE}"
DASH: Final = "\N{EM DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HIDDEN: ContextVar[frozenset[str]] = ContextVar("hidden", default=frozenset())
"""The secrets of the locations that a page may be about, while it is made.

Those of no other location: a page on which `***` stands for a guessed word would confirm the guess.
"""
_LEAST_PART: Final = 4
"""A text that was cut may end with a part of a secret. So many characters are one."""
_STATIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load. `version` changes with its contents."""

    body: bytes
    content_type: str
    version: str


class Pages:
    """The templates and assets of a console."""

    def __init__(self, console: Console) -> None:
        self._places = console.places
        self.assets = _assets()
        self._environment = Environment(
            loader=PackageLoader("holdfast.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalize,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(
            asset=self.asset, collection_path=lambda *parts: escape(collection_path(*parts))
        )

    def render(self, template: str, context: Mapping[str, Any]) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(context)

    def asset(self, name: str) -> str:
        """The address of an asset, or an empty text if there is none of this name."""
        found = self.assets.get(name)
        return "" if found is None else f"/static/{name}?v={found.version}"

    def without_secrets(self, text: str) -> str:
        """`text` without the secrets of all locations, for a log."""
        return masked(text, self._places.secrets)


def masked(text: str, secrets: Iterable[str]) -> str:
    """`text` without these secrets, without the beginning of one where it was cut, and without passwords
    in URLs.
    """
    text = without_passwords(text)
    for each in sorted(secrets, key=len, reverse=True):
        text = text.replace(each, "***")
        if text.endswith("…"):
            for length in range(min(len(each), len(text)) - 1, _LEAST_PART - 1, -1):
                if text.endswith(f"{each[:length]}…"):
                    text = f"{text[: -length - 1]}***…"
                    break
    return text


def secrets_of_page(request: web.Request) -> frozenset[str]:
    """What the page that answers a request may not show."""
    return secrets_of_all(visible_places(request))


def _masked(value: object) -> str:
    return masked(str(value), _HIDDEN.get())


def _finalize(value: Any) -> Any:
    """What is shown for the value of an expression. Jinja escapes it afterwards unless it is markup."""
    if isinstance(value, Markup) or not isinstance(value, str | Exception):
        return value
    return _masked(value)


PAGES: Final = web.AppKey("pages", Pages)


def page(request: web.Request, template: str, *, status: int = 200, **context: Any) -> web.Response:
    """Return a page made of a template.

    Every template has `request_path`, `locations` (those that the viewer may see), `viewer` and `section`,
    which the navigation marks. A page of one location passes `place`, or its name as `shown_place` if the
    location may be unreadable.
    """
    console = request.app[CONSOLE]
    known = {
        "locations": visible_places(request),
        "viewer": request.get(VIEWER),
        "logout": console.access.logout(request),
        "place": None,
        "shown_place": "",
        "section": "",
        "crumbs": (),
        "request_path": request.path,
        "live": "",
    }
    hidden = _HIDDEN.set(secrets_of_page(request))
    try:
        text = request.app[PAGES].render(template, {**known, **context})
    finally:
        _HIDDEN.reset(hidden)
    if len(text) > console.limits.page_bytes:
        return page(
            request,
            "error.html",
            status=413,
            title="This page is too large",
            what=f"The page has {len(text)} characters.",
            hint="Ask for less: fewer rows, fewer columns or a filter.",
        )
    return web.Response(text=text, content_type="text/html", status=status)


def is_live(request: web.Request) -> bool:
    """Whether a page reads itself again because of a change, so that the look of the last tick will do."""
    return request.headers.get("X-Console-Live") == "1"


def freshness_s(request: web.Request) -> float:
    """How old the look that answers a request may be, in seconds."""
    return console_of(request).limits.tick_s if is_live(request) else 0.0


def crumbs_to(place: ShownPlace) -> tuple[tuple[str, str], ...]:
    """The links above a page of a location: their texts and paths."""
    return ("Overview", "/"), (place.name, f"/?location={quote(place.name)}")


def collection_path(place: str, name: str, *more: str) -> str:
    """The address of a collection, or of a view of it."""
    return "/".join(["/locations", quote(place, safe=""), "collections", quote(name, safe=""), *more])


def number(value: float | None) -> str:
    """A number with thin separators. A dash for None."""
    if value is None:
        return DASH
    return f"{value:,}".replace(",", THIN)


def size(value: float | None) -> str:
    """A number of bytes, in a unit that fits. A dash for None."""
    if value is None:
        return DASH
    power = 0
    amount = float(value)
    while amount >= 1024 and power < len(_UNITS) - 1:
        amount, power = amount / 1024, power + 1
    digits = 0 if power == 0 or amount >= 100 else 1
    return f"{amount:.{digits}f}{THIN}{_UNITS[power]}"


def duration(ms: float | None) -> str:
    """A length of time, in a unit that fits. A dash for None."""
    if ms is None:
        return DASH
    if 0 <= ms < 1000:
        return f"{ms:.0f}{THIN}ms"
    return age(ms / 1000).replace(" ", THIN)


def iso(ms: int) -> str:
    """A time as ISO 8601 in UTC. The number itself if it is no date."""
    return shown_time(ms).replace("+00:00", "Z")


def utc(ms: int) -> str:
    """A time in UTC for people, to the second. The number itself if it is no date."""
    day, mark, time = shown_time(ms).partition("T")
    return f"{day} {time[:8]} UTC" if mark else day


def is_wall(ms: int | None) -> bool:
    """Whether a time of a collection is a wall time, and not a counter or closed."""
    return ms is not None and LEAST_MS < ms < CLOSED


def ago(ms: int, now_ms: int) -> str:
    """How long ago a time is, or how far ahead."""
    distance = now_ms - ms
    if -1000 < distance < 1000:
        return "now"
    shown = duration(abs(distance) // 1000 * 1000)
    return f"{shown} ago" if distance > 0 else f"in {shown}"


def plural(value: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number(value)} {one if value == 1 else many or f'{one}s'}"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "size": size,
    "duration": duration,
    "iso": iso,
    "utc": utc,
    "is_wall": is_wall,
    "ago": ago,
    "plural": plural,
    "as_is": escape,
    "masked": _masked,
    "path_part": lambda text: escape(quote(str(text), safe="")),
    "urlencode": lambda text: escape(do_urlencode(text)),
}


def _assets() -> dict[str, Asset]:
    """The files in `static`, by their names."""
    found: dict[str, Asset] = {}
    static = files("holdfast.console").joinpath("static")
    for file in static.iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if _STATIC.fullmatch(file.name) and suffix in _TYPES:
            body = file.read_bytes()
            found[file.name] = Asset(body, _TYPES[suffix], hashlib.sha256(body).hexdigest()[:12])
    return found
