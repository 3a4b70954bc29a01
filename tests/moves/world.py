"""A catalog on two disks, the processes that open it, and the conditions that hold after every commit.

The witness sees the disks themselves. It has its own copy of the tables of tombstones. It checks for a linked
catalog:

- There is exactly one source of truth, and no other store has a note that it is the truth.
- The truth moves to a store only while that store holds exactly the contents of the old truth.
- Fence tokens only rise, and no time of the truth occurs again after it moved.
- Contents of the truth change only under a token that is in both stores.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.objects.codec import Row, decode, encode
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, Kind
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.version import CATALOG_VERSION
from moves.memorystore import Disk, MemoryStore, Stored
from moves.watched import Calls, WatchedStore, straight

VERSION = "user_version"
OF_THE_STORE = {
    *("tombstone", "stash_linked", "link", "migration_strategy"),
    *("truth", "truth_since", "settling", "migration_deadline"),
}
"""The keys of the config that tell of a store, not of the catalog; those of migrations beside."""

_CONFIG, _FENCE = Kind.CONFIG.tag, Kind.FENCE_TOKEN.tag

TRUTH = {
    # By strategy, stash tombstone and persist tombstone, as the requirements have them.
    **{(1, None, persist): Backend.STASH for persist in (None, 0, 1)},
    **{(1, 1, persist): Backend.PERSIST for persist in (None, 0, 1)},
    **{(1, 0, persist): Backend.STASH for persist in (None, 0, 1)},
    **{(2, None, persist): Backend.STASH for persist in (None, 0, 1)},
    **{(2, stash, None): Backend.STASH for stash in (0, 1)},
    (2, 1, 0): Backend.PERSIST,
    (2, 0, 1): Backend.STASH,
    (2, 1, 1): Backend.STASH,
    (2, 0, 0): Backend.PERSIST,
}


@lru_cache(maxsize=2_000)
def config_of(stored: Stored) -> Mapping[str, int]:
    """The config of a store."""
    found = [_config(row) for row in stored.rows if row.key[:2] == _CONFIG]
    assert len({key for key, _ in found}) == len(found), "a key of the config is there twice"
    return dict(found)


@lru_cache(maxsize=2_000)
def fence_of(stored: Stored) -> Row | None:
    """The fence row of a store."""
    rows = [row for row in stored.rows if row.key[:2] == _FENCE]
    assert len(rows) < 2, "two fence tokens"
    return rows[0] if rows else None


def nonce_of(stored: Stored) -> int:
    """What the other store notes of the nonce of a store's fence token."""
    row = fence_of(stored)
    return 0 if row is None else int.from_bytes(decode(FENCE_TOKENS, row).value.nonce[:8], "big")


@lru_cache(maxsize=2_000)
def contents_of(stored: Stored) -> frozenset[Row]:
    """What a catalog is, beside what a store says of itself: the version belongs to it."""
    return frozenset(row for row in stored.rows if _is_content(row))


def _is_content(row: Row) -> bool:
    tag = row.key[:2]
    return tag != _FENCE and (tag != _CONFIG or not _is_of_the_store(_config(row)[0]))


def _is_of_the_store(key: str) -> bool:
    return key in OF_THE_STORE or key.startswith(("migration/", "migration_target/", "link_note/"))


@lru_cache(maxsize=1000)
def _config(row: Row) -> tuple[str, int]:
    found = decode(CONFIGS, row)
    return found.key.key, found.value.value


