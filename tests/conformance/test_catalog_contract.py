"""The promises of every kind of catalog: opening, fencing, committing, following, several processes."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance.catalogs import (
    EMBEDDED,
    LINKED,
    ONE_STORE_EACH,
    PLAIN,
    PROTOCOL,
    Catalogs,
    of,
    role,
    roles,
    writable,
)
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Bootstrap, Catalog, FenceToken, IdKind, OpenMode
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import AUDIT_LOG, CONFIGS, ITEMS, OBJECT_TYPES, ROLES, SETTINGS
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    CorruptBlob,
    Deprecated,
    Fenced,
    FenceRegressed,
    HoldfastError,
    NotWritable,
    TransactionInProgress,
    Uninitialized,
    UniquenessViolation,
    VersionTooNew,
)


def test_before_the_first_open_there_is_nothing(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    assert not openable.is_initialized()
    assert openable.epoch() is None
    assert openable.deploy_generation() is None
    assert openable.config("user_version") is None
    for ask in (openable.check_open, openable.dump, lambda: openable.open(OpenMode.READ_ONLY)):
        with pytest.raises(Uninitialized):
            ask()


@pytest.mark.parametrize("catalogs", ONE_STORE_EACH, indirect=True)
def test_the_first_open_writes_the_initial_objects_at_time_0(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = openable.open(
        OpenMode.WRITABLE,
        deploy_generation=3,
        holder="me",
        purpose="test",
        bootstrap=Bootstrap(roles=["alice"]),
    )
    assert (catalog.upper, catalog.since) == (1, 0)
    token = catalog.fence_token()
    assert (token.deploy_generation, token.epoch, token.holder, token.purpose) == (3, 1, "me", "test")
    assert catalog.catalog_version == CATALOG_VERSION
    assert roles(catalog) == ["alice"]
    assert openable.is_initialized()
    assert (openable.epoch(), openable.deploy_generation()) == (1, 3)
    assert openable.config("user_version") == CATALOG_VERSION
    openable.check_open()


@pytest.mark.parametrize("catalogs", ONE_STORE_EACH, indirect=True)
def test_each_open_for_writing_raises_the_epoch_by_one_commit(catalogs: Catalogs) -> None:
    for expected in (1, 2, 3):
        catalog = writable(catalogs.openable())
        assert catalog.fence_token().epoch == expected
        assert catalog.upper == expected
        assert len(catalog.objects(OBJECT_TYPES[CONFIGS.kind])) == 1


def test_what_was_committed_is_there_after_the_process_was_killed(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    assert catalog.ensure_item("holdfast", "public", "flights", definition="v1") == "u1"
    with catalog.transaction() as tx:
        tx.insert(ROLES, *of(role(7, "never committed")))
        # The process ends here, without a close.
        reopened = writable(catalogs.openable())
    assert reopened.fence_token().epoch == 2
    assert reopened.ensure_item("holdfast", "public", "flights", definition="v1") == "u1"
    assert reopened.ensure_item("holdfast", "public", "other") == "u2"
    assert roles(reopened) == []
    names = [event.value.object_name for event in reopened.stream(AUDIT_LOG)]
    assert names.count("holdfast.public.flights") == 1


def test_the_first_handle_is_fenced_by_the_second(catalogs: Catalogs) -> None:
    first = writable(catalogs.openable(), "first")
    tx = first.transaction()
    tx.insert(ROLES, *of(role(1, "mine")))
    second = writable(catalogs.openable(), "second")
    with pytest.raises(Fenced) as caught:
        first.commit_transaction(tx)
    assert caught.value.mine == first.fence_token()
    assert caught.value.durable == second.fence_token()
    assert "(first, a test of the catalog)" in str(caught.value)
    assert "(second, a test of the catalog)" in str(caught.value)
    assert caught.value.exit_code == 4
    # From then on it answers nothing else.
    for ask in (first.confirm_leadership, first.sync, first.transaction, first.object_counts):
        with pytest.raises(Fenced):
            ask()
    second.confirm_leadership()
    assert roles(second) == []


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_fenced_handle_learns_it_by_asking(catalogs: Catalogs) -> None:
    first = writable(catalogs.openable(), "first")
    first.confirm_leadership()
    writable(catalogs.openable(), "second")
    assert roles(first) == []  # the memory may be stale
    with pytest.raises(Fenced):
        first.confirm_leadership()


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_lower_generation_is_refused_and_changes_nothing(catalogs: Catalogs) -> None:
    newer = writable(catalogs.openable(), "newer", generation=2)
    before = newer.dump()
    for mode in (OpenMode.WRITABLE, OpenMode.SAVEPOINT):
        with pytest.raises(Fenced):
            catalogs.openable().open(mode, deploy_generation=1, holder="older", purpose="test")
    newer.confirm_leadership()
    assert newer.dump() == before
    greater = writable(catalogs.openable(), "greater", generation=5)
    assert greater.fence_token().rank == (5, 2)


def test_of_many_that_open_at_once_one_may_write(catalogs: Catalogs) -> None:
    count = 4
    start = threading.Barrier(count)

    def run(number: int) -> Catalog:
        one = catalogs.openable()
        start.wait()
        return writable(one, f"holder {number}")

    with ThreadPoolExecutor(count) as pool:
        opened = list(pool.map(run, range(count)))
    epochs = sorted(catalog.fence_token().epoch for catalog in opened)
    if catalogs.kind in LINKED:
        # Who is overtaken between the two stores takes another one.
        assert len({*epochs}) == count
    else:
        assert epochs == list(range(1, count + 1))
    for catalog in opened:
        if catalog.fence_token().epoch == epochs[-1]:
            assert catalog.allocate_ids(IdKind.USER_ITEM) == [1]
        else:
            with pytest.raises(Fenced):
                catalog.allocate_ids(IdKind.USER_ITEM)


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_lower_token_than_mine_stops_me(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable(), generation=2)
    shard = catalogs.behind()
    _replace_token(shard, FenceToken(1, 9, "restored", "test"))
    with pytest.raises(FenceRegressed) as caught:
        catalog.allocate_ids(IdKind.USER_ITEM)
    assert "stop all writers" in caught.value.hint
    with pytest.raises(FenceRegressed):
        catalog.confirm_leadership()


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_token_of_my_rank_with_another_nonce_is_not_mine(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    mine = catalog.fence_token()
    _replace_token(catalogs.behind(), FenceToken(*mine.rank, mine.holder, mine.purpose))
    with pytest.raises(Fenced):
        catalog.confirm_leadership()


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_lost_token_stops_me(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    shard = catalogs.behind()
    row = read_preamble(shard, shard.upper()).fence_row
    assert row is not None
    shard.append([RowUpdate(row, -1)], shard.upper())
    with pytest.raises(FenceRegressed):
        catalog.sync()


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_contents_that_no_fence_announced_are_out_of_sync(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    shard = catalogs.behind()
    tx = catalog.transaction()
    tx.insert(ROLES, *of(role(1, "mine")))
    shard.append([RowUpdate(encode(ROLES, *of(role(2, "theirs"))), 1)], shard.upper())
    with pytest.raises(CatalogOutOfSync):
        catalog.commit_transaction(tx)
    assert not tx.is_open
    # The commit has brought the memory up to date: now it is a matter of trying again.
    assert roles(catalog) == ["theirs"]
    catalog.set_objects(ROLES, [role(1, "mine")])
    assert roles(catalog) == ["mine", "theirs"]
    shard.append([RowUpdate(encode(ROLES, *of(role(3, "again"))), 1)], shard.upper())
    with pytest.raises(CatalogOutOfSync):
        catalog.confirm_leadership()
    catalog.confirm_leadership()


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_a_fenced_process_finds_the_fence_before_rows_that_it_cannot_decode(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    shard = catalogs.behind()
    _upgrade_to(shard, CATALOG_VERSION + 1, catalog.fence_token())
    with pytest.raises(Fenced):
        catalog.sync()
    for _ in range(2):  # the first time change by change, then by reading it all anew
        with pytest.raises(VersionTooNew, match=f"version {CATALOG_VERSION + 1}"):
            reader.sync()
    openable = catalogs.openable()
    assert (openable.epoch(), openable.is_initialized()) == (2, True)
    assert openable.config("user_version") == CATALOG_VERSION + 1
    for ask in (openable.check_open, openable.dump, lambda: writable(openable)):
        with pytest.raises(VersionTooNew):
            ask()
    assert openable.epoch() == 2


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_a_version_below_the_least_is_deprecated(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    _upgrade_to(catalogs.behind(), MIN_VERSION - 1, catalog.fence_token())
    with pytest.raises(Deprecated, match=f"version {MIN_VERSION - 1}"):
        writable(catalogs.openable())


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_one_transaction_at_a_time(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = writable(openable)
    with catalog.transaction() as tx:
        for ask in (catalog.transaction, lambda: catalog.allocate_ids(IdKind.USER_ROLE)):
            with pytest.raises(TransactionInProgress):
                ask()
        tx.insert(ROLES, *of(role(1, "a")))
    with pytest.raises(BadInput, match="not open on this handle"):
        catalog.commit_transaction(tx)
    foreign = writable(openable, "another").transaction()
    with pytest.raises(BadInput, match="not open on this handle"):
        catalog.commit_transaction(foreign)
    assert foreign.is_open


def test_a_transaction_is_all_or_nothing(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = writable(openable)
    catalog.set_objects(ROLES, [role(1, "a")])
    before = catalog.upper
    with pytest.raises(UniquenessViolation):
        catalog.set_objects(ROLES, [role(2, "b"), role(3, "a")])
    assert (roles(catalog), catalog.upper) == (["a"], before)
    with catalog.transaction() as tx:
        pass
    catalog.set_objects(ROLES, [role(1, "a")])
    assert catalog.upper == before
    assert not tx.is_open


def test_a_reader_follows_and_is_not_fenced(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable(), "first")
    readers = [catalogs.openable(mode).open(OpenMode.READ_ONLY) for mode in ("write", "read")]
    catalog.set_objects(ROLES, [role(1, "a")])
    second = writable(catalogs.openable(), "second")
    second.set_objects(ROLES, [role(1, "b")])
    for reader in readers:
        assert roles(reader) == []
        reader.sync()
        assert roles(reader) == ["b"]
        assert (reader.upper, reader.fence_token()) == (second.upper, second.fence_token())
        assert reader.snapshot()[ROLES.kind] == reader.objects(ROLES)
        reader.close()
    assert catalogs.openable().epoch() == 2


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
@pytest.mark.parametrize("initialized", [True, False])
def test_a_savepoint_changes_nothing_durable(catalogs: Catalogs, initialized: bool) -> None:
    openable = catalogs.openable()
    if initialized:
        catalog = writable(openable)
        before = openable.dump()
    with openable.open(OpenMode.SAVEPOINT, holder="try", purpose="test") as savepoint:
        assert savepoint.fence_token().epoch == (2 if initialized else 1)
        assert savepoint.ensure_item("holdfast", "public", "t") == "u1"
        savepoint.set_objects(ROLES, [role(1, "a")])
        savepoint.sync()
        savepoint.confirm_leadership()
        assert roles(savepoint) == ["a"]
        events = sorted(event.key.id for event in savepoint.stream(AUDIT_LOG))
        assert events == list(range(1, len(events) + 1))
        assert savepoint.object_counts()["audit_log"] == len(events) == 5
        dumped = json.loads(savepoint.dump())
        assert [len(dumped["items"]), len(dumped["audit_log"])] == [1, 5]
        assert [found.value.name for found in savepoint.stream(ITEMS)] == ["t"]
        with pytest.raises(BadInput):
            savepoint.subscribe()
    if initialized:
        assert openable.dump() == before
        catalog.confirm_leadership()
    else:
        assert not openable.is_initialized()


def test_initializing_happens_once_and_fences_nobody(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    assert openable.initialize(holder="me", purpose="test", deploy_generation=1)
    assert (openable.epoch(), openable.deploy_generation()) == (1, 1)
    catalog = writable(openable, generation=1)
    assert not openable.initialize(holder="me", purpose="test")
    catalog.confirm_leadership()
    assert openable.epoch() == 2


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_writer_says_who_it_is(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    for holder, purpose in (("", "p"), ("h" * 1025, "p"), ("\ud800", "p"), ("h", ""), ("h", "p" * 1025)):
        what = "purpose" if holder == "h" else "holder"
        with pytest.raises(
            BadInput, match=f"a {what} of a catalog must have 1 to 1024 characters, not '"
        ) as refused:
            openable.open(OpenMode.WRITABLE, holder=holder, purpose=purpose)
        assert len(str(refused.value)) < 200
    assert not openable.is_initialized()
    openable.open(OpenMode.WRITABLE, holder="h" * 1024, purpose="p" * 1024).close()


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_every_type_has_a_getter(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = writable(openable)
    counts = catalog.object_counts()
    for collection in OBJECT_TYPES.values():
        assert len(list(getattr(catalog, f"get_{collection.name}")())) == counts[collection.name]
    with pytest.raises(AttributeError):
        catalog.get_nothing()
    with pytest.raises(BadInput, match="stream"):
        catalog.objects(AUDIT_LOG)


def test_dumps_travel_in_time(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = writable(openable)
    start = catalog.upper - 1
    catalog.set_objects(ROLES, [role(1, "a")])
    catalog.set_objects(ROLES, [role(1, "b")])
    for as_of, expected in ((start, []), (start + 1, ["a"]), (start + 2, ["b"]), (None, ["b"])):
        for dumped in (json.loads(openable.dump(as_of)), json.loads(catalog.dump(as_of))):
            assert set(dumped) == {row.name for row in OBJECT_TYPES.values()}
            found = [row["value"]["name"] for row in dumped["roles"] if "user" in row["key"]["id"]]
            assert found == expected
    with pytest.raises(HoldfastError, match=f"as_of {start + 3} is not complete"):
        openable.dump(start + 3)


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_a_row_that_is_there_twice_is_corrupt(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    row = encode(SETTINGS, pb.SettingKey(name="x"), pb.SettingValue(value="y"))
    shard = catalogs.behind()
    shard.append([RowUpdate(row, 1), RowUpdate(row, 1)], shard.upper())
    with pytest.raises(CorruptBlob, match="one copy"):
        catalog.sync()
    with pytest.raises(CorruptBlob, match="each row once"):
        writable(catalogs.openable())


def test_threads_may_share_a_handle(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = writable(openable)
    names = [f"t{number}" for number in range(24)]
    ids: dict[str, str] = {}

    def run(mine: list[str]) -> None:
        for name in mine:
            ids[name] = catalog.ensure_item("holdfast", "public", name)

    threads = [threading.Thread(target=run, args=(names[start::4] + names[:2],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == sorted(names)
    assert len(set(ids.values())) == len(names)
    assert {found.value.name for found in catalog.objects(ITEMS)} == set(names)


def _replace_token(shard: CatalogStore, token: FenceToken) -> None:
    upper = shard.upper()
    shard.append(read_preamble(shard, upper).fence(token), upper)


def _upgrade_to(shard: CatalogStore, version: int, token: FenceToken) -> None:
    """What a Holdfast of another version commits when it takes over: rows that this one can't decode."""
    upper = shard.upper()
    preamble = read_preamble(shard, upper)
    key = pb.ConfigKey(key="user_version")
    changes = [
        *preamble.fence(FenceToken(0, 0, "other", "upgrade").after(token)),
        RowUpdate(encode(CONFIGS, key, pb.ConfigValue(value=CATALOG_VERSION)), -1),
        RowUpdate(encode(CONFIGS, key, pb.ConfigValue(value=version)), 1),
        RowUpdate(Row(b"\xff\xff", b"unknown kind"), 1),
        RowUpdate(Row(ROLES.kind.tag + b"\xff", b"\xff"), 1),
    ]
    shard.append(changes, upper)


