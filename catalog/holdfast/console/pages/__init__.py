"""The views of the console: each module turns a request into facts, and these into a page."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from holdfast.console.pages import (
    activity,
    catalog,
    collection,
    events,
    migrations,
    overview,
    rows,
    shards,
    static,
)

ROUTES: Final[Sequence[web.RouteDef]] = (
    web.get("/", overview.show),
    web.get("/activity", activity.show),
    web.get("/events", events.follow),
    web.get("/locations/{location}/catalog", catalog.show),
    web.get("/locations/{location}/collections/{name}", collection.show),
    web.get("/locations/{location}/collections/{name}/rows", rows.show),
    web.get("/locations/{location}/shards", shards.show_all),
    web.get("/locations/{location}/shards/{id}", shards.show),
    web.get("/migrations", migrations.show_all),
    web.get("/migrations/{namespace}/{name}", migrations.show),
    web.get("/static/{name}", static.send),
)


def is_open(path: str) -> bool:
    """Whether everybody may read this address. Assets have nothing of a location."""
    return path.startswith("/static/")
