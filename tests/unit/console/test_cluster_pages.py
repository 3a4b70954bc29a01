"""Migrations and activity as pages, with the resources of a cluster and with none."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp.test_utils import TestClient, TestServer

import holdfast
from holdfast.console.access import LocalAccess, Viewer
from holdfast.console.cluster import Json, Kind
from holdfast.console.context import Console
from holdfast.console.places import ShownPlaces
from holdfast.console.server import application

TOKEN = "token-of-a-test"
EVIL = "<script>alert('x')</script>"


class Resources:
    """Resources of a cluster, as the tests put them."""

    def __init__(self, *bodies: Json, events: Sequence[Json] = ()) -> None:
        self.bodies = bodies
        self.told = events

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

    def version(self) -> int:
        return 0


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
