"""Injected faults do what their names say, and nothing happens after a death."""

import pytest

from holdfast.errors import Determinate, Indeterminate
from holdfast.persist.stores import Entry, MemoryBlob, MemoryConsensus, Put
from testbed.faults import (
    Fault,
    FaultyBlob,
    FaultyConsensus,
    Operation,
    ProcessDeath,
    ScriptedPlan,
    SeededPlan,
)

_RAISED = {
    Fault.DETERMINATE: Determinate,
    Fault.INDETERMINATE_BEFORE: Indeterminate,
    Fault.INDETERMINATE_AFTER: Indeterminate,
    Fault.DEATH_BEFORE: ProcessDeath,
    Fault.DEATH_AFTER: ProcessDeath,
}
_DONE = (Fault.INDETERMINATE_AFTER, Fault.DEATH_AFTER)


@pytest.mark.parametrize("fault", _RAISED)
def test_each_fault_does_what_it_says(fault: Fault) -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    blob.put("old", b"x")
    consensus.compare_and_set([Put("old", 1, b"x"), Put("log", 1, b"x")])
    consensus.compare_and_set([Put("log", 2, b"x")])

    with pytest.raises(_RAISED[fault]):
        FaultyBlob(blob, ScriptedPlan({0: fault})).put("new", b"x")
    with pytest.raises(_RAISED[fault]):
        FaultyBlob(blob, ScriptedPlan({0: fault})).delete("old")
    with pytest.raises(_RAISED[fault]):
        FaultyConsensus(consensus, ScriptedPlan({0: fault})).compare_and_set([Put("new", 1, b"x")])
    with pytest.raises(_RAISED[fault]):
        FaultyConsensus(consensus, ScriptedPlan({0: fault})).truncate("log", 2)

    done = fault in _DONE
    assert (blob.get("new") is not None) == done
    assert (blob.get("old") is None) == done
    assert ("new" in consensus.list_keys()) == done
    assert (consensus.scan("log", 0, 1) == [Entry(2, b"x")]) == done


@pytest.mark.parametrize("fault", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER])
def test_the_dead_do_nothing_in_either_store(fault: Fault) -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    plan = ScriptedPlan({0: fault})
    faulty_blob, faulty_consensus = FaultyBlob(blob, plan), FaultyConsensus(consensus, plan)
    with pytest.raises(ProcessDeath):
        faulty_blob.get("a")

    for call in (
        lambda: faulty_blob.put("a", b"x"),
        lambda: faulty_blob.list(""),
        lambda: faulty_blob.open_input("a", 1),
        lambda: faulty_consensus.compare_and_set([Put("a", 1, b"x")]),
        lambda: faulty_consensus.heads(["a"]),
        lambda: faulty_consensus.scan("a", 0, 1),
        lambda: faulty_consensus.list_keys(),
    ):
        with pytest.raises(ProcessDeath):
            call()
    assert list(blob.list("")) == []
    assert consensus.list_keys() == []


def test_no_error_handler_survives_a_death() -> None:
    assert not issubclass(ProcessDeath, Exception)


def test_a_script_counts_what_it_matches_only() -> None:
    plan = ScriptedPlan({1: Fault.DETERMINATE}, matches=lambda operation: operation.name == "blob.put")
    blob = FaultyBlob(MemoryBlob(), plan)

    blob.get("a")
    blob.put("a", b"1")
    blob.get("a")
    with pytest.raises(Determinate, match=r"blob\.put of a"):
        blob.put("a", b"2")
    blob.put("a", b"3")

    assert blob.get("a") == b"3"
    assert plan.seen == 3


def _decisions(plan: SeededPlan, name: str, count: int) -> list[Fault]:
    return [plan.decide(Operation(name, ("a",))) for _ in range(count)]


def test_a_seed_is_a_plan() -> None:
    one = _decisions(SeededPlan(7, rate=0.3, death_rate=0.01), "blob.put", 300)

    assert one == _decisions(SeededPlan(7, rate=0.3, death_rate=0.01), "blob.put", 300)
    assert one != _decisions(SeededPlan(8, rate=0.3, death_rate=0.01), "blob.put", 300)


def test_a_seeded_plan_meets_every_fault() -> None:
    errors = set(_decisions(SeededPlan(1, rate=0.5), "consensus.compare_and_set", 200))
    deaths = {_decisions(SeededPlan(seed, rate=0, death_rate=1), "blob.put", 1)[0] for seed in range(20)}

    assert errors == {
        Fault.NONE,
        Fault.DETERMINATE,
        Fault.INDETERMINATE_BEFORE,
        Fault.INDETERMINATE_AFTER,
    }
    assert deaths == {Fault.DEATH_BEFORE, Fault.DEATH_AFTER}


def test_a_read_fails_determinately() -> None:
    assert set(_decisions(SeededPlan(1, rate=0.5), "consensus.scan", 200)) == {Fault.NONE, Fault.DETERMINATE}


def test_a_plan_that_was_stopped_is_kind_to_the_living_only() -> None:
    living, dead = SeededPlan(1, rate=1), SeededPlan(1, rate=0, death_rate=1)
    _decisions(dead, "blob.get", 1)
    living.stop()
    dead.stop()

    assert set(_decisions(living, "blob.put", 50)) == {Fault.NONE}
    assert set(_decisions(dead, "blob.put", 50)) == {Fault.DEATH_BEFORE}
