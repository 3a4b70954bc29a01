"""How commands show facts: numbers, sizes, times and JSON."""

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from holdfast.errors import CLOSED

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(command: _F) -> _F:
    """The option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(command)


def emit_json(value: Any) -> None:
    """Values as JSON; a closed frontier is null."""
    click.echo(json.dumps(plain(value), indent=2))


def plain(value: Any) -> Any:
    """Dataclasses as objects, closed frontiers as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if value == CLOSED else value


def frontier(value: int) -> str:
    """A frontier, 2^64 being closed."""
    return "closed" if value >= CLOSED else str(value)


def count(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Bytes in a unit that fits."""
    from rich.filesize import decimal

    return decimal(number)


def age(seconds: float) -> str:
    """A span of time in a unit that fits."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def moment(wall_ms: int) -> str:
    """A wall time."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown(value: Any) -> str:
    """A fact for people."""
    if value is None:
        return "-"
    return "closed" if value == CLOSED else str(value)


def shown_moment(time_ms: int | None) -> str:
    """A time with the date that it is, where it is one that people mean."""
    from holdfast.tables.moments import shown_time

    if time_ms is None or time_ms == CLOSED:
        return shown(time_ms)
    # Counts and the first second of 1970 are no dates that anybody meant.
    return str(time_ms) if time_ms < 1000 else f"{time_ms} ({shown_time(time_ms)})"
