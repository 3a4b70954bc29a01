"""The pages of rows and of the catalog, as a browser gets them: addresses, refusals, escaping and bounds."""

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import holdfast
from holdfast.catalog import Catalog, OpenMode, persist_catalog
from holdfast.collections import CollectionSpec, StorageController
from holdfast.console.access import LocalAccess, Viewer
from holdfast.console.context import Console
from holdfast.console.facts import catalog as catalog_facts
from holdfast.console.facts.overview import overview
from holdfast.console.places import ShownPlace, ShownPlaces
from holdfast.console.rendering import iso
from holdfast.persist import PersistClient, Schema
from unit.console.browsing import TOKEN, Browser, access, served
from unit.console.test_catalog_facts import ORG, SECRETS, SHARD
from unit.console.test_catalog_facts import fill as fill_catalog

SCRIPT = "<script>alert(1)</script>"
ROWS = "/locations/shop/collections/orders/rows"
CATALOG = "/locations/shop/catalog"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A location with a table and a catalog, and the times of the table's writes."""
    folder = tmp_path_factory.mktemp("console") / "shop"
    columns = {"id": "int64", "note": "string?", "data": "binary?", "tags": "list<string>?"}
    with holdfast.table(folder, "orders", columns=columns, key=["id"]) as table:
        times = [
            table.append(
                [
                    {
                        "id": n,
                        "note": SCRIPT if n == 3 else f"note {n}",
                        "data": b"\x00\xff",
                        "tags": [SCRIPT],
                    }
                    for n in range(150)
                ]
            ),
            table.upsert([{"id": 3, "note": None, "data": b"", "tags": []}]),
            table.delete([5]),
        ]
    with PersistClient.open(f"file://{folder}") as client:
        fill_catalog(client)
    return folder, times


class NoRows(LocalAccess):
    """Access for a viewer who may see the status, and no rows."""

    async def may_read_rows(self, viewer: Viewer, namespace: str, collection: str) -> bool:
        return False


@dataclass(frozen=True)
class Visitor:
    """Asks a console for pages."""

    browser: Browser

    def get(self, path: str, **query: object) -> tuple[int, str]:
        """The status and the text of a page."""
        found = self.browser.get(f"{path}?{urlencode(query)}" if query else path)
        return found.status, found.text


@contextmanager
def visiting(folder: Path, allowed: LocalAccess | None = None) -> Iterator[Visitor]:
    place = ShownPlace("shop", f"file://{folder}")
    with served(Console(ShownPlaces({"shop": place}), allowed or access())) as browser:
        yield Visitor(browser)
    place.close()


@pytest.fixture(scope="module")
def visitor(shop: tuple[Path, list[int]]) -> Iterator[Visitor]:
    with visiting(shop[0]) as visitor:
        yield visitor


def link(text: str, label: str) -> str:
    """The address of the link that contains a label."""
    found = re.search(rf'<a [^>]*?href="([^"]*)"[^>]*>[^<]*{re.escape(label)}', text)
    assert found is not None, label
    return html.unescape(found[1])


def table(text: str) -> str:
    return text[text.index("<tbody>") : text.index("</tbody>")]


def test_rows_are_shown_page_by_page(visitor: Visitor) -> None:
    status, first = visitor.get(ROWS)
    assert status == 200
    assert table(first).count("<tr>") == 100
    status, second = visitor.get(link(first, "Next rows"))
    assert status == 200
    assert table(second).count("<tr>") == 49
    assert "note 149" in second
    assert "Next rows" not in second
    # The first page had the latest time. Its other pages keep it.
    assert "as_of=" in link(first, "Next rows")