@dataclass(frozen=True)
class Disks:
    """What is stored in both stores."""

    stash: Stored
    persist: Stored

    def of(self, backend: Backend) -> Stored:
        """What is stored in one of them."""
        return self.stash if backend is Backend.STASH else self.persist

    @property
    def truth(self) -> Backend | None:
        """The source of truth; None while they aren't linked and not exactly one has something."""
        config = config_of(self.stash)
        if self.is_detached:
            return Backend.PERSIST
        if "link" not in config:
            has = [each for each in Backend if VERSION in config_of(self.of(each))]
            return has[0] if len(has) == 1 else None
        persist = config_of(self.persist)
        return TRUTH[config["migration_strategy"], config.get("tombstone"), persist.get("tombstone")]

    @property
    def is_linked(self) -> bool:
        """Whether the stash says that it is linked, and the link has not ended."""
        return "link" in config_of(self.stash) and not self.is_detached

    @property
    def is_detached(self) -> bool:
        """Whether there was a link that has ended: it begins on persist, and ends there."""
        return "link" in config_of(self.stash) and "link" not in config_of(self.persist)

    @property
    def is_told(self) -> bool:
        """Whether the two tell which one counts, without a doubt, or have no link."""
        stash, persist = config_of(self.stash), config_of(self.persist)
        if "settling" in persist or stash.get("link") != persist.get("link"):
            return False
        if "link" not in stash:
            return True
        ours, theirs = fence_of(self.stash), fence_of(self.persist)
        if theirs is not None and ours != theirs and (ours is None or _epoch(ours) <= _epoch(theirs)):
            return False
        tombstones = stash.get("tombstone"), persist.get("tombstone")
        if stash["migration_strategy"] == 2 and tombstones[0] is None and tombstones[1] is not None:
            return False
        return all("truth" not in config_of(self.of(each)) or each is self.truth for each in Backend)

    @property
    def is_moving(self) -> bool:
        """Whether a migration is running."""
        return any(
            key.startswith("migration/") and value in (1, 3) for key, value in config_of(self.stash).items()
        )

    def record(self, migration_id: str) -> int | None:
        """The record of a migration."""
        return config_of(self.stash).get(f"migration/{migration_id}")

    @property
    def contents(self) -> frozenset[Row]:
        """The contents of the catalog."""
        truth = self.truth
        return frozenset() if truth is None else contents_of(self.of(truth))

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """Equal where nothing that follows can differ: times, nonces and numbers of links are left out."""
        configs = []
        for backend in Backend:
            config = config_of(self.of(backend))
            for key in ("link", "truth_since", "migration_deadline"):
                config = {**config, key: min(config[key], 1)} if key in config else config
            configs.append(frozenset({**config, **self._notes(backend)}.items()))
        stash, persist = self.stash, self.persist
        fences = [
            None if row is None else decode(FENCE_TOKENS, row).value
            for row in map(fence_of, (stash, persist))
        ]
        ranks = [None if each is None else each.epoch for each in fences]
        ahead = None if None in ranks else (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])  # type: ignore[operator]
        return (
            *configs,
            contents_of(stash),
            contents_of(persist),
            fences[0] == fences[1],
            ahead,
            (stash.upper > persist.upper) - (stash.upper < persist.upper),
            (stash.upper == 0, persist.upper == 0),
            self.config_link_is_one,
            frozenset(stash.kept),
            frozenset(persist.kept),
        )

    def _notes(self, backend: Backend) -> dict[str, int]:
        """What a store notes about the other one, by how it compares with what there is."""
        both = [config_of(self.of(each)) for each in (backend, backend.other)]
        found = {}
        for key, value in both[0].items():
            name = key.rpartition("/")[2]
            if not key.startswith("link_note/"):
                continue
            if name == "saw_upper":
                found[key] = min(max(self.of(backend.other).upper - value, -1), 1)
            elif name == "saw_nonce":
                found[key] = int(value == nonce_of(self.of(backend.other)))
            elif name == "link":
                found[key] = int(value == both[0].get("link"))
            elif name != "initialized":
                like = ("since",) if name.endswith("since") else ("arrived", "moved")
                known = {each for config in both for of, each in config.items() if of.endswith(like)}
                found[key] = sorted(known).index(value)
        return found

    @property
    def config_link_is_one(self) -> bool:
        """Whether both stores have the same link, or none."""
        return config_of(self.stash).get("link") == config_of(self.persist).get("link")

    def check(self) -> None:
        """Whether what the stores say of themselves can be true."""
        truth = self.truth
        for backend in Backend:
            config = config_of(self.of(backend))
            assert config.get("truth", 1) == 1, f"{backend} has the note {config['truth']}"
            assert "truth" not in config or backend is truth, f"{backend} says it is the truth: {truth} is"
        if self.is_linked:
            stash, persist = config_of(self.stash), config_of(self.persist)
            assert persist.get("link", stash["link"]) == stash["link"], "two links"
            running = [
                key for key, value in stash.items() if key.startswith("migration/") and value in (1, 3)
            ]
            assert len(running) < 2, f"several migrations run: {running}"


class Witnessed(MemoryStore):
    """A store of a world that looks at each of its commits."""

    def __init__(self, world: "World", disk: Disk, *, checks_history: bool) -> None:
        super().__init__(disk, checks_history=checks_history)
        self._world = world

    def another(self, *, purpose: str) -> "Witnessed":
        return Witnessed(self._world, self._disk, checks_history=self._checks_history)

    def _commit(self, *commit: object) -> None:  # type: ignore[override]
        before = self._world.disks
        super()._commit(*commit)  # type: ignore[arg-type]
        self._world.witness(before)


