"""A shard that is written all the time gets upkeep now and then, for all that came since the last one."""

from collections.abc import Callable
from threading import Event

import pytest

from holdfast.persist import PersistClient, PersistConfig
from unit.persist.open_stores import SCHEMA, SHARD, HandClock, Stores, rows


def wait_for(condition: Callable[[], bool]) -> None:
    waiting = Event()
    for _ in range(12_000):
        if condition():
            return
        waiting.wait(0.005)
    pytest.fail("it did not happen in 60 s")


def test_what_comes_while_a_shard_rests_is_merged_in_one_go() -> None:
    stores, clock = Stores(), HandClock()
    client = PersistClient(stores.open().location, config=PersistConfig(gc_grace_s=0.0), clock=clock)
    machine, maintainer = client.session.machine(SHARD), client.session.maintainer

    def append(lower: int, upper: int) -> None:
        for time in range(lower, upper):
            writer.compare_and_append(rows(time), time, time + 1)

    def reaches() -> list[int]:
        return [batch.upper for batch in machine.state.batches]

    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        append(0, 8)
        wait_for(lambda: reaches() == [8] and SHARD in maintainer._kept_s)
        append(8, 100)
        clock.sleep(1.0)
        wait_for(lambda: reaches() == [8, 100])
        kept_s = clock.monotonic()
        wait_for(lambda: maintainer._kept_s[SHARD] == kept_s)
        append(100, 110)
    # It does not wait for a rest to end.
    client.close()
    assert [batch.upper for batch in stores.state().batches] == [8, 100, 110]
