"""The console on a real API server: who sees which namespace, who sees rows, and what nobody sees.

The stores are made with the library, so no operator runs. All tests share one console and its two namespaces.
"""

import json
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import holdfast
from testbed.children import plain_path
from testbed.kube import ControlPlane
from testbed.objects import new_namespace
from testbed.process import Child

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.kube

API = "holdfast.dev/v1alpha1"
PLANTED = "planted-secret-4711"
GROUP = ("holdfast-viewer", "holdfast-data-reader")
IMAGE = "<img src=x onerror=\"document.title='owned'\">"
MIGRATING = {
    "phase": "Migrating",
    "step": "2. open the persist catalog",
    "strategy": "OneTombstone",
    "sourceOfTruth": "Stash",
    "stashEpoch": 4,
    "persistEpoch": 3,
    "rows": 1234567,
    "bytes": 345678901,
    "objects": {"item": {"rows": 1234500, "bytes": 345678800}, "role": {"rows": 67, "bytes": 101}},
    "startTime": "2026-01-02T03:04:05Z",
    "deadline": "2026-01-02T03:14:05Z",
    "plan": ["open both stores", f"plan {IMAGE}"],
    "fencedBy": [{"time": "2026-01-02T03:04:05Z", "holder": f"pod-2 {IMAGE}", "epoch": 9, "generation": 1}],
}


@dataclass(frozen=True)
class Answer:
    """A response of the console."""

    status: int
    text: str
    headers: Message


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows nothing, so that tests see redirections."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay)


class Console:
    """`holdfast-operator console` over the namespaces `ours` and `theirs`, each with a table."""

    def __init__(self, cluster: ControlPlane, ours: str, theirs: str, folder: Path) -> None:
        self.cluster, self.ours, self.theirs = cluster, ours, theirs
        self.volume = folder / "volume"
        self.child = Child(
            "console",
            [
                *(sys.executable, "-m", "holdfast_operator", "console"),
                *(f"--namespace={ours}", f"--namespace={theirs}", f"--data-dir={self.volume}"),
                *("--listen=127.0.0.1:0", "--health=127.0.0.1:0"),
            ],
            log=folder / "console.log",
            env=cluster.environment(
                {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": plain_path()}
            ),
        )
        self.tokens: dict[str, str] = {}

    def wait(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + 60
        while (found := re.search(pattern, self.log())) is None:
            assert self.child.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            threading.Event().wait(0.05)
        return found

    def log(self) -> str:
        assert self.child.log is not None
        return self.child.log.read_text() if self.child.log.exists() else ""

    def get(self, path: str, token: str = "", headers: dict[str, str] | None = None) -> Answer:
        given = {"Authorization": f"Bearer {token}"} if token else {}
        return self.send(urllib.request.Request(self.url + path, headers={**given, **(headers or {})}))

    def send(self, request: urllib.request.Request) -> Answer:
        try:
            with OPENER.open(request, timeout=30) as answer:
                return Answer(answer.status, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), error.headers)

    @property
    def url(self) -> str:
        return self.wait(r"the console is on (http://[\w.:]+)")[1]

    def tokens_of(self, accounts: dict[str, tuple[str, ...]]) -> dict[str, str]:
        """The tokens of new accounts, each with its ClusterRoles in `ours`."""
        about: Any = {"namespace": self.ours}
        made: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**about, "name": name}}
            for name in accounts
        ]
        bindings: list[dict[str, Any]] = [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {**about, "name": f"{name}-{role}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": name, **about}],
            }
            for name, roles in accounts.items()
            for role in roles
        ]
        self.cluster.apply(*made, *bindings)
        return {
            name: self.cluster.kubectl("-n", self.ours, "create", "token", name).strip() for name in accounts
        }


def make(console: Console, namespace: str, table: str) -> None:
    """A Catalog with a table in the namespace's folder on the volume, and a migration and an Event of it."""
    organization = str(uuid.uuid4())
    rows = pa.table({"id": [1], "note": [f"row of {table}"]})
    with holdfast.table(
        console.volume / namespace / organization, table, columns=rows.schema, key=["id"]
    ) as made:
        made.append(rows)
    catalog = {
        "apiVersion": API,
        "kind": "Catalog",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": {"organizationId": organization},
    }
    migration = {
        "apiVersion": API,
        "kind": "CatalogMigration",
        "metadata": {"name": f"move-{table}", "namespace": namespace},
        "spec": {"catalogRef": {"name": "demo"}, "target": "Persist"},
    }
    about = {"apiVersion": API, "kind": "Catalog", "namespace": namespace, "name": "demo"}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"about-{table}", "namespace": namespace},
        "involvedObject": about,
        "reason": "StoreUnreachable",
        "message": f"{table}: can't open postgresql://me:{PLANTED}@db/x <script>alert(1)</script>",
        "type": "Warning",
        "lastTimestamp": "2026-01-02T03:04:05Z",
    }
    console.cluster.apply(catalog, migration, event)


