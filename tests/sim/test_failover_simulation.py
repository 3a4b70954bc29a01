"""No client mixes two histories if the consensus store fails over to a lagging copy."""

from collections import Counter

import pytest

from sim.failoverworld import FailoverWorld
from sim.kinds import FAILOVER
from sim.worlds import check_repeatable, spans


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", spans(FAILOVER, 12))
def test_every_client_sees_one_history(seeds: range) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        world = FailoverWorld(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        met += world.met()
    for what in ("failovers", "clients cut off", "clients that met another history", "logs cut"):
        assert met[what] > 0, met
    assert met["upkeep while two histories stand"] > 0


def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(FAILOVER, 3)
