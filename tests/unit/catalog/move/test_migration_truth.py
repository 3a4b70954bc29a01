"""The tables of a move: every state has one truth, and the steps lead to the target."""

from itertools import product

import pytest

from holdfast.catalog.move.truth import (
    STATES,
    STEPS,
    Action,
    Backend,
    Strategy,
    source_of_truth,
)
from holdfast.errors import CorruptBlob

TOMBSTONES = (None, False, True)


def config_of(tombstone: bool | None) -> dict[str, int]:
    return {} if tombstone is None else {"tombstone": int(tombstone)}


@pytest.mark.parametrize("strategy", Strategy)
def test_exactly_one_state_covers_any_two_tombstones(strategy: Strategy) -> None:
    for stash, persist in product(TOMBSTONES, TOMBSTONES):
        assert sum(state.covers(stash, persist) for state in STATES[strategy]) == 1


def test_the_strategies_read_the_same_tombstones_differently() -> None:
    stash, persist = config_of(True), config_of(True)
    assert source_of_truth(Strategy.ONE_TOMBSTONE, stash, persist) is Backend.PERSIST
    assert source_of_truth(Strategy.TWO_TOMBSTONES, stash, persist) is Backend.STASH


def test_another_tombstone_than_0_and_1_is_an_error() -> None:
    with pytest.raises(CorruptBlob, match="0 or 1"):
        source_of_truth(Strategy.ONE_TOMBSTONE, {"tombstone": 2}, {})


@pytest.mark.parametrize(("strategy", "target"), STEPS)
@pytest.mark.parametrize("tombstones", list(product(TOMBSTONES, TOMBSTONES)), ids=str)
def test_the_steps_move_the_truth_once_after_the_replace(
    strategy: Strategy, target: Backend, tombstones: tuple[bool | None, bool | None]
) -> None:
    if strategy is Strategy.TWO_TOMBSTONES and tombstones == (None, False):
        # No step leads there, and a link that finds it is refused: the first step would move the truth.
        return
    configs = dict(zip(Backend, map(config_of, tombstones), strict=True))

    def truth() -> Backend:
        return source_of_truth(strategy, configs[Backend.STASH], configs[Backend.PERSIST])

    source, replaced = truth(), False
    for step in STEPS[strategy, target]:
        if step.action is Action.CHECK and truth() is target:
            break
        replaced |= step.action is Action.REPLACE
        if step.action is Action.REPLACE:
            assert truth() is not step.store
        if step.tombstone is not None:
            configs[step.store] = config_of(step.tombstone)
        assert truth() is source or replaced
    assert truth() is target
