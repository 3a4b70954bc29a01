"""Structured logs: JSON or plain lines. Each line names its object, and none contains a secret.

Invariants
- The object of a line is the object of the task that wrote it, even in threads that work for the task.
- A value that was registered with `hide` is masked in every text about an object of its namespace, and in
  every text about no object. Texts about other namespaces don't change. Otherwise a user who can create a
  Secret could mask any text there.
- The user info of a URL, and the value of a parameter with a suspicious name, are masked in every text.
- No text is longer than `_LONGEST`.
- Hidden values are forgotten together with the object that they were read for. Each object keeps only its
  latest ones, and a namespace at most `_MOST_HIDDEN` characters.
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
"""Shorter values aren't masked. They would mask half of every line and protect nothing."""
_SOURCES: Final = 8
"""The number of latest versions of an object's Secrets to hide. An object names at most three Secrets."""
_MOST_HIDDEN: Final = 4 << 20
"""The maximum number of hidden characters of a namespace. The values that were read last are kept."""
_LONGEST: Final = 16 * 1024
"""The maximum length of a text. The patterns may take quadratic time for a text that is made for it."""
_USERINFO: Final = re.compile(r"(?<=://)[^\s\"'<>]+(?=@|%40)")
"""User info up to the last `@`, because a password that was not escaped may contain any character."""
_PARAMETER: Final = re.compile(
    rf"((?<![\w.-])(?:[\w.-]*(?:{TELLING})[\w.-]*|{SHORT})(?:=|%3D))[^\s&;\"'<>]+", re.IGNORECASE
)


class LogFormat(StrEnum):
    """The format of log lines."""

    JSON = "json"
    CONSOLE = "console"


@contextlib.contextmanager
def about(obj: object) -> Iterator[None]:
    """Within this context, every log line names `obj`, and the hidden values of its namespace are masked."""
    token, within = _about.set(str(obj)), _namespace.set(getattr(obj, "namespace", None))
    try:
        yield
    finally:
        _about.reset(token)
        _namespace.reset(within)


def hide(namespace: str, owner: str, source: str, values: Iterable[str]) -> None:
    """Hides the values of `source`, a version of a Secret that `owner` names, in texts of its namespace."""
    with _hidden_lock:
        _hidden[namespace].add(owner, source, frozenset(each for each in values if len(each) >= _SHORTEST))


def forget(namespace: str, owner: str) -> None:
    """Forgets the values that were hidden for `owner`."""
    with _hidden_lock:
        _hidden[namespace].drop(owner)
        if not _hidden[namespace].sources:
            del _hidden[namespace]


@dataclass(slots=True)
class _Hidden:
    """The hidden values of a namespace. Each source is stored once, even if several objects use it."""

    values: OrderedDict[str, frozenset[str]] = field(default_factory=OrderedDict)
    """By source. The source that was read last is last."""
    sources: dict[str, OrderedDict[str, None]] = field(default_factory=dict)
    """By object: its sources, in the same order."""

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
    """Returns the values to mask in a text about the object of this task."""
    within = _namespace.get()
    with _hidden_lock:
        there = _hidden.values() if within is None else [_hidden.get(within, _Hidden())]
        found = [values for each in there for values in each.values.values()]
    return set().union(*found)


def redact(text: str) -> str:
    """Returns `text` without hidden values, user info of URLs, and parameters like `?password=`.

    Cuts a very long text, because an error of a store may have any length.
    """
    for value in sorted(_hidden_now(), key=len, reverse=True):
        text = text.replace(value, _MASK)
    if len(text) > _LONGEST:
        # Cut at a space. The patterns match no spaces, so no match is cut in two.
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
    """Formats a record as one JSON object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        return json.dumps(self.parts(record), ensure_ascii=False)


class ConsoleFormatter(_Formatter):
    """Formats a record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        parts = self.parts(record)
        line = f"{parts['time'][11:23]} {parts['level']:<7} "
        line += f"[{parts['object']}] " if "object" in parts else ""
        line += str(parts.get("message", ""))
        return line + (f"\n{parts['exception']}" if "exception" in parts else "")


def configure(format_: LogFormat, *, level: str = "info") -> None:
    """Sends all logs to standard error in one format. Libraries log only warnings, and urllib3 only errors.

    urllib3 would warn about each retry, and the operator reports the outcome itself.
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
    """Returns False for kopf's messages about signals, which the operator handles, and about missing CRDs."""
    message = record.getMessage()
    return not message.startswith(("OS signals are ignored", "Unresolved resources cannot be served"))
