"""Checks a catalog whose operator was killed: compares its two stores with the results that a writer got.

It reads rows and decodes three kinds of them itself. It decides by separate rules which store counts, because
the code under test decides it by its tables.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from crash.ledger import name_of
from crash.oracle import Answer
from holdfast.catalog.objects.codec import decode
from holdfast.catalog.objects.registry import AUDIT_LOG, CONFIGS, FENCE_TOKENS, Kind
from holdfast.catalog.stores.store import CatalogStore

STASH: Final = "Stash"
PERSIST: Final = "Persist"
_ONE_TOMBSTONE: Final = 1

RUNNING: Final = 1
DONE: Final = 2
ROLLING_BACK: Final = 3
ROLLED_BACK: Final = 4


@dataclass(frozen=True)
class Contents:
    """What one store holds, at one time."""

    config: Mapping[str, int]
    epoch: int
    writes: Mapping[str, int]
    """How often each write is there."""

    @classmethod
    def read(cls, store: CatalogStore) -> "Contents":
        """The latest state."""
        config: dict[str, int] = {}
        writes: Counter[str] = Counter()
        epochs = []
        for row in store.rows(store.upper() - 1, (Kind.CONFIG, Kind.FENCE_TOKEN, Kind.AUDIT_LOG)):
            if row.kind is Kind.CONFIG:
                stored = decode(CONFIGS, row)
                config[stored.key.key] = stored.value.value
            elif row.kind is Kind.FENCE_TOKEN:
                epochs.append(decode(FENCE_TOKENS, row).value.epoch)
            else:
                writes[decode(AUDIT_LOG, row).value.object_name] += 1
        assert len(epochs) == 1, f"{store.place} has {len(epochs)} fence tokens"
        return cls(config, epochs[0], {name: n for name, n in writes.items() if name.startswith("write-")})


@dataclass(frozen=True)
class Both:
    """Both stores of a catalog."""

    stash: Contents
    persist: Contents

    @property
    def truth(self) -> str:
        """The store that counts, by the tombstones."""
        stash, persist = (store.config.get("tombstone") for store in (self.stash, self.persist))
        if self.stash.config["migration_strategy"] == _ONE_TOMBSTONE:
            return PERSIST if stash == 1 else STASH
        return PERSIST if stash is not None and persist == 0 else STASH

    def of(self, name: str) -> Contents:
        """One of them."""
        return self.stash if name == STASH else self.persist

    def record(self, migration_id: str) -> int | None:
        """How far a migration is."""
        return self.stash.config.get(f"migration/{migration_id}")

    @property
    def running(self) -> list[str]:
        """The migrations that have not ended."""
        return [
            key.removeprefix("migration/")
            for key, value in self.stash.config.items()
            if key.startswith("migration/") and value in (RUNNING, ROLLING_BACK)
        ]


def judge(both: Both, before: Mapping[int, Answer], after: Mapping[int, Answer]) -> None:
    """Raise `AssertionError` unless one store is the truth, and it holds what was promised, once.

    `before` and `after` are what the writer was told before and after the stores were read.
    """
    assert both.stash.config.get("link") is not None, "the stash isn't linked"
    assert both.stash.config["link"] == both.persist.config.get("link"), "the stores are linked with others"
    truth = both.truth
    other = PERSIST if truth == STASH else STASH
    assert "truth" not in both.of(other).config, f"{other} says that it is the truth, and {truth} is"
    assert len(both.running) <= 1, f"several migrations are running: {both.running}"

    found = both.of(truth).writes
    twice = [name for name, number in found.items() if number != 1]
    assert not twice, f"{twice[0]} is {found[twice[0]]} times in {truth}"
    lost = [n for n, answer in before.items() if answer is Answer.DONE and name_of(n) not in found]
    assert not lost, f"{len(lost)} acknowledged writes are not in {truth}, such as {name_of(lost[0])}"
    refused = [n for n, answer in after.items() if answer is Answer.REFUSED and name_of(n) in found]
    assert not refused, f"{name_of(refused[0])} was refused and is in {truth}"
    foreign = found.keys() - {name_of(number) for number in after}
    assert not foreign, f"{foreign} are in {truth}, and nobody tried them"
    forked = both.of(other).writes.keys() - found.keys()
    assert not forked, f"{forked} are in {other} alone, and {truth} is the truth"