def test_who_opened_for_reading_changes_nothing(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    before = catalogs.behind().upper(), catalogs.openable().dump()
    openable = catalogs.openable("read")
    with openable.open(OpenMode.READ_ONLY) as reader:
        assert reader.object_counts() == catalog.object_counts()
    with openable.open(OpenMode.SAVEPOINT, holder="try", purpose="test") as savepoint:
        savepoint.set_objects(ROLES, [role(1, "a")])
    openable.check_open()
    for ask in (
        lambda: writable(openable),
        lambda: openable.initialize(holder="a", purpose="b"),
        lambda: openable.raise_fence(9, holder="a", purpose="b"),
        lambda: openable.load([], holder="a", purpose="b"),
    ):
        with pytest.raises(NotWritable):
            ask()
    assert (catalogs.behind().upper(), catalogs.openable().dump()) == before
    catalog.confirm_leadership()


@pytest.mark.parametrize("catalogs", PLAIN, indirect=True)
def test_a_retraction_carries_the_bytes_as_they_are_stored(catalogs: Catalogs) -> None:
    """Bytes that another program has written are not those that this one would write."""
    catalog = writable(catalogs.openable())
    store = catalogs.behind()
    row = encode(ROLES, *of(role(1, "a")))
    # The name twice: the last one counts.
    odd = Row(row.key, encode(ROLES, role(1, "").key, pb.RoleValue(name="older")).value + row.value)
    store.append([RowUpdate(odd, 1)], store.upper())
    catalog.sync()
    assert roles(catalog) == ["a"]
    catalog.set_objects(ROLES, [role(1, "b")])
    assert sum(found.key == odd.key for found in store.rows(store.upper() - 1, (ROLES.kind,))) == 1
    assert roles(writable(catalogs.openable())) == ["b"]
    token = read_preamble(store, store.upper()).fence_row
    assert token is not None
    twice = Row(token.key, token.value + token.value)
    store.append([RowUpdate(token, -1), RowUpdate(twice, 1)], store.upper())
    assert writable(catalogs.openable()).fence_token().epoch == 3


def test_ids_go_on_where_the_last_process_stopped(catalogs: Catalogs) -> None:
    seen: list[int] = []
    for _ in range(3):
        catalog = writable(catalogs.openable())
        seen += catalog.allocate_ids(IdKind.USER_ROLE, 2)
        with catalog.transaction() as tx:
            # Never committed: the ids may be given again, the next commit gives these.
            assert tx.allocate_ids(IdKind.USER_ROLE) == [seen[-1] + 1]
        seen += catalog.allocate_ids(IdKind.USER_ROLE)
    assert seen == list(range(1, 10))


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_transaction_sees_its_base_and_not_what_came_after(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    catalog.set_objects(ROLES, [role(1, "a")])
    tx = catalog.transaction()
    for change in (
        lambda: catalog.set_config("mine", 1),
        lambda: catalog.set_timestamps({"t": 1}),
        lambda: catalog.ensure_item("holdfast", "public", "t"),
        catalog.transaction,
    ):
        with pytest.raises(TransactionInProgress):
            change()
    catalog.sync()
    catalog.confirm_leadership()
    tx.insert(ROLES, *of(role(2, "b")))
    catalog.commit_transaction(tx)
    assert roles(catalog) == ["a", "b"]


@pytest.mark.parametrize("catalogs", PLAIN, indirect=True)
def test_a_transaction_whose_base_has_moved_is_not_committed(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    store = catalogs.behind()
    tx = catalog.transaction()
    tx.insert(ROLES, *of(role(1, "mine")))
    store.append([RowUpdate(encode(SETTINGS, pb.SettingKey(name="x"), pb.SettingValue()), 1)], store.upper())
    # The memory moves on under the transaction.
    catalog.sync()
    before = store.upper()
    with pytest.raises(CatalogOutOfSync):
        catalog.commit_transaction(tx)
    assert (store.upper(), roles(catalog), tx.is_open) == (before, [], False)
    catalog.set_objects(ROLES, [role(1, "mine")])
    assert roles(catalog) == ["mine"]


def test_a_large_transaction_is_one_commit(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    before = catalog.upper
    many = [role(number, f"role {number}") for number in range(1, 801)]
    catalog.set_objects(ROLES, many)
    assert catalog.upper == before + 1
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    assert len(roles(reader)) == len(many)
    assert len(list(reader.stream(ROLES))) == len(many) + 1
