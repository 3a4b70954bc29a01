"""Opening tables: finds or creates the collection, in a client that all tables of a location share."""

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from holdfast.collections import CollectionInfo, CollectionSpec, CollectionState, StorageController
from holdfast.collections.periods import NEW_TABLE, Period, period_ms, shown_period
from holdfast.collections.who import who_here
from holdfast.errors import (
    BadInput,
    CollectionNotFound,
    HoldfastError,
    NoLocation,
    NotWritable,
    UniquenessViolation,
    UnusablePath,
)
from holdfast.locations import is_name, location_url
from holdfast.persist import PersistClient, Schema
from holdfast.persist.looks import one_look
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.evolution import evolution_fault
from holdfast.persist.rows.schema import Column
from holdfast.persist.session import Mode
from holdfast.persist.stores import Location
from holdfast.tables.opened import OpenTable
from holdfast.tables.shared_clients import WHO, Key, Use, use_of
from holdfast.tables.table import Table


@runtime_checkable
class ArrowSchema(Protocol):
    """A schema of Arrow, or of a library that exports it as one, such as the schema of a Polars frame."""

    def __arrow_c_schema__(self) -> object:
        """Return the schema as a capsule."""


Columns: TypeAlias = Mapping[str, Column | str] | pa.Schema | ArrowSchema
log = logging.getLogger(__name__)


@one_look()
def table(
    url: str | os.PathLike[str] | PersistClient,
    name: str,
    *,
    columns: Columns | None = None,
    key: Sequence[str] = (),
    shards: int = 1,
    comments: Mapping[str, str] | None = None,
    retain: Period | None = None,
    mode: Mode = "write",
    consensus: str | None = None,
) -> Table:
    """Open the table `name` of a location. Create it if it doesn't exist and `columns` are given.

    `url` is the URL of a location (`file:///data/holdfast`, `s3://bucket/prefix`, `memory://name`), the path
    of a folder, `@prod` for a location that your configuration file names, or a `PersistClient`, which you
    close yourself. `consensus` is the URL of the consensus store, if `url` names only the blob store.
    `columns` is a schema of Arrow or Polars, or a dict
    such as `{"id": "int64", "note": "string?"}`, where `?` means nullable. `key` names the key columns.
    `shards` is the number of shards of a new table, and `comments` are the comments of its columns. A new
    table keeps the history of the last 7 days; `retain` is another length, as in `Table.retain`. An existing
    table keeps its own, which may have evolved from the given columns. With `mode="read"` nothing
    is written and nothing is held.

    Tables of one location share a client. Closing the last of them closes the client.

    Raises:
        CollectionNotFound: the table doesn't exist, and no columns were given to create it.
        BadInput: the existing table has other columns, or the given columns are invalid.
        NoLocation: there is no location at the URL, and no table is to be created.
        UnusablePath: this process can't write to the folder. If it can read it, the hint says so.
        StoreUnreachable: the stores can't be opened.
    """
    for what, given in (("a key", key), ("comments", comments), ("retain", retain)):
        if columns is None and given:
            raise BadInput(
                f"{what} without columns",
                hint="also give columns={...}; to open an existing table, give neither",
            )
    new = None
    if columns is not None:
        new = CollectionSpec(
            str(uuid.uuid4()),
            name,
            schema_of(columns, key),
            shards,
            comments=comments or {},
            retain_ms=period_ms(NEW_TABLE if retain is None else retain),
        )
    create = new is not None and mode == "write"
    entered = Entered(url, mode, f"table {shown(name)}", create=create, consensus=consensus)
    try:
        controller = entered.controller
        info = _found(controller, name, new)
        opened = Table(OpenTable(controller.client, controller, info, entered.leave))
        # Somebody may use the client of a table that nobody refers to any more.
        entered.pin()
        return opened
    except BaseException:
        entered.leave()
        raise


def enter(
    url: str | os.PathLike[str] | PersistClient,
    mode: Mode,
    *,
    create: bool = False,
    consensus: str | None = None,
) -> tuple[StorageController, Callable[[], None]]:
    """The controller of a location, and what leaves it, for one call. See `Entered`."""
    entered = Entered(url, mode, "a call that still runs", create=create, consensus=consensus)
    return entered.controller, entered.leave


class Entered:
    """A location that a table or a call has entered. All that entered it by its URL share a client."""

    def __init__(
        self,
        url: str | os.PathLike[str] | PersistClient,
        mode: Mode,
        what: str,
        *,
        create: bool = False,
        consensus: str | None = None,
    ) -> None:
        """Enter it. `what` is how errors call what uses it. Raises like `table`.

        `mode` and `create` don't matter for a `PersistClient`.
        """
        self._use: Use | None = None
        if isinstance(url, PersistClient):
            if consensus is not None:
                raise BadInput("a PersistClient has a consensus store", hint="leave out consensus")
            self.controller = StorageController(url, who=who_here(WHO))
            return
        where = _where(url)
        self._use = use_of(
            Key.of(where, mode, consensus),
            what,
            lambda: open_client(where, mode, create=create, consensus=consensus),
        )
        self.controller = self._use.controller

    @property
    def was_idle(self) -> bool:
        """Whether the client stayed open from others, and nobody else used it."""
        return self._use is not None and self._use.was_idle

    def pin(self) -> None:
        """Keep the client open until `leave`, also if nothing refers to this."""
        if self._use is not None:
            self._use.pin()

    def watch(self) -> None:
        """Let the client become idle some time after this is lost. At the latest, another `leave` does so."""
        if self._use is not None:
            self._use.watch()

    def leave(self, *, stays: bool = False, gone: bool = False) -> None:
        """Leave it. With `stays`, the client may stay open for the next one; with `gone`, nobody gets it."""
        if self._use is None:
            self.controller.close()
        else:
            self._use.end(stays=stays, gone=gone)


