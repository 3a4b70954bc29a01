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


def test_clients_that_are_opened_together_have_their_first_heartbeats_one_after_the_other() -> None:
    """With their first heartbeat they write the first rollups of their shards."""
    stores, clock = Stores(), HandClock()
    location, config = stores.open().location, PersistConfig(lease_s=800.0)
    stores.open().writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(0), 0, 1)
    clients = [PersistClient(location, config=config, clock=clock) for _ in range(12)]
    readers = [client.reader(SHARD, purpose="test") for client in clients]
    maintainers = [client.session.maintainer for client in clients]
    wait_for(lambda: all(each._next_beat for each in maintainers))
    after_s = sorted(each._next_beat - clock.monotonic() for each in maintainers)
    assert after_s[0] >= 100.0
    assert after_s[-1] <= 200.0
    # In parts of the same size, they are hardly ever so close by chance.
    assert after_s[-1] - after_s[0] >= 20.0
    for reader, client in zip(readers, clients, strict=True):
        reader.close()
        client.close()
