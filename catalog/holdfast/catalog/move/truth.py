"""Which of two linked stores is the source of truth, and the steps that change it. Pure; the tables are data.

A store is *retired* if its tombstone is 1. The two strategies read the tombstones differently, so a catalog
keeps the strategy that it was linked with. The diagrams in the documentation and the tests are generated from
these tables.

Invariants
- Every combination of tombstones has exactly one source of truth.
- A step changes one store. Only a `SET_TOMBSTONE` can change the truth, and only after the contents of the
  target were replaced by those of the truth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from holdfast.catalog import config
from holdfast.catalog.damage import corrupt


class Backend(Enum):
    """One of the two stores of a linked catalog."""

    STASH = "Stash"
    PERSIST = "Persist"

    @property
    def other(self) -> "Backend":
        """The other store."""
        return Backend.PERSIST if self is Backend.STASH else Backend.STASH


NUMBERS: Mapping[Backend, int] = {Backend.STASH: 1, Backend.PERSIST: 2}
"""The number by which the config of a store names a store."""


def named(stored: Mapping[str, int], key: str) -> Backend:
    """The store that a config names under `key`. Raises `CorruptBlob`."""
    for backend, number in NUMBERS.items():
        if number == stored.get(key):
            return backend
    raise corrupt(f"config {key}", "1 or 2", str(stored.get(key)))


class Strategy(Enum):
    """How many tombstones determine the truth. The values are stored in the stash's config."""

    ONE_TOMBSTONE = 1
    """One, in the stash."""
    TWO_TOMBSTONES = 2
    """One in each store."""


@dataclass(frozen=True)
class State:
    """A row of a state table: the tombstones that it covers, the truth, and its meaning."""

    stash: frozenset[bool | None]
    persist: frozenset[bool | None]
    truth: Backend
    meaning: str

    def covers(self, stash: bool | None, persist: bool | None) -> bool:
        """Whether this state covers these tombstones."""
        return stash in self.stash and persist in self.persist


_ANY: frozenset[bool | None] = frozenset({None, False, True})


def _only(value: bool | None) -> frozenset[bool | None]:
    return frozenset({value})


_SET = frozenset[bool | None]({False, True})

STATES: Mapping[Strategy, tuple[State, ...]] = {
    Strategy.ONE_TOMBSTONE: (
        State(_only(None), _ANY, Backend.STASH, "never moved to persist"),
        State(_only(True), _ANY, Backend.PERSIST, "moved to persist, or a move back did not finish"),
        State(_only(False), _ANY, Backend.STASH, "moved back, or a move to persist did not finish"),
    ),
    Strategy.TWO_TOMBSTONES: (
        State(_only(None), _ANY, Backend.STASH, "no move was ever begun"),
        State(_SET, _only(None), Backend.STASH, "never moved to persist to the end"),
        State(_only(True), _only(False), Backend.PERSIST, "moved to persist"),
        State(_only(False), _only(True), Backend.STASH, "moved back"),
        State(_only(True), _only(True), Backend.STASH, "a move to persist did not finish"),
        State(_only(False), _only(False), Backend.PERSIST, "a move back did not finish"),
    ),
}
"""The states of each strategy. Exactly one of them covers any two tombstones."""


def source_of_truth(
    strategy: Strategy, stash_config: Mapping[str, int], persist_config: Mapping[str, int]
) -> Backend:
    """The source of truth, from the configs of two linked stores.

    Raises `CorruptBlob` for a tombstone other than 0 and 1.
    """
    stash, persist = tombstone(stash_config), tombstone(persist_config)
    (state,) = (state for state in STATES[strategy] if state.covers(stash, persist))
    return state.truth


def tombstone(stored: Mapping[str, int]) -> bool | None:
    """The tombstone in a store's config, or None. Raises `CorruptBlob`."""
    value = stored.get(config.TOMBSTONE)
    if value is None:
        return None
    config.check_stored(config.TOMBSTONE, value)
    return bool(value)


class Action(Enum):
    """What a step does."""

    OPEN = auto()
    """Puts the token of the migration into the store of the step."""
    CHECK = auto()
    """Ends the migration if the target is already the truth."""
    READ = auto()
    """Reads the contents of the store of the step, which is the truth."""
    REPLACE = auto()
    """Replaces the contents of the store of the step by what was read, in one commit."""
    SET_TOMBSTONE = auto()
    """Sets the tombstone of the store of the step."""


@dataclass(frozen=True)
class MoveStep:
    """A numbered step of a move. `tombstone` is the value that a `SET_TOMBSTONE` sets, otherwise None."""

    number: int
    action: Action
    store: Backend
    tombstone: bool | None = None

    def __str__(self) -> str:
        store = self.store.value.lower()
        match self.action:
            case Action.OPEN:
                text = f"open the {store} catalog"
            case Action.CHECK:
                text = f"see whether {store} is the source of truth already"
            case Action.READ:
                text = f"read the {store} catalog"
            case Action.REPLACE:
                text = f"replace the contents of the {store} catalog"
            case Action.SET_TOMBSTONE:
                text = f"set the {store} tombstone to {str(self.tombstone).lower()}"
        return f"{self.number}. {text}"


def _one_tombstone(target: Backend) -> Iterator[tuple[Action, Backend, bool | None]]:
    yield Action.OPEN, Backend.STASH, None
    yield Action.OPEN, Backend.PERSIST, None
    yield Action.CHECK, target, None
    yield Action.READ, target.other, None
    yield Action.REPLACE, target, None
    yield Action.SET_TOMBSTONE, Backend.STASH, target is Backend.PERSIST


def _two_tombstones(target: Backend) -> Iterator[tuple[Action, Backend, bool | None]]:
    yield Action.OPEN, Backend.STASH, None
    yield Action.OPEN, Backend.PERSIST, None
    yield Action.SET_TOMBSTONE, Backend.STASH, target is Backend.PERSIST
    yield Action.CHECK, target, None
    yield Action.READ, target.other, None
    yield Action.REPLACE, target, None
    yield Action.SET_TOMBSTONE, Backend.PERSIST, target is Backend.STASH


STEPS: Mapping[tuple[Strategy, Backend], tuple[MoveStep, ...]] = {
    (strategy, target): tuple(MoveStep(number, *step) for number, step in enumerate(steps(target), start=1))
    for strategy, steps in (
        (Strategy.ONE_TOMBSTONE, _one_tombstone),
        (Strategy.TWO_TOMBSTONES, _two_tombstones),
    )
    for target in Backend
}
"""The steps of a move by strategy and target."""
