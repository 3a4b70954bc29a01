"""Which times can be read: the rule, and the empty commits that complete a table for its readers."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import CollectionWriter, Recipe, StorageController
from holdfast.collections.complete_times import (
    AHEAD_MS,
    BEHIND_MS,
    EVERY_MS,
    LEAST_MS,
    Completeness,
    ReadSeal,
    at_or_before,
    check_write_ahead,
    seal_first,
)
from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    HoldfastError,
    Indeterminate,
    Overtaken,
    UpperMismatch,
)
from holdfast.persist import PersistClient
from holdfast.persist.session import Mode
from holdfast.persist.state.codec import decode_diff
from holdfast.persist.state.state import AppendBatch, ExtendUpper
from holdfast.tables import Table, sql, table
from holdfast.tables.moments import milliseconds
from testbed.minio import Minio
from unit.collections.stores import SPEC, Stores
from unit.persist.open_stores import HandClock

NINE = int(datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp() * 1000)
MINUTE = 60_000
HOUR = 60 * MINUTE
COLUMNS = {"id": "int64", "note": "string?"}


class Wall(HandClock):
    """A clock that a test moves. It starts at nine in the morning."""

    def __init__(self, now_ms: int = NINE) -> None:
        self.now_s = now_ms / 1000

    def pass_(self, ms: int) -> None:
        self.now_s += ms / 1000


class Skewed(Wall):
    """The clock of one host: that of the store, and some seconds."""

    def __init__(self, store: Wall, skew_ms: int) -> None:
        self.store, self.skew_ms = store, skew_ms

    def wall_ms(self) -> int:
        return self.store.wall_ms() + self.skew_ms

    def monotonic(self) -> float:
        return self.store.monotonic()


@pytest.fixture
def clock() -> Wall:
    return Wall()


@pytest.fixture
def stores(clock: Wall) -> Stores:
    return Stores(clock)


@pytest.fixture
def orders(stores: Stores) -> Iterator[Table]:
    """A table that was last written at nine."""
    with table(stores.open(), "orders", columns=COLUMNS, key=["id"]) as made:
        made.append([{"id": 1, "note": "a"}])
        yield made


def opened(stores: Stores, **settings: Any) -> Table:
    """The same table in another process."""
    return table(stores.open(**settings), "orders")


def commits(stores: Stores, table: Table) -> int:
    """How often the upper of the table's data shard was moved."""
    (shard,) = table._opened.describe().holding.shards
    moved = 0
    for entry in stores.consensus.scan(shard, 0, 10**6):
        changes = decode_diff(entry.data, shard).changes
        moved += any(isinstance(each, AppendBatch | ExtendUpper) for each in changes)
    return moved


def ids(found: pa.Table) -> list[int]:
    return sorted(found["id"].to_pylist())


# The rule


def known(**changed: Any) -> Completeness:
    facts: dict[str, Any] = {
        "since": 0,
        "upper": NINE + 1,
        "store_ms": NINE + HOUR,
        "now_ms": NINE + HOUR,
        "may_seal": True,
        "is_fed": False,
    }
    return Completeness(**facts | changed)


