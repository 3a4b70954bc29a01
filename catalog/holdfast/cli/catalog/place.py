"""Which catalog a command works on: the options of all `holdfast catalog` commands.

A catalog is in a stash, which holds exactly one, or on persist, where each organization has its own. A linked
catalog has both, and one of them is the source of truth.
"""

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import click

from holdfast.cli.location import (
    CONSENSUS_VARIABLE,
    URL_VARIABLES,
    complete_names,
    located,
    open_to_look,
    open_to_write,
)
from holdfast.cli.progress import quiet_option
from holdfast.errors import BadInput, CorruptBlob, NoLocation

if TYPE_CHECKING:
    from holdfast.catalog import OpenableCatalog
    from holdfast.catalog.move.linked import LinkedCatalog
    from holdfast.catalog.move.truth import Backend, Strategy
    from holdfast.persist import PersistClient

_HINT = "use --stash URL, or --url URL --organization-id UUID, or all three for a linked catalog"


class CatalogPlace(ABC):
    """Where the options say that the catalog is. The text of the options is checked; nothing is open yet."""

    @abstractmethod
    def open_to_look(self) -> AbstractContextManager["OpenableCatalog"]:
        """Open the catalog with a client that writes nothing. Raises `NoLocation` if there is no location."""

    @abstractmethod
    def open_to_write(self, *, create: bool = False) -> AbstractContextManager["OpenableCatalog"]:
        """Open the catalog for writing. Without `create`, a missing location raises `NoLocation`."""


@dataclass(frozen=True)
class PersistPlace(CatalogPlace):
    """The catalog of an organization, in a location or in a blob store and a consensus store.

    `stash_lost`: the user says that the stash that it is linked with is gone.
    """

    persist: str
    consensus: str | None
    organization_id: str
    stash_lost: bool = False

    @contextmanager
    def open_to_look(self) -> Iterator["OpenableCatalog"]:
        """See `CatalogPlace`."""
        from holdfast.catalog import persist_catalog

        with open_to_look(self.persist, self.consensus) as client:
            openable = persist_catalog(client, self.organization_id)
            if not self.stash_lost:
                _warn_of_link(openable, "--stash")
            yield openable

    @contextmanager
    def open_to_write(self, *, create: bool = False) -> Iterator["OpenableCatalog"]:
        """See `CatalogPlace`."""
        from holdfast.catalog import persist_catalog

        with open_to_write(self.persist, self.consensus, create=create) as client:
            yield persist_catalog(client, self.organization_id)


@dataclass(frozen=True)
class StashPlace(CatalogPlace):
    """The catalog of a stash. The first commit creates the tables of the stash.

    `emergency`: the catalog is linked, and is used without its persist store.
    """

    stash: str
    emergency: bool = False

    @contextmanager
    def open_to_look(self) -> Iterator["OpenableCatalog"]:
        """See `CatalogPlace`. A stash that doesn't exist is a catalog that isn't initialized."""
        from holdfast.catalog.one_store import stash_catalog

        openable = stash_catalog(self.stash, read_only=True)
        if self.emergency:
            openable = _in_emergency(openable)
        else:
            _warn_of_link(openable, "--url and --organization-id")
        yield openable

    @contextmanager
    def open_to_write(self, *, create: bool = False) -> Iterator["OpenableCatalog"]:  # noqa: ARG002
        """See `CatalogPlace`."""
        from holdfast.catalog.one_store import stash_catalog

        openable = stash_catalog(self.stash)
        yield _in_emergency(openable) if self.emergency else openable


@dataclass(frozen=True)
class LinkedPlace(CatalogPlace):
    """A catalog in two linked stores. The first write links them."""

    stash: str
    persist: PersistPlace
    strategy: "Strategy | None" = None
    truth: "Backend | None" = None

    @contextmanager
    def open_to_look(self) -> Iterator["LinkedCatalog"]:
        """See `CatalogPlace`. A location that doesn't exist counts as one without a catalog."""
        from holdfast.catalog.one_store import stash_catalog

        where = None
        try:
            client = open_to_look(self.persist.persist, self.persist.consensus)
        except NoLocation:
            client, where = _nothing(), f"{_shown(self.persist.persist)}, which doesn't exist yet"
        with client:
            yield self._linked(stash_catalog(self.stash, read_only=True), client, where)

    @contextmanager
    def open_to_write(self, *, create: bool = False) -> Iterator["LinkedCatalog"]:
        """See `CatalogPlace`."""
        from holdfast.catalog.one_store import stash_catalog

        with open_to_write(self.persist.persist, self.persist.consensus, create=create) as client:
            yield self._linked(stash_catalog(self.stash), client)

    def _linked(
        self, stash: "OpenableCatalog", client: "PersistClient", where: str | None = None
    ) -> "LinkedCatalog":
        from holdfast.catalog import persist_catalog
        from holdfast.catalog.move.linked import linked_catalog

        persist = persist_catalog(client, self.persist.organization_id, where=where)
        return linked_catalog(stash, persist, strategy=self.strategy, truth=self.truth)


