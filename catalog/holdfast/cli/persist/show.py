"""What the commands of `holdfast persist` share: their arguments, and how facts are written for people."""

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import CLOSED

if TYPE_CHECKING:
    from holdfast.persist import PersistClient

_F = TypeVar("_F", bound=Callable[..., Any])


def location_arguments(command: _F) -> _F:
    """The argument URL, and `--consensus` for a location of two stores."""
    command = click.option(
        "--consensus", metavar="URL", help="Where the consensus store is, if URL is that of the blob store."
    )(command)
    return click.argument("url")(command)


def json_option(command: _F) -> _F:
    """The option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(command)


def chosen(client: "PersistClient", shard: str | None) -> list[str]:
    """The shard that was asked for, or all; `BadInput` where it doesn't exist."""
    if shard is None:
        return client.shards()
    client.session.existing(shard)
    return [shard]


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
