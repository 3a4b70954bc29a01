"""`/events`: sends an open page what changed, as server-sent events."""

import asyncio
import json
from typing import Final

from aiohttp import web

from holdfast.console.asking import TICKS
from holdfast.console.context import viewer_of, visible_places
from holdfast.console.parameters import text

_SILENCE_S: Final = 15.0
_LONGEST_S: Final = 300.0
"""A stream ends after this time. The browser opens it again, and access is decided again."""


async def follow(request: web.Request) -> web.StreamResponse:
    """Send the changes of the locations that the viewer may see, or of one of them."""
    if request.method != "GET":
        raise web.HTTPMethodNotAllowed(request.method, ["GET"])
    wanted = text(request, "location")
    places = [each for each in visible_places(request) if wanted in ("", each.name)]
    ticks = request.app[TICKS]
    with ticks.follow(viewer_of(request).name, places) as follower:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        until = asyncio.get_running_loop().time() + _LONGEST_S
        try:
            await response.write(b": following\n\n")
            while not ticks.closed and asyncio.get_running_loop().time() < until:
                changes = await follower.next(_SILENCE_S)
                for each in changes:
                    data = {
                        "location": each.location,
                        "names": each.names,
                        "reachable": each.reachable,
                    }
                    await response.write(f"event: change\ndata: {json.dumps(data)}\n\n".encode())
                if not changes:
                    await response.write(b": nothing changed\n\n")
        except ConnectionError:
            # The page was closed.
            pass
        return response
