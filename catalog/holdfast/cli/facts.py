"""How commands show numbers, sizes, times and JSON."""

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from holdfast.errors import CLOSED
from holdfast.text import age as age
from holdfast.text import count as count
from holdfast.text import with_date

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(command: _F) -> _F:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Show JSON.")(command)


def emit_json(value: Any) -> None:
    """Write values as JSON. A closed frontier is null."""
    click.echo(json.dumps(plain(value), indent=2))


def plain(value: Any) -> Any:
    """Dataclasses as dicts, and closed frontiers as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if value == CLOSED else value


def frontier(value: int) -> str:
    """A frontier as text. 2^64 is closed."""
    return "closed" if value >= CLOSED else str(value)


def size(number: int) -> str:
    """A number of bytes, in a unit that fits."""
    from rich.filesize import decimal

    return decimal(number)


def moment(wall_ms: int) -> str:
    """A wall-clock time in UTC, or a number of milliseconds if it is no date."""
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


def shown(value: Any) -> str:
    """A value as text for people."""
    if value is None:
        return "-"
    return "closed" if value == CLOSED else str(value)


def shown_moment(time_ms: int | None) -> str:
    """A time in milliseconds, followed by its date if it looks like one."""
    return shown(time_ms) if time_ms is None or time_ms == CLOSED else with_date(time_ms)
