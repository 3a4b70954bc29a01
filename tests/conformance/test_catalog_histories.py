"""Compares whole histories of a catalog with a model: fenced writers, crashes and readers.

The model has the commits at each time. Whatever happens in between, a reader that syncs, a dump of any time,
a savepoint, a subscription and the next writer see exactly these commits.
"""

import copy
import json
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conformance.catalogs import Catalogs, PersistCatalogs, StashCatalogs, of, role, writable
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, IdKind, OpenMode, ReadOnlyCatalog, Subscription, Transaction
from holdfast.catalog.objects.registry import AUDIT_LOG, FENCE_TOKENS, ROLES, SETTINGS, STORAGE_USAGE
from holdfast.errors import BadInput, Fenced, UniquenessViolation

numbers = st.integers(1, 4)
names = st.sampled_from("abcd")
writers = st.integers(0, 1)


class State:
    """What the catalog holds: roles, settings, sizes of storage usage, and how many ids were given out."""

    def __init__(self) -> None:
        self.roles: dict[int, str] = {}
        self.settings: dict[str, str] = {}
        self.usage: list[int] = []
        self.ids = 0
        self.epoch = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"State({vars(self)})"


def state_of(catalog: ReadOnlyCatalog, *, ids: int) -> State:
    """What a handle shows, from its memory and its streams."""
    state = State()
    state.roles = {r.key.id.user: r.value.name for r in catalog.objects(ROLES) if r.key.id.user}
    state.settings = {s.key.name: s.value.value for s in catalog.objects(SETTINGS) if len(s.key.name) == 1}
    usage = sorted((u.key.id, u.value.size_bytes) for u in catalog.stream(STORAGE_USAGE))
    assert [number for number, _ in usage] == list(range(1, len(usage) + 1))
    state.usage = [size for _, size in usage]
    assert catalog.object_counts()[STORAGE_USAGE.name] == len(usage)
    state.ids = ids
    state.epoch = catalog.fence_token().epoch
    return state


def state_of_dump(text: str) -> State:
    found = json.loads(text)
    state = State()
    state.roles = {
        int(r["key"]["id"]["user"]): r["value"]["name"] for r in found["roles"] if "user" in r["key"]["id"]
    }
    state.settings = {
        s["key"]["name"]: s["value"]["value"] for s in found["settings"] if len(s["key"]["name"]) == 1
    }
    usage = sorted((int(u["key"]["id"]), int(u["value"]["size_bytes"])) for u in found["storage_usage"])
    state.usage = [size for _, size in usage]
    (allocated,) = (
        int(a["value"]["next_id"]) - 1 for a in found["id_allocators"] if a["key"]["name"] == IdKind.USER_ITEM
    )
    state.ids = allocated
    (token,) = found["fence_token"]
    state.epoch = int(token["value"]["epoch"])
    return state


class Writer:
    """A process that writes: its handle, its open transaction, and what that should leave."""

    def __init__(self, catalog: Catalog, epoch: int) -> None:
        self.catalog, self.epoch = catalog, epoch
        self.tx: Transaction | None = None
        self.trial = State()


