"""Who gets in, under which name, and what everybody gets."""

import re
import time
from pathlib import Path

import pytest

from holdfast.console.access import LocalAccess
from holdfast.console.context import CONSOLE
from holdfast.console.server import host_of
from unit.console.browsing import TOKEN, Browser

NOBODY: dict[str, str] = {}
VIEWS = ("/", "/locations/shop/collections/orders", "/locations/shop/shards", "/events", "/nowhere")


@pytest.mark.parametrize("path", VIEWS)
@pytest.mark.parametrize(
    "headers",
    [
        NOBODY,
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Cookie": "holdfast=ü"},
    ],
)
def test_without_the_token_a_page_shows_nothing(browser: Browser, path: str, headers: dict[str, str]) -> None:
    answer = browser.get(path, headers=headers)
    assert answer.status == 401
    assert "shop" not in answer.text.replace(path, "")
    assert "holdfast console" in answer.text


def test_the_token_in_the_address_becomes_a_cookie(browser: Browser) -> None:
    answer = browser.get(f"/?sort=name&token={TOKEN}", headers=NOBODY)
    assert (answer.status, answer.headers["Location"]) == (303, "/?sort=name")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie
    name = cookie.split(";", 1)[0]
    assert browser.get("/", headers={"Cookie": name}).status == 200
    assert browser.get("/?token=wrong", headers=NOBODY).status == 401


def test_a_token_for_once_lets_one_request_in(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    own = browser.app[CONSOLE].access
    assert isinstance(own, LocalAccess)
    once, late = own.once(), own.once()
    first = browser.get(f"/?token={once}", headers=NOBODY)
    assert first.status == 303
    assert once not in first.headers["Set-Cookie"]
    assert browser.get(f"/?token={once}", headers=NOBODY).status == 401
    assert browser.get("/", headers={"Authorization": f"Bearer {late}"}).status == 401
    now = time.monotonic()
    monkeypatch.setattr("holdfast.console.access.time.monotonic", lambda: now + 61)
    assert browser.get(f"/?token={late}", headers=NOBODY).status == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/%2F%2Fevil.example", "/\\evil.example"])
def test_the_token_leads_to_no_other_site(browser: Browser, path: str) -> None:
    answer = browser.get(f"{path}?token={TOKEN}", headers=NOBODY)
    target = answer.headers.get("Location", "/")
    assert re.match(r"/(?![/\\])", target), target


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:1", "a:b", ""]
)
def test_a_request_for_another_host_is_refused(browser: Browser, host: str) -> None:
    answer = browser.get("/", headers={"Authorization": f"Bearer {TOKEN}", "Host": host})
    assert answer.status in (400, 421)
    assert "orders" not in answer.text


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:80", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("[::1", ""),
        ("[::1]x", ""),
        ("a:b:c", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_header(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/console.css", "/?sort=nothing"])
def test_every_answer_has_the_policy(browser: Browser, path: str) -> None:
    headers = browser.get(path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert "no-store" in headers["Cache-Control"] or path.startswith("/static/")


def test_a_page_has_no_script_of_its_own(browser: Browser) -> None:
    text = browser.get("/").text
    for tag in re.findall(r"<script[^>]*>(?!</script>)|<[^>]* on\w+=", text):
        pytest.fail(tag)
    for address in re.findall(r'(?:src|href)="([^"]*)"', text):
        assert address.startswith(("/", "#")), address


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e%2fserver.py",
        "/static/..%2f..%2ferrors.py",
        "/static/",
        "/static/none.js",
    ],
)
def test_only_assets_are_sent(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status == 404
    assert "import" not in answer.text


def test_assets_are_kept_by_their_version(browser: Browser) -> None:
    page = browser.get("/").text
    (address,) = re.findall(r'href="(/static/console\.css\?v=[0-9a-f]+)"', page)
    assert "immutable" in browser.get(address, headers=NOBODY).headers["Cache-Control"]
    assert browser.get("/static/console.css", headers=NOBODY).headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        f"/?q={'a' * 2001}",
        "/?" + "&".join(f"p{number}=1" for number in range(41)),
        f"/?{'n' * 300}=1",
        f"/locations/{'a' * 300}/shards",
        "/?skip=-1",
        "/?skip=99999999999999999999999",
        "/?skip=٣",
        "/?sort=nothing",
    ],
)
def test_what_is_too_large_or_wrong_is_refused_in_words(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status == 400, answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/locations/none/shards",
        "/locations/shop/collections/none",
        "/locations/shop/shards/s0",
        "/locations/shop/shards/..%2f..%2fetc%2fpasswd",
        "/locations/..%2f..%2fetc/collections/passwd",
        "/nowhere",
    ],
)
def test_what_does_not_exist_is_not_found(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status == 404
    assert 'href="/"' in answer.text


def test_the_console_takes_no_changes(browser: Browser) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert browser.get("/", method=method).status == 405
    assert browser.get("/events", method="HEAD").status == 405


def test_a_bad_value_in_the_address_is_escaped(browser: Browser, shop: Path) -> None:
    for path in (
        "/?sort=<script>x</script>",
        "/?q=<script>x</script>",
        "/locations/<script>x</script>/shards",
    ):
        assert "<script>x" not in browser.get(path).text
    assert shop.exists()
