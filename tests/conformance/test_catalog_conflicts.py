"""Two processes on one catalog: after any call of one, a call of the other succeeds or fails as a whole."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest

from conformance.catalogs import EMBEDDED, Catalogs, role, roles, writable
from holdfast.catalog import Catalog, FenceToken, OpenMode
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import ROLES
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.transaction import Transaction
from holdfast.errors import BadInput, CatalogOutOfSync, Fenced, FenceRegressed, HoldfastError

OURS, THEIRS, MEDDLED = role(1, "ours"), role(2, "theirs"), role(3, "meddled")


def nothing(catalogs: Catalogs) -> None:
    """Nobody is there."""


def a_reader_follows(catalogs: Catalogs) -> None:
    with catalogs.openable("read").open(OpenMode.READ_ONLY) as reader:
        reader.sync()
        assert roles(reader) == []


def a_savepoint_changes(catalogs: Catalogs) -> None:
    with catalogs.openable("read").open(OpenMode.SAVEPOINT) as savepoint:
        savepoint.set_objects(ROLES, [THEIRS])
        assert roles(savepoint) == ["theirs"]


def a_check_is_made(catalogs: Catalogs) -> None:
    catalogs.openable("read").check_open()


def somebody_takes_over(catalogs: Catalogs) -> None:
    writable(catalogs.openable(), "you").close()


def somebody_takes_over_and_changes(catalogs: Catalogs) -> None:
    with writable(catalogs.openable(), "you") as theirs:
        theirs.set_objects(ROLES, [THEIRS])


def the_next_generation_takes_over(catalogs: Catalogs) -> None:
    writable(catalogs.openable(), "you", generation=1).close()


def somebody_ignores_the_fence(catalogs: Catalogs) -> None:
    store = catalogs.behind()
    store.append([RowUpdate(encode(ROLES, MEDDLED.key, MEDDLED.value), 1)], store.upper())


def an_older_token_comes_back(catalogs: Catalogs) -> None:
    store = catalogs.behind()
    upper = store.upper()
    store.append(read_preamble(store, upper).fence(FenceToken(0, 1, "me", "restored")), upper)


def commit(catalog: Catalog, tx: Transaction) -> None:
    catalog.commit_transaction(tx)


def change(catalog: Catalog, tx: Transaction) -> None:
    tx.close()
    catalog.set_objects(ROLES, [OURS])


def confirm(catalog: Catalog, tx: Transaction) -> None:
    tx.close()
    catalog.confirm_leadership()


def sync(catalog: Catalog, tx: Transaction) -> None:
    tx.close()
    catalog.sync()


Call = Callable[[Catalog, Transaction], None]
WRITES: tuple[Call, ...] = (commit, change)
CALLS: tuple[Call, ...] = (*WRITES, confirm, sync)
FENCED = MappingProxyType[Call, type[HoldfastError]](dict.fromkeys(CALLS, Fenced))

MEANWHILE: Mapping[Callable[[Catalogs], None], Mapping[Call, type[HoldfastError]]] = {
    nothing: {},
    a_reader_follows: {},
    a_savepoint_changes: {},
    a_check_is_made: {},
    somebody_takes_over: FENCED,
    somebody_takes_over_and_changes: FENCED,
    the_next_generation_takes_over: FENCED,
    somebody_ignores_the_fence: dict.fromkeys((*WRITES, confirm), CatalogOutOfSync),
    an_older_token_comes_back: dict.fromkeys(CALLS, FenceRegressed),
}
"""Which error each call gets after what somebody else did; none where it goes through."""


def name_of(function: Callable[..., object]) -> str:
    return function.__name__.replace("_", " ")


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
@pytest.mark.parametrize("call", CALLS, ids=name_of)
@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=name_of)
def test_a_call_goes_through_or_is_refused_whole(
    catalogs: Catalogs, meanwhile: Callable[[Catalogs], None], call: Call
) -> None:
    writable(catalogs.openable(), "before").close()
    catalog = writable(catalogs.openable())
    tx = catalog.transaction()
    tx.insert(ROLES, OURS.key, OURS.value)
    meanwhile(catalogs)
    assert roles(catalog) == []
    error = MEANWHILE[meanwhile].get(call)
    if error is None:
        call(catalog, tx)
    else:
        with pytest.raises(error):
            call(catalog, tx)
    assert not tx.is_open
    with catalogs.openable("read").open(OpenMode.READ_ONLY) as reader:
        assert ("ours" in roles(reader)) == (error is None and call in WRITES)
        if error is None or error is CatalogOutOfSync:
            # What was in the way is known now: the same once more is in step with the store.
            assert roles(catalog) == roles(reader)
            catalog.set_objects(ROLES, [OURS])
            catalog.confirm_leadership()
            reader.sync()
            assert "ours" in roles(reader)
            assert roles(catalog) == roles(reader)
        else:
            for again in (
                catalog.transaction,
                catalog.sync,
                catalog.confirm_leadership,
                catalog.object_counts,
            ):
                with pytest.raises(error):
                    again()


def test_a_transaction_sees_one_time_and_nobody_commits_it_for_another(catalogs: Catalogs) -> None:
    mine = writable(catalogs.openable())
    tx = mine.transaction()
    tx.insert(ROLES, OURS.key, OURS.value)
    theirs = writable(catalogs.openable(), "you")
    with pytest.raises(BadInput, match="not open on this handle"):
        theirs.commit_transaction(tx)
    assert tx.is_open
    theirs.set_objects(ROLES, [THEIRS])
    assert [found.value.name for found in tx.objects(ROLES) if found.key.id.user] == ["ours"]
    with pytest.raises(Fenced):
        mine.commit_transaction(tx)
    assert roles(theirs) == ["theirs"]
