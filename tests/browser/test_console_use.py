"""What people do with the console: use the keyboard, change the theme, copy a command, watch data come."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

    from browser.conftest import RunningConsole
    from browser.looking import Look

pytestmark = pytest.mark.browser


def test_the_keyboard_reaches_everything(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.open("/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"[?&]q=orders"))
    link = page.get_by_role("link", name="orders", exact=True)
    for _ in range(40):
        page.keyboard.press("Tab")
        if link.evaluate("(each) => each === document.activeElement"):
            break
    expect(link).to_be_focused()
    assert link.evaluate("(each) => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/collections/orders"))
    look.check_clean()


def test_everything_that_can_be_clicked_has_a_name_and_a_visible_focus(look: "Look") -> None:
    page = look.open("/")
    unseen = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input, select, [tabindex='0']")]
          .filter((each) => {
            each.focus();
            const style = getComputedStyle(each);
            return each.matches(":focus-visible") && style.outlineStyle === "none";
          }).map((each) => each.outerHTML)"""
    )
    assert unseen == []


def test_the_theme_is_kept(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.open("/")
    root = page.locator("html")
    for theme in ("dark", "light"):
        page.get_by_role("button", name="Change between light and dark").click()
        expect(root).to_have_attribute("data-theme", theme)
        page.reload()
        expect(root).to_have_attribute("data-theme", theme)
    look.check_clean()


def test_a_command_can_be_copied(look: "Look") -> None:
    from playwright.sync_api import expect

    look.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = look.open("/locations/shop/collections/clicks")
    button = page.get_by_role("button", name=re.compile("^Copy the command holdfast ")).first
    wanted = button.get_attribute("data-copy")
    button.click()
    expect(button).to_contain_text("Copied")
    assert page.evaluate("() => navigator.clipboard.readText()") == wanted
    look.check_clean()


def test_a_page_follows_changes(look: "Look", shop_folder: Path) -> None:
    from playwright.sync_api import expect

    page = look.open("/")
    expect(page.get_by_role("status")).to_have_text("Live")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="returns", exact=True))
    before = row.inner_text()
    page.evaluate("() => { window.still = true; }")
    with holdfast.table(shop_folder / "shop", "returns") as table:
        table.append([{"id": 1, "why": "too small"}, {"id": 2, "why": "too late"}])
    expect(row).not_to_have_text(before)
    assert page.evaluate("() => window.still"), "the page was not loaded again"
    look.check_clean()


