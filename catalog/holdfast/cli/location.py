"""Opening a location for a command, and the options `--url` and `--consensus` that name it.

All commands name a location in the same way: `--url` has a URL, the path of a folder, or the name of a
location in the user's configuration file, such as `@prod`. `HOLDFAST_URL` is its default. If the consensus
store is apart, `--consensus` or `HOLDFAST_CONSENSUS_URL` names it.

A command that may be refused first opens the location with a client that writes nothing. All that it can
check with that client, it refuses without a trace. Only then does it open the location for writing. Only
commands that create things create a location.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from holdfast.cli.progress import quiet_option
from holdfast.errors import BadInput, HoldfastError, NoLocation

if TYPE_CHECKING:
    from holdfast.persist import PersistClient

_F = TypeVar("_F", bound=Callable[..., Any])


def complete_names(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """The named locations, and folders."""
    from holdfast.locations import named_locations

    found: list[CompletionItem[Any]] = []
    if not incomplete or incomplete.startswith("@"):
        with contextlib.suppress(HoldfastError):
            found = [
                CompletionItem(f"@{name}", help=each.url)
                for name, each in named_locations().items()
                if f"@{name}".startswith(incomplete)
            ]
    if "://" not in incomplete and not incomplete.startswith("@"):
        found.append(CompletionItem(incomplete, type="dir"))
    return found


URL_VARIABLES: Final = ("HOLDFAST_URL", "HOLDFAST_BLOB_URL")
CONSENSUS_VARIABLE: Final = "HOLDFAST_CONSENSUS_URL"
_MISSING: Final = "give --url with a folder, a URL or @NAME, or set HOLDFAST_URL"

url_option = click.option(
    "--url",
    metavar="URL",
    envvar=[*URL_VARIABLES],
    show_envvar=True,
    shell_complete=complete_names,
    help="The location: a folder, a URL such as s3://bucket/prefix, or @NAME. Or its blob store.",
)
consensus_option = click.option(
    "--consensus",
    metavar="URL",
    envvar=CONSENSUS_VARIABLE,
    show_envvar=True,
    help="The consensus store, if --url names only a blob store.",
)


def location_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a location, and pass its URLs as `location`."""

    @wraps(command)
    def with_location(*args: Any, url: str | None, consensus: str | None, **rest: Any) -> None:
        command(*args, location=located(url, consensus), **rest)

    return url_option(consensus_option(quiet_option(with_location)))


def located(url: str | None, consensus: str | None) -> "LocationUrls":
    """The URLs of a location that a command was given. Raises `BadInput` if there are none."""
    if url is None:
        raise BadInput("--url is missing: it names the location", hint=_MISSING)
    from holdfast.locations import is_name, location_url, named_location

    if not is_name(url):
        return LocationUrls(location_url(url), consensus)
    if consensus is not None and _is_given("consensus"):
        raise BadInput(f"{url} names a whole location", hint="leave out --consensus")
    # The variable belongs to the URL of the other variable.
    found = named_location(url)
    return LocationUrls(location_url(found.url), found.consensus)


def _is_given(name: str) -> bool:
    """Return whether an option was given on the command line."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


keep_garbage_option = click.option(
    "--keep-garbage",
    "keep_garbage_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Keep garbage this long for a restore. Give the retain_for_s of the clients.",
)


def formerly(old: str, new: str) -> Callable[[_F], _F]:
    """Return an option that is hidden, takes a value, and raises `BadInput`: it has another name now."""

    def refuse(_context: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise BadInput(f"{old} has another name here", hint=f"write {new} {value}")

    return click.option(old, hidden=True, expose_value=False, callback=refuse)


@dataclass(frozen=True)
class LocationUrls:
    """How the user named a location: by its URL, or by the URLs of its blob store and its consensus store."""

    url: str
    consensus: str | None

    def open_to_look(self) -> "PersistClient":
        """Open a client that writes nothing. Raises `NoLocation` if there is no location."""
        return open_to_look(self.url, self.consensus)

    def open_to_write(self, *, create: bool, retain_for_s: float = 0.0) -> "PersistClient":
        """Open a client that writes. Without `create`, a missing location raises `NoLocation`."""
        return open_to_write(self.url, self.consensus, create=create, retain_for_s=retain_for_s)


def open_to_look(url: str, consensus: str | None = None) -> "PersistClient":
    """Open a client that writes nothing. Raises `NoLocation` if there is no location.

    With `consensus`, `url` is the URL of the blob store.
    """
    from holdfast.persist import PersistClient

    try:
        location, blob = _stores(url, consensus)
        return PersistClient.open(location, blob=blob, consensus=consensus, mode="read")
    except NoLocation as error:
        hint = "check the URL; 'holdfast catalog init' and 'holdfast collection create' create a location"
        if consensus is None:
            hint = f"{hint}; if the consensus store is somewhere else, name it with --consensus"
        raise NoLocation(str(error), hint=hint) from error


def open_to_write(
    url: str,
    consensus: str | None = None,
    *,
    create: bool,
    gc_grace_s: float | None = None,
    retain_for_s: float = 0.0,
) -> "PersistClient":
    """Open a client that writes. Without `create`, a missing location raises `NoLocation`."""
    from holdfast.persist import PersistClient, PersistConfig
    from holdfast.persist.stores import Location

    config = PersistConfig(retain_for_s=retain_for_s)
    if gc_grace_s is not None:
        config = replace(config, gc_grace_s=gc_grace_s)
    whole, blob = _stores(url, consensus)
    return PersistClient(Location.open(whole, blob=blob, consensus=consensus, create=create), config=config)


def _stores(url: str, consensus: str | None) -> tuple[str | None, str | None]:
    """The URL of the location, or the URL of its blob store."""
    return (url, None) if consensus is None else (None, url)
