"""Migrations and activity as pages, with the resources of a cluster and with none."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp.test_utils import TestClient, TestServer

import holdfast
from holdfast.console.access import LocalAccess, Viewer
from holdfast.console.cluster import Json, Kind
from holdfast.console.context import Console
from holdfast.console.facts.readiness import resource_troubles
from holdfast.console.facts.trouble import Level
from holdfast.console.places import ShownPlace, ShownPlaces
from holdfast.console.server import application
from holdfast.console.work import Limits
from unit.console.browsing import served

TOKEN = "token-of-a-test"
EVIL = "<script>alert('x')</script>"


class Resources:
    """Resources of a cluster, as the tests put them."""

    def __init__(self, *bodies: Json, events: Sequence[Json] = ()) -> None:
        self.bodies = bodies
        self.told = events
        self.seen = Counter[str]()

    async def resources(self, kind: Kind, namespace: str = "") -> Sequence[Json]:
        return [
            each
            for each in self.bodies
            if f"{each['kind']}s".lower() == kind and namespace in ("", each["metadata"]["namespace"])
        ]

    async def resource(self, kind: Kind, namespace: str, name: str) -> Json | None:
        found = await self.resources(kind, namespace)
        return next((each for each in found if each["metadata"]["name"] == name), None)

    async def events(self, namespace: str, name: str = "") -> Sequence[Json]:
        return [
            each
            for each in self.told
            if each["involvedObject"]["namespace"] == namespace
            and name in ("", each["involvedObject"]["name"])
        ]

    def changes(self, namespaces: Iterable[str]) -> int:
        return sum(self.seen[each] for each in namespaces)


class Only(LocalAccess):
    """Access to the namespace `a`."""

    async def may_see(self, viewer: Viewer, namespace: str) -> bool:
        return namespace in ("", "a")


def resource(kind: str, name: str, namespace: str = "a", **more: Any) -> Json:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}"}
    return {"kind": kind, "metadata": metadata | {"creationTimestamp": "2026-01-02T03:04:00Z"}, **more}


def migration(name: str, namespace: str = "a") -> Json:
    conditions = [
        {"type": "Ready", "status": "False", "reason": "MigrationRunning", "message": f"step 3 of {EVIL}"},
        {"type": "Verified", "status": "True", "reason": "ContentsEqual", "message": "12 rows are equal"},
    ]
    status = {
        "phase": "Migrating",
        "step": "2. open the persist catalog",
        "strategy": "OneTombstone",
        "sourceOfTruth": "Stash",
        "stashEpoch": 4,
        "persistEpoch": 3,
        "rows": 1234567,
        "bytes": 3456,
        "objects": {"item": {"rows": 1234567, "bytes": 3456}},
        "startTime": "2026-01-02T03:04:05Z",
        "deadline": "2026-01-02T03:14:05Z",
        "plan": [f"a plan {EVIL}"],
        "fencedBy": [{"time": "2026-01-02T03:04:05Z", "holder": EVIL, "epoch": 9, "generation": 1}],
        "conditions": [{**each, "lastTransitionTime": "2026-01-02T03:04:06Z"} for each in conditions],
    }
    spec = {"catalogRef": {"name": "demo"}, "target": "Persist", "verify": "Shadow", "shadowFor": "90s"}
    return resource("CatalogMigration", name, namespace, spec=spec, status=status)


def event(
    kind: str, name: str, message: str, namespace: str = "a", at: str = "2026-01-02T03:04:06.5Z"
) -> Json:
    about = {"kind": kind, "namespace": namespace, "name": name, "uid": f"{namespace}/{name}"}
    return {"involvedObject": about, "reason": "MigrationStep", "message": message, "eventTime": at}


def cluster() -> Resources:
    shadow = {
        "type": "ShadowDiverged",
        "status": "Unknown",
        "reason": "ShadowOutOfDate",
        "message": "it lacks 3",
    }
    status = {"conditions": [{**shadow, "lastTransitionTime": "2026-01-02T03:04:05Z"}]}
    return Resources(
        resource("Catalog", "demo", spec={}, status=status),
        resource("Catalog", "demo", "b", spec={}, status=status),
        migration("move"),
        migration("other", "b"),
        events=[
            event("CatalogMigration", "move", "done: 1. open the stash catalog (epoch 4)"),
            event("Catalog", "demo", f"said {EVIL}"),
            event("Catalog", "demo", "of-another-namespace", "b"),
        ],
    )


def pages(
    tmp_path: Path, resources: Resources | None, story: Callable[[TestClient[Any, Any]], Awaitable[None]]
) -> None:
    rows = pa.table({"id": [1]})
    with holdfast.table(tmp_path / "shop", "orders", columns=rows.schema, key=["id"]) as table:
        table.append(rows)
        table.retain("30d")

    async def told() -> None:
        console = Console(ShownPlaces.named([str(tmp_path / "shop")]), Only(TOKEN), resources)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with TestClient(TestServer(application(console)), headers=headers) as client:
            await story(client)

    asyncio.run(told())


def test_a_migration_has_its_steps_its_stores_and_what_was_compared(tmp_path: Path) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        async with client.get("/migrations/a/move") as answer:
            assert answer.status == 200
            text = await answer.text()
        for part in (
            "Open the stash catalog",
            "Set the stash tombstone to true",
            "1.5",
            "Out of date",
            "it lacks 3",
        ):
            assert part in text
        assert "1\u202f234\u202f567" in text
        assert "12 rows are equal" in text
        assert "&lt;script&gt;" in text
        assert "<script>alert" not in text
        async with client.get("/migrations") as answer:
            text = await answer.text()
        assert "/migrations/a/move" in text
        assert "/migrations/b/other" not in text
        for path in ("/migrations/b/other", "/migrations/a/none"):
            async with client.get(path) as answer:
                assert answer.status == 404

    pages(tmp_path, cluster(), story)


def test_the_activity_is_that_of_what_the_viewer_may_see(tmp_path: Path) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        async with client.get("/activity") as answer:
            assert answer.status == 200
            text = await answer.text()
        for part in ("create collection", "retain collection", "MigrationStep", "ShadowDiverged is Unknown"):
            assert part in text
        assert "of-another-namespace" not in text
        assert "<script>alert" not in text
        async with client.get("/activity", params={"object": "CatalogMigration/a/move"}) as answer:
            text = await answer.text()
        assert "Verified is True" in text
        assert "retain collection" not in text
        async with client.get("/activity", params={"source": "command", "q": "retain"}) as answer:
            text = await answer.text()
        assert "retain collection" in text
        assert "MigrationStep" not in text

    pages(tmp_path, cluster(), story)


def test_without_a_cluster_there_are_commands_and_a_hint_about_migrations(tmp_path: Path) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        async with client.get("/activity") as answer:
            assert "create collection" in await answer.text()
        async with client.get("/migrations") as answer:
            assert "holdfast migrate status" in await answer.text()

    pages(tmp_path, None, story)


@pytest.mark.parametrize("query", ["object=x", "source=nothing", "object=a/b/c/d"])
def test_a_filter_that_is_none_is_refused(tmp_path: Path, query: str) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        async with client.get(f"/activity?{query}") as answer:
            assert answer.status == 400

    pages(tmp_path, None, story)


def conditions(**reasons: tuple[str, str]) -> list[Json]:
    return [
        {"type": type_, "status": status, "reason": "Reason", "message": message}
        for type_, (status, message) in reasons.items()
    ]


def stored(tmp_path: Path) -> tuple[ShownPlaces, str]:
    """A location of Catalog a/demo with the collection orders, and the id of the collection."""
    with holdfast.table(tmp_path / "shop", "orders", columns={"id": "int64"}, key=["id"]) as table:
        table.append([{"id": 1}])
    place = ShownPlace("a.demo", (tmp_path / "shop").as_uri(), namespace="a")
    return ShownPlaces({"a.demo": place}), place.look().collections[0].collection_id


def test_what_resources_say_is_on_the_overview_and_on_the_page_of_the_collection(tmp_path: Path) -> None:
    places, id_ = stored(tmp_path)
    stalled = conditions(Ready=("False", "it waits"), Stalled=("True", f"the source is gone {EVIL}"))
    spec = {"catalogRef": {"name": "demo"}}
    found = Resources(
        resource("Catalog", "demo", status={"conditions": conditions(Ready=("False", "store is shut"))}),
        resource(
            "StorageCollection", "flights", spec=spec, status={"collectionId": id_, "conditions": stalled}
        ),
        resource(
            "StorageCollection",
            "unborn",
            spec=spec,
            status={"conditions": conditions(Ready=("False", "bad spec"))},
        ),
        resource(
            "StorageCollection", "well", spec=spec, status={"conditions": conditions(Ready=("True", "fine"))}
        ),
        resource("Catalog", "theirs", "b", status={"conditions": conditions(Ready=("False", "unseen"))}),
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with served(Console(places, Only(TOKEN), found)) as browser:
        text = browser.get("/", headers).text
        row = text[text.index(">orders</a>") :]
        assert "the source is gone &lt;script&gt;" in row
        assert "Not ready" in row
        above = text[: text.index(">orders</a>")]
        for part in ("store is shut", "bad spec", "kubectl holdfast status collection/unborn --namespace a"):
            assert part in above
        assert "the source is gone" not in above
        assert not {"unseen", "fine", "it waits"} & set(text.split())
        text = browser.get("/locations/a.demo/collections/orders", headers).text
        assert "Why it is not ready" in text
        assert "kubectl holdfast status collection/flights --namespace a" in text
        assert browser.get("/?location=a.none", headers).status == 404


@pytest.mark.parametrize(
    ("more", "level", "what"),
    [
        ({}, Level.WARNING, "No operator has reconciled it"),
        ({"Ready": ("False", "it waits")}, Level.BROKEN, "it waits"),
        ({"Ready": ("False", "it waits"), "Stalled": ("False", "no")}, Level.BROKEN, "it waits"),
        ({"Ready": ("True", "fine"), "SourceStalled": ("True", "no broker")}, Level.WARNING, "no broker"),
        ({"Ready": ("True", "fine"), "ObjectsInStep": ("True", "in step")}, None, ""),
    ],
)
def test_the_reason_of_a_resource(more: dict[str, tuple[str, str]], level: Level | None, what: str) -> None:
    found = resource_troubles([resource("Catalog", "demo", status={"conditions": conditions(**more)})])
    assert [each.trouble.level for each in found] == ([] if level is None else [level])
    assert all(each.trouble.what.startswith(what) for each in found)


def test_a_spec_that_the_operator_has_not_seen_and_a_deletion_are_in_progress() -> None:
    status = {"observedGeneration": 1, "conditions": conditions(Ready=("True", "fine"))}
    changed, leaving = (resource("Catalog", name, status=status) for name in ("changed", "leaving"))
    changed["metadata"]["generation"] = 2
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    found = resource_troubles([changed, leaving])
    assert {each.about.name: each.trouble.level for each in found} == {
        "changed": Level.BUSY,
        "leaving": Level.BUSY,
    }


def test_an_open_page_hears_of_changed_resources_of_its_namespaces(tmp_path: Path) -> None:
    places, _ = stored(tmp_path)
    found = Resources(resource("Catalog", "demo"), resource("Catalog", "demo", "b"))
    limits = Limits(tick_s=0.05)
    with served(Console(places, Only(TOKEN), found, limits=limits)) as browser:

        async def follow() -> list[Any]:
            heard: list[Any] = []
            with contextlib.suppress(TimeoutError):
                async with (
                    asyncio.timeout(20) as bound,
                    aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
                    session.get(f"http://{browser.host}/events") as stream,
                ):
                    async for line in stream.content:
                        if line.startswith(b": following"):
                            found.seen["b"] += 1
                            await asyncio.sleep(4 * limits.tick_s)
                            found.seen["a"] += 1
                        if line.startswith(b"data: "):
                            heard.append(json.loads(line[6:]))
                            # Another one would be there already.
                            bound.reschedule(asyncio.get_running_loop().time() + 4 * limits.tick_s)
            return heard

        assert browser.run(follow()) == [{"location": "", "names": [], "reachable": True}]
