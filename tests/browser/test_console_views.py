"""Each view of the console in Chromium: what it shows, and that nothing in it is in a person's way.

Each test keeps screenshots: look at them after a change (docs/how-to/run-the-tests.md).
"""

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from browser import shop

if TYPE_CHECKING:
    from browser.looking import Look

pytestmark = pytest.mark.browser

SHOP = "/locations/shop"
ODD = quote(shop.ODD, safe="")
VIEWS = {
    "overview": ("/", "orders"),
    "collection": (f"{SHOP}/collections/orders", "monthly report"),
    "collection-handed-over": (f"{SHOP}/collections/products", "r3"),
    "collection-fed": (f"{SHOP}/collections/clicks", "tuesday.jsonl"),
    "collection-empty": (f"{SHOP}/collections/returns", "returns"),
    "rows": (f"{SHOP}/collections/orders/rows", "medlar"),
    "rows-filtered": (f"{SHOP}/collections/orders/rows?where=count+%3E+8&columns=id,item", "apple"),
    "rows-odd": (f"{SHOP}/collections/{ODD}/rows", "<img src=x onerror"),
    "rows-none": (f"{SHOP}/collections/products/rows?where=id+%3C+0", "No row matches"),
    "catalog": (f"{SHOP}/catalog", "daily_sales"),
    "catalog-diff": (f"{SHOP}/catalog?as_of=1&to=8", "daily_sales"),
    "shards": (f"{SHOP}/shards", "orders"),
    "migrations": ("/migrations", "migration"),
    "activity": ("/activity", "orders"),
    "collection-odd": (f"{SHOP}/collections/{ODD}", "<script>"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view(name: str, look: "Look") -> None:
    from playwright.sync_api import expect

    path, shows = VIEWS[name]
    page = look.open(path)
    expect(page.get_by_role("main")).to_contain_text(shows)
    expect(page).to_have_title(re.compile("Holdfast"))
    look.check(name)


def test_rows_that_differ_between_two_times(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.open(f"{SHOP}/collections/orders/rows")
    page.get_by_role("link", name="Compare with the change before").click()
    expect(page.get_by_role("region", name="Rows that differ")).to_contain_text("added")
    look.check("rows-diff")


def test_one_row(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.open(f"{SHOP}/collections/{ODD}/rows")
    page.get_by_role("link", name="Open row 1").click()
    expect(page.get_by_role("heading", name="One row")).to_be_visible()
    look.check("row")


def test_the_keyboard_moves_through_the_history(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.open(f"{SHOP}/collections/orders/rows")
    slider = page.get_by_role("slider").first
    latest = slider.get_attribute("aria-valuetext")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"[?&]as_of=\d+"))
    expect(page.get_by_role("slider").first).to_be_focused()
    expect(page.get_by_role("slider").first).not_to_have_attribute("aria-valuetext", latest or "")
    page.go_back()
    expect(page).to_have_url(re.compile("/rows$"))
    expect(page.get_by_role("slider").first).to_have_attribute("aria-valuetext", latest or "")
    look.check_clean()


def test_a_shard(look: "Look") -> None:
    from playwright.sync_api import expect

    page = look.open(f"{SHOP}/shards")
    page.get_by_role("table").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile("/shards/s[0-9a-f-]+$"))
    expect(page.get_by_role("main")).to_contain_text("orders")
    look.check("shard")
