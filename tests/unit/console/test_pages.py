"""What the overview, a collection and its shards show."""

import hashlib
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController
from holdfast.console.context import Console
from holdfast.console.facts.collection import collection_facts
from holdfast.console.facts.overview import ordered, overview
from holdfast.console.facts.shards import shard_list
from holdfast.console.facts.trouble import Level
from holdfast.console.places import PlaceLook, ShownPlace, ShownPlaces, secrets_of, short_name, shown_url
from holdfast.errors import NoLocation
from holdfast.persist import PersistClient
from holdfast.persist.stores import StoreMetrics
from unit.console.browsing import Browser, access, served


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def test_the_overview_has_all_collections(browser: Browser) -> None:
    text = browser.get("/").text
    assert 'href="/locations/shop/collections/orders"' in text
    assert "retention: 7d" in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "<b>bold" not in text


def test_the_overview_filters_and_sorts(browser: Browser) -> None:
    assert "/collections/orders" not in browser.get("/?q=bold").text
    assert "No collection matches" in browser.get("/?q=nothing-like-that").text
    by_name = browser.get("/?sort=name").text
    assert 'aria-sort="ascending"' in by_name
    assert browser.get("/?q=ready%20orders").text.count("/collections/orders") == 1


def test_a_collection_has_its_frontiers_shards_and_columns(browser: Browser, place: ShownPlace) -> None:
    text = browser.get("/locations/shop/collections/orders").text
    for each in ("Frontiers", "Renditions", "Shards", "customer", "retention", "<svg", 'class="line upper"'):
        assert each in text
    for command in ("read", "tail", "history", "collection describe"):
        assert f"<code>holdfast {command} orders {place.arguments}</code>" in text
    assert f"<code>holdfast write orders FILE {place.arguments}</code>" in text
    (shard,) = place.look().collections[1].holding.shards
    page = browser.get(f"/locations/shop/shards/{shard}")
    assert page.status == 200
    assert "appended 2 rows" in page.text
    listed = browser.get("/locations/shop/shards").text
    assert shard in listed
    assert "orders: rows of r1" in listed


def test_a_name_of_the_hostile_kind_has_a_page(browser: Browser) -> None:
    answer = browser.get("/locations/shop/collections/%3Cb%3Ebold%3C%2Fb%3E%2F'%22")
    assert answer.status == 200
    assert "<b>bold" not in answer.text


def test_facts_of_a_collection(place: ShownPlace) -> None:
    facts = collection_facts(place, "orders")
    history = facts.history
    assert [point.value for point in history.upper][-1] == facts.row.upper
    assert [point.value for point in history.promised][-1] == facts.promised
    assert history.since[0].value == 0
    assert [hold.purpose for hold in history.holds if hold.to_ms is None] == ["retention"]
    assert [each.name for each in facts.columns] == ["id", "customer", "amount"]
    assert [each.role for each in facts.shards] == ["rows", "metadata"]
    assert facts.row.updates == facts.renditions[0].rows == 3
    assert facts.renditions[0].skew == 1.0
    assert facts.feed is None


