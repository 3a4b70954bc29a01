"""Which catalog a command is about: the options of all `holdfast catalog` commands.

A catalog is in a stash, which holds exactly one, or on persist, where each organization has its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.location import open_to_look, open_to_write
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.durable import OpenableCatalog

_HINT = "use --stash URL, or --persist URL --organization-id UUID"


@dataclass(frozen=True)
class CatalogPlace:
    """Where the options say that the catalog is, checked as far as text can be; nothing is open yet."""

    persist: str
    consensus: str | None
    organization_id: str

    @contextmanager
    def open_to_look(self) -> Iterator["OpenableCatalog"]:
        """The catalog by a client that writes nothing; raises `NoLocation` where nothing is."""
        from holdfast.durable import persist_catalog

        with open_to_look(self.persist, self.consensus) as client:
            yield persist_catalog(client, self.organization_id)

    @contextmanager
    def open_to_write(self, *, create: bool = False) -> Iterator["OpenableCatalog"]:
        """The catalog by a client that writes; with `create`, where there is none it is begun."""
        from holdfast.durable import persist_catalog

        with open_to_write(self.persist, self.consensus, create=create) as client:
            yield persist_catalog(client, self.organization_id)


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
        raise BadInput(
            "--stash is not available in this version", hint="use --persist URL --organization-id UUID"
        )
    if persist is None or organization_id is None:
        missing = "--persist" if persist is None else "--organization-id"
        raise BadInput(f"{missing} is missing", hint="use --persist URL --organization-id UUID")
    from holdfast.durable import catalog_shard_id

    catalog_shard_id(organization_id)
    return CatalogPlace(persist, consensus, organization_id)
