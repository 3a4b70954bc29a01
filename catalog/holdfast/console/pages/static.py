"""Assets. They are in memory, so no address reaches a file."""

from typing import Final

from aiohttp import web

from holdfast.console.rendering import PAGES

_FOR_EVER: Final = "public, max-age=31536000, immutable"


async def send(request: web.Request) -> web.Response:
    """Send an asset. Its address has its version, so browsers keep it."""
    asset = request.app[PAGES].assets.get(request.match_info["name"])
    if asset is None:
        raise web.HTTPNotFound
    cache = _FOR_EVER if request.query.get("v") == asset.version else "no-cache"
    return web.Response(
        body=asset.body,
        content_type=asset.content_type,
        charset="utf-8",
        headers={"Cache-Control": cache},
    )
