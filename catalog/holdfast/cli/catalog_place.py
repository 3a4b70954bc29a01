"""Which catalog a command is about: the options of all `holdfast catalog` commands.

A catalog is in a stash, which holds exactly one, or on persist, where each organization has its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.location import open_to_look, open_to_write
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.durable import OpenableCatalog

_HINT = "use --stash URL, or --persist URL --organization-id UUID"


class CatalogPlace(ABC):
    """Where the options say that the catalog is, checked as far as text can be; nothing is open yet."""

    @abstractmethod
    def open_to_look(self) -> AbstractContextManager["OpenableCatalog"]:
        """The catalog by a client that writes nothing; raises `NoLocation` where nothing is."""

    @abstractmethod
    def open_to_write(self, *, create: bool = False) -> AbstractContextManager["OpenableCatalog"]:
        """The catalog by a client that writes; without `create` a missing location is `NoLocation`."""


@dataclass(frozen=True)
class PersistPlace(CatalogPlace):
    """The catalog of an organization in a location, or in a blob store and a consensus store."""

    persist: str
    consensus: str | None
    organization_id: str

    @contextmanager
    def open_to_look(self) -> Iterator["OpenableCatalog"]:
        """See `CatalogPlace`."""
        from holdfast.durable import persist_catalog

        with open_to_look(self.persist, self.consensus) as client:
            yield persist_catalog(client, self.organization_id)

    @contextmanager
    def open_to_write(self, *, create: bool = False) -> Iterator["OpenableCatalog"]:
        """See `CatalogPlace`."""
        from holdfast.durable import persist_catalog

        with open_to_write(self.persist, self.consensus, create=create) as client:
            yield persist_catalog(client, self.organization_id)


@dataclass(frozen=True)
class StashPlace(CatalogPlace):
    """The catalog of a stash, whose tables the first commit makes."""

    stash: str

    @contextmanager
    def open_to_look(self) -> Iterator["OpenableCatalog"]:
        """See `CatalogPlace`; a stash that isn't there is a catalog that isn't initialized."""
        from holdfast.durable.stash_store import stash_catalog

        yield stash_catalog(self.stash, read_only=True)

    @contextmanager
    def open_to_write(self, *, create: bool = False) -> Iterator["OpenableCatalog"]:  # noqa: ARG002
        """See `CatalogPlace`."""
        from holdfast.durable.stash_store import stash_catalog

        yield stash_catalog(self.stash)


def catalog_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a catalog, and as `place` what they name."""

    @wraps(command)
    def with_place(
        *args: Any,
        persist: str | None,
        consensus: str | None,
        organization_id: str | None,
        stash: str | None,
        **rest: Any,
    ) -> None:
        command(*args, place=_place(persist, consensus, organization_id, stash), **rest)

    chosen: Callable[..., None] = with_place
    for option in (
        click.option("--organization-id", metavar="UUID", help="Whose catalog on persist."),
        click.option("--consensus", metavar="URL", help="The consensus store, where the two lie apart."),
        click.option("--persist", metavar="URL", help="The location (file:///dir), or its blob store."),
        click.option("--stash", metavar="URL", help="The stash (postgresql://..., sqlite:///file)."),
    ):
        chosen = option(chosen)
    return chosen


def _place(
    persist: str | None, consensus: str | None, organization_id: str | None, stash: str | None
) -> CatalogPlace:
    if stash is not None:
        others = {"--persist": persist, "--consensus": consensus, "--organization-id": organization_id}
        for name, given in others.items():
            if given is not None:
                raise BadInput(f"--stash and {name} don't go together: a stash holds one catalog", hint=_HINT)
        return StashPlace(_checked_stash(stash))
    for name, given in {"--persist": persist, "--organization-id": organization_id}.items():
        if given is None:
            neither = not (persist or consensus or organization_id)
            raise BadInput(f"{'--stash, or --persist,' if neither else name} is missing", hint=_HINT)
    assert persist is not None
    assert organization_id is not None
    from holdfast.durable import catalog_shard_id

    catalog_shard_id(organization_id)
    return PersistPlace(persist, consensus, organization_id)


def _checked_stash(url: str) -> str:
    from holdfast.stash import check_url

    check_url(url)
    return url