@pytest.mark.parametrize(
    ("time", "changed", "expected"),
    [
        (NINE, {}, None),
        (0, {}, None),
        (NINE + 1, {}, NINE + HOUR - MINUTE),
        (NINE + HOUR - MINUTE, {}, NINE + HOUR - MINUTE + 1),
        (NINE + HOUR - MINUTE + 1, {}, "wait 1 s"),
        (NINE + HOUR, {}, "wait 60 s"),
        (NINE + 3 * HOUR, {}, "2 h after the store's clock"),
        (NINE + 1, {"may_seal": False}, "only a client that may write"),
        (NINE + 1, {"is_fed": True}, "only its source"),
        (NINE + 1, {"store_ms": None}, "clock is unknown"),
        (NINE + 3 * HOUR, {"store_ms": None}, "after the store's clock"),
        (NINE, {"since": NINE + 1}, "compacted"),
        (NINE // 1000, {}, "looks like seconds"),
        (NINE * 1000, {}, "looks like microseconds"),
        (NINE * 1_000_000, {}, "looks like nanoseconds"),
        (NINE + 1, {"upper": 0}, None),
        (NINE + 1, {"upper": 0, "store_ms": None, "may_seal": False}, None),
        (NINE + 1, {"upper": 0, "is_fed": True}, "nothing has been written yet"),
        (NINE + HOUR + 1, {"upper": 0}, "nothing has been written yet"),
        (NINE // 1000, {"upper": 0}, "nothing has been written yet"),
        (7, {"upper": 7}, "latest complete time is 6"),
        (NINE, {"upper": 7}, "latest complete time is 6"),
        (5, {"upper": 7}, None),
        (NINE // 1000, {"upper": NINE // 1000 + 1}, None),
    ],
)
def test_one_rule_decides(time: int, changed: dict[str, Any], expected: int | str | None) -> None:
    if not isinstance(expected, str):
        assert seal_first(time, known(**changed), "table t", "read at x") == expected
        return
    with pytest.raises(HoldfastError) as raised:
        seal_first(time, known(**changed), "table t", "read at x")
    assert expected in f"{raised.value} {raised.value.hint}"
    assert str(raised.value).startswith("table t ")
    if isinstance(raised.value, AsOfNotYetAvailable) and raised.value.upper > LEAST_MS:
        assert "its latest complete time is" in str(raised.value)
        assert "read at x" in raised.value.hint


def test_a_hint_has_the_time_in_milliseconds() -> None:
    for wrong in (NINE // 1000, NINE * 1000, NINE * 1_000_000):
        with pytest.raises(BadInput) as raised:
            seal_first(wrong, known(), "table t", "")
        assert raised.value.hint == f"give {NINE} (2026-03-02T09:00:00.000+00:00)"


def test_a_float_is_refused_with_what_time_gives_in_milliseconds() -> None:
    with pytest.raises(BadInput, match=r"'1795957277\.86' is neither") as refused:
        milliseconds(1795957277.86)
    assert "1795957277860" in refused.value.hint


@given(
    time=st.integers(NINE - HOUR, NINE + 2 * HOUR),
    upper=st.integers(NINE - HOUR, NINE + 2 * HOUR),
    now=st.integers(NINE - HOUR, NINE + 2 * HOUR),
    sealed=st.integers(0, 2 * HOUR),
)
def test_a_seal_is_never_later_than_a_minute_ago(time: int, upper: int, now: int, sealed: int) -> None:
    last = ReadSeal(min(upper, NINE - HOUR + sealed), "h")
    facts = known(upper=upper, store_ms=now, now_ms=now, last_seal=last)
    try:
        new_upper = seal_first(time, facts, "t", "")
    except AsOfNotYetAvailable:
        assert time >= upper
        assert time > now - BEHIND_MS or now < last.at_ms + EVERY_MS
        return
    if new_upper is None:
        assert time < upper
    else:
        assert upper <= time < new_upper <= now - BEHIND_MS + 1


def test_the_latest_time_at_or_before_another() -> None:
    assert at_or_before(NINE + HOUR, 0, NINE + 1, "t") == NINE
    assert at_or_before(NINE - 5, 0, NINE + 1, "t") == NINE - 5
    with pytest.raises(AsOfTooEarly):
        at_or_before(NINE - 5, NINE, NINE + 1, "t")
    with pytest.raises(AsOfNotYetAvailable):
        at_or_before(NINE, 0, 0, "t")


def test_writes_far_ahead_need_permission() -> None:
    check_write_ahead("t", NINE + AHEAD_MS, NINE, NINE, "ask")
    check_write_ahead("t", NINE + 9 * HOUR, NINE + 9 * HOUR, NINE, "ask")  # the table is there already
    check_write_ahead("t", 10**10, 0, 0, "ask")  # a counter
    with pytest.raises(BadInput, match="2 h ahead of the store's clock") as raised:
        check_write_ahead("t", NINE + 2 * HOUR, NINE, NINE, "ask")
    assert raised.value.hint.endswith("ask")
    with pytest.raises(BadInput) as raised:
        check_write_ahead("t", NINE * 1000, 0, NINE, "ask")
    assert f"give milliseconds, {NINE} " in raised.value.hint


# Tables


def test_a_time_after_the_last_write_can_be_read(orders: Table, stores: Stores, clock: Wall) -> None:
    clock.pass_(24 * HOUR)
    assert ids(orders.read(as_of="2026-03-02T12:00")) == [1]
    assert orders.upper == NINE + 24 * HOUR - MINUTE
    for same in (np.datetime64("2026-03-02T12:00"), np.datetime64("2026-03-02T12:00", "ns")):
        assert orders.latest_time(same) == NINE + 3 * HOUR
    assert orders.to_pandas(as_of="2026-03-02T12:00")["id"].tolist() == [1]
    assert orders.counts("2026-03-02T12:00").num_rows == 1
    later = orders.append([{"id": 2}])
    assert later == NINE + 24 * HOUR
    assert ids(orders.read(as_of="2026-03-02T12:00")) == [1], "and always the same"


@pytest.mark.parametrize(
    "read",
    [
        lambda table, at: table.scan(as_of=at).read_all(),
        lambda table, at: pa.table({"n": range(table.count(as_of=at))}),
        lambda table, at: table.to_polars(as_of=at),
        lambda table, at: table.counts(as_of=at),
        lambda table, at: table.to_pandas(as_of=at),
    ],
    ids=["scan", "count", "to_polars", "counts", "to_pandas"],
)
def test_every_way_of_reading_follows_the_rule(
    orders: Table, stores: Stores, clock: Wall, read: Callable[[Table, int], Any]
) -> None:
    clock.pass_(4 * HOUR)
    noon = NINE + 3 * HOUR
    before = commits(stores, orders)
    assert len(read(orders, noon)) == 1
    assert commits(stores, orders) == before + 1
    with pytest.raises(AsOfNotYetAvailable, match="5 h after the store's clock"):
        read(orders, NINE + 9 * HOUR)


def test_many_readers_commit_once_a_minute(orders: Table, stores: Stores, clock: Wall) -> None:
    readers = [opened(stores) for _ in range(5)]
    refused = 0
    clock.pass_(10 * MINUTE)
    before = commits(stores, orders)
    for second in range(300):
        for number, reader in enumerate(readers):
            time = clock.wall_ms() - MINUTE - 7 * number * number
            try:
                assert ids(reader.read(as_of=time)) == [1]
            except AsOfNotYetAvailable as error:
                refused += "seal at most once a minute" in str(error)
        clock.pass_(1000)
        assert commits(stores, orders) - before <= 1 + second // 60
    assert commits(stores, orders) - before == 5
    assert 0 < refused < 5 * 300, "a time that nobody has completed yet, less than a minute after a seal"


def test_short_processes_commit_once_a_minute_too(orders: Table, stores: Stores, clock: Wall) -> None:
    clock.pass_(10 * MINUTE)
    before = commits(stores, orders)
    for _ in range(20):
        with stores.open() as client, table(client, "orders") as reader, suppress(AsOfNotYetAvailable):
            reader.read(as_of=clock.wall_ms() - MINUTE)
        clock.pass_(5000)
    assert commits(stores, orders) - before == 2


@pytest.mark.parametrize("race", ["seal", "write", "late write", "handover"])
def test_a_reader_that_loses_a_race_looks_again(
    orders: Table, stores: Stores, clock: Wall, race: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.pass_(HOUR)
    time = NINE + 10 * MINUTE
    other = opened(stores)
    append, raced = CollectionWriter.append, []

    def beaten(writer: CollectionWriter, *given: Any, **named: Any) -> None:
        """Just before the first seal, another process moves the collection."""
        if raced:
            return append(writer, *given, **named)
        raced.append(race)
        controller = StorageController(other.client)
        match race:
            case "seal":
                other.read(as_of=time)
            case "write":
                other.append([{"id": 2}])
            case "late write":
                append(controller.writer("orders", purpose="test"), [{"id": 2}], NINE + 1, NINE + MINUTE)
            case "handover":
                made = controller.renditions.create(other._opened.info.collection_id, shards=2)
                controller.hydrate(other._opened.info.collection_id, made.id)
                controller.renditions.hand_over(other._opened.info.collection_id, made.id)
        return append(writer, *given, **named)

    monkeypatch.setattr(CollectionWriter, "append", beaten)
    assert ids(orders.read(as_of=time)) == ([1, 2] if race == "late write" else [1])
    assert raced
    assert time < orders.upper <= NINE + HOUR + (1 if race == "write" else -MINUTE)


def test_a_fast_host_never_seals_the_future(orders: Table, stores: Stores, clock: Wall) -> None:
    clock.pass_(10 * MINUTE)
    client = PersistClient(stores.open().location, clock=Skewed(clock, 5 * HOUR))
    fast = table(client, "orders")
    with pytest.raises(AsOfNotYetAvailable, match="after the store's clock"):
        fast.read(as_of=NINE + HOUR)
    fast.read(as_of=NINE + MINUTE)
    assert fast.upper == NINE + 9 * MINUTE


def test_a_clock_that_goes_back_changes_nothing(orders: Table, clock: Wall) -> None:
    clock.pass_(HOUR)
    orders.read(as_of=NINE + 30 * MINUTE)
    upper = orders.upper
    clock.pass_(-HOUR)
    assert ids(orders.read(as_of=NINE + 30 * MINUTE)) == [1]
    with pytest.raises(AsOfNotYetAvailable):
        orders.read(as_of=upper)
    assert orders.upper == upper
    assert orders.append([{"id": 2}]) == upper


def test_a_reader_that_may_not_write_is_told_the_latest_time(
    stores: Stores, orders: Table, clock: Wall
) -> None:
    clock.pass_(HOUR)
    reading = opened(stores, mode="read")
    noon = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    before = commits(stores, orders)
    with pytest.raises(AsOfNotYetAvailable) as raised:
        reading.read(as_of=noon)
    assert str(raised.value) == (
        f"table orders is not complete at {NINE + 30 * MINUTE} (2026-03-02T09:30:00.000+00:00): its latest"
        f" complete time is {NINE} (2026-03-02T09:00:00.000+00:00), and only a client that may write can"
        " complete later times"
    )
    assert (
        "first read table orders at this time with such a client, as 'holdfast read' has, or "
        in raised.value.hint
    )
    assert "table.latest_time(" in raised.value.hint
    assert reading.latest_time(noon) == reading.latest_time() == NINE
    assert ids(reading.read(as_of=reading.latest_time(noon))) == [1]
    assert reading.latest_time(NINE - 1) == NINE - 1
    assert commits(stores, orders) == before
    with pytest.raises(AsOfNotYetAvailable):
        orders.read(as_of=NINE + HOUR - 1)
    assert orders.latest_time(NINE + HOUR - 1) == NINE


def test_numbers_in_other_units_are_refused(orders: Table, clock: Wall) -> None:
    clock.pass_(HOUR)
    for wrong in (NINE // 1000, NINE * 1000, NINE * 1_000_000, str(NINE // 1000)):
        for ask in (orders.read, orders.diff, orders.tail, orders.latest_time):
            with pytest.raises(BadInput, match="its times are milliseconds"):
                ask(wrong)
    assert orders.upper == NINE + 1


def test_a_table_that_counts_is_never_sealed(stores: Stores, orders: Table, clock: Wall) -> None:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    writer = controller.writer("flights", purpose="test")
    writer.append([{"id": 1}], 0, 5)
    flights = table(stores.open(), "flights")
    assert ids(flights.read(as_of=4)) == [1]
    for later in (5, 2_000_000_000, NINE):
        with pytest.raises(AsOfNotYetAvailable, match="latest complete time is 4"):
            flights.read(as_of=later)
    with flights.tail(as_of=9):
        pass
    writer.append([{"id": 2}], 5, 6)
    never = table(stores.open(), "never", columns=COLUMNS)
    with pytest.raises(AsOfNotYetAvailable, match="nothing has been written yet"):
        never.read(as_of=7)
    assert never.upper == 0


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_table_that_nobody_has_written_is_empty_at_past_times(
    stores: Stores, orders: Table, clock: Wall, mode: Mode, tmp_path: Path
) -> None:
    table(stores.open(), "never", columns=COLUMNS).close()
    never = table(stores.open(mode=mode), "never")
    clock.pass_(HOUR)
    for past in (NINE - HOUR, NINE):
        assert never.read(as_of=past).schema.names == ["id", "note"]
        assert ids(never.read(as_of=past)) == ids(never.read(as_of=past, where=[("id", ">", 0)])) == []
        assert never.count(as_of=past) == never.counts(as_of=past).num_rows == 0
        assert never.diff(past).schema.names == ["id", "note", "_diff"]
        assert never.diff(NINE - HOUR, past).num_rows == never.diff(0).num_rows == 0
        for or_earlier in (False, True):
            join = "SELECT * FROM never FULL JOIN orders USING (id)"
            with sql(never.client, join, as_of=past, or_earlier=or_earlier) as found:
                assert found.times["never"] is None
                assert found.read().num_rows == (past >= NINE)
    with pytest.raises(BadInput, match="go forward"):
        never.diff(NINE, NINE - 1)
    for ask in (lambda time: never.read(as_of=time), lambda time: never.count(as_of=time), never.diff):
        with pytest.raises(AsOfNotYetAvailable, match="nothing has been written yet"):
            ask(NINE + 3 * HOUR)
    # An export is for good, and no time is complete yet.
    with pytest.raises(BadInput, match="nothing has been written yet"):
        never.export(tmp_path / "export", as_of=NINE)
    assert never.upper == 0


def test_a_diff_completes_its_times_with_one_commit(orders: Table, stores: Stores, clock: Wall) -> None:
    clock.pass_(HOUR)
    before = commits(stores, orders)
    assert orders.diff(NINE - 1, NINE + 10 * MINUTE).num_rows == 1
    assert orders.diff(NINE + 5 * MINUTE, NINE + 40 * MINUTE).num_rows == 0
    assert orders.diff(NINE + 50 * MINUTE).num_rows == 0
    assert commits(stores, orders) == before + 1
    with pytest.raises(BadInput, match="forward in time"):
        orders.diff(NINE + 1, NINE)


def test_a_tail_never_seals(orders: Table, stores: Stores, clock: Wall) -> None:
    clock.pass_(HOUR)
    before = commits(stores, orders)
    with orders.tail(NINE + 30 * MINUTE) as tail:
        assert tail.next(0.0).num_rows == 0
        orders.append([{"id": 2}])
        assert ids(tail.next(10.0)) == [2]
    with pytest.raises(AsOfNotYetAvailable, match="after the store's clock"):
        orders.tail(NINE + 2 * HOUR)
    clock.pass_(HOUR)
    with pytest.raises(AsOfNotYetAvailable):
        orders.tail(NINE + 90 * MINUTE, snapshot=True)
    assert commits(stores, orders) == before + 1, "the write"


def test_only_its_pipeline_completes_a_fed_collection(stores: Stores, clock: Wall) -> None:
    controller = StorageController(stores.open())
    info = controller.create_collection(SPEC)
    made = controller.renditions.create(info.collection_id, recipe=Recipe.SOURCE, shards=1)
    pipeline = controller.rendition_writer(info.collection_id, made.id, purpose="test")
    controller.writer(info.collection_id, purpose="test").append([{"id": 1}], 0, NINE + 1)
    pipeline.append([{"id": 1}], 0, NINE + 1)
    controller.renditions.hand_over(info.collection_id, made.id)
    pipeline.append(None, NINE + 1, NINE + 20_000)
    clock.pass_(HOUR)
    flights = table(stores.open(), "flights")
    upper = flights.upper
    with pytest.raises(AsOfNotYetAvailable, match="only its source can complete"):
        flights.read(as_of=NINE + 30 * MINUTE)
    assert flights.upper == upper


def test_a_seal_with_an_unknown_outcome_is_looked_at_again(
    stores: Stores, orders: Table, clock: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.pass_(HOUR)
    before = commits(stores, orders)
    append = CollectionWriter.append
    for happens in (True, False):
        tries: list[bool] = []
        with monkeypatch.context() as patched:
            patched.setattr(CollectionWriter, "append", unsure(append, tries, happens=happens))
            assert ids(orders.read(as_of=clock.wall_ms() - MINUTE)) == [1]
        assert len(tries) == (1 if happens else 2)
        clock.pass_(2 * MINUTE)
    assert commits(stores, orders) == before + 2


def unsure(append: Callable[..., None], tries: list[bool], *, happens: bool) -> Callable[..., None]:
    """An append whose first try has no reply."""

    def appended(writer: CollectionWriter, *given: Any, **named: Any) -> None:
        tries.append(happens)
        if happens or len(tries) > 1:
            append(writer, *given, **named)
        if len(tries) == 1:
            raise Indeterminate("no reply")

    return appended


@pytest.mark.s3
@pytest.mark.postgres
def test_a_minute_ago_can_be_read_on_real_stores(minio: Minio, bucket: str, postgres_url: str) -> None:
    """The store's clock is that of the servers, and the collection was last written ten minutes ago."""
    blob = f"s3://{bucket}/tables?endpoint={minio.endpoint}"
    with (
        PersistClient.open(blob=blob, consensus=postgres_url) as client,
        PersistClient.open(blob=blob, consensus=postgres_url, mode="read") as reading,
    ):
        with table(client, "orders", columns=COLUMNS, key=["id"]):
            now = time.time_ns() // 10**6
        writer = StorageController(client).writer("orders", purpose="test")
        writer.append([{"id": 1}], 0, now - 10 * MINUTE)
        with table(reading, "orders") as orders, pytest.raises(AsOfNotYetAvailable, match="may write"):
            orders.read(as_of=now - 5 * MINUTE)
        with table(client, "orders") as orders:
            assert ids(orders.read(as_of=now - 5 * MINUTE)) == [1]
            assert now - 2 * MINUTE < orders.upper <= now, "a minute ago by the clock of the store"
            with pytest.raises(AsOfNotYetAvailable, match="after the store's clock"):
                orders.read(as_of=now + HOUR)
        with table(reading, "orders") as orders:
            assert ids(orders.read(as_of=now - 5 * MINUTE)) == [1]


# Writes


def test_a_write_that_is_too_late_is_told_who_sealed(stores: Stores, orders: Table, clock: Wall) -> None:
    writer = StorageController(stores.open(hostname="ship")).writer("orders", purpose="test")
    writer.append(None, NINE + 1, NINE + 10)
    clock.pass_(HOUR)
    opened(stores, hostname="harbour").read(as_of=NINE + 30 * MINUTE)
    with pytest.raises(UpperMismatch) as raised:
        writer.append([{"id": 2}], NINE + 10, NINE + 20)
    assert (
        "a read by host harbour sealed it up to 1772445540000 (2026-03-02T09:59:00.000+00:00) at"
        " 1772445600000 (2026-03-02T10:00:00.000+00:00)" in str(raised.value)
    )
    upper = raised.value.actual
    writer.append([{"id": 2}], upper, upper + 5)
    with pytest.raises(UpperMismatch) as raised:
        writer.append([{"id": 2}], upper, upper + 5)
    assert "sealed" not in str(raised.value), "the write before was no seal"


def test_explicit_times_far_ahead_need_permission(stores: Stores, orders: Table) -> None:
    writer = StorageController(stores.open()).writer("orders", purpose="test")
    position = writer.position()
    ahead = NINE + 3 * HOUR
    for refused in (
        lambda: writer.append([{"id": 2}], NINE + 1, ahead),
        lambda: writer.seal(ahead),
        lambda: writer.prepare([{"id": 2}], position, ahead),
    ):
        with pytest.raises(BadInput, match=r"collection orders can't be written at .* ahead of the store's"):
            refused()
    with writer.bulk() as bulk:
        bulk.add([{"id": 2}])
        with pytest.raises(BadInput, match="ahead of the store's clock"):
            bulk.prepare(position, ahead)
    assert orders.upper == NINE + 1
    writer.append([{"id": 2}], NINE + 1, NINE + HOUR)
    other = StorageController(stores.open()).writer("orders", purpose="test")
    other.append([{"id": 3}], NINE + HOUR, ahead - 1, far_ahead=True)
    # The table is there already.
    writer.append([{"id": 3}], ahead - 1, ahead)
    assert orders.upper == ahead
    # A table that is ahead can still be used.
    assert [orders.append([{"id": each}]) for each in (4, 5)] == [ahead, ahead + 1]
    stock = table(stores.open(), "stock", columns=COLUMNS, key=["id"])
    assert stock.append([{"id": 1}]) == NINE


def test_an_identical_writer_that_a_seal_overtakes_is_no_conflict(stores: Stores, clock: Wall) -> None:
    controller = StorageController(stores.open())
    info = controller.create_collection(SPEC)
    writers = [controller.writer("flights", purpose="test", replicated=True) for _ in range(2)]
    for writer in writers:
        writer.append([{"id": 1}], 0, NINE + 1)
    clock.pass_(HOUR)
    table(stores.open(), "flights").read(as_of=NINE + 30 * MINUTE)
    with pytest.raises(Overtaken, match="a read by host") as raised:
        writers[0].append([{"id": 2}], NINE + 1, NINE + 10)
    assert raised.value.written == NINE + 1
    assert raised.value.actual == NINE + HOUR - MINUTE
    assert not controller.describe(info.collection_id).holding.suspect
    for writer in writers:
        writer.append([{"id": 2}], raised.value.actual, raised.value.actual + 1)
