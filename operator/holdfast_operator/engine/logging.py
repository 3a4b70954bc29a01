"""Structured logs: JSON or plain lines, each naming the object that it is about, none with a secret.

Invariants
- The object of a line is that of the task that wrote it, also from the threads that work for the task.
- A value that was registered with `hide` is in no text about an object of its namespace, whatever it is part
  of, nor in one about no object. Texts about other namespaces stay as they are: whoever may make a Secret
  chooses its values.
- The user info of a URL, and the value of a parameter whose name says that it is a secret, are in no text.
- No text is longer than `_LONGEST`, whatever a store said.
- What is hidden is forgotten with the object that it was read for; each has only the latest, and a namespace
  no more than `_MOST_HIDDEN`.
"""

import contextlib
import json
import logging
import re
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, assert_never

from holdfast_operator.api.urls import SHORT, TELLING

_about: ContextVar[str] = ContextVar("about", default="")
_namespace: ContextVar[str | None] = ContextVar("namespace", default=None)
_hidden_lock = threading.Lock()

_MASK: Final = "***"
_SHORTEST: Final = 4
"""Shorter values aren't masked: they would mask half of every line and protect nothing."""
_SOURCES: Final = 8
"""So many of the latest versions of an object's Secrets are hidden; it names three Secrets at most."""
_MOST_HIDDEN: Final = 4 << 20
"""So many characters are hidden for a namespace: of more the ones that were read latest."""
_LONGEST: Final = 16 * 1024
"""So many characters are looked at: it takes the square of their number where a text is made for it."""
_USERINFO: Final = re.compile(r"(?<=://)[^\s\"'<>]+(?=@|%40)")
"""Up to the last @: a password that should have been escaped may hold anything, rather mask too much."""
_PARAMETER: Final = re.compile(
    rf"((?<![\w.-])(?:[\w.-]*(?:{TELLING})[\w.-]*|{SHORT})(?:=|%3D))[^\s&;\"'<>]+", re.IGNORECASE
)


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


@contextlib.contextmanager
def about(obj: object) -> Iterator[None]:
    """Name `obj` in every line that is logged within, and hide there what its namespace has hidden."""
    token, within = _about.set(str(obj)), _namespace.set(getattr(obj, "namespace", None))
    try:
        yield
    finally:
        _about.reset(token)
        _namespace.reset(within)


def hide(namespace: str, owner: str, source: str, values: Iterable[str]) -> None:
    """Keep the values that `owner` has of `source`, a version of a Secret, from texts of its namespace."""
    with _hidden_lock:
        _hidden[namespace].add(owner, source, frozenset(each for each in values if len(each) >= _SHORTEST))


def forget(namespace: str, owner: str) -> None:
    """What was hidden for `owner` is nobody's any more."""
    with _hidden_lock:
        _hidden[namespace].drop(owner)
        if not _hidden[namespace].sources:
            del _hidden[namespace]


@dataclass(slots=True)
class _Hidden:
    """What is hidden in a namespace: each source once, however many objects have it."""

    values: OrderedDict[str, frozenset[str]] = field(default_factory=OrderedDict)
    """By source, the one that was read latest last."""
    sources: dict[str, OrderedDict[str, None]] = field(default_factory=dict)
    """By object, likewise."""

    def add(self, owner: str, source: str, values: frozenset[str]) -> None:
        self.values[source] = values
        self.values.move_to_end(source)
        its = self.sources.setdefault(owner, OrderedDict())
        its[source] = None
        its.move_to_end(source)
        if len(its) > _SOURCES:
            its.popitem(last=False)
            self._drop_unowned()
        sizes = [sum(map(len, each)) for each in self.values.values()]
        excess = sum(sizes) - _MOST_HIDDEN
        for size in sizes[:-1]:
            if excess <= 0:
                break
            self.values.popitem(last=False)
            excess -= size

    def drop(self, owner: str) -> None:
        self.sources.pop(owner, None)
        self._drop_unowned()

    def _drop_unowned(self) -> None:
        owned = {source for its in self.sources.values() for source in its}
        for source in self.values.keys() - owned:
            del self.values[source]


_hidden: defaultdict[str, _Hidden] = defaultdict(_Hidden)
"""By namespace."""


def _hidden_now() -> set[str]:
    """What may not be in a text about the object of this task."""
    within = _namespace.get()
    with _hidden_lock:
        there = _hidden.values() if within is None else [_hidden.get(within, _Hidden())]
        found = [values for each in there for values in each.values.values()]
    return set().union(*found)


def redact(text: str) -> str:
    """`text` without hidden values, user info of URLs, and parameters like `?password=` or `sslpassword=`.

    Of a very long one only the beginning: what a store says may be of any length.
    """
    for value in sorted(_hidden_now(), key=len, reverse=True):
        text = text.replace(value, _MASK)
    if len(text) > _LONGEST:
        # At a space: none is within what the patterns find, so nothing of that is cut in two.
        return f"{_masked(text[:_LONGEST].rpartition(' ')[0])}…"
    return _masked(text)


def _masked(text: str) -> str:
    return _PARAMETER.sub(rf"\1{_MASK}", _USERINFO.sub(_MASK, text))


class _Formatter(logging.Formatter):
    def parts(self, record: logging.LogRecord) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "object": _about.get(),
            "message": redact(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info))
        return {key: value for key, value in entry.items() if value != ""}


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        return json.dumps(self.parts(record), ensure_ascii=False)


class ConsoleFormatter(_Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        parts = self.parts(record)
        line = f"{parts['time'][11:23]} {parts['level']:<7} "
        line += f"[{parts['object']}] " if "object" in parts else ""
        line += str(parts.get("message", ""))
        return line + (f"\n{parts['exception']}" if "exception" in parts else "")


def configure(format_: LogFormat, *, level: str = "info") -> None:
    """Send all logs to standard error in one format; what libraries say of their own is kept to warnings.

    Of urllib3 to errors: that it tries again tells nobody anything, and what comes of it is ours to tell.
    """
    match format_:
        case LogFormat.JSON:
            formatter: logging.Formatter = JsonFormatter()
        case LogFormat.CONSOLE:
            formatter = ConsoleFormatter()
        case _:
            assert_never(format_)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf._core.reactor.running").addFilter(_is_news)
    logging.getLogger("kopf._core.reactor.observation").addFilter(_is_news)
    for name in ("kopf", "kubernetes", "aiohttp.access", "asyncio", "botocore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what kopf says of signals, which are ours, and of kinds that aren't there: a status tells."""
    message = record.getMessage()
    return not message.startswith(("OS signals are ignored", "Unresolved resources cannot be served"))
