"""`/events`: sends an open page what changed, as server-sent events."""

import asyncio
import json
from typing import Final

from aiohttp import web

from holdfast.console.asking import TICKS
from holdfast.console.context import console_of, viewer_of, visible_places
from holdfast.console.parameters import text
from holdfast.console.resources import visible_resources
from holdfast.console.ticks import TickChange
from holdfast.errors import StoreUnreachable

_SILENCE_S: Final = 15.0
_LONGEST_S: Final = 300.0
"""A stream ends after this time. The browser opens it again, and access is decided again."""


RESOURCES_CHANGED: Final = TickChange("", ())
"""What a page hears if resources of the cluster changed: it is about no location."""


async def follow(request: web.Request) -> web.StreamResponse:
    """Send the changes of the locations that the viewer may see, or of one of them."""
    if request.method != "GET":
        raise web.HTTPMethodNotAllowed(request.method, ["GET"])
    wanted = text(request, "location")
    places = [each for each in visible_places(request) if wanted in ("", each.name)]
    cluster = console_of(request).cluster
    namespaces = await _namespaces(request, wanted)
    ticks = request.app[TICKS]
    with ticks.follow(viewer_of(request).name, places) as follower:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        clock = asyncio.get_running_loop().time
        wrote = clock()
        until = wrote + _LONGEST_S
        seen = 0 if cluster is None else cluster.changes(namespaces)
        try:
            await response.write(b": following\n\n")
            while not ticks.closed and clock() < until:
                changes = await follower.next(
                    _SILENCE_S if cluster is None else console_of(request).limits.tick_s
                )
                if cluster is not None and (latest := cluster.changes(namespaces)) != seen:
                    seen = latest
                    changes.append(RESOURCES_CHANGED)
                for each in changes:
                    data = {
                        "location": each.location,
                        "names": each.names,
                        "reachable": each.reachable,
                    }
                    await response.write(f"event: change\ndata: {json.dumps(data)}\n\n".encode())
                if not changes and clock() - wrote < _SILENCE_S:
                    continue
                if not changes:
                    await response.write(b": nothing changed\n\n")
                wrote = clock()
        except ConnectionError:
            # The page was closed.
            pass
        return response


async def _namespaces(request: web.Request, location: str) -> set[str]:
    """The namespaces whose resources a page shows: all that the viewer may see, or that of a location."""
    try:
        visible = await visible_resources(request)
    except StoreUnreachable:
        # The page says so. The browser opens the stream again.
        return set()
    found = {str(body["metadata"]["namespace"]) for body in visible.bodies}
    return {each for each in found if not location or location.startswith(f"{each}.")}
