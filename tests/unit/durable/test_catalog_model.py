"""A catalog against a model of plain dicts: transactions, takeovers, loads and a follower, in any order."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import Catalog, IdKind, OpenableCatalog, OpenMode, ReadOnlyCatalog, persist_catalog
from holdfast.durable.registry import ROLES, SETTINGS
from holdfast.durable.transaction import Transaction
from holdfast.errors import BadInput, Fenced, UniquenessViolation
from holdfast.persist import PersistClient, PersistConfig

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
numbers = st.integers(1, 4)
names = st.sampled_from("abcd")


class Model:
    """What the catalog should hold: roles with unique names, settings, and how many ids were given out."""

    def __init__(self) -> None:
        self.roles: dict[int, str] = {}
        self.settings: dict[str, str] = {}
        self.ids = 0

    def copy(self) -> "Model":
        copied = Model()
        copied.roles, copied.settings, copied.ids = {**self.roles}, {**self.settings}, self.ids
        return copied

    @property
    def is_unique(self) -> bool:
        return len({*self.roles.values()}) == len(self.roles)


def role_key(number: int) -> pb.RoleKey:
    return pb.RoleKey(id=pb.RoleId(user=number))


def contents(objects: Callable[[Any], Any]) -> tuple[dict[int, str], dict[str, str]]:
    roles = {found.key.id.user: found.value.name for found in objects(ROLES) if found.key.id.user}
    kept = {found.key.name: found.value.value for found in objects(SETTINGS)}
    return roles, {name: value for name, value in kept.items() if name != "catalog_content_version"}


class CatalogMachine(RuleBasedStateMachine):
    """One writer, which is replaced now and then, and one follower that syncs when it likes."""

    def __init__(self) -> None:
        super().__init__()
        config = PersistConfig(maintenance="inline", inline_max_bytes=64)
        self.client = PersistClient.open(f"memory://{uuid.uuid4()}", config=config)
        self.openable: OpenableCatalog = persist_catalog(self.client, ORG)
        self.committed, self.trial, self.followed = Model(), Model(), Model()
        self.catalog: Catalog
        self.follower: ReadOnlyCatalog
        self.tx: Transaction | None = None

    @initialize()
    def start(self) -> None:
        self.catalog = self.open()
        self.follower = self.openable.open(OpenMode.READ_ONLY)

    def open(self) -> Catalog:
        return self.openable.open(OpenMode.WRITABLE, holder="me", purpose="test")

    @precondition(lambda self: self.tx is None)
    @rule()
    def begin(self) -> None:
        self.tx, self.trial = self.catalog.transaction(), self.committed.copy()

    @precondition(lambda self: self.tx is not None)
    @rule(number=numbers, name=names, how=st.sampled_from(["insert", "update", "set"]))
    def put_role(self, number: int, name: str, how: str) -> None:
        assert self.tx is not None
        known = number in self.trial.roles
        if (how == "insert" and known) or (how == "update" and not known):
            with pytest.raises(BadInput):
                getattr(self.tx, how)(ROLES, role_key(number), pb.RoleValue(name=name))
        else:
            getattr(self.tx, how)(ROLES, role_key(number), pb.RoleValue(name=name))
            self.trial.roles[number] = name

    @precondition(lambda self: self.tx is not None)
    @rule(number=numbers)
    def delete_role(self, number: int) -> None:
        assert self.tx is not None
        if self.trial.roles.pop(number, None) is None:
            with pytest.raises(BadInput):
                self.tx.delete(ROLES, role_key(number))
        else:
            self.tx.delete(ROLES, role_key(number))

    @precondition(lambda self: self.tx is not None)
    @rule(one=numbers, other=numbers)
    def swap_names(self, one: int, other: int) -> None:
        assert self.tx is not None
        roles = self.trial.roles
        if {one, other} <= {*roles}:
            roles[one], roles[other] = roles[other], roles[one]
            for number in (one, other):
                self.tx.update(ROLES, role_key(number), pb.RoleValue(name=roles[number]))

    @precondition(lambda self: self.tx is not None)
    @rule(name=names, value=st.none() | names)
    def put_setting(self, name: str, value: str | None) -> None:
        assert self.tx is not None
        key = pb.SettingKey(name=name)
        if value is not None:
            self.tx.set(SETTINGS, key, pb.SettingValue(value=value))
            self.trial.settings[name] = value
        elif self.trial.settings.pop(name, None) is not None:
            self.tx.delete(SETTINGS, key)

    @precondition(lambda self: self.tx is not None)
    @rule(n=st.integers(0, 3))
    def allocate(self, n: int) -> None:
        assert self.tx is not None
        first = self.trial.ids + 1
        assert self.tx.allocate_ids(IdKind.USER_ITEM, n) == [*range(first, first + n)]
        self.trial.ids += n

    @precondition(lambda self: self.tx is not None)
    @rule()
    def commit(self) -> None:
        assert self.tx is not None
        if self.trial.is_unique:
            self.catalog.commit_transaction(self.tx)
            self.committed = self.trial
        else:
            with pytest.raises(UniquenessViolation):
                self.catalog.commit_transaction(self.tx)
        self.tx = None

    @precondition(lambda self: self.tx is not None)
    @rule()
    def abort(self) -> None:
        assert self.tx is not None
        self.tx.close()
        self.tx = None

    @rule()
    def take_over(self) -> None:
        """Another process loads what is committed; what the first had begun is lost."""
        before, self.catalog = self.catalog, self.open()
        if self.tx is not None:
            self.tx.set(SETTINGS, pb.SettingKey(name="late"), pb.SettingValue(value="x"))
            # Names are compared with what the process has in memory, before it asks the store.
            with pytest.raises(Fenced if self.trial.is_unique else UniquenessViolation):
                before.commit_transaction(self.tx)
        before.close()
        self.tx = None

    @rule()
    def follow(self) -> None:
        self.follower.sync()
        self.followed = self.committed

    @invariant()
    def everybody_sees_what_is_theirs(self) -> None:
        assert contents(self.catalog.objects) == (self.committed.roles, self.committed.settings)
        assert contents(self.follower.objects) == (self.followed.roles, self.followed.settings)

    @precondition(lambda self: self.tx is not None)
    @invariant()
    def the_transaction_sees_its_own(self) -> None:
        assert self.tx is not None
        assert contents(self.tx.objects) == (self.trial.roles, self.trial.settings)
        for number in range(1, 5):
            found = self.tx.get(ROLES, role_key(number))
            assert (found.name if found else None) == self.trial.roles.get(number)
        for name in "abcd":
            holders = {number for number, held in self.trial.roles.items() if held == name}
            holder = self.tx.find(ROLES, pb.RoleValue(name=name))
            assert (holder is None) == (not holders)
            assert holder is None or holder.key.id.user in holders

    def teardown(self) -> None:
        self.follower.sync()
        assert self.follower.dump() == self.catalog.dump()
        counts = self.follower.object_counts()
        assert (counts["roles"], counts["settings"]) == (
            len(self.committed.roles) + 1,
            len(self.committed.settings) + 1,
        )
        self.client.close()


CatalogMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestCatalog = CatalogMachine.TestCase
