"""What the informer reports of the lists and watches of kopf: real HTTP, canned responses."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from kubernetes.client import Configuration

from holdfast_operator.api.names import GROUP, VERSION, Kind
from holdfast_operator.engine.informer import Informer
from testbed.serving import Serving

TYPES = f"/apis/{GROUP}/{VERSION}"
PATH = f"{TYPES}/namespaces/ns/{Kind.CATALOG.plural}"
DEMO = {"metadata": {"name": "demo", "namespace": "ns", "uid": "u", "resourceVersion": "5"}}
EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}


def types(**plurals: str) -> dict[str, Any]:
    verbs = ["list", "watch", "get", "patch"]
    return {
        "resources": [
            {
                "name": name,
                "kind": kind,
                "singularName": "",
                "namespaced": name == Kind.CATALOG.plural,
                "verbs": verbs,
            }
            for name, kind in plurals.items()
        ]
    }


def group(name: str, version: str) -> dict[str, Any]:
    return {"name": name, "preferredVersion": {"version": version}, "versions": [{"version": version}]}


class Api:
    """An API server with one Catalog, which is gone at the second list. The first watch ends when it may."""

    def __init__(self) -> None:
        self.lists = self.watches = 0
        self.items = [DEMO]
        self.events: list[str] = []
        """The lines of the second watch."""
        self.expires, self.ends = threading.Event(), threading.Event()
        fixed = {
            "/api": {"versions": ["v1"]},
            "/api/v1": types(namespaces="Namespace"),
            "/apis": {"groups": [group(GROUP, VERSION), group("apiextensions.k8s.io", "v1")]},
            "/apis/apiextensions.k8s.io/v1": types(customresourcedefinitions="CustomResourceDefinition"),
            TYPES: types(**{Kind.CATALOG.plural: Kind.CATALOG.value}),
        }
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if path == PATH and "watch=true" in query:
                    return self.watch()
                if path == PATH:
                    api.lists += 1
                    items = api.items if api.lists == 1 else []
                    answer = {"metadata": {"resourceVersion": str(10 * api.lists)}, "items": items}
                else:
                    answer = fixed.get(path, {})
                self.send_response(200 if answer else 404)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())
                return None

            def watch(self) -> None:
                api.watches += 1
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                if api.watches == 1:
                    api.expires.wait(20.0)
                    self.wfile.write(json.dumps(EXPIRED).encode() + b"\n")
                    return
                for event in api.events:
                    self.wfile.write(event.encode() + b"\n")
                    self.wfile.flush()
                api.ends.wait(20.0)

        self.server = Serving(Handler)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api()
    configuration = Configuration()
    configuration.host = api.server.url
    monkeypatch.setattr("holdfast_operator.engine.informer.configuration", lambda: configuration)
    yield api
    api.ends.set()
    api.server.close()


async def settle(done: Any) -> None:
    end = time.monotonic() + 15.0
    while not done():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def test_each_list_is_reported_also_if_it_is_empty(api: Api) -> None:
    seen: list[str | None] = []
    lists: list[None] = []
    informer = Informer(
        namespaces=["ns"],
        on_event=lambda _key, type_, _body: seen.append(type_),
        on_list=lambda: lists.append(None),
        on_end=lambda error: pytest.fail(str(error)),
    )

    async def story() -> None:
        informer.start([Kind.CATALOG])
        await settle(lambda: (seen, len(lists), api.watches) == ([None], 1, 1))
        api.expires.set()
        await settle(lambda: (seen, len(lists), api.watches) == ([None], 2, 2))
        api.ends.set()
        await informer.stop()

    asyncio.run(story())


def test_it_ends_at_once_and_logs_nothing_while_objects_are_listed(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """kopf then has tasks for objects that it has not passed on yet."""
    api.items = [
        {"metadata": {**DEMO["metadata"], "name": f"c{each}", "uid": f"{each}"}} for each in range(400)
    ]
    first = asyncio.Event()
    informer = Informer(
        namespaces=["ns"],
        on_event=lambda *_: first.set(),
        on_list=lambda: None,
        on_end=lambda error: pytest.fail(str(error)),
    )

    async def story() -> float:
        informer.start([Kind.CATALOG])
        await asyncio.wait_for(first.wait(), 15.0)
        before = time.monotonic()
        await informer.stop()
        return time.monotonic() - before

    assert asyncio.run(story()) < 2.0
    gc.collect()
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


def test_objects_are_passed_on_as_they_are_however_deep_they_are_nested(api: Api) -> None:
    """kopf parsed a page of large objects at once, and its watch ended at a deep one."""
    deep = '{"f:a":' * 50_000 + "{}" + "}" * 50_000
    listed = DEMO | {"spec": {"a": "ä"}, "status": {"upper": 1}}
    changed = json.dumps(listed | {"metadata": DEMO["metadata"] | {"resourceVersion": "21"}})
    fields = changed.replace('"uid"', f'"managedFields": [{deep}], "uid"')
    api.items = [listed]
    api.events = [
        '{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}',
        f'{{"type": "MODIFIED", "object": {fields}}}',
    ]
    seen: list[tuple[str | None, Any]] = []
    informer = Informer(
        namespaces=["ns"],
        on_event=lambda _key, type_, body: seen.append((type_, body)),
        on_list=lambda: None,
        on_end=lambda error: pytest.fail(str(error)),
    )

    async def story() -> None:
        informer.start([Kind.CATALOG])
        await settle(lambda: len(seen) == 1)
        api.expires.set()
        await settle(lambda: len(seen) == 2)
        api.ends.set()
        await informer.stop()

    asyncio.run(story())
    assert [(type_, {name: body[name] for name in listed}) for type_, body in seen] == [
        (None, listed),
        ("MODIFIED", json.loads(changed)),
    ]
