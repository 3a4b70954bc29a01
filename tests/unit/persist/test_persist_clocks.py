"""Wrong clocks, stopped processes, and handles that are always in use."""

import logging
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import AsOfTooEarly, Determinate, LeaseLost, UpperMismatch
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Location, Put, SqliteConsensus, sqlite
from holdfast.sqlite_busy import BusyPatience
from unit.persist.open_stores import SCHEMA, SHARD, HandClock, Stores, rows

LEASE_S = 40.0


class FastClock(HandClock):
    """A clock that is ahead of the store's."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


def client_with(stores: Stores, clock: FastClock, **settings: float) -> PersistClient:
    config = PersistConfig(maintenance="off", **settings)
    return PersistClient(
        Location(stores.blob, stores.consensus, stores.location_id), config=config, clock=clock
    )


def test_a_fast_clock_is_bounded_by_that_of_the_store(
    stores: Stores, caplog: pytest.LogCaptureFixture, own_records: Callable[[], list[logging.LogRecord]]
) -> None:
    clock = FastClock()
    client = client_with(stores, clock)
    assert client.now_ms() == clock.wall_ms()
    clock.ahead_ms = 59_000
    assert client.now_ms() == stores.clock.wall_ms() + 59_000
    clock.ahead_ms = 3_600_000
    with caplog.at_level(logging.WARNING):
        assert {client.now_ms() for _ in range(3)} == {stores.clock.wall_ms()}
    (warning,) = [each.getMessage() for each in own_records()]
    assert "3600.0 s ahead" in warning
    assert client_with(stores, clock, clock_ahead_s=7200.0).now_ms() == clock.wall_ms(), "the way out"


def test_the_time_of_the_store_is_not_that_of_the_host(stores: Stores, tmp_path: Path) -> None:
    clock = FastClock()
    clock.ahead_ms = 3_600_000
    client = client_with(stores, clock, clock_ahead_s=7200.0)
    assert client.store_ms() == client.store_or_host_ms() == stores.clock.wall_ms()
    PersistClient.open(tmp_path.as_uri()).close()
    with PersistClient.open(tmp_path.as_uri(), mode="read") as reading:
        assert reading.store_ms() is None, "asking a file store would write to it"
        assert abs(reading.store_or_host_ms() - time.time() * 1000) < 60_000


def test_a_slow_clock_is_left_as_it_is(stores: Stores) -> None:
    clock = FastClock()
    clock.ahead_ms = -3_600_000
    assert client_with(stores, clock).now_ms() == clock.wall_ms()


def test_a_writer_that_always_loses_is_not_dropped_while_it_is_used(stores: Stores) -> None:
    settings = {"lease_s": LEASE_S, "inline_max_bytes": 0}
    client, winner = stores.open(**settings), stores.open(**settings)
    losing = client.writer(SHARD, SCHEMA, purpose="losing")
    ticket = losing.upload_ticket()
    winning = winner.writer(SHARD, SCHEMA, purpose="winning")
    for upper in range(12):
        winning.compare_and_append(rows(upper), upper, upper + 1)
        with pytest.raises(UpperMismatch):
            losing.compare_and_append(None, upper, upper + 1)
        winner.maintain(SHARD)
        stores.clock.sleep(LEASE_S / 2)
    assert ticket.writer_id in stores.state().writers
    losing.compare_and_append(rows(99), 12, 13)


def test_who_lost_its_lease_is_told_that_and_not_that_it_is_too_early(stores: Stores) -> None:
    client, other = stores.open(lease_s=LEASE_S), stores.open(lease_s=LEASE_S)
    writer = other.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 5)
    retention = other.critical_since(SHARD, purpose="retention")
    retention.downgrade(2)
    reader = client.reader(SHARD, purpose="test")
    with pytest.raises(AsOfTooEarly) as early:
        reader.snapshot(1)
    assert not isinstance(early.value, LeaseLost), "it never held that time"
    other.maintain(SHARD)
    stores.clock.sleep(LEASE_S + 1)
    other.maintain(SHARD)
    retention.downgrade(4)
    client.recent_upper(SHARD)
    for read in (reader.snapshot, reader.listen, reader.subscribe, reader.snapshot_parts):
        with pytest.raises(LeaseLost):
            read(3)
    with pytest.raises(LeaseLost):
        reader.changes(3, 4)


def test_the_upkeep_of_a_fenced_client_is_quiet(
    stores: Stores, caplog: pytest.LogCaptureFixture, own_records: Callable[[], list[logging.LogRecord]]
) -> None:
    fenced = stores.open(rollup_every=2, maintenance="inline")
    fenced.exclusive("job")
    with fenced.writer(SHARD, SCHEMA, purpose="test") as writer:
        writer.compare_and_append(rows(1), 0, 1)
    stores.open().exclusive("job")
    machine = fenced.session.machine(SHARD)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            fenced.session.maintainer._guarded(lambda: fenced.session.maintainer.run(machine), SHARD)
            fenced.session.maintainer._look_around()
    told = [each for each in own_records() if "upkeep" in each.getMessage()]
    assert len(told) <= 1
    assert all(each.levelno < logging.WARNING for each in told)


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_is_stopped_with_the_write_lock_holds_others_up_for_a_bounded_time(
    tmp_path: Path,
) -> None:
    store = SqliteConsensus(tmp_path / "c.sqlite", busy_timeout_s=0.3)
    assert store.compare_and_set([Put("a", 1, b"1")])
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "c.sqlite")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(Determinate, match=r"locked by another process for 0\.3 s") as refused:
                store.compare_and_set([Put("a", 2, b"2")])
            assert "continue or end it" in refused.value.hint
            assert store.heads(["a"])["a"].data == b"1", "readers go on"
        finally:
            holder.kill()
            holder.send_signal(signal.SIGCONT)
    assert store.compare_and_set([Put("a", 2, b"2")])
    store.close()


def test_a_client_waits_once_for_the_write_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def patience(seconds: float) -> BusyPatience:
        waits.append(seconds)
        return BusyPatience(seconds)

    monkeypatch.setattr(sqlite, "BusyPatience", patience)
    stores = Stores()
    store = SqliteConsensus(tmp_path / "c.sqlite", busy_timeout_s=0.3)
    stores.consensus = store  # type: ignore[assignment]
    client = stores.open(retry_deadline_s=60)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(0), 0, 1)
    with closing(sqlite3.connect(tmp_path / "c.sqlite", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        for act in (
            lambda: writer.compare_and_append(rows(1), 1, 2),
            lambda: client.exclusive("job"),
            lambda: client.create_or_load("other", SCHEMA),
        ):
            waits.clear()
            with pytest.raises(Determinate, match=r"locked by another process for 0\.3 s"):
                act()
            assert waits == [0.3]
        holder.execute("ROLLBACK")
    writer.compare_and_append(rows(1), 1, 2)
    client.close()


def test_time_for_which_a_process_is_stopped_is_not_time_spent_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    patience = BusyPatience(1.0)
    assert patience.wait()
    now[0] += 3600
    assert patience.wait()
    steps = 0
    while patience.wait():
        steps += 1
    assert steps > 100
    assert now[0] < 100 + 3600 + 1.1


def test_a_store_that_was_never_opened_can_be_shown() -> None:
    postgres = pytest.importorskip("holdfast.persist.stores.postgres")
    assert "not opened" in repr(object.__new__(postgres.PostgresConsensus))
    assert sqlite3.sqlite_version


TRYING = """
import sys
from pathlib import Path
from holdfast.errors import Determinate
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus

class Away(MemoryConsensus):
    failures, refusals = 0, 2

    def heads(self, *arguments):
        if Path(sys.argv[1]).exists():
            # It comes back, but not at once.
            self.refusals -= 1
            if self.refusals < 0:
                return super().heads(*arguments)
        self.failures += 1
        if self.failures == 3:
            print("trying", flush=True)
        raise Determinate("the store is away")

store = Away()
client = PersistClient(
    Location(MemoryBlob(), store, None), config=PersistConfig(maintenance="off", retry_deadline_s=1.0)
)
try:
    client.session.machine("s00000000-0000-4000-8000-000000000001").refresh()
except Determinate as error:
    print(f"gave up: {error}")
else:
    print("found")
"""


def test_a_process_that_is_stopped_while_its_store_is_away_goes_on_trying(tmp_path: Path) -> None:
    there = tmp_path / "there"
    command = [sys.executable, "-c", TRYING, str(there)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trying:
        assert trying.stdout is not None
        assert trying.stdout.readline() == "trying\n"
        trying.send_signal(signal.SIGSTOP)
        try:
            # Longer than the retry deadline.
            time.sleep(1.5)
            there.touch()
        finally:
            trying.send_signal(signal.SIGCONT)
        assert trying.stdout.read() == "found\n"
