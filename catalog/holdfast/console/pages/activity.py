"""Activity: Events, changes of conditions, commands and jobs in one list, newest first."""

import asyncio
import time
from itertools import chain
from typing import Final

from aiohttp import web

from holdfast.console.asking import ask_at
from holdfast.console.context import console_of, visible_places
from holdfast.console.facts import activity
from holdfast.console.facts.activity import (
    MOST_ENTRIES,
    ActivityEntry,
    ActivitySource,
    ObjectName,
    parse_name,
)
from holdfast.console.parameters import choice, text
from holdfast.console.places import PlaceLook, ShownPlace
from holdfast.console.rendering import freshness_s, page
from holdfast.console.resources import collection_names, visible_resources
from holdfast.errors import BadInput, HoldfastError, StoreUnreachable

_ALL: Final = ("", *(each.value for each in ActivitySource))
_MOST_OBJECTS: Final = 1000


async def show(request: web.Request) -> web.Response:
    """Show what happened, to everything or to one object and what refers to it."""
    asked, source, words = text(request, "object"), choice(request, "source", _ALL), text(request, "q")
    about = parse_name(asked)
    if asked and about is None:
        raise BadInput(
            f"object {asked[:60]!r} is no name of an object",
            hint="it is KIND/NAMESPACE/NAME of a resource, or collection/NAME",
        )
    visible = await visible_resources(request, events=True)
    looks, errors = await _looks(request)
    names = collection_names(looks, visible.by_kind["storagecollections"])
    entries = list(
        chain(
            activity.of_events(visible.events),
            activity.of_conditions(visible.bodies),
            *(activity.of_commands(each.commands, names) for each in looks),
            *(activity.of_jobs(chain.from_iterable(each.jobs.values()), names) for each in looks),
        )
    )
    objects = sorted({each.about for each in entries})
    wanted = None if about is None else activity.related(about, visible.bodies)
    matching = [each for each in entries if source in ("", each.source) and _matches(each, words)]
    shown = activity.newest(matching, wanted)
    return page(
        request,
        "activity.html",
        title="Activity",
        section="activity",
        live="*",
        entries=shown,
        matching=sum(wanted is None or each.about in wanted for each in matching),
        most=MOST_ENTRIES,
        objects=_offered(objects, about),
        sources=list(ActivitySource),
        asked=asked,
        source=source,
        words=words,
        errors=errors,
        has_cluster=console_of(request).cluster is not None,
        now_ms=max((each.now_ms for each in looks), default=0) or round(time.time() * 1000),
    )


async def _looks(request: web.Request) -> tuple[list[PlaceLook], list[tuple[str, str]]]:
    """The looks at the locations, and the names of those that can't be read with the reason."""
    places = visible_places(request)

    async def one(place: ShownPlace) -> PlaceLook | HoldfastError:
        try:
            async with asyncio.timeout(console_of(request).limits.place_s):
                return await ask_at(request, place, place.look, freshness_s(request))
        except TimeoutError:
            return StoreUnreachable("the location has not responded yet")
        except HoldfastError as error:
            return error

    found = await asyncio.gather(*(one(each) for each in places))
    errors = [
        (place.name, str(each))
        for place, each in zip(places, found, strict=True)
        if isinstance(each, HoldfastError)
    ]
    return [each for each in found if isinstance(each, PlaceLook)], errors


def _offered(objects: list[ObjectName], about: ObjectName | None) -> list[ObjectName]:
    """The objects to choose from."""
    first = [] if about is None or about in objects else [about]
    return [*first, *objects[:_MOST_OBJECTS]]


def _matches(entry: ActivityEntry, words: str) -> bool:
    hay = f"{entry.about} {entry.what} {entry.text} {entry.by}".casefold()
    return all(word in hay for word in words.casefold().split())