class Histories(RuleBasedStateMachine):
    """Two writers, of which at most one may write; a reader; a subscriber that stops and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.catalogs: Catalogs = self.make(Path(self.folder.name))
        self.writers: dict[int, Writer] = {}
        # By time, what was committed at it.
        self.committed: list[State] = []
        self.followed: list[tuple[int, str, str, int]] = []

    @staticmethod
    def make(folder: Path) -> Catalogs:
        raise NotImplementedError

    @property
    def now(self) -> State:
        return self.committed[-1]

    @property
    def owner(self) -> Writer | None:
        return next((w for w in self.writers.values() if w.epoch == self.now.epoch), None)

    @initialize()
    def start(self) -> None:
        self.writers[0] = Writer(writable(self.catalogs.openable(), "writer 0"), 1)
        first = State()
        first.epoch = 1
        self.committed.append(first)
        self.reader: ReadOnlyCatalog = self.catalogs.openable("read").open(OpenMode.READ_ONLY)
        self.seen = 0
        self.subscription: Subscription = self.reader.subscribe(0)

    def commit(self, state: State) -> None:
        self.committed.append(state)

    @rule(who=writers)
    def open_for_writing(self, who: int) -> None:
        """Also what follows a crash: the handle of before is gone, its transaction with it."""
        state = copy.deepcopy(self.now)
        state.epoch += 1
        self.writers[who] = Writer(writable(self.catalogs.openable(), f"writer {who}"), state.epoch)
        self.commit(state)
        assert state_of(self.writers[who].catalog, ids=state.ids) == state

    @precondition(lambda self: self.writers)
    @rule(who=writers)
    def crash(self, who: int) -> None:
        self.writers.pop(who, None)

    @rule(who=writers, number=numbers, name=names, delete=st.booleans())
    def change_a_role(self, who: int, number: int, name: str, delete: bool) -> None:
        writer = self.in_transaction(who)
        if writer is None or writer.tx is None:
            return
        key, value = of(role(number, name))
        if not delete:
            writer.tx.set(ROLES, key, value)
            writer.trial.roles[number] = name
        elif number in writer.trial.roles:
            writer.tx.delete(ROLES, key)
            del writer.trial.roles[number]
        else:
            with pytest.raises(BadInput):
                writer.tx.delete(ROLES, key)

    @rule(who=writers, name=names, size=st.integers(0, 9))
    def change_a_setting_and_append(self, who: int, name: str, size: int) -> None:
        writer = self.in_transaction(who)
        if writer is None or writer.tx is None:
            return
        writer.tx.set(SETTINGS, pb.SettingKey(name=name), pb.SettingValue(value=str(size)))
        writer.trial.settings[name] = str(size)
        (usage_id,) = writer.tx.allocate_ids(IdKind.STORAGE_USAGE)
        writer.tx.insert(
            STORAGE_USAGE, pb.StorageUsageKey(id=usage_id), pb.StorageUsageValue(size_bytes=size)
        )
        writer.trial.usage.append(size)

    @rule(who=writers)
    def commit_transaction(self, who: int) -> None:
        writer = self.writers.get(who)
        if writer is None or writer.tx is None:
            return
        tx, writer.tx = writer.tx, None
        if self.is_fenced(who, lambda catalog: catalog.commit_transaction(tx), commits=writer.trial):
            return
        if len({*writer.trial.roles.values()}) < len(writer.trial.roles):
            with pytest.raises(UniquenessViolation):
                writer.catalog.commit_transaction(tx)
        else:
            writer.catalog.commit_transaction(tx)
            if writer.trial != self.now:
                self.commit(writer.trial)

    @rule(who=writers, n=st.integers(1, 3))
    def allocate(self, who: int, n: int) -> None:
        writer = self.writers.get(who)
        if writer is None or writer.tx is not None:
            return
        if self.is_fenced(who, lambda catalog: catalog.allocate_ids(IdKind.USER_ITEM, n)):
            return
        state = copy.deepcopy(self.now)
        assert writer.catalog.allocate_ids(IdKind.USER_ITEM, n) == list(
            range(state.ids + 1, state.ids + n + 1)
        )
        state.ids += n
        self.commit(state)

    @rule(who=writers)
    def confirm_leadership(self, who: int) -> None:
        writer = self.writers.get(who)
        if writer is not None and not self.is_fenced(who, lambda catalog: catalog.confirm_leadership()):
            writer.catalog.confirm_leadership()

    @rule(epoch=st.integers(0, 3))
    def raise_the_fence(self, epoch: int) -> None:
        wanted = self.now.epoch + epoch - 1
        if wanted < 1:
            return
        raised = self.catalogs.openable().raise_fence(wanted, holder="ops", purpose="test")
        assert raised.epoch == max(wanted, self.now.epoch)
        if raised.epoch > self.now.epoch:
            state = copy.deepcopy(self.now)
            state.epoch = raised.epoch
            self.commit(state)

    @rule(number=numbers, name=names)
    def try_it_on_a_savepoint(self, number: int, name: str) -> None:
        with self.catalogs.openable("read").open(
            OpenMode.SAVEPOINT, holder="try", purpose="test"
        ) as savepoint:
            expected = copy.deepcopy(self.now)
            expected.epoch += 1
            assert state_of(savepoint, ids=expected.ids) == expected
            if name in {n for k, n in expected.roles.items() if k != number}:
                with pytest.raises(UniquenessViolation):
                    savepoint.set_objects(ROLES, [role(number, name)])
            else:
                savepoint.set_objects(ROLES, [role(number, name)])
                expected.roles[number] = name
            expected.usage.append(5)
            savepoint.append_storage_usage([pb.StorageUsageValue(size_bytes=5)])
            assert state_of(savepoint, ids=expected.ids) == expected
            assert state_of_dump(savepoint.dump()) == expected

    @rule()
    def read(self) -> None:
        assert state_of(self.reader, ids=self.committed[self.seen].ids) == self.committed[self.seen]
        self.reader.sync()
        self.seen = len(self.committed) - 1
        assert self.reader.upper == len(self.committed)
        assert state_of(self.reader, ids=self.now.ids) == self.now

    @rule(back=st.integers(0, 6))
    def dump(self, back: int) -> None:
        time = max(len(self.committed) - 1 - back, 0)
        assert state_of_dump(self.catalogs.openable("read").dump(time)) == self.committed[time]
        assert state_of_dump(self.reader.dump(time)) == self.committed[time]

    @rule(restart=st.booleans())
    def follow(self, restart: bool) -> None:
        if restart:
            self.subscription.close()
            self.subscription = self.reader.subscribe(self.subscription.frontier)
        while self.subscription.frontier < len(self.committed):
            for change in self.subscription.next(60):
                row = change.collection.name, str(change.object)
                self.followed.append((change.time, *row, change.diff))
        self.check_followed()

    def check_followed(self) -> None:
        """What was followed adds up to the state at each time, nothing twice, nothing missing."""
        sums: dict[tuple[str, str], int] = {}
        times = [time for time, *_ in self.followed]
        assert times == sorted(times)
        for _, name, text, diff in self.followed:
            sums[name, text] = sums.get((name, text), 0) + diff
            assert sums[name, text] in (0, 1)
        by_name: dict[str, int] = {}
        for (name, _), count in sums.items():
            by_name[name] = by_name.get(name, 0) + count
        reader = self.catalogs.openable("read").open(OpenMode.READ_ONLY)
        counts = {name: count for name, count in reader.object_counts().items() if count}
        assert {name: count for name, count in by_name.items() if count} == counts
        for collection in (ROLES, SETTINGS, STORAGE_USAGE, AUDIT_LOG, FENCE_TOKENS):
            there = {str(found) for found in reader.stream(collection)}
            assert {text for (name, text), n in sums.items() if n and name == collection.name} == there
        reader.close()

    def in_transaction(self, who: int) -> Writer | None:
        writer = self.writers.get(who)
        if writer is not None and writer.tx is None:
            if self.is_known_to_be_fenced(writer):
                return None
            writer.tx = writer.catalog.transaction()
            writer.trial = copy.deepcopy(self.committed[writer.catalog.upper - 1])
        return writer

    def is_known_to_be_fenced(self, writer: Writer) -> bool:
        try:
            writer.catalog.object_counts()
        except Fenced:
            assert writer is not self.owner
            return True
        return False

    def is_fenced(self, who: int, ask: Any, *, commits: State | None = None) -> bool:
        """Whether the writer isn't the one that may write; then it is told so, and nothing happens."""
        writer = self.writers[who]
        if writer is self.owner:
            return False
        if commits is not None and commits == self.committed[writer.catalog.upper - 1]:
            # There is nothing to commit, so nobody is asked.
            return True
        if commits is not None and len({*commits.roles.values()}) < len(commits.roles):
            expected: tuple[type[Exception], ...] = (Fenced, UniquenessViolation)
        else:
            expected = (Fenced,)
        with pytest.raises(expected):
            ask(writer.catalog)
        return True

    @invariant()
    def nobody_else_writes(self) -> None:
        if self.committed:
            assert self.catalogs.openable("read").epoch() == self.now.epoch

    def teardown(self) -> None:
        self.catalogs.close()
        self.folder.cleanup()


class OnPersist(Histories):
    """On persist in memory."""

    @staticmethod
    def make(folder: Path) -> Catalogs:
        return PersistCatalogs("persist in memory", url=f"memory://{uuid.uuid4()}")


class InAStash(Histories):
    """In a stash in SQLite."""

    @staticmethod
    def make(folder: Path) -> Catalogs:
        return StashCatalogs("stash in SQLite", f"sqlite://{folder}/stash.sqlite")


SETTINGS_OF_RUNS = settings(
    max_examples=50,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestOnPersist = OnPersist.TestCase
TestOnPersist.settings = SETTINGS_OF_RUNS
TestInAStash = pytest.mark.long(InAStash.TestCase)
TestInAStash.settings = SETTINGS_OF_RUNS
