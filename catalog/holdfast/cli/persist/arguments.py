"""The arguments of the commands of `holdfast persist`.

A command names its location with `--url`, like all commands. The URL may also be its first argument.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.location import consensus_option, located, url_option
from holdfast.cli.progress import quiet_option

if TYPE_CHECKING:
    from holdfast.persist import PersistClient

_URL_BEGINS = ("/", "~", "@", "./", "../")


class ShardCommand(click.Command):
    """A command whose first argument may be the URL of the location."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the URL as if it was given with `--url`."""
        found = self._url_in(ctx, args)
        if found is not None:
            # The same text may be the value of an option, but not the same object.
            at = next(index for index, each in enumerate(args) if each is found)
            args = [*args[:at], f"--url={found}", *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def _url_in(self, ctx: click.Context, args: list[str]) -> str | None:
        options = click.Command(None, params=[each for each in self.params if isinstance(each, click.Option)])
        given, words, _ = options.make_parser(ctx).parse_args(list(args))
        taken = [each for each in self.params if isinstance(each, click.Argument)]
        if "url" in given or not words or "--" in args:
            return None
        if len(words) > len(taken):
            return words[0]
        may_be_left_out = len(words) > sum(each.required for each in taken)
        is_url = "://" in words[0] or words[0].startswith(_URL_BEGINS)
        return words[0] if may_be_left_out and is_url else None


def location_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--url` and `--consensus`, and pass them as `url` and `consensus`. For a `ShardCommand`."""

    @wraps(command)
    def with_urls(*args: Any, url: str | None, consensus: str | None, **rest: Any) -> None:
        found = located(url, consensus)
        command(*args, url=found.url, consensus=found.consensus, **rest)

    return url_option(consensus_option(quiet_option(with_urls)))


def chosen(client: "PersistClient", shard: str | None) -> list[str]:
    """The given shard, or all shards. Raises `BadInput` if the given shard doesn't exist."""
    if shard is None:
        return client.shards()
    client.session.existing(shard)
    return [shard]