def test_a_time_and_a_filter_are_in_the_address(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    _, text = visitor.get(ROWS, as_of=shop[1][0], where="id = 5", columns="note")
    assert "note 5" in table(text)
    assert 'value="id = 5"' in text
    assert f"holdfast read orders --as-of {shop[1][0]} --where &#39;id = 5&#39; --columns note" in text
    _, text = visitor.get(ROWS, as_of=shop[1][2], where="id = 5")
    assert "No row matches" in text


def test_a_time_is_shown_as_a_date_in_its_field(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    _, text = visitor.get(ROWS, as_of=shop[1][0], to=shop[1][1])
    for name, at in zip(("as_of", "to"), shop[1], strict=False):
        (given,) = re.findall(f'name="{name}" type="text" value="([^"]*)"', text)
        assert given == iso(at)
        assert f"--as-of {at} " in visitor.get(ROWS, as_of=given)[1]
    assert 'value="&lt;' in visitor.get(ROWS, as_of=SCRIPT)[1]


def test_a_change_tells_only_how_far_the_collection_is(tmp_path: Path) -> None:
    with holdfast.table(tmp_path / "shop", "orders", columns={"id": "int64"}, key=["id"]) as table:
        written = table.append([{"id": 1}])
    with visiting(tmp_path / "shop") as visitor:
        _, text = visitor.get(ROWS)
        shown = re.search(r'data-reload data-upper="(\d+)"', text)
        assert shown is not None
        assert int(shown[1]) > written
        assert 'data-follow="shop"' in text
        with holdfast.table(tmp_path / "shop", "orders") as table:
            table.append([{"id": 2}])
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Console-Live": "1"}
        limit_s = time.monotonic() + 30
        while True:
            live = visitor.browser.get(ROWS, headers)
            later = re.search(r'id="newer" data-live="shop/orders" data-upper="(\d+)"', live.text)
            assert later is not None, live.text
            if int(later[1]) > int(shown[1]):
                break
            assert time.monotonic() < limit_s
            time.sleep(0.1)
        assert "<table" not in live.text
        assert visitor.browser.get(ROWS.replace("orders", "none"), headers).status == 404
        assert "Not live" in visitor.get(CATALOG)[1]


def test_the_change_before_is_compared_though_the_collection_went_on(tmp_path: Path) -> None:
    schema = Schema.of({"id": "int64"}, {"note": "string?"})
    with PersistClient.open(f"file://{tmp_path}/shop") as client:
        controller = StorageController(client)
        controller.create_collection(CollectionSpec("orders", "orders", schema))
        writer = controller.writer("orders", purpose="test")
        writer.append([{"id": 1, "note": "a", "_time": 10}], 0, 20)
        writer.append([{"id": 2, "note": "b", "_time": 30}], 20, 40)
        writer.append([], 40, 90)
    with visiting(tmp_path / "shop") as visitor:
        _, text = visitor.get(ROWS)
        address = link(text, "Compare with the change before")
        assert "to=89" in address
        _, text = visitor.get(address)
        assert re.search(r"\+1</span> added, .*0</span> removed", text)


def test_the_first_time_is_the_beginning(visitor: Visitor) -> None:
    _, text = visitor.get(ROWS, as_of=0)
    assert "the beginning" in text
    assert "1970-01-01" not in text


def test_links_go_from_change_to_change(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    _, latest = visitor.get(ROWS)
    _, before = visitor.get(link(latest, "Earlier"))
    assert f"as_of={shop[1][1]}" in link(latest, "Earlier")
    assert f"as_of={shop[1][0]}" in link(before, "Earlier")
    assert f"as_of={shop[1][2]}" in link(before, "Later")


def test_the_difference_of_two_times(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    times = shop[1]
    _, text = visitor.get(ROWS, as_of=times[0], to=times[2])
    assert re.search(r"\+1</span> added.*?.2</span> removed; 1 key has", text)
    rows = re.findall(r'<tr class="(\w+)">(.*?)</tr>', table(text), re.DOTALL)
    assert [kind for kind, _ in rows] == ["removed", "added", "removed"]
    assert rows[0][1].count("differs") == 3
    assert "removed</span>" in rows[0][1]
    # In the other order it is the same, with its fields and links.
    _, other = visitor.get(ROWS, as_of=times[2], to=times[0])
    filled = re.compile('(?:href|value)="([^"]*)"')
    assert filled.findall(other) == filled.findall(text)
    assert table(other) == table(text)
    assert "Nothing differs" in visitor.get(ROWS, as_of=times[0], to=times[0])[1]


def test_one_row_has_all_of_its_values(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    _, text = visitor.get(ROWS, as_of=shop[1][0], row="[3]")
    assert "One row" in text
    assert "00ff" in text
    assert html.escape(SCRIPT) in text
    status, text = visitor.get(ROWS, as_of=shop[1][2], row="[5]")
    assert status == 400
    assert "no such row" in text


def test_a_time_that_cannot_be_read_links_to_the_nearest(visitor: Visitor) -> None:
    for given in ("2999-01-01", "nonsense", "1735689600"):
        status, text = visitor.get(ROWS, as_of=given, where="id = 7")
        assert status == 400
        status, text = visitor.get(link(text, "Show the nearest time"))
        assert status == 200
        assert "note 7" in text


def test_a_new_collection_has_no_rows_and_says_how_to_write_some(tmp_path: Path) -> None:
    holdfast.table(tmp_path, "new", columns={"id": "int64"}, key=["id"]).close()
    with visiting(tmp_path) as visitor:
        for query in ({}, {"as_of": "2026-01-01"}):
            status, text = visitor.get("/locations/shop/collections/new/rows", **query)
            assert status == 200
            assert "Nothing has been written yet" in text
            assert f"holdfast write new FILE --url {tmp_path}" in text
            assert "Not readable" not in text
        assert "nothing written" in visitor.get("/")[1]


@pytest.mark.parametrize(
    "query",
    [
        {"where": "id >"},
        {"where": "nope = 1"},
        {"where": SCRIPT},
        {"columns": "nope"},
        {"columns": SCRIPT},
        {"after": SCRIPT},
        {"after": "[1]+99999999999"},
        {"row": "x"},
        {"zoom": "a..b"},
        {"zoom": SCRIPT},
        {"as_of": SCRIPT},
        {"as_of": "1" * 1000},
        {"to": SCRIPT},
        {"where": "(" * 1900},
        {"where": "id in (" + ",".join("1" * 900) + ")"},
    ],
)
def test_bad_parameters_get_one_clear_line(visitor: Visitor, query: dict[str, str]) -> None:
    status, text = visitor.get(ROWS, **query)
    assert status == (200 if "id in" in query.get("where", "") else 400)
    assert SCRIPT not in text
    assert "Traceback" not in text
    assert "unexpected error" not in text


def test_nothing_of_a_location_is_markup(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    status, text = visitor.get(ROWS, as_of=shop[1][0])
    assert status == 200
    assert html.escape(SCRIPT) in text
    assert SCRIPT not in text
    _, text = visitor.get(CATALOG)
    assert "&lt;b&gt;orders" in text
    assert "<b>orders" not in text
    status, text = visitor.get(f"/locations/shop/collections/{quote(SCRIPT, safe='')}/rows")
    assert status == 404
    assert SCRIPT not in text


def test_null_empty_and_binary_differ_from_text(visitor: Visitor, shop: tuple[Path, list[int]]) -> None:
    _, text = visitor.get(ROWS, as_of=shop[1][1], where="id = 3")
    assert table(text).count('class="null"') == 2
    assert ">null</span>" in text
    assert ">empty</span>" in text
    _, text = visitor.get(ROWS, as_of=shop[1][1], where="id = 4")
    assert '<span class="binary">00ff</span>' in text


def test_rows_need_a_permission_of_their_own(shop: tuple[Path, list[int]]) -> None:
    with visiting(shop[0], NoRows(TOKEN)) as visitor:
        status, text = visitor.get(ROWS)
        assert status == 403
        assert "holdfast-data-reader" in text
        assert "note 1" not in text
        assert visitor.get(CATALOG)[0] == 200


class OnlyMine(LocalAccess):
    """Access for a viewer who may read the rows of one collection."""

    async def may_read_rows(self, viewer: Viewer, namespace: str, collection: str) -> bool:
        return collection == "mine-id"


def test_a_collection_named_like_the_id_of_another_gives_no_right_to_it(tmp_path: Path) -> None:
    schema = Schema.of({"id": "int64"}, {"note": "string?"})
    with PersistClient.open(f"file://{tmp_path}/shop") as client:
        controller = StorageController(client)
        # The name of the second one is the id of the first one.
        for id_, name in (("a-secret-id", "payroll"), ("mine-id", "a-secret-id")):
            controller.create_collection(CollectionSpec(id_, name, schema))
            writer = controller.writer(id_, purpose="test")
            writer.append([{"id": 1, "note": f"row of {id_}", "_time": 5, "_diff": 1}], 0, 6)
    rows = "/locations/shop/collections/{}/rows"
    with visiting(tmp_path / "shop", OnlyMine(TOKEN)) as visitor:
        for name in ("payroll", "a-secret-id"):
            status, text = visitor.get(rows.format(name))
            assert status == 403, name
            assert "row of" not in text
        status, text = visitor.get(rows.format("mine-id"))
        assert status == 200
        assert "row of mine-id" in text
        # The page of a collection decides in the same way.
        assert "payroll" in visitor.get("/locations/shop/collections/a-secret-id")[1]


def test_the_catalog_is_shown_without_secrets(visitor: Visitor) -> None:
    status, text = visitor.get(CATALOG)
    assert status == 200
    assert "shop.public2.key" in text
    assert "PUBLIC" in text
    for query in ("as_of=2", "as_of=0&to=4", "q=secret", f"catalog={ORG}"):
        status, page = visitor.get(f"{CATALOG}?{query}")
        assert status in (200, 400)
        assert not any(secret in page for secret in SECRETS)


def test_the_overview_and_the_shards_know_the_catalog(visitor: Visitor) -> None:
    address = f"/locations/shop/catalog?catalog={SHARD}"
    assert address in visitor.get("/")[1]
    _, text = visitor.get("/locations/shop/shards")
    assert f'<a href="{address}">a catalog</a>' in text
    assert "not of a collection" not in text
    assert re.search(r'<span class="num">\d+</span>\s*<span class="muted">commits</span>', text)
    _, text = visitor.get(f"/locations/shop/shards/{SHARD}")
    assert f'<a href="{address}">a catalog</a>' in text
    assert visitor.get(address)[0] == 200


def test_the_overview_says_why_it_lists_no_catalogs(
    shop: tuple[Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> tuple[tuple[str, ...], str]:
        place = ShownPlace("shop", shop[0].as_uri())
        found = overview(place)
        place.close()
        return found.catalogs, found.unlisted

    assert listed() == ((SHARD,), "")
    monkeypatch.setattr(catalog_facts, "_MOST_SHARDS", 0)
    found, why = listed()
    assert found == ()
    assert "shards that belong to no collection" in why


def test_the_catalog_of_two_commits(visitor: Visitor) -> None:
    _, text = visitor.get(CATALOG)
    _, text = visitor.get(link(text, "Compare with the commit before"))
    assert "create table orders2" in text
    assert re.search(r"\+0</span> added.*?.1</span> removed, 2 changed", text)


@pytest.mark.parametrize(
    "query",
    [
        {"as_of": "99999"},
        {"as_of": "-1"},
        {"catalog": "x"},
        {"catalog": "s" + "0" * 36},
        {"catalog": "../.."},
        {"to": "x"},
    ],
)
def test_bad_parameters_of_the_catalog(visitor: Visitor, query: dict[str, str]) -> None:
    status, text = visitor.get(CATALOG, **query)
    assert status == 400
    assert "Traceback" not in text


def test_a_location_without_a_catalog_says_what_to_do(tmp_path: Path) -> None:
    with PersistClient.open(f"file://{tmp_path}/shop"):
        pass
    with visiting(tmp_path / "shop") as visitor:
        status, text = visitor.get(CATALOG)
    assert status == 200
    assert "No catalog in shop" in text
    assert "holdfast catalog init" in text


def test_several_catalogs_are_listed(tmp_path: Path) -> None:
    with PersistClient.open(f"file://{tmp_path}/shop") as client:
        for org in (ORG, "00000000-0000-4000-8000-000000000008"):
            with persist_catalog(client, org).open(
                OpenMode.WRITABLE, holder="test", purpose="test"
            ) as catalog:
                assert isinstance(catalog, Catalog)
    with visiting(tmp_path / "shop") as visitor:
        _, text = visitor.get(CATALOG)
        assert "2 catalogs" in text
        assert visitor.get(f"{CATALOG}?catalog={SHARD}")[0] == 200
