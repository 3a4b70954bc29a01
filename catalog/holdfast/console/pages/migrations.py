"""Migrations: all of them in one list, and one with its numbered steps."""

import time

from aiohttp import web

from holdfast.console.cluster import Json
from holdfast.console.context import NotHere, console_of
from holdfast.console.drawing.migration import timeline
from holdfast.console.facts.migration import Migration, migration, ordered
from holdfast.console.rendering import page
from holdfast.console.resources import Visible, visible_resources


async def show_all(request: web.Request) -> web.Response:
    """Show the migrations that the viewer may see."""
    visible = await visible_resources(request)
    found = ordered([_facts(visible, body) for body in visible.by_kind["catalogmigrations"]])
    return page(
        request,
        "migrations.html",
        title="Migrations",
        section="migrations",
        live="*",
        migrations=found,
        has_cluster=console_of(request).cluster is not None,
        now_ms=_now_ms(),
    )


async def show(request: web.Request) -> web.Response:
    """Show one migration."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    visible = await visible_resources(request, events=True)
    for body in visible.by_kind["catalogmigrations"]:
        if (body["metadata"]["namespace"], body["metadata"]["name"]) == (namespace, name):
            found = _facts(visible, body)
            return page(
                request,
                "migration.html",
                title=f"Migration {name}",
                section="migrations",
                crumbs=(("Migrations", "/migrations"),),
                live="*",
                found=found,
                drawing=timeline(found),
                now_ms=_now_ms(),
            )
    raise NotHere(
        f"there is no migration {namespace[:60]}/{name[:60]} that you may see",
        hint="the list of migrations shows those that you may see",
    )


def _facts(visible: Visible, body: Json) -> Migration:
    metadata = body["metadata"]
    catalog = next(
        (
            each
            for each in visible.by_kind["catalogs"]
            if each["metadata"]["namespace"] == metadata["namespace"]
            and each["metadata"]["name"] == body["spec"]["catalogRef"]["name"]
        ),
        None,
    )
    events = [
        each for each in visible.events if each.get("involvedObject", {}).get("uid") == metadata.get("uid")
    ]
    return migration(body, catalog, events)


def _now_ms() -> int:
    return round(time.time() * 1000)