def vault(console: Console) -> None:
    """A Catalog whose location nobody serves, with credentials in a Secret."""
    values = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": PLANTED}
    console.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "stores", "namespace": console.ours},
            "stringData": values,
        },
        {
            "apiVersion": API,
            "kind": "Catalog",
            "metadata": {"name": "vault", "namespace": console.ours},
            "spec": {
                "organizationId": str(uuid.uuid4()),
                "storage": {
                    "url": "s3://bucket/x?endpoint=http://127.0.0.1:1",
                    "credentialsSecretRef": {"name": "stores"},
                },
            },
        },
    )


@pytest.fixture(scope="module")
def console(
    control_plane: ControlPlane, crds: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    ours, theirs = (f"test-{uuid.uuid4().hex[:12]}" for _ in range(2))
    with new_namespace(control_plane, ours), new_namespace(control_plane, theirs):
        there = Console(control_plane, ours, theirs, tmp_path_factory.mktemp("console"))
        try:
            make(there, ours, "flights")
            make(there, theirs, "payroll")
            vault(there)
            accounts = {"stranger": (), "viewer": ("holdfast-viewer",), "reader": ("view", *GROUP)}
            there.tokens = there.tokens_of(accounts)
            wait_shown(there)
            yield there
        finally:
            there.child.kill()
            print(there.log()[-4000:])


def wait_shown(console: Console) -> None:
    """Wait until the console shows what the tests look for.

    It follows each kind by itself, and the API server gets to know a new role binding after a while.
    """
    flights = f"/locations/{console.ours}.demo/collections/flights"
    wanted = (
        ("viewer", "/", "flights"),
        ("viewer", "/migrations", "move-flights"),
        ("reader", "/activity", "StoreUnreachable"),
        ("reader", f"{flights}/rows", "row of flights"),
    )
    deadline = time.monotonic() + 60
    for account, path, text in wanted:
        while text not in (answer := console.get(path, console.tokens[account])).text:
            assert time.monotonic() < deadline, (account, path, answer)
            threading.Event().wait(0.1)


def paths(console: Console) -> list[str]:
    """All pages that are linked from those that a viewer of `ours` reaches."""
    token = console.tokens["reader"]
    found, left = set[str](), ["/"]
    while left and len(found) < 60:
        path = left.pop(0)
        if path in found or path.startswith(("/static/", "/events")):
            continue
        found.add(path)
        text = console.get(path, token).text
        left += [each.replace("&amp;", "&") for each in re.findall(r'(?:href|action)="(/[^"#]*)"', text)]
    return sorted(found)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer made-up"},
        {"Impersonate-User": "system:admin", "Impersonate-Group": "system:masters"},
        {"X-Forwarded-User": "system:admin", "X-Remote-Group": "system:masters"},
    ],
)
def test_without_a_token_of_the_cluster_there_is_only_the_login(
    console: Console, headers: dict[str, str]
) -> None:
    for path in ("/", "/activity", f"/locations/{console.ours}.demo/shards", "/events"):
        answer = console.get(path, headers=headers)
        assert answer.status == 401
        assert 'name="token"' in answer.text
        assert not {"flights", "payroll", console.ours} & set(re.findall(r"[\w-]+", answer.text))


def test_a_viewer_sees_nothing_of_another_namespace(console: Console) -> None:
    impersonating = {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}
    token = console.tokens["viewer"]
    for path in ("/", "/activity", "/migrations", f"/activity?object=Catalog/{console.theirs}/demo"):
        for headers in ({}, impersonating):
            answer = console.get(path, token, headers)
            assert answer.status == 200
            assert "payroll" not in answer.text
            if "object=" not in path:
                assert console.theirs not in answer.text
    for path in (
        f"/locations/{console.theirs}.demo/collections/payroll",
        f"/locations/{console.theirs}.demo/shards",
        f"/migrations/{console.theirs}/move-payroll",
    ):
        assert console.get(path, token).status == 404
    assert "move-flights" in console.get("/migrations", token).text
    assert console.get(f"/migrations/{console.ours}/move-flights", token).status == 200


def test_a_stranger_sees_no_namespace(console: Console) -> None:
    for path in ("/", "/activity", "/migrations"):
        answer = console.get(path, console.tokens["stranger"])
        assert answer.status == 200
        assert not {"flights", "payroll"} & set(re.findall(r"\w+", answer.text))


def test_events_need_the_right_to_list_them(console: Console) -> None:
    assert "StoreUnreachable" not in console.get("/activity", console.tokens["viewer"]).text
    assert "StoreUnreachable" in console.get("/activity", console.tokens["reader"]).text


def test_rows_are_for_data_readers(console: Console) -> None:
    path = f"/locations/{console.ours}.demo/collections/flights/rows"
    refused = console.get(path, console.tokens["viewer"])
    assert refused.status == 403
    assert "holdfast-data-reader" in refused.text
    assert "row of flights" not in refused.text
    shown = console.get(path, console.tokens["reader"])
    assert shown.status == 200
    assert "row of flights" in shown.text


def test_no_page_shows_a_secret_or_runs_a_script_of_a_text(console: Console) -> None:
    found = paths(console)
    assert {"/", "/activity", "/migrations"} <= set(found)
    for path in found:
        text = console.get(path, console.tokens["reader"]).text
        assert PLANTED not in text, path
        assert "<script>alert" not in text, path
        assert console.tokens["reader"] not in text, path
    assert PLANTED not in console.log()
    assert console.tokens["reader"] not in console.log()


