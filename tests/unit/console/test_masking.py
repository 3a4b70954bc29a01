"""No page and no log has a secret of a location, and no page changes data because of one."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import holdfast
from holdfast.console.context import Console
from holdfast.console.places import ShownPlace, ShownPlaces
from holdfast.console.rendering import PAGES, Pages, masked
from holdfast.text import without_passwords
from unit.console.browsing import Browser, access, served

SECRET = "hunter2hunter2"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A console whose location has secrets that are also part of names and of rows."""
    folder = tmp_path_factory.mktemp("masking") / "shop"
    columns = {"id": "int64", "note": "string?", "postgres": "string?"}
    with holdfast.table(folder, "postgres_orders", columns=columns, key=["id"]) as table:
        notes = ["the postgres_orders 2024", "://a:" * 40_000, "postgresql://me:of-the-row@db/x"]
        table.append([{"id": number, "note": note, "postgres": SECRET} for number, note in enumerate(notes)])
    credentials = {"user": "postgres", "year": "2024", "password": SECRET}
    place = ShownPlace("shop", folder.as_uri(), credentials=credentials)
    with served(Console(ShownPlaces({"shop": place}), access())) as opened:
        yield opened
    place.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:p4ss@db/x", "postgresql://me:***@db/x"),
        ("a://me:p/4:s@db and b://you:p@db", "a://me:***@db and b://you:***@db"),
        ("a://x b://me:p@db", "a://x b://me:***@db"),
        ("a://b://me:p@db", "a://b:***@db"),
        ("a://:p@db", "a://:***@db"),
        ("http://host:80/x", "http://host:80/x"),
        ("http://me@host:80/a@b", "http://me@host:80/a@b"),
        ("a b@c", "a b@c"),
    ],
)
def test_passwords_in_urls(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize("text", ["://a:" * 80_000, "://" * 130_000, "://a:" * 80_000 + " @", "a@" * 200_000])
def test_a_long_text_takes_no_longer_than_its_length(text: str) -> None:
    started = time.monotonic()
    assert without_passwords(text) == text
    assert time.monotonic() - started < 2


def test_what_was_cut_ends_with_no_part_of_a_secret() -> None:
    assert masked(f"it said {SECRET}, and more", {SECRET}) == "it said ***, and more"
    assert masked(f"it said {SECRET[:6]}…", {SECRET}) == "it said ***…"
    assert masked("it said hun…", {SECRET}) == "it said hun…"
    # A secret may be the beginning of another one.
    assert masked(SECRET, {SECRET[:7], SECRET}) == "***"


def test_names_rows_and_links_stay_as_they_are(browser: Browser) -> None:
    overview = browser.get("/").text
    assert 'href="/locations/shop/collections/postgres_orders"' in overview
    assert ">postgres_orders</a>" in overview
    started = time.monotonic()
    rows = browser.get("/locations/shop/collections/postgres_orders/rows").text
    assert time.monotonic() - started < 10
    for shown in (
        "<h1>postgres_orders",
        "the postgres_orders 2024",
        "me:of-the-row@db",
        "<span>postgres</span>",
    ):
        assert shown in rows
    assert "holdfast read postgres_orders --as-of" in rows
    state = browser.get("/locations/shop/collections/postgres_orders").text
    assert "<h1>postgres_orders" in state


def test_a_page_of_rows_is_made_in_a_thread(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    render, threads = Pages.render, []

    def noted(pages: Pages, template: str, context: Mapping[str, Any]) -> str:
        threads.append(threading.current_thread().name)
        return render(pages, template, context)

    monkeypatch.setattr(Pages, "render", noted)
    assert browser.get("/locations/shop/collections/postgres_orders/rows").status == 200
    assert browser.get("/locations/shop/catalog").status == 200
    assert "console server" not in threads
    assert len(threads) == 2


def test_errors_are_shown_without_secrets(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise holdfast.StorageError(f"{SECRET} is wrong for a://me:p4ss@db", hint=f"don't use {SECRET}")

    monkeypatch.setattr("holdfast.console.pages.shards.shard_facts", fails)
    answer = browser.get("/locations/shop/shards/s1")
    assert "*** is wrong for a://me:***@db" in answer.text
    assert SECRET not in answer.text


@pytest.mark.parametrize("guess", [SECRET, "wrong-guess"])
def test_nobody_learns_whether_a_guess_is_a_secret(browser: Browser, guess: str) -> None:
    answer = browser.get(f"/{guess}", headers={})
    assert answer.status == 401
    assert guess not in answer.text
    assert "***" not in answer.text
    login = {"action": f"/login?next={guess}", "said": "", "hint": "", "reload": False}
    assert f'action="/login?next={guess}"' in browser.app[PAGES].render("login.html", login)


def test_a_path_in_the_log_has_one_line_and_no_secret(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("holdfast.console.pages.shards.shard_facts", fails)
    with caplog.at_level(logging.ERROR, logger="holdfast.console.server"):
        assert browser.get(f"/locations/shop/shards/a%0AERROR forged {SECRET}").status == 500
    (record,) = caplog.records
    assert (
        record.getMessage().splitlines()[0].startswith(r"/locations/shop/shards/a\nERROR forged *** failed:")
    )
    assert SECRET not in record.getMessage()
