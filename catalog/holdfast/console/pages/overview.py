"""The overview: all collections of all locations, sorted by trouble."""

import asyncio
from typing import Final

from aiohttp import web

from holdfast.collections.periods import shown_period
from holdfast.console.asking import ask_at
from holdfast.console.context import console_of, place_named, visible_places
from holdfast.console.facts.overview import SORTS, CollectionRow, PlaceRow, ordered, overview
from holdfast.console.facts.readiness import (
    ResourceTrouble,
    resource_troubles,
    with_resources,
    without_row,
)
from holdfast.console.facts.trouble import Level
from holdfast.console.parameters import choice, text, whole
from holdfast.console.places import ShownPlace
from holdfast.console.rendering import freshness_s, page
from holdfast.console.resources import visible_resources
from holdfast.errors import HoldfastError, StoreUnreachable

_MOST: Final = 200
_MOST_RESOURCES: Final = 20


async def show(request: web.Request) -> web.Response:
    """Show the overview."""
    sort = choice(request, "sort", SORTS)
    wanted, words = text(request, "location"), text(request, "q")
    skip = whole(request, "skip", 0, most=1_000_000)
    places = [place_named(request, wanted)] if wanted else list(visible_places(request))
    found = await asyncio.gather(*(_row(request, each, is_alone=len(places) == 1) for each in places))
    troubles, unknown = await _resources(request, wanted)
    everything = list(with_resources((row for each in found for row in each.collections), troubles))
    matching = ordered([row for row in everything if _matches(row, words)], sort)
    shown = matching[skip : skip + _MOST]
    return page(
        request,
        "overview.html",
        title="Overview",
        section="overview",
        live=wanted or "*",
        shown_place=wanted,
        places=found,
        resources=without_row(troubles, everything),
        resources_unknown=unknown,
        most_resources=_MOST_RESOURCES,
        place_names={each.name: each for each in found},
        rows=shown,
        most_catalogs=_MOST,
        kept=_kept,
        total=len(everything),
        matching=len(matching),
        skip=skip,
        more=skip + _MOST if skip + _MOST < len(matching) else None,
        counts={level: sum(row.level is level for row in everything) for level in Level},
        levels=list(reversed(Level)),
        sort=sort,
        sorts=SORTS,
        words=words,
        wanted=wanted,
    )


async def _row(request: web.Request, place: ShownPlace, *, is_alone: bool) -> PlaceRow:
    """The overview of a location. One that takes too long has its error, so that the others are shown."""
    limits = console_of(request).limits
    wait_s = limits.query_s if is_alone else limits.place_s
    try:
        async with asyncio.timeout(wait_s):
            return await ask_at(request, place, overview, place, freshness_s(request))
    except TimeoutError:
        what = f"the location has not responded for {wait_s:.0f} s"
        hint = "load the page again, or open the location alone"
        return PlaceRow(place.name, place.url, 0, (), error=what, hint=hint)
    except HoldfastError as error:
        return PlaceRow(place.name, place.url, 0, (), error=str(error), hint=error.hint)


async def _resources(request: web.Request, place: str) -> tuple[list[ResourceTrouble], str]:
    """What the resources of the cluster say that needs attention, and why that is not known."""
    try:
        visible = await visible_resources(request)
    except StoreUnreachable as error:
        return [], str(error)
    return [each for each in resource_troubles(visible.bodies) if place in ("", each.place)], ""


def _kept(retain_ms: int | None) -> str:
    """How much history a retention keeps."""
    return "all" if retain_ms is None else shown_period(retain_ms)


def _matches(row: CollectionRow, words: str) -> bool:
    """Whether a row has all the words in its name, its location or its status."""
    hay = f"{row.name} {row.place} {row.level.word}".casefold()
    return all(word in hay for word in words.casefold().split())