def test_the_pages_write_nothing(shop: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(shop, copy)
    before = digest(copy)
    (place,) = ShownPlaces.named([str(copy)])
    with served(Console(ShownPlaces({place.name: place}), access())) as browser:
        for path in ("/", "/locations/copy/collections/orders", "/locations/copy/shards"):
            assert browser.get(path).status == 200, path
    assert digest(copy) == before


def test_a_second_look_is_one_read_of_consensus(shop: Path) -> None:
    metrics = StoreMetrics()
    place = ShownPlace("shop", shop.as_uri(), metrics=metrics)

    def calls() -> dict[str, int]:
        return {name: stats.calls for name, stats in metrics.snapshot().items()}

    first = overview(place)
    assert [row.name for row in first.collections] == ["<b>bold</b>/'\"", "orders"]
    before = calls()
    assert overview(place).collections == first.collections
    after = calls()
    assert sum(after.values()) - sum(before.values()) == 1, (before, after)
    overview(place, max_age_s=60.0)
    assert calls() == after
    place.close()


def test_a_look_sees_a_new_collection_and_new_rows(tmp_path: Path) -> None:
    with holdfast.table(tmp_path, "one", columns={"id": "int64"}, key=["id"]) as one:
        place = ShownPlace("shop", tmp_path.as_uri())
        assert [(row.name, row.updates) for row in overview(place).collections] == [("one", 0)]
        one.upsert([{"id": 1}])
        with holdfast.table(tmp_path, "two", columns={"id": "int64"}, key=["id"]):
            pass
        found = overview(place).collections
        assert [(row.name, row.updates) for row in found] == [("one", 1), ("two", 0)]
        place.close()


def test_only_the_current_rendition_counts(tmp_path: Path) -> None:
    with holdfast.table(tmp_path, "one", columns={"id": "int64"}, key=["id"]) as one:
        one.upsert([{"id": 1}, {"id": 2}])
    client = PersistClient.open(tmp_path)
    with client, StorageController(client) as controller:
        controller.renditions.create("one", shards=2)
        controller.hydrate("one", "r2")
        controller.renditions.hand_over("one", "r2")
        controller.hold("one", "the audit", since=0)
    place = ShownPlace("shop", tmp_path.as_uri())
    (row,) = overview(place).collections
    assert row.updates == 2
    with served(Console(ShownPlaces({"shop": place}), access())) as browser:
        text = browser.get("/").text
        assert "held by the audit" in text
        assert "Stored updates" in text
    place.close()


def test_trouble_comes_first(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        with holdfast.table(tmp_path, name, columns={"id": "int64"}, key=["id"]) as table:
            table.upsert([{"id": 1}])
    client = PersistClient.open(tmp_path)
    with client, StorageController(client) as controller:
        id_ = controller.describe("c").collection_id
        job = controller.start_job(id_, "snapshot", "now", spec={})
        controller.fail_job(job.job_id, job.attempt, "the disk </b> is full")
    place = ShownPlace("shop", tmp_path.as_uri())
    rows = ordered(overview(place).collections, "trouble")
    assert [(row.name, row.level) for row in rows] == [
        ("c", Level.WARNING),
        ("a", Level.FINE),
        ("b", Level.FINE),
    ]
    assert "the disk </b> is full" in rows[0].troubles[0].what
    assert rows[0].troubles[0].command.startswith("holdfast collection jobs c --url ")
    with served(Console(ShownPlaces({"shop": place}), access())) as browser:
        text = browser.get("/locations/shop/collections/c").text
    assert "the disk &lt;/b&gt; is full" in text


def test_a_location_that_is_gone_does_not_hide_the_others(shop: Path, tmp_path: Path) -> None:
    places = ShownPlaces.named([str(shop), str(tmp_path / "gone")])
    with served(Console(places, access())) as browser:
        text = browser.get("/").text
        assert "/locations/shop/collections/orders" in text
        assert "Not readable" in text
        assert browser.get("/locations/gone/shards").status == 503


class Turnstile:
    """A lock that says how many have come to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._came = threading.Semaphore(0)

    def acquire(self, timeout: float) -> bool:
        self._came.release()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self._came.acquire(timeout=30)


def test_those_who_wait_for_a_failing_look_get_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, opened, looking = threading.Event(), [], Turnstile()

    class Slow(ShownPlace):
        @property
        def client(self) -> PersistClient:
            opened.append(1)
            assert release.wait(30)
            return super().client

    place = Slow("gone", (tmp_path / "gone").as_uri())
    monkeypatch.setattr(place, "_looking", looking)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(place.look) for _ in range(4)]
        looking.wait_for(4)
        release.set()
        for each in asked:
            with pytest.raises(NoLocation):
                each.result(30)
    assert len(opened) == 1
    with pytest.raises(NoLocation):
        place.look()
    assert len(opened) == 2


def test_an_empty_location_says_what_to_do(tmp_path: Path) -> None:
    PersistClient.open(tmp_path).close()
    place = ShownPlace("shop", tmp_path.as_uri())
    with served(Console(ShownPlaces({"shop": place}), access())) as browser:
        assert "holdfast create orders" in browser.get("/").text
        assert "No shards in shop" in browser.get("/locations/shop/shards").text
        assert "No shard matches" in browser.get("/locations/shop/shards?q=x").text
        assert browser.get("/?location=none").status == 404
    assert shard_list(ShownPlace("shop", tmp_path.as_uri())).all == 0


def test_no_page_has_the_password_of_a_url(tmp_path: Path) -> None:
    url = "postgresql://me:pl4nted@127.0.0.1:1/db?sslpassword=pl4nted2"
    place = ShownPlace("db", url)
    assert place.secrets == {"pl4nted", "pl4nted2"}
    with served(Console(ShownPlaces({"db": place}), access())) as browser:
        for path in ("/", "/locations/db/shards", "/locations/db/collections/x", "/?q=pl4nted2"):
            assert "pl4nted" not in browser.get(path).text, path
    assert "pl4nted" not in place.arguments
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "s3://bucket/prefix?endpoint=http://minio:9000&region=eu",
            "s3://bucket/prefix?endpoint=http://minio:9000&region=eu",
        ),
        ("s3://bucket/prefix?aws_secret_access_key=abc", "s3://bucket/prefix"),
        ("postgresql://me:secret@db:5432/x", "postgresql://me@db:5432/x"),
        ("postgresql://me:sec@ret@db/x", "postgresql://me@db/x"),
        ("file:///data/my%20shop", "/data/my shop"),
        ("me:secret@db", "***"),
    ],
)
def test_a_url_for_people(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_names_of_locations() -> None:
    assert short_name("@prod", "s3://bucket") == "prod"
    assert short_name("", "s3://bucket/a/b/") == "b"
    assert short_name("", "s3://bucket") == "bucket"
    assert short_name("", "file:///data/my%20shop") == "my-shop"
    assert short_name("", "file:///") == "location"
    assert list(ShownPlaces.named(["/a/shop", "/b/shop", "/c/shop"]).all) == ["shop", "shop-2", "shop-3"]
    assert list(secrets_of("postgresql://me:a%20b@h/")) == ["a%20b", "a b"]


class Later(ShownPlace):
    """A location that is looked at later than now. With `is_moved`, its shards changed meanwhile."""

    later_ms = 0
    is_moved = False

    def look(self, max_age_s: float = 0.0) -> PlaceLook:
        seen = super().look(max_age_s)
        now_ms = seen.now_ms + self.later_ms
        if not self.is_moved:
            return replace(seen, now_ms=now_ms)
        states = {shard: replace(state, wall_ms=now_ms) for shard, state in seen.states.items()}
        return replace(seen, now_ms=now_ms, states=states)


def test_a_source_that_nobody_reads_is_not_shown_as_caught_up(tmp_path: Path) -> None:
    source = {"generator": {"rows": 5}, "format": {"json": {}}}
    holdfast.ingest_source(tmp_path / "shop", "fed", source, columns={}, key={"id": "int64"}, once=True)
    place = Later("shop", (tmp_path / "shop").as_uri())
    url = "/locations/shop/collections/fed"
    with served(Console(ShownPlaces({"shop": place}), access())) as browser:
        text = browser.get(url).text
        assert "Not behind" in text
        assert "Last step" not in text
        place.later_ms = 7 * 60_000
        text = browser.get(url).text
        assert re.search(r"Nothing was stored from its source since \d\d:\d\d UTC", text)
        assert "What came to it since then is not known" in text
        assert f"holdfast ingest SPEC {place.arguments}" in text
        assert "<dt>Trend</dt><dd>Falling behind: there was no step lately</dd>" in text
        assert re.search(r"<dt>Behind in messages</dt>.*of 5 at \d\d:\d\d UTC", text)
        assert "Not behind" not in text
        assert "caught up" not in text.lower()
        # Steps are taken, and for times that are long ago.
        place.is_moved = True
        text = browser.get(url).text
        assert "its source is read too slowly" in text
        assert f"holdfast collection offsets fed {place.arguments}" in text
    place.close()


def test_a_source_has_its_lag_and_its_bad_records(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"id": 1}\n{"id": "<i>no</i>"}\n{"id": 2}\n')
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "collection: fed\nkey: {id: int64}\n"
        f"source: {{files: {{path: {tmp_path / 'in'}}}, format: {{json: {{}}}}, envelope: Upsert}}\n"
    )
    url = tmp_path / "shop"
    done = CliRunner().invoke(main, ["ingest", str(spec), "--once", "--url", str(url)])
    assert done.exit_code == 0, done.output
    place = ShownPlace("shop", url.as_uri())
    hidden, facts = (collection_facts(place, "fed", with_records=each) for each in (False, True))
    assert facts.feed is not None
    assert hidden.feed is not None
    # Positions of files don't count messages.
    assert (facts.feed.messages, facts.feed.behind, facts.feed.errors) == (3, None, 1)
    assert facts.feed.is_stepping
    assert [each.name for each in facts.feed.partitions] == ["1.jsonl"]
    assert facts.row.errors == 1
    assert facts.row.lag_ms is not None
    # Who may not read rows sees how many records are bad, and not what they were.
    assert hidden.feed.bad is None
    assert facts.feed.bad is not None
    (bad,) = facts.feed.bad
    assert bad.partition == "1.jsonl"
    with served(Console(ShownPlaces({"shop": place}), access())) as browser:
        text = browser.get("/locations/shop/collections/fed").text
        assert "Records that could not be decoded" in text
        assert "<i>no" not in text
        assert "1 record of the source could not be decoded" in browser.get("/").text
