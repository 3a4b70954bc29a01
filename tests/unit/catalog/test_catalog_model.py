"""Compares a catalog with a model of dicts: transactions, takeovers, loads and a follower, in any order."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, IdKind, OpenableCatalog, OpenMode, persist_catalog
from holdfast.catalog.objects.registry import ROLES, SETTINGS
from holdfast.catalog.transaction import Transaction
from holdfast.errors import BadInput, Fenced, UniquenessViolation
from holdfast.persist import PersistClient, PersistConfig

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
numbers = st.integers(1, 3)
names = st.sampled_from("abc")


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


def change_roles(tx: Transaction, trial: Model, how: str, number: int, name: str, other: int) -> None:
    roles, key = trial.roles, role_key(number)
    if how == "swap":
        if {number, other} <= {*roles}:
            roles[number], roles[other] = roles[other], roles[number]
            for each in (number, other):
                tx.update(ROLES, role_key(each), pb.RoleValue(name=roles[each]))
        return
    known = number in roles
    arguments = (ROLES, key) if how == "delete" else (ROLES, key, pb.RoleValue(name=name))
    if (how == "insert" and known) or (how in ("update", "delete") and not known):
        with pytest.raises(BadInput):
            getattr(tx, how)(*arguments)
        return
    getattr(tx, how)(*arguments)
    if how == "delete":
        del roles[number]
    else:
        roles[number] = name


def change_setting(tx: Transaction, trial: Model, name: str, value: str | None) -> None:
    key = pb.SettingKey(name=name)
    if value is not None:
        tx.set(SETTINGS, key, pb.SettingValue(value=value))
        trial.settings[name] = value
    elif trial.settings.pop(name, None) is not None:
        tx.delete(SETTINGS, key)


def check_view(tx: Transaction, trial: Model) -> None:
    assert contents(tx.objects) == (trial.roles, trial.settings)
    for number in range(1, 4):
        found = tx.get(ROLES, role_key(number))
        assert (found.name if found else None) == trial.roles.get(number)
    for name in "abc":
        holders = {number for number, held in trial.roles.items() if held == name}
        holder = tx.find(ROLES, pb.RoleValue(name=name))
        assert (holder is None) == (not holders)
        assert holder is None or holder.key.id.user in holders


role_changes = st.tuples(
    st.sampled_from(["insert", "update", "set", "delete", "swap"]), numbers, names, numbers
)
changes = st.one_of(
    role_changes,
    st.tuples(st.just("setting"), names, st.none() | names),
    st.tuples(st.just("allocate"), st.integers(0, 3)),
)


class CatalogMachine(RuleBasedStateMachine):
    """One writer, which is replaced now and then, and one follower that syncs when it likes."""

    def __init__(self) -> None:
        super().__init__()
        config = PersistConfig(maintenance="inline", inline_max_bytes=64)
        self.client = PersistClient.open(f"memory://{uuid.uuid4()}", config=config)
        self.openable: OpenableCatalog = persist_catalog(self.client, ORG)
        self.committed, self.followed = Model(), Model()
        self.catalog: Catalog = self.open()
        self.follower = self.openable.open(OpenMode.READ_ONLY)

    def open(self) -> Catalog:
        return self.openable.open(OpenMode.WRITABLE, holder="me", purpose="test")

    @rule(steps=st.lists(changes, max_size=8), end=st.sampled_from(["commit", "commit", "abort", "fenced"]))
    def transact(self, steps: list[Any], end: str) -> None:
        trial = self.committed.copy()
        with self.catalog.transaction() as tx:
            for what, *arguments in steps:
                if what in ("insert", "update", "set", "delete", "swap"):
                    change_roles(tx, trial, what, *arguments)
                elif what == "setting":
                    change_setting(tx, trial, *arguments)
                else:
                    (n,) = arguments
                    first = trial.ids + 1
                    assert tx.allocate_ids(IdKind.USER_ITEM, n) == [*range(first, first + n)]
                    trial.ids += n
            check_view(tx, trial)
            self.end(tx, trial, end)

    def end(self, tx: Transaction, trial: Model, end: str) -> None:
        if end == "fenced":
            # The next process loads what is committed; what this one had begun is lost.
            before, self.catalog = self.catalog, self.open()
            tx.set(SETTINGS, pb.SettingKey(name="late"), pb.SettingValue(value="x"))
            # Names are compared with what the process has in memory, before it asks the store.
            with pytest.raises(Fenced if trial.is_unique else UniquenessViolation):
                before.commit_transaction(tx)
            before.close()
        elif end == "commit" and trial.is_unique:
            self.catalog.commit_transaction(tx)
            self.committed = trial
        elif end == "commit":
            with pytest.raises(UniquenessViolation):
                self.catalog.commit_transaction(tx)

    @rule()
    def follow(self) -> None:
        self.follower.sync()
        self.followed = self.committed

    @invariant()
    def everybody_sees_what_is_theirs(self) -> None:
        assert contents(self.catalog.objects) == (self.committed.roles, self.committed.settings)
        assert contents(self.follower.objects) == (self.followed.roles, self.followed.settings)

    def teardown(self) -> None:
        self.follower.sync()
        assert self.follower.dump() == self.catalog.dump()
        counts = self.follower.object_counts()
        assert (counts["roles"], counts["settings"]) == (
            len(self.committed.roles) + 1,
            len(self.committed.settings) + 1,
        )
        self.client.close()


CatalogMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestCatalog = CatalogMachine.TestCase
