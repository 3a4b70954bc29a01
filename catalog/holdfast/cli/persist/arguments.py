"""The arguments of the commands of `holdfast persist`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.location import consensus_option

if TYPE_CHECKING:
    from holdfast.persist import PersistClient

_F = TypeVar("_F", bound=Callable[..., Any])


def location_arguments(command: _F) -> _F:
    """Add the argument URL, and `--consensus` for a location of two stores."""
    return click.argument("url")(consensus_option("URL")(command))


def chosen(client: "PersistClient", shard: str | None) -> list[str]:
    """The given shard, or all shards. Raises `BadInput` if the given shard doesn't exist."""
    if shard is None:
        return client.shards()
    client.session.existing(shard)
    return [shard]
