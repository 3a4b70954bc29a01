"""Opening a location for a command, and the option for its consensus store.

A command that may be refused first opens the location with a client that writes nothing. All that it can
check with that client, it refuses without a trace. Only then does it open the location for writing. Only
commands that create things create a location.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import NoLocation

if TYPE_CHECKING:
    from holdfast.persist import PersistClient

_F = TypeVar("_F", bound=Callable[..., Any])


def consensus_option(blob: str, **attributes: Any) -> Callable[[_F], _F]:
    """Return the option `--consensus`. `blob` is the option or argument that names the blob store with it."""
    return click.option(
        "--consensus",
        metavar="URL",
        help=f"The consensus store, if {blob} names only a blob store.",
        **attributes,
    )


retain_option = click.option(
    "--retain",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Keep garbage this long for a restore. Give the retain_for_s of the clients.",
)


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
    from holdfast.persist.stores.url import location_url

    url = location_url(url)
    return (url, None) if consensus is None else (None, url)
