"""The rows of a collection: as of a time, as the difference of two times, or one row with all of its values.

Everything that the page shows is in its address: the times, the columns, the filter, the place and the zoom.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from markupsafe import Markup, escape

from holdfast.console.asking import ask, collection_of, may_read_rows
from holdfast.console.context import place_of, viewer_of
from holdfast.console.drawing.slider import slider_svg
from holdfast.console.facts.collection import found_in
from holdfast.console.facts.overview import view_of
from holdfast.console.facts.rows import (
    Asked,
    Reach,
    RowsDifference,
    RowsPage,
    SliderTicks,
    TimeRefused,
    difference,
    parse_zoom,
    reading,
    row_at,
    rows_at,
    ticks_of,
)
from holdfast.console.facts.trouble import quoted
from holdfast.console.parameters import text
from holdfast.console.places import ShownPlace
from holdfast.console.rendering import (
    collection_path,
    crumbs_to,
    freshness_s,
    is_live,
    is_wall,
    iso,
    page,
)
from holdfast.errors import BadInput, HoldfastError

_NAMES: Final = ("as_of", "to", "columns", "where", "after", "row", "zoom")
_MOST_DIGITS: Final = 20
_ZOOM: Final = 4
"""A zoom shows this part of the times around the chosen one."""


@dataclass(frozen=True, slots=True)
class RowsAddress:
    """What the address of the page says. Empty values are left out of it."""

    path: str
    as_of: str = ""
    to: str = ""
    columns: str = ""
    where: str = ""
    after: str = ""
    row: str = ""
    zoom: str = ""

    def __call__(self, **changes: str | int | None) -> str:
        """The address of other rows, from the first one on."""
        return self.at(**{"after": "", "row": "", **changes})

    def at(self, **changes: str | int | None) -> str:
        """The address with other values."""
        texts = {name: "" if value is None else str(value) for name, value in changes.items()}
        found = replace(self, **texts)
        given = {name: value for name in _NAMES if (value := getattr(found, name))}
        return f"{self.path}?{urlencode(given)}" if given else self.path


@dataclass(frozen=True, slots=True)
class ShownRows:
    """What the page shows: rows, a difference or one row, or why it can't. `refused` is about times.

    `is_swapped` is whether the address has the later one of two times first.
    """

    name: str
    reach: Reach | None = None
    as_of: int | None = None
    to: int | None = None
    ticks: SliderTicks | None = None
    rows: RowsPage | None = None
    changes: RowsDifference | None = None
    refused: TimeRefused | None = None
    problem: HoldfastError | None = None
    is_swapped: bool = False


async def show(request: web.Request) -> web.Response:
    """Show the rows of a collection."""
    place, name = place_of(request), request.match_info["name"]
    info = await collection_of(request, place)
    if not await may_read_rows(request, place, info):
        return _not_allowed(request, place, info.name)
    address = RowsAddress(
        collection_path(place.name, name, "rows"), **{each: text(request, each) for each in _NAMES}
    )
    if is_live(request):
        # Something changed. The page keeps its rows, and learns only how far the collection is now.
        name, upper = await ask(request, _upper, place, info.collection_id, freshness_s(request))
        return page(request, "newer.html", place=place, name=name, address=address, upper=upper)
    shown = await ask(request, _shown, place, info.collection_id, address)
    if shown.is_swapped:
        address = replace(address, as_of=address.to, to=address.as_of)
    # A page of many cells takes long to make.
    return await asyncio.to_thread(
        page,
        request,
        "rows.html",
        title=f"{shown.name}: rows",
        section="overview",
        view="rows",
        place=place,
        live=place.name,
        upper=None if shown.reach is None else shown.reach.upper,
        crumbs=crumbs_to(place),
        address=address,
        now_ms=await ask(request, place.client.store_or_host_ms),
        slider=None if shown.ticks is None else _slider(shown, address),
        command=_command(place, shown, address),
        write=f"holdfast write {quoted(shown.name)} FILE {place.arguments}",
        picked=_listed(address.columns),
        field=_field,
        **{each: getattr(shown, each) for each in ShownRows.__slots__},
        status=400 if shown.refused or shown.problem else 200,
    )


def _not_allowed(request: web.Request, place: ShownPlace, name: str) -> web.Response:
    """The page for somebody who sees the collection, but not its rows."""
    role, user = "holdfast-data-reader", quoted(viewer_of(request).name)
    return page(
        request,
        "rows_not_allowed.html",
        status=403,
        title=f"{name}: rows",
        section="overview",
        view="rows",
        place=place,
        name=name,
        crumbs=crumbs_to(place),
        role=role,
        commands=[
            f"kubectl create rolebinding ROLEBINDING --clusterrole={role} --user={user} --namespace {each}"
            # Several Catalogs may share a location: see `Access.may_see`.
            for each in place.namespace.split(",")
        ],
    )


def _upper(place: ShownPlace, id_: str, max_age_s: float) -> tuple[str, int | None]:
    """The name of a collection, and its upper at the last look, or None if it has none."""
    seen = place.look(max_age_s)
    info = found_in(seen, place, id_)
    view, _ = view_of(seen, info)
    return info.name, None if view is None else view.upper


def _shown(place: ShownPlace, id_: str, address: RowsAddress) -> ShownRows:
    with reading(place.controller, id_) as (reader, reach):
        found = ShownRows(reach.name, reach)
        if reach.latest is None:
            # Nothing has been written. That is no error, whatever time the address has.
            return found
        try:
            found = replace(found, ticks=ticks_of(reader, reach, parse_zoom(address.zoom)))
            as_of = reach.time(address.as_of)
            found = replace(found, as_of=as_of)
            asked = Asked(tuple(_listed(address.columns)), address.where, address.after)
            if address.to:
                to = reach.time(address.to)
                found = replace(found, is_swapped=to < as_of)
                as_of, to = min(as_of, to), max(as_of, to)
                found = replace(found, as_of=as_of, to=to)
                described = place.controller.describe
                changes = difference(
                    reader, lambda: described(reader.info.collection_id).schema, as_of, to, asked
                )
                return replace(found, changes=changes)
            if address.row:
                one = row_at(reader, as_of, address.row, address.where)
                if one is None:
                    raise BadInput("there is no such row at this time", hint="go back to the rows")
                return replace(found, rows=one)
            return replace(found, rows=rows_at(reader, as_of, asked))
        except TimeRefused as refused:
            return replace(found, refused=refused)
        except BadInput as problem:
            return replace(found, problem=problem)


def _field(given: str) -> str:
    """A time of the address as its field shows it: a date if it is one in milliseconds."""
    number = int(given) if given.isascii() and given.isdecimal() and len(given) <= _MOST_DIGITS else 0
    return iso(number) if is_wall(number) else given


def _listed(columns: str) -> list[str]:
    return [name for each in columns.split(",") if (name := each.strip())]


def _slider(shown: ShownRows, address: RowsAddress) -> Mapping[str, Any]:
    """What the template needs for the slider."""
    ticks, reach = shown.ticks, shown.reach
    assert ticks is not None
    assert reach is not None
    chosen = [each for each in (shown.as_of, shown.to) if each is not None]
    number = len(ticks.ticks)
    label = escape(
        f"{number} times at which {shown.name} changed, from {_moment(ticks.first)} to {_moment(ticks.last)}"
    )
    times = [each.time - ticks.first for each in ticks.ticks]
    return {
        "svg": Markup(slider_svg(ticks, chosen, str(label))),  # noqa: S704 - numbers, and an escaped label
        "span": ticks.last - ticks.first,
        "times": json.dumps(times),
        "is_wall": is_wall(ticks.last),
        "handles": [
            {
                "name": name,
                "label": label,
                "value": min(max(time - ticks.first, 0), ticks.last - ticks.first),
                "time": time,
                "earlier": _link(address, name, ticks.before(time), reach),
                "later": _link(address, name, ticks.after(time), reach),
            }
            for name, label, time in _handles(shown)
        ],
        "zoom_in": _zoomed(address, shown, ticks),
    }


def _handles(shown: ShownRows) -> Sequence[tuple[str, str, int]]:
    if shown.as_of is None:
        return ()
    if shown.to is None:
        return (("as_of", "As of", shown.as_of),)
    return (("as_of", "From", shown.as_of), ("to", "To", shown.to))


def _link(address: RowsAddress, name: str, time: int | None, reach: Reach) -> str:
    if time is None or not reach.since <= time < reach.upper:
        return ""
    return address(**{name: time})


def _zoomed(address: RowsAddress, shown: ShownRows, ticks: SliderTicks) -> str:
    """The address with the part of the times around the chosen ones. Empty if that is no smaller."""
    if shown.as_of is None:
        return ""
    first, last = shown.as_of, shown.to if shown.to is not None else shown.as_of
    room = (ticks.last - ticks.first) // (2 * _ZOOM)
    first, last = max(ticks.first, first - room), min(ticks.last, last + room)
    if room < 1 or (first, last) == (ticks.first, ticks.last):
        return ""
    return address.at(zoom=f"{first}..{last}")


def _moment(time: int) -> str:
    return iso(time) if is_wall(time) else str(time)


def _command(place: ShownPlace, shown: ShownRows, address: RowsAddress) -> str:
    """The command that shows the same rows."""
    if shown.as_of is None:
        return ""
    if shown.to is not None:
        return f"holdfast diff {quoted(shown.name)} --from {shown.as_of} --to {shown.to} {place.arguments}"
    more = f" --where {quoted(address.where)}" if address.where else ""
    more += f" --columns {quoted(address.columns)}" if address.columns else ""
    return f"holdfast read {quoted(shown.name)} --as-of {shown.as_of}{more} {place.arguments}"
