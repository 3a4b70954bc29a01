"""How commands show numbers, sizes, times and JSON."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import click

from holdfast.errors import CLOSED
from holdfast.text import age as age
from holdfast.text import count as count
from holdfast.text import with_date

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--format table|json` and `--json`, and pass `as_json`.

    For commands that show facts, or what they did: each of them writes one JSON value.
    """

    @wraps(command)
    def with_json(*args: Any, form: str, as_json: bool, **rest: Any) -> None:
        command(*args, as_json=as_json or form == "json", **rest)

    return _format_option(("table", "json"))(with_json)


def list_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--format table|csv|json` and `--json`, and pass `form`. For commands that show a list."""

    @wraps(command)
    def with_form(*args: Any, form: str, as_json: bool, **rest: Any) -> None:
        command(*args, form="json" if as_json else form, **rest)

    return _format_option(("table", "csv", "json"))(with_form)


def _format_option(forms: Sequence[str]) -> Callable[[_F], _F]:
    json_ = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
    form = click.option("--format", "form", type=click.Choice(forms), default="table", show_default=True)
    return lambda command: form(json_(command))


def shown_result(result: Mapping[str, Any]) -> str:
    """The result of a command as text. Of comments, only the names of the columns."""
    return ", ".join(_shown_part(name, value) for name, value in result.items())


def _shown_part(name: str, value: Any) -> str:
    if name == "retain_ms":
        from holdfast.collections.periods import shown_period

        return f"retain {shown_period(value)}"
    return f"{name} {' '.join(value) if isinstance(value, dict) else value}"


def emit_list(form: str, records: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> bool:
    """Write records as JSON or CSV. Returns False, and writes nothing, for a table.

    `columns` are those of CSV if there are no records. Values that are no text or number are JSON there.
    """
    if form == "json":
        emit_json([*records])
    elif form == "csv":
        out = io.StringIO()
        names = list(dict.fromkeys([*columns, *(name for each in records for name in each)]))
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([[_csv_cell(plain(each.get(name))) for name in names] for each in records])
        click.echo(out.getvalue(), nl=False)
    return form != "table"


def _csv_cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


def emit_json(value: Any) -> None:
    """Write values as JSON. A closed frontier is null."""
    click.echo(json.dumps(plain(value), indent=2))


def tell(facts: Mapping[str, Any], *lines: str, as_json: bool) -> None:
    """Show what a command did: as lines for people, or as one JSON object."""
    if as_json:
        emit_json(facts)
        return
    for line in lines:
        click.echo(line)


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
