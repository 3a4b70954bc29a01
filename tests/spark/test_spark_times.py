"""Spark at times after the last write, without Spark where planning alone shows it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.collections import StorageController
from holdfast.errors import AsOfNotYetAvailable, BadInput
from holdfast.persist import PersistClient, Schema
from holdfast.spark import scan
from holdfast.spark.options import for_batch, for_stream, parse_options
from spark.orders import planned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3_600_000


class Orders:
    """A table in files. Its one row was written an hour ago."""

    def __init__(self, folder: Path) -> None:
        self.url = folder.as_uri()
        self.now = int(time.time() * 1000)
        self.written = self.now - HOUR
        self.table = holdfast.table(self.url, "orders", columns={"id": "int64"}, key=["id"])
        writer = StorageController(self.table.client).writer("orders", purpose="test")
        writer.append([{"id": 1}], 0, self.written + 1)

    def find(self, **options: Any) -> scan.Scan:
        given = {name: str(value) for name, value in options.items()}
        return scan.find(for_batch(parse_options({"url": self.url, "collection": "orders", **given})))

    def rows(self, found: scan.Scan) -> int:
        return sum(batch.num_rows for task in scan.plan(found) for batch in scan.read(task))


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path / "location")


def date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def test_the_driver_completes_a_time_that_is_past(orders: Orders) -> None:
    half_past = orders.now - HOUR // 2
    found = orders.find(asOfTimestamp=date(half_past))
    assert found.as_of == half_past
    assert orders.rows(found) == 1
    assert half_past < orders.table.upper <= int(time.time() * 1000) - 60_000 + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda now: {"asOf": now + 2 * HOUR}, "after the store's clock"),
        (lambda now: {"asOfTimestamp": date(now)}, "is not complete at"),
        (lambda now: {"asOf": now // 1000}, "looks like seconds"),
        (lambda now: {"asOf": now * 1000}, "looks like microseconds"),
    ],
)
def test_other_times_are_refused(
    orders: Orders, options: Callable[[int], dict[str, Any]], message: str
) -> None:
    upper = orders.table.upper
    with pytest.raises((AsOfNotYetAvailable, BadInput), match=message) as raised:
        orders.find(**options(orders.now))
    if isinstance(raised.value, AsOfNotYetAvailable):
        assert "orEarlier" in raised.value.hint
    assert orders.table.upper == upper


def test_a_driver_that_may_not_write_completes_nothing(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = PersistClient.open

    def reading(*given: Any, **named: Any) -> PersistClient:
        if named.get("mode") != "read":
            raise holdfast.UnusablePath("can't write here")
        return opened(*given, **named)

    upper = orders.table.upper
    monkeypatch.setattr(PersistClient, "open", reading)
    with pytest.raises(AsOfNotYetAvailable, match="only a client that may write"):
        orders.find(asOf=orders.now - HOUR // 2)
    assert orders.find(asOf=orders.now - HOUR // 2, orEarlier="true").as_of == orders.written
    assert orders.table.upper == upper


def test_a_table_that_nobody_has_written_is_empty_at_past_times(orders: Orders) -> None:
    never = holdfast.table(orders.url, "never", columns={"id": "int64"})
    for or_earlier in ("true", "false"):
        found = orders.find(collection="never", asOf=orders.now - HOUR, orEarlier=or_earlier)
        assert orders.rows(found) == 0
    with pytest.raises(AsOfNotYetAvailable, match="nothing has been written yet"):
        orders.find(collection="never", asOf=orders.now + HOUR)
    assert never.upper == 0


def test_changes_after_a_time_that_is_past(orders: Orders) -> None:
    half_past = orders.now - HOUR // 2
    found = orders.find(**{"mode": "diff", "from": half_past})
    reached = scan.reaching(found, half_past)
    assert reached.as_of == half_past
    assert scan.plan_diff(reached, half_past) == []
    assert scan.reaching(found, orders.written - 5) is found
    with pytest.raises(AsOfNotYetAvailable):
        scan.reaching(found, orders.now + HOUR)


def test_options_for_earlier_times() -> None:
    given = {"url": "file:///x", "collection": "c", "orEarlier": "TRUE", "asOf": "5"}
    assert parse_options(given).or_earlier
    with pytest.raises(BadInput, match="option 'orEarlier' is only for batch reads"):
        for_stream(parse_options(given))
    with pytest.raises(BadInput, match="option 'orEarlier' is 'yes', not true or false"):
        parse_options(given | {"orEarlier": "yes"})


def test_a_write_far_ahead_needs_permission(orders: Orders) -> None:
    ahead = str(orders.now + 48 * HOUR)
    with pytest.raises(BadInput, match="ahead of the store's clock") as raised:
        planned(orders.url, "orders", at=ahead)
    assert 'set the option "farAhead" to true' in raised.value.hint
    assert planned(orders.url, "orders", at=ahead, farAhead="true").time == int(ahead)
    orders.find(asOf=orders.now - HOUR // 2)
    with pytest.raises(BadInput, match=r"; a read by host .* sealed it up to"):
        planned(orders.url, "orders", at=str(orders.now - HOUR // 2))


@pytest.mark.spark
@pytest.mark.long
def test_a_data_frame_shows_the_time_that_it_is_at(
    spark: "SparkSession", url: str, fill: Callable[..., str]
) -> None:
    import holdfast.spark

    written = int(time.time() * 1000) - HOUR
    fill("hourly", Schema.of(key={"id": "int64"}, value={}), {written: [{"id": 1}]})
    later = datetime.fromtimestamp(written / 1000 + 1200, UTC)
    given = {"url": url, "collection": "hourly", "as_of_timestamp": later}
    frame = holdfast.spark.read(spark, **given, or_earlier=True)
    assert frame.schema[0].metadata["asOf"] == written
    assert [row.id for row in frame.collect()] == [1]
    frame = holdfast.spark.read(spark, **given)
    assert [row.id for row in frame.collect()] == [1]
    with holdfast.spark.hold(url=url, collection="hourly", as_of=written + HOUR // 2) as time_held:
        assert time_held == written + HOUR // 2
    holdfast.spark.write(frame, url=url, collection="hourly", at=written + 72 * HOUR, far_ahead=True)
    with pytest.raises(BadInput, match="ahead of the store's clock"):
        holdfast.spark.write(frame, url=url, collection="hourly", at=written + 96 * HOUR)
