"""The time from which acknowledged writes may be lost, as far as rollups of both histories show it."""

import pytest

from holdfast.errors import LogRegressed
from holdfast.persist import PersistClient
from holdfast.persist.admin.accept import accept, two_histories
from unit.persist.open_stores import SHARD, Stores
from unit.persist.state.test_two_histories import append, copied, promote

SETTINGS = {"rollup_every": 4, "compaction_fanin": 100, "gc_grace_s": 10_000.0}


@pytest.fixture
def stores() -> Stores:
    return Stores()


def work(stores: Stores, client: PersistClient, *times: int, value: str = "x", rollup: bool = True) -> None:
    """Append at these times, a second after each other, and do the upkeep."""
    for time in times:
        stores.clock.now_s += 1
        append(client, time, value=value)
    if rollup:
        client.maintain(SHARD)


def lost_after(stores: Stores) -> list[int | None]:
    """What is known for each other history, in whole seconds."""
    machine = stores.open().session.machine(SHARD)
    machine.refresh()
    found = two_histories(machine)
    assert found is not None
    return [ms if ms is None else ms // 1000 for ms in (side.lost_after_ms for side in found.others)]


def meet(client: PersistClient) -> None:
    with pytest.raises(LogRegressed):
        client.recent_upper(SHARD)


@pytest.mark.parametrize("rollups", [0, 1, 2])
def test_writes_are_lost_only_after_a_rollup_that_both_histories_have_recorded(
    stores: Stores, rollups: int
) -> None:
    """The promoted log goes on, and replaces that rollup by this many of its own."""
    a = stores.open(**SETTINGS)
    work(stores, a, *range(6))
    work(stores, a, *range(6, 12))
    shared_s = int(stores.clock.now_s)
    work(stores, a, 12, rollup=False)
    standby = copied(stores.consensus)
    split_s = int(stores.clock.now_s)
    work(stores, a, 13, 14, value="a", rollup=False)
    promote(stores, standby)
    b = stores.open(**SETTINGS)
    for number in range(rollups):
        work(stores, b, *range(13 + 6 * number, 19 + 6 * number), value="b")
    meet(a)
    (after_s,) = lost_after(stores)
    assert after_s is not None
    assert after_s <= split_s
    assert (after_s == shared_s) == (rollups < 2), "then an older rollup shows it"


def test_the_rollup_of_the_other_history_also_shows_it(stores: Stores) -> None:
    a = stores.open(**SETTINGS)
    work(stores, a, *range(6))
    shared_s = int(stores.clock.now_s)
    standby = copied(stores.consensus)
    work(stores, a, *range(6, 12), value="a")
    promote(stores, standby)
    assert lost_after(stores) == [shared_s]
    meet(a)
    assert lost_after(stores) == [shared_s, shared_s]


def test_a_rollup_that_an_acceptance_made_garbage_shows_nothing(stores: Stores) -> None:
    """A client that notices the failover after the acceptance names that rollup too."""
    a, late = stores.open(**SETTINGS), stores.open(**SETTINGS)
    work(stores, a, *range(6))
    shared_s = int(stores.clock.now_s)
    standby = copied(stores.consensus)
    work(stores, a, *range(6, 12), value="a")
    late.recent_upper(SHARD)
    promote(stores, standby)
    machine = stores.open().session.machine(SHARD)
    accept(machine)
    newest = late.session.machine(SHARD).state.latest_rollup
    assert newest is not None
    assert newest.blob_key in machine.refresh().garbage
    meet(late)
    assert lost_after(stores) == [shared_s]


def test_without_a_rollup_the_time_is_unknown(stores: Stores) -> None:
    a = stores.open()
    append(a, 0)
    standby = copied(stores.consensus)
    append(a, 1)
    promote(stores, standby)
    meet(a)
    assert lost_after(stores) == [None]