def _where(url: str | os.PathLike[str]) -> str:
    where = location_url(url)
    if not isinstance(where, str):
        raise BadInput(f"a location must be a URL or a path, not {type(url).__name__}")
    return where


def open_client(
    url: str | os.PathLike[str], mode: Mode, *, create: bool, consensus: str | None
) -> PersistClient:
    """A client of a location, which is not shared. Raises like `table`."""
    url = _where(url)
    whole, blob = (url, None) if consensus is None or is_name(url) else (None, url)
    try:
        if mode == "write" and not create:
            return PersistClient(Location.open(whole, blob=blob, consensus=consensus, create=False))
        return PersistClient.open(whole, blob=blob, consensus=consensus, mode=mode)
    except NoLocation as error:
        hint = "check the URL; holdfast.table with columns={...} creates a location"
        raise NoLocation(str(error), hint=hint) from error
    except UnusablePath as error:
        if mode == "read" or not _is_readable(whole, blob, consensus):
            raise
        hint = 'open the table with mode="read", which writes nothing, or make the folder writable'
        raise UnusablePath(str(error), hint=hint) from error


def _is_readable(url: str | None, blob: str | None, consensus: str | None) -> bool:
    """Return whether this process can read a location at these URLs."""
    try:
        PersistClient.open(url, blob=blob, consensus=consensus, mode="read").close()
    except HoldfastError:
        return False
    return True


def _found(controller: StorageController, name: str, new: CollectionSpec | None) -> CollectionInfo:
    while True:
        try:
            info = controller.describe(name)
        except CollectionNotFound:
            info = None
        # A name finds only live collections, an id also finds dropped ones.
        if info is not None and not info.dropped:
            if new is not None:
                _check_schema(info, new.schema)
            return info
        if info is not None and info.state is CollectionState.DROPPING:
            # It keeps its name until the drop is finished, which only a drop does.
            raise CollectionNotFound(
                f"table {info.name} is being dropped",
                hint=f"drop it again to finish that: holdfast.drop_table, or 'holdfast drop {info.name}'",
            )
        if new is None:
            _refuse_missing(controller, name)
        try:
            info = controller.create_collection(new)
            log.info("created table %s, which keeps its history: %s", name, shown_period(info.retain_ms))
            return info
        except UniquenessViolation:
            continue  # Somebody else created it just now.
        except NotWritable:
            _refuse_missing(controller, name)


def _check_schema(info: CollectionInfo, schema: Schema) -> None:
    """Raise `BadInput` unless the table has these columns, or may have evolved from them."""
    now, given = info.schema, {column.name: column for column in schema.value}
    kept = tuple(column for column in now.value if column.name in given)
    added = (column for column in now.value if column.name not in given)
    fits = len(kept) == len(given) and all(column.nullable for column in added)
    if fits:
        # The columns of a dict have no order.
        older = replace(schema, value=tuple(given[column.name] for column in kept))
        fits = not evolution_fault(older, replace(now, value=kept))
    if not fits:
        for name in schema.names:
            if name not in now.names and info.names.dropped_as(name, -1) is not None:
                raise BadInput(
                    f"table {info.name}: column {name!r} was dropped",
                    hint="declare the table without it, or open it without columns",
                )
            if name not in now.names and (new := info.names.shown(name)) != name:
                raise BadInput(
                    f"table {info.name}: column {name!r} is called {new!r} now",
                    hint=f"declare it as {new!r}, or open the table without columns",
                )
        raise BadInput(
            f"table {info.name} exists with other columns: {info.schema}; given: {schema}",
            hint="open it without columns, or with columns that it has or had; 'holdfast collection alter'"
            " adds columns",
        )


def _refuse_missing(controller: StorageController, name: str) -> NoReturn:
    names = [info.name for info in controller.list_collections()]
    there = (
        f"existing tables: {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
        if names
        else "there are no tables"
    )
    raise CollectionNotFound(
        f"there is no table {name!r} in this location", hint=f"give columns={{...}} to create it; {there}"
    )


def schema_of(columns: Columns, key: Sequence[str]) -> Schema:
    """The schema that `columns` and `key` of `table` give. Raises `BadInput` if they don't fit together."""
    if isinstance(key, str):
        key = [key]
    if not isinstance(key, Sequence) or not all(isinstance(each, str) for each in key):
        raise BadInput(f"key must be a column name or a list of column names, not {key!r}")
    if twice := [name for name in key if list(key).count(name) > 1]:
        raise BadInput(f"key column {twice[0]!r} is given twice")
    # The schema of a Polars frame is a dict too, of Polars' types.
    if isinstance(columns, ArrowSchema):
        return Schema.from_arrow(pa.schema(columns), list(key))
    if not isinstance(columns, Mapping):
        raise BadInput(
            f"columns must be a dict of names and types, or a schema, not {type(columns).__name__}",
            hint="such as {'id': 'int64', 'note': 'string?'}, or the schema of an Arrow table or a frame",
        )
    if missing := [name for name in key if name not in columns]:
        raise BadInput(f"key column {missing[0]!r} is not among the columns ({', '.join(columns)})")
    values = {name: what for name, what in columns.items() if name not in set(key)}
    return Schema.of(key={name: columns[name] for name in key}, value=values)
