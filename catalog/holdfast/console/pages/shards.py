"""The shards of a location, for experts: holds, leases, garbage, batches and versions."""

from urllib.parse import quote

from aiohttp import web

from holdfast.console.asking import ask
from holdfast.console.context import place_of
from holdfast.console.facts.shards import shard_facts, shard_list
from holdfast.console.parameters import text
from holdfast.console.rendering import crumbs_to, freshness_s, page


async def show_all(request: web.Request) -> web.Response:
    """Show the largest shards of a location."""
    place, words = place_of(request), text(request, "q")
    found = await ask(request, shard_list, place, freshness_s(request))
    wanted = words.casefold().split()
    shown = [
        each
        for each in found.shards
        if all(word in f"{each.id} {each.belongs_to}".casefold() for word in wanted)
    ]
    return page(
        request,
        "shards.html",
        title="Shards",
        place=place,
        section="shards",
        live=place.name,
        crumbs=crumbs_to(place),
        found=found,
        shown=shown,
        words=words,
    )


async def show(request: web.Request) -> web.Response:
    """Show one shard."""
    place = place_of(request)
    facts = await ask(request, shard_facts, place, request.match_info["id"], freshness_s(request))
    return page(
        request,
        "shard.html",
        title=f"Shard {facts.id[:9]}…",
        place=place,
        section="shards",
        live=place.name,
        crumbs=(*crumbs_to(place), ("Shards", f"/locations/{quote(place.name, safe='')}/shards")),
        facts=facts,
    )
