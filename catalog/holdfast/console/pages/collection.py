"""A collection: frontiers and holds, source, renditions, jobs, shards."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from aiohttp import web
from markupsafe import Markup

from holdfast.collections.periods import shown_period
from holdfast.console.asking import ask, collection_of, may_read_rows
from holdfast.console.context import console_of, place_of
from holdfast.console.drawing import frontiers, jobs
from holdfast.console.drawing.scale import NARROW, WIDTH
from holdfast.console.facts.activity import result_text, slot_text
from holdfast.console.facts.collection import collection_facts
from holdfast.console.facts.feed import SourceFeed
from holdfast.console.facts.readiness import resource_troubles, with_resources
from holdfast.console.facts.trouble import LATE_MS, clock, quoted
from holdfast.console.rendering import crumbs_to, masked, number, page, secrets_of_page
from holdfast.console.resources import visible_resources
from holdfast.errors import StoreUnreachable
from holdfast.text import age


async def show(request: web.Request) -> web.Response:
    """Show a collection by its name or id."""
    place = place_of(request)
    info = await collection_of(request, place)
    may_read = await may_read_rows(request, place, info)
    age_s = console_of(request).limits.tick_s
    facts = await ask(request, collection_facts, place, info.collection_id, age_s, with_records=may_read)
    with contextlib.suppress(StoreUnreachable):
        # Without the resources, the page shows what is stored.
        visible = await visible_resources(request)
        bodies = visible.by_kind["storagecollections"]
        own = [each for each in bodies if each.get("status", {}).get("collectionId") == facts.row.id]
        (row,) = with_resources([facts.row], resource_troubles(own))
        facts = replace(facts, row=row)
    name, secrets = facts.info.name, secrets_of_page(request)
    holds = [replace(each, purpose=masked(each.purpose, secrets)) for each in facts.history.holds]
    return page(
        request,
        "collection.html",
        title=name,
        name=name,
        view="collection",
        place=place,
        section="overview",
        live=place.name,
        crumbs=crumbs_to(place),
        facts=facts,
        quoted=quoted,
        clock=clock,
        result_text=result_text,
        slot_text=slot_text,
        trend=_trend(facts.feed),
        retention="all of its history"
        if facts.info.retain_ms is None
        else shown_period(facts.info.retain_ms),
        frontier_drawing=_drawn(
            lambda width: frontiers.frontiers(facts.history, f"Since and upper of {name} over time", width)
        ),
        holds_drawing=_drawn(
            lambda width: frontiers.holds(
                facts.history, holds, f"Who held the since of {name} over time", width
            )
        ),
        jobs_drawing=_drawn(
            lambda width: jobs.jobs(facts.jobs, facts.now_ms, f"Jobs of {name} over time", width)
        ),
    )


def _drawn(draw: Callable[[int], Markup]) -> Markup:
    """A wide drawing and a narrow one. The style sheet shows the one that fits. Empty if both are."""
    wide = draw(WIDTH)
    both = Markup('<div class="wide">{}</div><div class="narrow-drawing">{}</div>')
    return both.format(wide, draw(NARROW)) if wide else wide


_SHORT: Final = "Not known yet: the history is too short"


def _trend(feed: SourceFeed | None) -> str:
    """How the lag changes, in words."""
    if feed is None:
        return ""
    if not feed.is_stepping:
        return "Falling behind: there was no step lately"
    if not feed.trend or (feed.lag_ms or 0) > LATE_MS:
        return _time_trend(feed)
    (first_ms, first), (last_ms, last) = feed.trend[0], feed.trend[-1]
    if last == 0:
        return "Not behind"
    if len(feed.trend) == 1:
        return _SHORT
    change = f"{number(first)} to {number(last)} messages in {age((last_ms - first_ms) / 1000)}"
    if feed.caught_up_ms is not None:
        return f"Catching up: {change}"
    return f"Falling behind: {change}" if last > first else f"Steady: {change}"


def _time_trend(feed: SourceFeed) -> str:
    """How the lag in time changes, in words. A source that doesn't count its messages has no other one."""
    if feed.lag_ms is not None and feed.lag_ms <= LATE_MS:
        return "Not behind"
    if len(feed.lag_trend) < 2 or feed.lag_trend[0] == feed.lag_trend[1]:
        return _SHORT
    (first_ms, first), (last_ms, last) = feed.lag_trend
    change = f"{age(first / 1000)} to {age(last / 1000)} in {age((last_ms - first_ms) / 1000)}"
    if last < first:
        return f"Catching up: {change}"
    return f"Falling behind: {change}" if last > first else f"Steady: {change}"
