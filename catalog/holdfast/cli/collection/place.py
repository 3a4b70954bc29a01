"""What the commands of `holdfast collection` share: the location, times, and facts of collections."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.completing import complete_tables
from holdfast.cli.location import location_options as location_options
from holdfast.errors import BadInput, TornRendition

if TYPE_CHECKING:
    from holdfast.collections import CollectionInfo, StorageController
    from holdfast.persist import PersistClient
    from holdfast.tables.opened import OpenTable


name_argument = click.argument("name", shell_complete=complete_tables)


def time(text: str) -> int:
    """A collection time: milliseconds since the epoch, or an ISO 8601 date or timestamp (UTC by default)."""
    from holdfast.tables.moments import milliseconds

    return milliseconds(text)


@contextlib.contextmanager
def controller_of(client: "PersistClient") -> Iterator["StorageController"]:
    """The controller of a location. The block closes it and its client."""
    from holdfast.collections import StorageController
    from holdfast.collections.who import who_here

    with client, StorageController(client, who=who_here("holdfast collection")) as controller:
        yield controller


@contextlib.contextmanager
def opened_table(client: "PersistClient", name: str) -> Iterator["OpenTable"]:
    """A collection as the library opens a table, by its name or id. The block closes it."""
    from holdfast.tables.opened import OpenTable

    with controller_of(client) as controller:
        info = controller.describe(name)
        refuse_dropped(info)
        with contextlib.closing(OpenTable(client, controller, info)) as opened:
            yield opened


def refuse_dropped(info: "CollectionInfo") -> None:
    """Raise `BadInput` if the collection was dropped, so that only its id still finds it."""
    if info.dropped:
        raise BadInput(info.end)


def facts_of(controller: "StorageController", info: "CollectionInfo") -> dict[str, Any]:
    """What a list shows of a collection."""
    facts: dict[str, Any] = {
        "name": info.name,
        "id": info.collection_id,
        "state": info.state.name.capitalize(),
        "shards": len(info.holding.shards),
        "since": None,
        "upper": None,
    }
    if not info.dropped:
        try:
            frontiers = controller.frontiers(info.collection_id)
        except TornRendition as error:
            # A collection that can't be used must not hide the others.
            facts["state"], facts["problem"] = "Torn", str(error)
        else:
            facts["since"], facts["upper"] = frontiers.since, frontiers.upper
    return facts


def ahead_ms(upper: int | None, now_ms: int) -> int | None:
    """How far the time of a collection is ahead of the store's clock. None if it is at most a minute."""
    from holdfast.collections.complete_times import BEHIND_MS, ahead_by

    found = ahead_by(upper or 0, now_ms)
    return found if found > BEHIND_MS else None


def named(info: "CollectionInfo", **facts: Any) -> dict[str, Any]:
    """Facts of a collection, after its name and its id."""
    return {"name": info.name, "id": info.collection_id, **facts}


def column_facts(info: "CollectionInfo") -> list[dict[str, Any]]:
    """What JSON shows of the columns of a collection."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "nullable": column.nullable,
            "key": column in info.schema.key,
            "comment": info.comments.get(column.name),
        }
        for column in info.schema.columns
    ]


def columns_of(given: tuple[str, ...]) -> dict[str, str]:
    """Columns given as `name:type`, as a dict from name to type."""
    return _by_column(given, "type", "name:type, such as id:int64")


def comments_of(given: tuple[str, ...]) -> dict[str, str]:
    """Comments of columns given as `name:text`, as a dict from name to text."""
    return _by_column(given, "comment", "name:text, such as 'id:who it is'")


def _by_column(given: tuple[str, ...], what: str, form: str) -> dict[str, str]:
    columns: dict[str, str] = {}
    for each in given:
        name, colon, text = each.partition(":")
        if not colon:
            raise BadInput(f"column '{each}' has no {what}", hint=f"write it as {form}")
        if name in columns:
            raise BadInput(f"column '{name}' is given twice")
        columns[name] = text
    return columns
