"""Who gets into the console of a cluster: real HTTP on both sides, and canned reviews of an API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from kubernetes.client import ApiClient, Configuration

from holdfast.console.context import Console
from holdfast.console.places import ShownPlaces
from holdfast.console.server import application
from holdfast.errors import StoreUnreachable
from holdfast_operator.api.names import Kind
from holdfast_operator.console.access import COOKIE, ClusterAccess
from holdfast_operator.console.resources import Resources
from holdfast_operator.console.reviews import SECONDS, ClusterViewer, Recent, Reviews, Right
from holdfast_operator.engine.kube import Kube, resource_type
from testbed.serving import Serving

USERS = {"ada-token": "ada", "bob-token": "bob"}
RIGHTS = {
    ("ada", "list", "storagecollections", "", "a"),
    ("ada", "list", "catalogs", "", "a"),
    ("ada", "list", "catalogmigrations", "", "a"),
    ("ada", "list", "collectionsnapshots", "", "a"),
    ("bob", "list", "storagecollections", "", ""),
    ("bob", "list", "catalogs", "", ""),
    ("bob", "list", "catalogmigrations", "", ""),
    ("bob", "list", "collectionsnapshots", "", ""),
    ("bob", "get", "storagecollections", "data", "b"),
}
Story = Callable[["Cluster"], Awaitable[None]]


class Cluster:
    """An API server that reviews tokens and rights as `USERS` and `RIGHTS` say, and counts the reviews."""

    def __init__(self) -> None:
        self.reviews: list[tuple[str, dict[str, Any]]] = []
        self.works = True
        self.now = 0.0
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                cluster.reviews.append((body["kind"], body["spec"]))
                content = json.dumps({**body, "status": review(body)}).encode()
                self.send_response_only(201 if cluster.works else 500)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = Serving(Handler)
        configuration = Configuration()
        configuration.host = self.server.url
        self.kube = Kube(ApiClient(configuration))

    def asked(self, kind: str) -> int:
        return sum(each == kind for each, _ in self.reviews)

    @asynccontextmanager
    async def console(self) -> AsyncIterator[TestClient[Any, Any]]:
        reviews = Reviews(self.kube, clock=lambda: self.now)
        access = ClusterAccess(reviews, Resources(self.kube))
        console = Console(places=ShownPlaces({}), access=access)
        async with TestClient(TestServer(application(console))) as client:
            yield client

    def close(self) -> None:
        self.kube.close()
        self.server.close()


def review(body: dict[str, Any]) -> dict[str, Any]:
    spec = body["spec"]
    if body["kind"] == "TokenReview":
        name = USERS.get(spec["token"])
        return (
            {"authenticated": False}
            if name is None
            else {
                "authenticated": True,
                "user": {"username": name, "uid": "1", "groups": ["g"], "extra": {"scope": ["x"]}},
            }
        )
    asked = spec["resourceAttributes"]
    right = (
        spec["user"],
        *(asked.get(name, "") for name in ("verb", "resource", "subresource", "namespace")),
    )
    return {"allowed": right in RIGHTS}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    there = Cluster()
    yield there
    there.close()


def run(cluster: Cluster, story: Callable[[TestClient[Any, Any]], Awaitable[None]]) -> None:
    async def told() -> None:
        async with cluster.console() as client:
            await story(client)

    asyncio.run(told())


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("made-up"),
        bearer(""),
        {"Authorization": "Basic YWRhOmFkYQ=="},
        {"Cookie": f"{COOKIE}=made-up"},
        # Who is named by a header is nobody.
        {"Impersonate-User": "ada", "Impersonate-Group": "system:masters"},
        {"X-Forwarded-User": "ada", "X-Remote-User": "ada", "X-Auth-Request-User": "ada"},
        {**bearer("made-up"), "Impersonate-User": "ada"},
        # The header counts, so a wrong one is not saved by a cookie.
        {**bearer("made-up"), "Cookie": f"{COOKIE}=ada-token"},
    ],
)
def test_nobody_gets_in_without_a_token_of_the_cluster(cluster: Cluster, headers: dict[str, str]) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        for path in ("/", "/activity", "/migrations/a/b", "/nothing"):
            async with client.get(path, headers=headers, allow_redirects=False) as answer:
                assert answer.status == 401
                text = await answer.text()
                assert 'name="token"' in text
                assert "made-up" not in text

    run(cluster, story)


def test_a_token_in_the_header_or_in_the_cookie_is_its_user(cluster: Cluster) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        impersonating = {**bearer("ada-token"), "Impersonate-User": "bob"}
        for headers in (bearer("ada-token"), {"Cookie": f"{COOKIE}=ada-token"}, impersonating):
            async with client.get("/", headers=headers) as answer:
                assert answer.status == 200
        # Equal reviews are made once.
        assert cluster.asked("TokenReview") == 1

    run(cluster, story)


def test_a_login_keeps_the_token_in_a_cookie_that_no_script_and_no_other_site_gets(cluster: Cluster) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        form = {"token": " ada-token\n"}
        async with client.post("/login?next=/activity?q=x", data=form, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/activity?q=x")
            cookie = answer.cookies[COOKIE]
            assert cookie.value == "ada-token"
            assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == (True, "Strict", "")
        tls = {"X-Forwarded-Proto": "https"}
        async with client.post("/login", data=form, headers=tls, allow_redirects=False) as answer:
            assert answer.cookies[COOKIE]["secure"]
        # A browser that sends no Sec-Fetch-Site, as without TLS.
        own = {"Origin": f"http://{client.host}:{client.port}"}
        async with client.post("/login", data=form, headers=own, allow_redirects=False) as answer:
            assert answer.status == 303
        headers = {"Cookie": f"{COOKIE}=ada-token"}
        async with client.get("/", headers=headers) as answer:
            # Otherwise browsers send "null" as the origin of the form.
            assert answer.headers["Referrer-Policy"] == "same-origin"
            assert 'action="/logout"' in await answer.text()
        async with client.get("/", headers={"Authorization": "Bearer ada-token"}) as answer:
            assert "/logout" not in await answer.text()
        async with client.post("/login", data={"token": "made-up"}, allow_redirects=False) as answer:
            assert answer.status == 401
            assert COOKIE not in answer.cookies
        async with client.post("/logout", allow_redirects=False) as answer:
            assert answer.cookies[COOKIE]["max-age"] == "0"

    run(cluster, story)


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\r\nb"]
)
def test_a_login_leads_to_no_other_site(cluster: Cluster, target: str) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        answer = await client.post(
            "/login", params={"next": target}, data={"token": "ada-token"}, allow_redirects=False
        )
        assert answer.headers["Location"] == "/"

    run(cluster, story)


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
)
def test_another_site_can_log_nobody_in_or_out(cluster: Cluster, headers: dict[str, str]) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        for path in ("/login", "/logout"):
            async with client.post(
                path, data={"token": "ada-token"}, headers=headers, allow_redirects=False
            ) as answer:
                assert answer.status == 403
                assert COOKIE not in answer.cookies

    run(cluster, story)


def test_a_link_from_another_site_loads_again_so_that_the_cookie_is_sent(cluster: Cluster) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        async with client.get("/activity", headers=linked) as answer:
            assert 'http-equiv="refresh"' in await answer.text()
        async with client.get("/activity", headers={**linked, "Sec-Fetch-Site": "same-origin"}) as answer:
            assert 'http-equiv="refresh"' not in await answer.text()

    run(cluster, story)


def test_without_an_answer_of_the_api_server_nothing_is_shown(cluster: Cluster) -> None:
    async def story(client: TestClient[Any, Any]) -> None:
        cluster.works = False
        async with client.get("/", headers=bearer("ada-token")) as answer:
            assert answer.status == 503
            assert "ada-token" not in await answer.text()
        cluster.works = True
        async with client.get("/", headers=bearer("ada-token")) as answer:
            assert answer.status == 200

    run(cluster, story)


def test_rights_are_those_of_the_namespace(cluster: Cluster) -> None:
    async def story() -> None:
        access = ClusterAccess(Reviews(cluster.kube, clock=lambda: cluster.now), Resources(cluster.kube))
        ada, bob = ClusterViewer("ada"), ClusterViewer("bob")
        assert [await access.may_see(ada, each) for each in ("a", "b", "a,b", "")] == [
            True,
            False,
            False,
            False,
        ]
        assert [await access.may_see(bob, each) for each in ("a", "b", "a,b", "")] == [True, True, True, True]
        # Who sees the status need not see the rows. In a shared location, all namespaces have to allow it.
        assert [await access.may_read_rows(ada, each, "orders") for each in ("a", "b")] == [False, False]
        assert [await access.may_read_rows(bob, each, "orders") for each in ("a", "b", "a,b")] == [
            *(False, True, False)
        ]

    asyncio.run(story())


def test_the_rows_of_one_collection_can_be_allowed(cluster: Cluster) -> None:
    resources = Resources(cluster.kube)
    for number, name in enumerate(("orders", "payroll"), start=1):
        metadata = {"namespace": "a", "name": name, "uid": name, "resourceVersion": str(number)}
        followed = cluster.kube.followed[resource_type(Kind.STORAGE_COLLECTION), None]
        followed.put({"metadata": metadata, "status": {"collectionId": f"id-of-{name}"}})
        followed.synced = True

    async def story() -> None:
        access = ClusterAccess(Reviews(cluster.kube, clock=lambda: cluster.now), resources)
        for id_, asked in (("id-of-orders", "orders"), ("id-of-payroll", "payroll"), ("orders", None)):
            await access.may_read_rows(ClusterViewer("ada"), "a", id_)
            right = cluster.reviews[-1][1]["resourceAttributes"]
            assert (right["subresource"], right.get("name")) == ("data", asked)

    asyncio.run(story())


def test_a_review_says_all_that_is_known_of_the_user(cluster: Cluster) -> None:
    async def story() -> None:
        reviews = Reviews(cluster.kube, clock=lambda: cluster.now)
        viewer = await reviews.viewer("ada-token")
        assert viewer == ClusterViewer("ada", "1", ("g",), (("scope", ("x",)),))
        await reviews.may(viewer, Right("get", "storagecollections", "data", "a", "orders"))
        assert cluster.reviews[-1] == (
            "SubjectAccessReview",
            {
                "user": "ada",
                "uid": "1",
                "groups": ["g"],
                "extra": {"scope": ["x"]},
                "resourceAttributes": {
                    "group": "holdfast.dev",
                    "verb": "get",
                    "resource": "storagecollections",
                    "subresource": "data",
                    "namespace": "a",
                    "name": "orders",
                },
            },
        )

    asyncio.run(story())


def test_results_are_used_for_seconds(cluster: Cluster) -> None:
    async def story() -> None:
        reviews = Reviews(cluster.kube, clock=lambda: cluster.now)
        ada, right = ClusterViewer("ada"), Right("list", "catalogs", namespace="a")
        for _ in range(3):
            assert await reviews.may(ada, right)
        assert cluster.asked("SubjectAccessReview") == 1
        cluster.now += SECONDS
        await reviews.may(ada, right)
        await reviews.viewer("ada-token")
        assert cluster.asked("SubjectAccessReview") == 2

    asyncio.run(story())


def test_the_memory_for_results_is_bounded_and_a_failure_is_no_result() -> None:
    async def story() -> None:
        recent: Recent[int, int] = Recent(3)
        calls = []

        async def ask(number: int) -> int:
            calls.append(number)
            await asyncio.sleep(0)
            if number < 0:
                raise StoreUnreachable("no answer")
            return number

        for number in range(10):
            assert await recent.get(number, partial(ask, number)) == number
        assert len(recent) == 3
        together = await asyncio.gather(*(recent.get(42, lambda: ask(42)) for _ in range(5)))
        assert together == [42] * 5
        assert calls.count(42) == 1
        for _ in range(2):
            with pytest.raises(StoreUnreachable):
                await recent.get(-1, lambda: ask(-1))
        assert calls.count(-1) == 2

    asyncio.run(story())
