"""Opening tables: finds or creates the collection, and shares one client per location and process."""

import atexit
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NoReturn, TypeAlias

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
from holdfast.forks import ForkLock, fork_count
from holdfast.locations import is_name, location_url
from holdfast.persist import PersistClient, Schema
from holdfast.persist.parts.verified import kept_bytes
from holdfast.persist.rows.evolution import evolution_fault
from holdfast.persist.rows.schema import Column
from holdfast.persist.session import Mode
from holdfast.persist.stores import Location
from holdfast.tables.opened import OpenTable
from holdfast.tables.table import Table

Columns: TypeAlias = Mapping[str, Column | str] | pa.Schema
_WHO: Final = "holdfast.table"
log = logging.getLogger(__name__)


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
    `columns` is an Arrow schema or a dict
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
    controller, close = enter(url, mode, create=new is not None and mode == "write", consensus=consensus)
    try:
        info = _found(controller, name, new)
        return Table(OpenTable(controller.client, controller, info, close))
    except BaseException:
        close()
        raise


def enter(
    url: str | os.PathLike[str] | PersistClient,
    mode: Mode,
    *,
    create: bool = False,
    consensus: str | None = None,
) -> tuple[StorageController, Callable[[], None]]:
    """The controller of a location, and what leaves it. All that entered it by its URL share a client.

    `mode` and `create` don't matter for a `PersistClient`. Raises like `table`.
    """
    if isinstance(url, PersistClient):
        if consensus is not None:
            raise BadInput("a PersistClient has a consensus store", hint="leave out consensus")
        place = _Place(url)
        return place.controller, place.controller.close
    place = _enter(url, mode, create=create, consensus=consensus)
    return place.controller, lambda: _leave(place)


def enter_for_query(
    url: str | os.PathLike[str] | PersistClient, *, consensus: str | None = None
) -> tuple[StorageController, Callable[[bool], None]]:
    """Like `enter`, for a read. What leaves it takes whether the next query may use the client again.

    If so, and nobody else uses the client, it stays open until it was idle for `IDLE_S` seconds. Then the
    next query doesn't open the location again, and doesn't verify again what was verified. This is only for
    a `file://` location: its URL has no secrets, and no server counts its connections. A query uses the
    client only if both stores still have the location's id, in the same files. So a location that was deleted
    or made again is opened anew. At most `_MOST_IDLE` clients stay, each with 3 open files, at most
    `_MOST_SHARDS` shards and `_MOST_BYTES` of footers and checksums.
    """
    if isinstance(url, PersistClient) or consensus is not None or not _where(url).startswith("file:"):
        controller, close = enter(url, "read", consensus=consensus)
        return controller, lambda _: close()
    place = _enter(url, "read", create=False, consensus=None)
    return place.controller, lambda stays: _leave(place, stays=stays)


class _Place:
    """A location that tables of this process have open, and how many do."""

    def __init__(self, client: PersistClient, key: "_Key | None" = None) -> None:
        self.client = client
        self.controller = StorageController(client, who=who_here(_WHO))
        self.key = key
        self.tables = 0
        self.left_s = 0.0
        """When the last table left, on the monotonic clock."""

    @property
    def may_be_gone(self) -> bool:
        """Whether to look for its location before another table uses it.

        One that is used for writes, or that is not local, is not looked at while it is in use.
        """
        assert self.key is not None
        where, _, mode, _ = self.key
        return not self.tables or (mode == "read" and where.startswith("file:"))

    @property
    def is_small(self) -> bool:
        """Whether it may stay open while nobody uses it."""
        machines = list(self.client.session.machines.values())
        return len(machines) <= _MOST_SHARDS and sum(map(kept_bytes, machines)) <= _MOST_BYTES

    def close(self) -> None:
        """Close the client."""
        self.controller.close()
        self.client.close()


IDLE_S: Final = 10.0
"""Seconds for which a client of queries stays open after the last one."""
_MOST_IDLE: Final = 4
_MOST_SHARDS: Final = 1024
_MOST_BYTES: Final = 256 * 1024 * 1024
_lock: Final = ForkLock()
_Key: TypeAlias = tuple[str, str | None, str, int]
_places: dict[_Key, _Place] = {}
_timer: "tuple[int, threading.Timer] | None" = None
"""What closes idle clients, and the process that it runs in, as `fork_count` numbers it."""


def _enter(url: str | os.PathLike[str], mode: Mode, *, create: bool, consensus: str | None) -> _Place:
    where = _where(url)
    # A forked child can't use what its parent has open.
    key = (where, consensus, mode, fork_count())
    with _lock:
        place = _places.get(key)
        if place is not None and place.may_be_gone and not place.client.location.is_there():
            # Those who use it close it.
            _forget([place])
            if not place.tables:
                place.close()
            place = None
        if place is None:
            _close_gone()
            place = _places[key] = _Place(open_client(where, mode, create=create, consensus=consensus), key)
        place.tables += 1
        return place


def _leave(place: _Place, *, stays: bool = False) -> None:
    with _lock:
        place.tables -= 1
        if place.tables or place.key is None:
            return
        place.left_s = time.monotonic()
        if stays and place.is_small and _places.get(place.key) is place:
            ended = _idle()[_MOST_IDLE:]
            _wait(IDLE_S)
        else:
            ended = [place]
        _forget(ended)
    for each in ended:
        each.close()


def _close_gone() -> None:
    """Close the idle clients whose location is not there any more.

    A location that was moved can't be opened while a client of its former place is open.
    """
    gone = [each for each in _idle() if not each.client.location.is_there()]
    _forget(gone)
    for each in gone:
        each.close()


def _idle() -> list[_Place]:
    """The clients of this process that stay open while nobody uses them, the last used ones first."""
    found = [each for key, each in _places.items() if not each.tables and key[-1] == fork_count()]
    return sorted(found, key=lambda each: -each.left_s)


def _forget(places: Iterable[_Place]) -> None:
    for each in places:
        assert each.key is not None
        # One whose location was gone may have been replaced.
        if _places.get(each.key) is each:
            del _places[each.key]


def _wait(seconds: float) -> None:
    """Let a timer close idle clients, unless one runs."""
    global _timer
    if _timer is None or _timer[0] != fork_count():
        timer = threading.Timer(seconds, _close_idle)
        timer.daemon = True
        _timer = fork_count(), timer
        timer.start()


def _close_idle(idle_s: float | None = None) -> None:
    """Close clients that have been idle for that long (None: `IDLE_S`)."""
    global _timer
    idle_s = IDLE_S if idle_s is None else idle_s
    with _lock:
        _timer = None
        idle, oldest_s = _idle(), time.monotonic() - idle_s
        ended = [each for each in idle if each.left_s <= oldest_s]
        _forget(ended)
        if len(ended) < len(idle):
            _wait(idle[-len(ended) - 1].left_s - oldest_s)
    for each in ended:
        each.close()


@atexit.register
def _close_all_idle() -> None:
    _close_idle(0.0)


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
    if isinstance(columns, pa.Schema):
        return Schema.from_arrow(columns, list(key))
    if not isinstance(columns, Mapping):
        raise BadInput(f"columns must be a dict of names and types, not {type(columns).__name__}")
    if missing := [name for name in key if name not in columns]:
        raise BadInput(f"key column {missing[0]!r} is not among the columns ({', '.join(columns)})")
    values = {name: what for name, what in columns.items() if name not in set(key)}
    return Schema.of(key={name: columns[name] for name in key}, value=values)
