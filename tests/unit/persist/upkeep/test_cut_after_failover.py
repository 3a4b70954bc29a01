"""A store goes back in time right before a cut. The remaining log stays readable."""

import copy
from typing import Any

import pytest

from holdfast.errors import LogRegressed
from holdfast.persist.upkeep.garbage import collect_garbage
from holdfast.persist.upkeep.rollup import write_rollup
from testbed.faults import Fault, FaultPlan, Operation
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents, rows


class GoesBack(FaultPlan):
    """Gives the store the logs of a copy right before the cut."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self.copy: dict[str, Any] | None = None

    def decide(self, operation: Operation) -> Fault:
        if operation.name == "consensus.truncate" and self.copy is not None:
            self._stores.consensus._logs.clear()
            self._stores.consensus._logs.update(self.copy)
            self.copy = None
        return Fault.NONE


@pytest.mark.parametrize("finalized", [False, True])
def test_a_cut_spares_a_log_that_lacks_the_record_of_its_rollup(stores: Stores, finalized: bool) -> None:
    """The copy has the version of the rollup, and not the one that records it."""
    plan = GoesBack(stores)
    client = stores.open(plan, rollup_every=1000)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    for time in range(5):
        writer.compare_and_append(rows(time), time, time + 1)
    writer.close()
    client.reader(SHARD, purpose="test").close()
    machine = client.session.machine(SHARD)
    lagging = copy.deepcopy(stores.consensus._logs)
    if finalized:
        client.finalize(SHARD)
    write_rollup(machine)
    plan.copy = lagging
    with pytest.raises(LogRegressed):
        collect_garbage(machine)
    assert plan.copy is None, "nothing was cut"
    fresh = stores.open()
    found = contents(fresh.reader(SHARD, purpose="test").snapshot(4).to_table())
    assert found == {(time, "x"): 1 for time in range(5)}
