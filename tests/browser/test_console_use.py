"""What people do with the console: use the keyboard, change the theme, copy a command, watch data come."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
    look.open("/")
    expect(page.get_by_role("status")).to_have_text("Reconnecting")
    page.clock.fast_forward(5000)
    expect(page.get_by_role("status")).to_have_text("Live")


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
        ("unknown-location", "/locations/none/collections/orders", 404, "the overview lists the locations"),
        (
            "bad-filter",
            "/locations/shop/collections/products/rows?where=nothing+%3D+1",
            400,
            "column 'nothing'",
        ),
        ("unknown-page", "/nothing", 404, "There is nothing here"),
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

    location = tmp_path / "gone"
    with holdfast.table(location, "orders", columns={"id": "int64"}) as table:
        table.append([{"id": 1}])
    with console_of(tmp_path, str(location)) as running:
        location.rename(tmp_path / "elsewhere")
        look = looks(running)
        page = look.open("/")
        expect(page.get_by_role("main")).to_contain_text("Not readable")
        look.check("location-gone")
