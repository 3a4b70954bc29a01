"""Opening a location for a command.

A command that may be refused looks first, by a client that writes nothing: what it can find out so, it
refuses without a trace. Only then it opens the location for writing, and only what makes things makes it.
"""

from typing import TYPE_CHECKING

from holdfast.errors import StoreUnreachable, UnusablePath

if TYPE_CHECKING:
    from holdfast.persist import PersistClient


def open_to_look(url: str) -> "PersistClient":
    """A client that writes nothing; raises `StoreUnreachable` where there is no location."""
    from holdfast.persist import PersistClient

    try:
        return PersistClient.open(url, mode="read")
    except UnusablePath:
        raise
    except StoreUnreachable as error:
        hint = "check the URL; 'holdfast catalog init' and 'holdfast collection create' make a location"
        raise StoreUnreachable(str(error), hint=hint) from error


def open_to_write(url: str, *, create: bool) -> "PersistClient":
    """A client that writes; without `create` a missing location is `StoreUnreachable`."""
    from holdfast.persist import PersistClient
    from holdfast.persist.storage import Location

    return PersistClient(Location.open(url, create=create))
