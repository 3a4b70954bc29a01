"""A catalog: its objects as of a time, its audit log, and what changed between two times."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

from aiohttp import web
from markupsafe import Markup

from holdfast.console.asking import ask
from holdfast.console.context import place_of
from holdfast.console.drawing.slider import slider_svg
from holdfast.console.facts.catalog import (
    CatalogCommit,
    CatalogDifference,
    CatalogFacts,
    CatalogReach,
    catalog_at,
    catalog_difference,
    catalogs_in,
    commits,
    reading_catalog,
    shard_of,
)
from holdfast.console.facts.rows import SliderTicks, Tick, TimeRefused
from holdfast.console.parameters import text
from holdfast.console.places import ShownPlace
from holdfast.console.rendering import crumbs_to, page
from holdfast.errors import BadInput, HoldfastError

_NAMES: Final = ("catalog", "as_of", "to", "q")


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """What the address of the page says. Empty values are left out of it."""

    path: str
    catalog: str = ""
    as_of: str = ""
    to: str = ""
    q: str = ""

    def __call__(self, **changes: str | int | None) -> str:
        """The address with other values. What the page does not have is ignored."""
        texts = {
            name: "" if value is None else str(value) for name, value in changes.items() if name in _NAMES
        }
        found = replace(self, **texts)
        given = {name: value for name in _NAMES if (value := getattr(found, name))}
        return f"{self.path}?{urlencode(given)}" if given else self.path

    at = __call__


@dataclass(frozen=True, slots=True)
class ShownCatalog:
    """What the page shows: a catalog at one time or the difference of two, or why it can't."""

    catalogs: tuple[str, ...] = ()
    reach: CatalogReach | None = None
    commits: tuple[CatalogCommit, ...] = ()
    as_of: int | None = None
    to: int | None = None
    facts: CatalogFacts | None = None
    changes: CatalogDifference | None = None
    refused: TimeRefused | None = None
    problem: HoldfastError | None = None


async def show(request: web.Request) -> web.Response:
    """Show a catalog."""
    place = place_of(request)
    path = f"/locations/{quote(place.name, safe='')}/catalog"
    address = CatalogAddress(path, **{each: text(request, each) for each in _NAMES})
    shown = await ask(request, _shown, place, address)
    ticks = None if shown.reach is None else _ticks(shown.reach)
    # A page of many cells takes long to make.
    return await asyncio.to_thread(
        page,
        request,
        "catalog.html",
        title="Catalog",
        section="catalog",
        place=place,
        crumbs=crumbs_to(place),
        address=address,
        now_ms=await ask(request, place.client.store_or_host_ms),
        ticks=ticks,
        slider=None if ticks is None else _slider(shown, ticks, address),
        made={each.time: each for each in shown.commits},
        **{each: getattr(shown, each) for each in ShownCatalog.__slots__ if each != "commits"},
        status=400 if shown.refused or shown.problem else 200,
    )


def _shown(place: ShownPlace, address: CatalogAddress) -> ShownCatalog:
    client = place.client
    found = ShownCatalog()
    try:
        if not address.catalog:
            found = replace(found, catalogs=catalogs_in(client, place.look(60.0).states))
            if len(found.catalogs) != 1:
                return found
        shard = shard_of(address.catalog) if address.catalog else found.catalogs[0]
        with reading_catalog(client, shard) as (store, reach):
            found = replace(found, reach=reach, commits=commits(client, reach))
            as_of = reach.time(address.as_of)
            found = replace(found, as_of=as_of)
            if address.to:
                to = reach.time(address.to)
                as_of, to = min(as_of, to), max(as_of, to)
                return replace(found, as_of=as_of, to=to, changes=catalog_difference(store, as_of, to))
            return replace(found, facts=catalog_at(store, as_of, address.q))
    except TimeRefused as refused:
        return replace(found, refused=refused)
    except BadInput as problem:
        return replace(found, problem=problem)


def _ticks(reach: CatalogReach) -> SliderTicks:
    few = range(max(reach.since, reach.upper - 240), reach.upper)
    return SliderTicks(reach.since, reach.latest, tuple(Tick(time, 1) for time in few))


def _slider(shown: ShownCatalog, ticks: SliderTicks, address: CatalogAddress) -> dict[str, Any]:
    """What the template needs for the slider: a step is a commit."""
    chosen = [each for each in (shown.as_of, shown.to) if each is not None]
    label = f"Commits {ticks.first} to {ticks.last}"
    return {
        "svg": Markup(slider_svg(ticks, chosen, label)),  # noqa: S704 - only numbers
        "span": ticks.last - ticks.first,
        "times": "",
        "is_wall": False,
        "handles": [
            {
                "name": name,
                "label": label,
                "value": time - ticks.first,
                "time": time,
                "earlier": address(**{name: time - 1}) if time > ticks.first else "",
                "later": address(**{name: time + 1}) if time < ticks.last else "",
            }
            for name, label, time in _handles(shown)
        ],
        "zoom_in": "",
    }


def _handles(shown: ShownCatalog) -> Sequence[tuple[str, str, int]]:
    if shown.as_of is None:
        return ()
    if shown.to is None:
        return (("as_of", "As of commit", shown.as_of),)
    return (("as_of", "From commit", shown.as_of), ("to", "To commit", shown.to))