def _nothing() -> "PersistClient":
    """A client of an empty location."""
    from holdfast.persist import PersistClient

    return PersistClient.open(f"memory://{uuid.uuid4()}")


def _shown(url: str) -> str:
    """A URL without anything that may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _in_emergency(stash: "OpenableCatalog") -> "OpenableCatalog":
    """The stash alone. Raises `NeedsPersist` if the stash doesn't record that it is the source of truth."""
    from holdfast.catalog import emergency_catalog
    from holdfast.catalog.move.emergency import check_emergency

    check_emergency(stash)
    return emergency_catalog(stash)


def _warn_of_link(openable: "OpenableCatalog", others: str) -> None:
    """Warn on stderr if the store that is opened alone may not be the source of truth."""
    from holdfast.catalog import config

    try:
        told = openable.config(config.LINK) is None or openable.config(config.TRUTH) == 1
    except CorruptBlob:
        # The command itself reports the damage.
        return
    if not told:
        click.echo(
            f"warning: {openable.place} is linked with another store and may not be the source of truth;"
            f" also give {others}",
            err=True,
        )


def catalog_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a catalog, and pass the catalog's place as `place`."""

    @wraps(command)
    def with_place(*args: Any, emergency: bool, place: CatalogPlace, **rest: Any) -> None:
        if emergency:
            if not isinstance(place, StashPlace):
                raise BadInput(
                    "--emergency is for a stash whose persist store can't be reached",
                    hint="give only --stash URL",
                )
            place = replace(place, emergency=True)
        command(*args, place=place, **rest)

    option = click.option(
        "--emergency",
        is_flag=True,
        help="Use only the stash of a linked catalog. The stash must record that it is the source of truth.",
    )
    return place_options(option(with_place))


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Like `catalog_options`, without the option `--emergency`."""

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

    return _with_place_options(quiet_option(with_place))


def linked_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a linked catalog, all required, and pass its place as `place`."""

    @wraps(command)
    def with_place(
        *args: Any,
        persist: str | None,
        consensus: str | None,
        organization_id: str | None,
        stash: str | None,
        **rest: Any,
    ) -> None:
        persist, consensus = _stores(persist, consensus, organization_id)
        given = {"--stash": stash, "--url": persist, "--organization-id": organization_id}
        for name, value in given.items():
            if value is None:
                raise BadInput(
                    f"{name} is missing: a migration needs both stores",
                    hint="use --stash URL --url URL --organization-id UUID",
                )
        command(*args, place=_place(persist, consensus, organization_id, stash), **rest)

    return _with_place_options(quiet_option(with_place))


def _with_place_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--organization-id", metavar="UUID", help="The organization whose catalog on persist this is."
        ),
        click.option(
            "--consensus", metavar="URL", help="The consensus store, if --url names only a blob store."
        ),
        click.option(
            "--url",
            "--persist",
            "persist",
            metavar="URL",
            shell_complete=complete_names,
            help="The location: a folder, a URL such as s3://bucket/prefix, or @NAME. Or its blob store."
            " Default with --organization-id: HOLDFAST_URL.",
        ),
        click.option("--stash", metavar="URL", help="The stash (postgresql://..., sqlite:///file)."),
    ):
        command = option(command)
    return command


def _place(
    persist: str | None, consensus: str | None, organization_id: str | None, stash: str | None
) -> CatalogPlace:
    persist, consensus = _stores(persist, consensus, organization_id)
    if stash is not None:
        url = _checked_stash(stash)
        if persist is None and consensus is None and organization_id is None:
            return StashPlace(url)
        return LinkedPlace(url, _persist_place(persist, consensus, organization_id))
    return _persist_place(persist, consensus, organization_id)


def _stores(
    persist: str | None, consensus: str | None, organization_id: str | None
) -> tuple[str | None, str | None]:
    """The URLs of the location. A catalog in a stash alone has none, whatever the environment has."""
    if persist is None and organization_id is not None:
        persist = next(filter(None, map(os.environ.get, URL_VARIABLES)), None)
    if persist is None:
        return None, consensus
    from holdfast.locations import is_name

    if consensus is None and not is_name(persist):
        consensus = os.environ.get(CONSENSUS_VARIABLE) or None
    given = located(persist, consensus)
    return given.url, given.consensus


def _persist_place(persist: str | None, consensus: str | None, organization_id: str | None) -> PersistPlace:
    for name, given in {"--url": persist, "--organization-id": organization_id}.items():
        if given is None:
            neither = not (persist or consensus or organization_id)
            raise BadInput(f"{'--stash, or --url,' if neither else name} is missing", hint=_HINT)
    assert persist is not None
    assert organization_id is not None
    from holdfast.catalog import catalog_shard_id

    catalog_shard_id(organization_id)
    return PersistPlace(persist, consensus, organization_id)


def _checked_stash(url: str) -> str:
    from holdfast.stash import check_url

    check_url(url)
    return url