def test_a_page_whose_stream_was_refused_follows_again(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.page
    page.clock.install()
    page.route("**/events*", lambda route: route.fulfill(status=429), times=1)
    look.open("/", live=False)
    expect(page.get_by_role("status")).to_have_text("Reconnecting")
    page.clock.fast_forward(5000)
    expect(page.get_by_role("status")).to_have_text("Live")


def test_a_page_shows_what_changed_while_it_had_no_stream(look: "Look", shop_folder: Path) -> None:
    from playwright.sync_api import expect

    with holdfast.table(shop_folder / "shop", "returns") as table:
        streams = 0

        def cut_off(route: "Route") -> None:
            nonlocal streams
            streams += 1
            if streams == 1:
                # By then, the look of the page is too old to be the one that later looks are compared with.
                route.fulfill(content_type="text/event-stream", body="retry: 1500\n\n")
                return
            table.append([{"id": 5, "why": "too heavy"}])
            route.continue_()

        table.append([{"id": 6, "why": "too light"}])
        look.page.route("**/events*", cut_off, times=2)
        page = look.open("/", live=False)
        upper = page.get_by_role("row").filter(has_text="returns").locator("[data-label='Complete to'] time")
        before = upper.get_attribute("data-ms")
        status = page.get_by_role("status")
        expect(status).to_have_text("Reconnecting")
        expect(status).to_have_text("Live")
    assert streams == 2
    assert upper.get_attribute("data-ms") != before
    look.check_clean()


def test_rows_stay_and_offer_the_latest_ones(look: "Look", shop_folder: Path) -> None:
    from playwright.sync_api import expect

    with holdfast.table(shop_folder / "shop", "returns") as table:
        table.append([{"id": 3, "why": "too red"}])
        page = look.open("/locations/shop/collections/returns/rows")
        expect(page.locator("#live")).to_have_text("Live")
        later = page.get_by_text("complete to a later time")
        expect(later).to_be_hidden()
        table.append([{"id": 4, "why": "too green"}])
    expect(later).to_be_visible()
    main = page.get_by_role("main")
    expect(main).not_to_contain_text("too green")
    look.check("rows-later")
    page.get_by_role("link", name="Show the latest").click()
    expect(main).to_contain_text("too green")
    expect(later).to_be_hidden()
    look.check_clean()


def test_a_phone_shows_what_a_mouse_would_point_at(look: "Look") -> None:
    from playwright.sync_api import expect

    from browser.looking import DESKTOP, PHONE

    look.page.set_viewport_size(PHONE)
    page = look.open("/locations/shop/collections/clicks")
    # A drawing fits, and its letters keep their size.
    drawing = page.get_by_role("img", name="Since and upper of clicks over time")
    expect(drawing).to_have_count(1)
    box = drawing.bounding_box()
    assert box is not None
    assert box["width"] <= PHONE["width"]
    assert "narrow" in drawing.evaluate("(each) => each.parentElement.className")
    # The rows of a table are cards, and all of them can be shown.
    shards = page.get_by_role("region", name="Table of shards")
    metadata = shards.get_by_text("metadata", exact=True)
    expect(metadata).to_be_hidden()
    page.get_by_role("button", name="Show all 4").last.click()
    expect(metadata).to_be_visible()
    assert shards.evaluate("(each) => each.scrollWidth <= each.clientWidth")
    # A tap, or the keyboard, shows the reason of a dash.
    dash = page.get_by_role("button", name="Not known: ").first
    wanted = dash.get_attribute("title") or "nothing"
    tip = page.locator(".tip")
    dash.click()
    expect(tip).to_have_text(wanted)
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    expect(dash).to_be_focused()
    expect(tip).to_have_text(wanted)
    # All times can be shown in UTC, on this page and the next one.
    time = page.locator(".tile time").first
    expect(time).to_have_text(re.compile("ago|now"))
    page.get_by_role("button", name="UTC").click()
    expect(time).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
    page.reload()
    expect(time).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
    page.set_viewport_size(DESKTOP)
    page.evaluate("() => scrollTo(0, 0)")
    look.check("collection-utc")
    # A table that is wider than the screen fades out where it goes on.
    page = look.open("/locations/shop/collections/orders/rows")
    page.set_viewport_size(PHONE)
    rows = page.get_by_role("region", name="Rows of the collection")
    expect(rows).to_have_attribute("data-more", "after")
    rows.evaluate("(each) => { each.scrollLeft = each.scrollWidth; }")
    expect(rows).to_have_attribute("data-more", "before")
    look.check_clean()


def test_an_address_without_a_token_shows_what_to_do(chromium: "Browser", console: "RunningConsole") -> None:
    from playwright.sync_api import expect

    from browser.looking import DESKTOP, Look

    context = chromium.new_context(viewport=DESKTOP)
    look = Look(context, console.origin)
    page = look.open("/", status=401)
    expect(page.get_by_role("main")).to_contain_text("Open the address that 'holdfast console' printed")
    look.check("refused")
    context.close()


@pytest.mark.parametrize(
    ("name", "path", "status", "says"),
    [
        ("unknown-collection", "/locations/shop/collections/none", 404, "none"),
        ("unknown-location", "/locations/none/collections/orders", 404, "The overview lists the locations"),
        (
            "bad-filter",
            "/locations/shop/collections/products/rows?where=nothing+%3D+1",
            400,
            "column 'nothing'",
        ),
        ("unknown-page", "/nothing", 404, "The overview leads to all pages."),
    ],
)
def test_an_error_says_what_to_do(look: "Look", name: str, path: str, status: int, says: str) -> None:
    from playwright.sync_api import expect

    page = look.open(path, status=status)
    expect(page.get_by_role("main")).to_contain_text(says)
    expect(page.get_by_role("main").get_by_role("link").first).to_be_visible()
    look.check(name)


def test_a_location_that_is_gone_is_an_error_on_the_page(
    looks: "Callable[[RunningConsole], Look]", tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    from browser.conftest import console_of
    from browser.looking import SCREENSHOTS

    location = tmp_path / "gone"
    with holdfast.table(location, "orders", columns={"id": "int64"}) as table:
        table.append([{"id": 1}])
    with console_of(tmp_path, str(location)) as running:
        location.rename(tmp_path / "elsewhere")
        look = looks(running)
        page = look.open("/")
        expect(page.get_by_role("main")).to_contain_text("Not readable")
        look.check("location-gone")
        # A console that does not answer leaves a page that must not look like one of now.
        page.clock.install()
        page = look.open("/migrations")
        expect(page.get_by_role("status")).not_to_be_empty()
        running.child.stop()
        expect(page.get_by_role("status")).to_have_text("Reconnecting")
        page.clock.fast_forward(6000)
        lost = page.get_by_role("alert")
        expect(lost).to_contain_text(re.compile(r"since \d\d:\d\d UTC: what you see is from then"))
        lost.screenshot(path=SCREENSHOTS / "lost.png")
