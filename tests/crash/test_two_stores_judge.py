"""The judge of moved catalogs finds every planted fault. Its rules are those of the documented tables."""

from dataclasses import replace
from itertools import product

import pytest

from crash.operators import Mark, check_steps
from crash.oracle import Answer
from crash.twostores import Both, Contents, judge
from holdfast.catalog.move.truth import Strategy, source_of_truth

WRITES = {1: Answer.DONE, 2: Answer.REFUSED, 3: Answer.UNKNOWN, 4: Answer.NONE}
STASH_CONFIG = {"link": 7, "migration_strategy": 1, "tombstone": 1}
SOUND = Both(
    stash=Contents(STASH_CONFIG, 3, {"write-1": 1}),
    persist=Contents({"link": 7, "truth": 1}, 3, {"write-1": 1, "write-3": 1}),
)


def test_a_sound_catalog_passes() -> None:
    judge(SOUND, WRITES, WRITES)


@pytest.mark.parametrize(
    ("stash", "persist", "message"),
    [
        ({}, {"writes": {"write-3": 1}}, "1 acknowledged writes are not in Persist"),
        ({}, {"writes": {"write-1": 2}}, "write-1 is 2 times in Persist"),
        ({}, {"writes": {"write-1": 1, "write-2": 1}}, "write-2 was refused and is in Persist"),
        ({}, {"writes": {"write-1": 1, "write-5": 1}}, "nobody tried"),
        ({"writes": {"write-3": 1}}, {"writes": {"write-1": 1}}, "in Stash alone"),
        ({"config": {**STASH_CONFIG, "truth": 1}}, {}, "Stash says that it is the truth"),
        ({"config": {**STASH_CONFIG, "migration/a": 1, "migration/b": 3}}, {}, "several migrations"),
        ({"config": {**STASH_CONFIG, "link": 8}}, {}, "linked with others"),
    ],
)
def test_what_is_wrong_is_found(stash: dict[str, object], persist: dict[str, object], message: str) -> None:
    found = Both(replace(SOUND.stash, **stash), replace(SOUND.persist, **persist))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=message):
        judge(found, WRITES, WRITES)


def test_its_truth_is_that_of_the_tables() -> None:
    for strategy, *tombstones in product(Strategy, (None, 0, 1), (None, 0, 1)):
        configs = [{} if value is None else {"tombstone": value} for value in tombstones]
        stash = Contents({**configs[0], "migration_strategy": strategy.value}, 1, {})
        found = Both(stash, Contents(configs[1], 1, {})).truth
        assert found == source_of_truth(strategy, *configs).value


def test_a_step_that_is_left_out_is_found() -> None:
    first = [Mark("begins", 1), Mark("did", 1)]
    check_steps(iter([*first, Mark("begins", 2), None, *first, Mark("begins", 2)]))
    for wrong in ([Mark("begins", 2)], [*first, Mark("begins", 3)], [*first, None, Mark("begins", 2)]):
        with pytest.raises(AssertionError, match="was begun after step"):
            check_steps(iter(wrong))