@dataclass(eq=False)
class World:
    """Two disks and a clock."""

    stash: Disk = field(default_factory=lambda: Disk("the stash"))
    persist: Disk = field(default_factory=lambda: Disk("persist"))
    now_ms: int = 1_000_000_000
    strategy: Strategy | None = None
    emergency: bool = False
    """Whether somebody may write to the stash alone."""
    is_watched: bool = True
    decides: Mapping[Backend, int] | None = None
    """The uppers of the stores when somebody began to decide which of them counts."""

    @property
    def disks(self) -> Disks:
        """What is stored now."""
        return Disks(self.stash.stored, self.persist.stored)

    def copy(self) -> "World":
        """The same world, which goes its own way from here."""
        stash, persist = Disk("the stash", self.stash.stored), Disk("persist", self.persist.stored)
        return replace(self, stash=stash, persist=persist)

    def witness(self, before: Disks) -> None:
        """See the commit after which the disks are as they are."""
        if not self.is_watched:
            return
        after = self.disks
        if self.decides is not None and not (before.is_told and after.is_told):
            self._witness_decision(before, after, self.decides)
            return
        after.check()
        was, is_ = before.truth, after.truth
        if was is None:
            return
        assert is_ is not None, "the catalog is lost"
        if before.is_linked:
            assert after.is_linked or before.stash is after.stash, "the stash has lost its link"
            if after.is_detached:
                assert was is Backend.PERSIST, "a link ended while the catalog was in the stash"
                assert not before.is_moving, "a link ended while a migration ran"
        for backend in Backend:
            self._check_token(fence_of(before.of(backend)), fence_of(after.of(backend)))
        held, holds = contents_of(before.of(was)), contents_of(after.of(is_))
        if was is not is_:
            assert held == holds, f"the truth moved to {is_} without its contents: {_told(held ^ holds)}"
            assert after.of(is_).upper >= before.of(was).upper, "times went back"
        elif held != holds and after.is_linked and not self.emergency:
            fence = fence_of(after.of(is_))
            assert fence in after.of(is_.other).fences, f"{is_} was changed under a token of its own"

    def _witness_decision(self, before: Disks, after: Disks, uppers: Mapping[Backend, int]) -> None:
        """See a commit before, of or during a decision."""
        for backend in Backend:
            self._check_token(fence_of(before.of(backend)), fence_of(after.of(backend)))
        stash, persist = config_of(after.stash), config_of(after.persist)
        if after.is_told:
            after.check()
            truth = after.truth
            assert truth is not None
            since = config_of(after.of(truth))["truth_since"]
            assert since > max(uppers.values()), f"times go on from {since}, after {uppers}"
            linked = "link" in stash
            assert not linked or fence_of(after.stash) == fence_of(after.persist), "decided, but not fenced"
        elif "link" in stash and stash.get("link") != config_of(before.stash).get("link"):
            assert "truth" not in persist, "the stash is decided about while persist says that it counts"

    @staticmethod
    def _check_token(was: Row | None, is_: Row | None) -> None:
        if was != is_:
            assert is_ is not None, "a fence token is lost"
            assert was is None or _epoch(was) < _epoch(is_), "a fence token was not raised"

    def process(
        self, calls: Calls = straight, sleep: Callable[[float], None] | None = None, *, ahead_ms: int = 0
    ) -> "Process":
        """A new process, whose clock may be ahead."""
        return Process(self, calls, sleep or self.sleep, ahead_ms)

    def sleep(self, seconds: float) -> None:
        """Time passes."""
        self.now_ms += int(seconds * 1000)


@dataclass(eq=False)
class Process:
    """A process: what it opens, it opens through `calls`."""

    world: World
    calls: Calls
    sleep: Callable[[float], None]
    ahead_ms: int = 0

    def now_ms(self) -> int:
        """What its clock shows."""
        return self.world.now_ms + self.ahead_ms

    def alone(self, backend: Backend) -> OneStoreCatalog:
        """The catalog in one store, as who doesn't know of the other has it."""
        is_stash = backend is Backend.STASH
        disk = self.world.stash if is_stash else self.world.persist
        store = Witnessed(self.world, disk, checks_history=is_stash)
        name = "stash" if is_stash else "persist"
        return OneStoreCatalog(WatchedStore(store, name, self.calls), self.now_ms)

    def linked(self, **options: object) -> LinkedCatalog:
        """The catalog on both stores."""
        options = {"strategy": self.world.strategy, **options}
        return linked_catalog(
            self.alone(Backend.STASH),
            self.alone(Backend.PERSIST),
            sleep=self.sleep,
            clock=lambda: self.world.now_ms / 1000,
            **options,  # type: ignore[arg-type]
        )


def aged(stored: Stored) -> Stored:
    """The same catalog as the Holdfast before this one would have left it; its past stays as it was."""
    version = encode(CONFIGS, pb.ConfigKey(key=VERSION), pb.ConfigValue(value=CATALOG_VERSION))
    older = encode(CONFIGS, pb.ConfigKey(key=VERSION), pb.ConfigValue(value=CATALOG_VERSION - 1))
    assert version in stored.rows
    rows = [
        older if row == version else row for row in stored.rows if row.key[:2] != Kind.DEFAULT_PRIVILEGE.tag
    ]
    return Stored(stored.upper, stored.time, (), dict.fromkeys(rows), stored.before, {}, stored.fences)


@lru_cache(maxsize=2_000)
def _epoch(row: Row) -> int:
    return decode(FENCE_TOKENS, row).value.epoch


def _told(rows: frozenset[Row]) -> str:
    return ", ".join(sorted(f"{row.kind.name.lower()} {row.key[2:]!r}" for row in rows)[:5])
