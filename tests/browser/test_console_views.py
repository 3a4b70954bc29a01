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
