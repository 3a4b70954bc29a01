"""Lists the tables of a location, and drops them."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from holdfast.collections import CollectionInfo, StorageController
from holdfast.collections.dropping import WAIT_S, drop, to_drop
from holdfast.errors import BadInput, CollectionInUse, CollectionNotFound, TornRendition
from holdfast.persist import PersistClient
from holdfast.persist.rows.casts import shown
from holdfast.tables.opened import users_here
from holdfast.tables.opening import enter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table of a location, as `list_tables` found it.

    `columns` has the types, where `?` means nullable. You can read at times from `since` on and before
    `upper`, in milliseconds. `retention` is how much history the table keeps (None: all). `problem` says why
    the table can't be used, and is empty if it can. `since` and `upper` are None then.
    """

    name: str
    id: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    shards: int
    retention: timedelta | None
    since: int | None
    upper: int | None
    problem: str = ""


def list_tables(
    url: str | os.PathLike[str] | PersistClient, *, consensus: str | None = None
) -> list[TableInfo]:
    """Return the tables of a location, sorted by name. Writes nothing.

    `url` and `consensus` are as for `holdfast.table`. Raises `NoLocation` if there is no location at the URL,
    and `StoreUnreachable`.
    """
    controller, leave = enter(url, "read", consensus=consensus)
    try:
        return [_listed(controller, info) for info in controller.list_collections()]
    finally:
        leave()


def drop_table(
    url: str | os.PathLike[str] | PersistClient,
    name: str,
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
    consensus: str | None = None,
) -> tuple[str, ...]:
    """Drop a table and delete all its data, permanently. `name` is its name or its id.

    Waits up to `wait_s` seconds until nobody reads the table any more, and logs whom it waits for. A process
    that ended without close blocks the drop for a minute. With `force`, the drop cuts off all readers and
    jobs at once. Returns whom it cut off, as text.

    Raises:
        CollectionNotFound: there is no such table.
        CollectionInUse: this process still reads the table, such as with a tail or a relation of
            `Table.to_duckdb`, or a hold that outlives its process keeps it: nothing was changed. Or somebody
            still reads it after the wait, and nobody can open it any more: drop it again.
        NoLocation: there is no location at the URL.
    """
    if not isinstance(name, str):
        raise BadInput(f"the name of a table must be text, not {shown(name)}")
    controller, leave = enter(url, "write", consensus=consensus)
    try:
        cut_off: list[str] = []
        for info in to_drop(controller, name):
            if not force:
                _refuse_own_reads(controller, info)
            waits = _Waits(info.name, wait_s)
            cut_off += drop(controller, info, force=force, wait_s=wait_s, on_wait=waits).cut_off
        return tuple(cut_off)
    finally:
        leave()


class _Waits:
    """Logs whom a drop waits for, whenever that changes."""

    def __init__(self, name: str, wait_s: float) -> None:
        self._name = name
        self._wait_s = wait_s
        self._logged = ""

    def __call__(self, users: str) -> None:
        if users != self._logged:
            self._logged = users
            text = "the drop of table %s waits up to %g s for %s"
            log.warning(text, self._name, self._wait_s, users)


def _refuse_own_reads(controller: StorageController, info: CollectionInfo) -> None:
    """Raise `CollectionInUse` if this process reads the table. A wait would be for itself."""
    users = users_here(controller.client, info.collection_id)
    if users:
        unchanged = "" if info.dropped else "; nothing was changed"
        raise CollectionInUse(
            f"table {info.name} is still read by this process ({', '.join(users)}){unchanged}",
            hint="close it, or delete the variables that refer to it, and drop the table again, or use"
            " force=True",
        )


def refuse_dropped(info: CollectionInfo) -> None:
    """Raise `CollectionNotFound` if a collection was dropped, so that only its id still finds it."""
    if info.dropped:
        raise CollectionNotFound(info.end)


def _listed(controller: StorageController, info: CollectionInfo) -> TableInfo:
    problem, since, upper = "", None, None
    try:
        if info.dropped:
            problem = f"{info.end}: drop it again"
        else:
            frontiers = controller.frontiers(info.collection_id)
            since, upper = frontiers.since, frontiers.upper
    except TornRendition as error:
        # A table that can't be used must not hide the others.
        problem = str(error)
    return TableInfo(
        name=info.name,
        id=info.collection_id,
        columns={each.name: f"{each.type}{'?' if each.nullable else ''}" for each in info.schema.columns},
        key=tuple(info.schema.key_names),
        shards=len(info.holding.shards),
        retention=None if info.retain_ms is None else timedelta(milliseconds=info.retain_ms),
        since=since,
        upper=upper,
        problem=problem,
    )
