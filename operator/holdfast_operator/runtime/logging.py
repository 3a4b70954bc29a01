"""Structured logs: JSON or plain lines, each naming the object that it is about, none with a secret.

Invariants
- The object of a line is that of the task that wrote it, also from the threads that work for the task.
- A value that was registered with `hide` never leaves the process, whatever it is part of; nor does the
  user info of a URL, nor the value of a parameter whose name says that it is a secret.
"""

import contextlib
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, assert_never

from holdfast_operator.api.urls import TELLING

_about: ContextVar[str] = ContextVar("about", default="")
_hidden: set[str] = set()
_hidden_lock = threading.Lock()

_MASK: Final = "***"
_SHORTEST: Final = 4
"""Shorter values aren't masked: they would mask half of every line and protect nothing."""
_USERINFO: Final = re.compile(r"(?<=://)[^\s\"'<>]+(?=@)")
"""Up to the last @: a password that should have been escaped may hold anything, rather mask too much."""
_PARAMETER: Final = re.compile(
    rf"((?<![\w.-])(?:[\w.-]*(?:{TELLING})[\w.-]*|sig)(?:=|%3D))[^\s&;\"'<>]+", re.IGNORECASE
)


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


@contextlib.contextmanager
def about(obj: object) -> Iterator[None]:
    """Name `obj` in every line that is logged within."""
    token = _about.set(str(obj))
    try:
        yield
    finally:
        _about.reset(token)


def hide(*values: str) -> None:
    """Never let these values into a log line."""
    with _hidden_lock:
        _hidden.update(value for value in values if len(value) >= _SHORTEST)


def redact(text: str) -> str:
    """`text` without hidden values, user info of URLs, and parameters like `?password=` or `sslpassword=`."""
    with _hidden_lock:
        values = sorted(_hidden, key=len, reverse=True)
    for value in values:
        text = text.replace(value, _MASK)
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
    """Send all logs to standard error in one format; what kopf says of its own is kept to warnings."""
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
    for name in ("kopf", "urllib3", "kubernetes", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what kopf says of signals, which are ours, and of kinds that aren't there: a status tells."""
    message = record.getMessage()
    return not message.startswith(("OS signals are ignored", "Unresolved resources cannot be served"))
