"""Compares transactions on the catalog's memory with a model of dicts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.cache import Cache
from holdfast.catalog.objects.codec import Row, RowUpdate, encode, encode_key, encode_value
from holdfast.catalog.objects.ids import IdKind, format_id, parse_object_id
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    CONFIGS,
    DATABASES,
    FENCE_TOKENS,
    ITEMS,
    ROLES,
    SETTINGS,
)
from holdfast.catalog.transaction import Transaction
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput, CatalogOutOfSync, CorruptBlob, UniquenessViolation


def role(number: int, name: str) -> tuple[pb.RoleKey, pb.RoleValue]:
    return pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=name)


def names(cache: Cache) -> dict[int, str]:
    return {found.key.id.user: found.value.name for found in cache.objects(ROLES)}


steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "update", "set", "delete"]), st.integers(0, 3), st.sampled_from("abcd")
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=5))
def test_transactions_do_what_a_dict_with_unique_values_does(transactions: list[Any]) -> None:
    cache, model = Cache(), dict[int, str]()
    stored: dict[Row, int] = {}
    for tx_steps in transactions:
        tx, trial = Transaction(cache), dict(model)
        for action, number, name in tx_steps:
            key, value = role(number, name)
            known = number in trial
            assert tx.get(ROLES, key) == (pb.RoleValue(name=trial[number]) if known else None)
            if action == "delete":
                refused = not known
            else:
                refused = (action == "insert" and known) or (action == "update" and not known)
            if refused:
                with pytest.raises(BadInput):
                    _do(tx, action, key, value)
                continue
            _do(tx, action, key, value)
            if action == "delete":
                del trial[number]
            else:
                trial[number] = name
        assert {found.key.id.user: found.value.name for found in tx.objects(ROLES)} == trial
        if len(set(trial.values())) < len(trial):
            with pytest.raises(UniquenessViolation):
                tx.updates()
            continue
        for name in "abcd":
            found = tx.find(ROLES, pb.RoleValue(name=name))
            assert (found.key.id.user if found else None) == {v: k for k, v in trial.items()}.get(name)
        updates = tx.updates()
        assert len(updates) <= 2 * len({number for _, number, _ in tx_steps})
        cache.apply(updates)
        for row, diff in updates:
            stored[row] = stored.get(row, 0) + diff
        model = trial
        assert names(cache) == model
        # What was committed adds up to the model, with nothing left over.
        assert sorted(row for row, count in stored.items() if count) == sorted(cache.rows())
        assert set(stored.values()) <= {0, 1}


def _do(tx: Transaction, action: str, key: pb.RoleKey, value: pb.RoleValue) -> None:
    if action == "delete":
        tx.delete(ROLES, key)
    else:
        getattr(tx, action)(ROLES, key, value)


def test_a_retraction_carries_the_bytes_as_they_were_stored() -> None:
    key, value = role(1, "a")
    # The same message, its one field written twice: not how this code would encode it.
    odd = Row(
        encode_key(ROLES, key), encode_value(ROLES, pb.RoleValue(name="z")) + encode_value(ROLES, value)
    )
    tx = Transaction(Cache([odd]))
    tx.update(ROLES, *role(1, "b"))
    assert tx.updates() == (RowUpdate(odd, -1), RowUpdate(encode(ROLES, *role(1, "b")), 1))


def test_a_row_with_an_odd_key_is_found_and_retracted() -> None:
    key, value = role(1, "a")
    inner = encode_key(ROLES, key)[2:]
    odd = Row(ROLES.kind.tag + inner + inner, encode_value(ROLES, value))
    cache = Cache([odd])
    assert cache.get(ROLES, key) == value
    tx = Transaction(cache)
    tx.delete(ROLES, key)
    assert tx.updates() == (RowUpdate(odd, -1),)
    cache.apply(tx.updates())
    assert names(cache) == {}


def test_what_does_not_change_anything_is_not_committed() -> None:
    tx = Transaction(Cache([encode(ROLES, *role(1, "a"))]))
    tx.update(ROLES, *role(1, "a"))
    tx.insert(ROLES, *role(2, "b"))
    tx.delete(ROLES, role(2, "b")[0])
    assert tx.updates() == ()


def test_two_may_swap_their_names() -> None:
    cache = Cache([encode(ROLES, *role(1, "a")), encode(ROLES, *role(2, "b"))])
    tx = Transaction(cache)
    tx.update(ROLES, *role(1, "b"))
    tx.update(ROLES, *role(2, "a"))
    cache.apply(tx.updates())
    assert names(cache) == {1: "b", 2: "a"}


def test_what_it_gives_out_is_the_callers_own() -> None:
    cache = Cache([encode(ROLES, *role(1, "a"))])
    tx = Transaction(cache)
    found = tx.get(ROLES, role(1, "")[0])
    assert found is not None
    found.name = "changed"
    next(iter(cache.objects(ROLES))).value.name = "changed"
    assert names(cache) == {1: "a"}
    assert tx.updates() == ()


def test_ids_are_never_given_twice() -> None:
    cache = Cache()
    given_out = []
    for n in (2, 0, 1, 3):
        tx = Transaction(cache)
        given_out += tx.allocate_ids(IdKind.USER_ITEM, n) + tx.allocate_ids(IdKind.USER_ITEM)
        cache.apply(tx.updates())
    assert given_out == list(range(1, 11))
    with pytest.raises(BadInput, match="used up"):
        Transaction(cache).allocate_ids(IdKind.USER_ITEM, 2**64)
    with pytest.raises(BadInput):
        Transaction(cache).allocate_ids(IdKind.USER_ITEM, -1)


def test_append_only_types_are_added_to_and_nothing_else() -> None:
    cache = Cache()
    tx = Transaction(cache, now_ms=7)
    tx.audit(
        pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
        pb.ObjectType.OBJECT_TYPE_ROLE,
        "u1",
        "a",
        details={"why": "test"},
    )
    added = [update.row for update in tx.updates() if update.row.kind is AUDIT_LOG.kind]
    assert len(added) == 1
    key = pb.AuditLogKey(id=1)
    with pytest.raises(BadInput, match="append-only"):
        tx.delete(AUDIT_LOG, key)
    with pytest.raises(BadInput, match="append-only"):
        tx.update(AUDIT_LOG, key, pb.AuditLogValue())
    with pytest.raises(BadInput, match="stream"):
        tx.get(AUDIT_LOG, key)
    with pytest.raises(UniquenessViolation):
        tx.insert(AUDIT_LOG, key, pb.AuditLogValue())
    cache.apply(tx.updates())
    assert cache.counts()["audit_log"] == 1
    # Somebody with the debug tool did that.
    cache.apply([RowUpdate(added[0], -1)])
    assert cache.counts()["audit_log"] == 0


def test_the_fence_token_is_no_transactions_business() -> None:
    with pytest.raises(BadInput, match="fence token of its catalog") as refused:
        Transaction(Cache()).set(FENCE_TOKENS, pb.FenceTokenKey(), pb.FenceTokenValue(epoch=9))
    assert "holdfast catalog fence" in refused.value.hint


@pytest.mark.parametrize(
    "name",
    [
        "user_version",
        "tombstone",
        "stash_linked",
        "migration_strategy",
        "truth",
        "migration/7",
        "migration_target/7",
    ],
)
def test_what_decides_whether_a_catalog_can_be_read_is_no_transactions_business(name: str) -> None:
    key, value = pb.ConfigKey(key=name), pb.ConfigValue(value=CATALOG_VERSION)
    tx = Transaction(Cache([encode(CONFIGS, pb.ConfigKey(key="user_version"), value)]))
    changes: list[Callable[[], None]] = [
        lambda: tx.set(CONFIGS, key, pb.ConfigValue(value=99)),
        lambda: tx.insert(CONFIGS, key, value),
        lambda: tx.update(CONFIGS, key, value),
        lambda: tx.delete(CONFIGS, key),
    ]
    for change in changes:
        with pytest.raises(BadInput, match=f"a transaction can't change config {name}"):
            change()
    assert tx.updates() == ()
    tx.set(CONFIGS, pb.ConfigKey(key="mine"), value)
    assert len(tx.updates()) == 1


@pytest.mark.parametrize("key", ["tombstone", "stash_linked"])
def test_stored_booleans_of_the_config_are_0_or_1(key: str) -> None:
    with pytest.raises(CorruptBlob, match="0 or 1"):
        Cache([encode(CONFIGS, pb.ConfigKey(key=key), pb.ConfigValue(value=2))])


def test_a_closed_transaction_takes_nothing_more() -> None:
    with Transaction(Cache()) as tx:
        pass
    with pytest.raises(BadInput, match="closed"):
        tx.insert(SETTINGS, pb.SettingKey(name="a"), pb.SettingValue())


def test_changes_that_do_not_fit_the_memory_are_errors() -> None:
    one, two = encode(ROLES, *role(1, "a")), encode(ROLES, *role(1, "b"))
    cache = Cache([one])
    with pytest.raises(CatalogOutOfSync, match="retracted"):
        cache.apply([RowUpdate(two, -1)])
    with pytest.raises(CatalogOutOfSync, match="already exists"):
        cache.apply([RowUpdate(two, 1)])
    with pytest.raises(CorruptBlob, match="unique"):
        cache.apply([RowUpdate(encode(ROLES, *role(2, "a")), 1)])
    with pytest.raises(CorruptBlob, match="one copy"):
        Cache().apply([RowUpdate(one, 2)])


def test_only_types_with_something_unique_can_be_found_by_it() -> None:
    with pytest.raises(BadInput, match="values of this type are not unique"):
        Transaction(Cache()).find(SETTINGS, pb.SettingValue(value="x"))
    tx = Transaction(Cache())
    tx.insert(DATABASES, pb.DatabaseKey(id=pb.ObjectId(user=1)), pb.DatabaseValue(name="d"))
    assert tx.find(ITEMS, pb.ItemValue(name="d")) is None


@pytest.mark.parametrize("text", ["u1", "s1", "u18446744073709551615", "u0"])
def test_ids_come_back_from_their_text(text: str) -> None:
    assert format_id(parse_object_id(text)) == text


@pytest.mark.parametrize("text", ["", "u", "1", "x1", "u-1", "u1 ", "u18446744073709551616", "p"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_object_id(text)
    with pytest.raises(BadInput):
        format_id(pb.ObjectId())