def test_a_login_gives_a_cookie_with_which_pages_open(console: Console) -> None:
    form = urllib.parse.urlencode({"token": console.tokens["viewer"]}).encode()
    answer = console.send(urllib.request.Request(f"{console.url}/login?next=/migrations", form))
    assert (answer.status, answer.headers["Location"]) == (303, "/migrations")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= {each.strip() for each in cookie.split(";")}
    assert "move-flights" in console.get("/migrations", headers={"Cookie": cookie.partition(";")[0]}).text


def test_another_name_in_the_address_is_refused(console: Console) -> None:
    answer = console.get("/", console.tokens["viewer"], {"Host": "evil.example"})
    assert answer.status == 421


@pytest.mark.browser
def test_in_a_browser_a_viewer_sees_the_state_and_a_data_reader_the_rows(
    console: Console, chromium: "Browser"
) -> None:
    from playwright.sync_api import expect

    from browser.looking import DESKTOP, Look

    trouble = f"step 3 waits {IMAGE} at postgresql://me:{PLANTED}@db/x"
    set_status(console, "catalogmigration/move-flights", {**MIGRATING, "conditions": [not_ready(trouble)]})
    set_status(console, "catalog/demo", {"conditions": [not_ready(f"the store is shut {IMAGE}")]})
    flights = f"/locations/{console.ours}.demo/collections/flights"
    contexts = [chromium.new_context(viewport=DESKTOP, reduced_motion="reduce") for _ in range(2)]
    viewer, reader = (Look(each, console.url) for each in contexts)
    try:
        # What is pasted first is no token. After the login, the address is that which was asked for.
        page = viewer.open("/migrations", status=401)
        page.get_by_label("Token").fill("made-up")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
        viewer.check("cluster-login")
        viewer.messages.clear()
        for look, name in ((viewer, "viewer"), (reader, "reader")):
            page = look.open("/migrations", status=401)
            page.get_by_label("Token").fill(console.tokens[name])
            with page.expect_request("**/login*") as sent:
                page.keyboard.press("Enter")
            # Without TLS, this is all that tells the form from one of another site.
            assert sent.value.all_headers()["origin"] == console.url
            expect(page).to_have_url(f"{console.url}/migrations")
            expect(page.get_by_role("main")).to_contain_text("move-flights")
            look.messages.clear()
            assert page.evaluate("document.cookie") == ""

        # A viewer sees the state. The page of the rows names the role that they need.
        page = viewer.open("/")
        expect(page.get_by_role("main")).to_contain_text("the store is shut")
        viewer.check("cluster-overview")
        page = viewer.open(f"{flights}/rows", status=403)
        expect(page.get_by_role("main")).to_contain_text("--clusterrole=holdfast-data-reader")
        expect(page.get_by_role("main")).not_to_contain_text("row of")
        viewer.check("cluster-rows-not-allowed")
        viewer.messages.clear()
        page.get_by_role("link", name="State").click()
        expect(page.get_by_role("heading", name="Frontiers")).to_be_visible()
        viewer.check_clean()
        # Scripts of a hostile viewer get no further than their token.
        for path in (f"/locations/{console.theirs}.demo/collections/payroll/rows", f"{flights}/rows"):
            status = page.evaluate(
                "async (path) => (await fetch(path, {headers: {'Impersonate-User': 'admin'}})).status", path
            )
            assert status in {403, 404}
        viewer.messages.clear()

        # A data reader sees the rows. A page follows the resources: no store changes with them.
        page = reader.open(f"{flights}/rows")
        expect(page.get_by_role("region", name="Rows of the collection")).to_contain_text("row of flights")
        reader.check_clean()
        page = reader.open(f"/migrations/{console.ours}/move-flights")
        expect(page.get_by_role("main")).to_contain_text("step 3 waits")
        assert PLANTED not in page.content()
        set_status(console, "catalogmigration/move-flights", {"conditions": [not_ready("step 3 goes on")]})
        expect(page.get_by_role("main")).to_contain_text("step 3 goes on")
        reader.check("cluster-migration")
        page = reader.open("/activity")
        expect(page.get_by_role("main")).to_contain_text("StoreUnreachable")
        reader.check("cluster-activity")
        expect(page.get_by_role("contentinfo")).to_contain_text(f"{console.ours}:reader")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        reader.open("/activity", status=401)
    finally:
        for each in contexts:
            each.close()


def set_status(console: Console, name: str, status: dict[str, Any]) -> None:
    """Write a part of a status, as the operator does."""
    body = json.dumps({"status": status})
    console.cluster.kubectl(
        "-n", console.ours, "patch", name, "--subresource=status", "--type=merge", "-p", body
    )


def not_ready(message: str) -> dict[str, Any]:
    """A condition."""
    at = "2026-01-02T03:04:06Z"
    return {
        "type": "Ready",
        "status": "False",
        "reason": "Waits",
        "message": message,
        "lastTransitionTime": at,
    }
