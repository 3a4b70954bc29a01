"""The catalog on persist: opening, fencing, committing, following, and two processes at once."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import (
    Bootstrap,
    Catalog,
    FenceToken,
    IdKind,
    Object,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    catalog_shard_id,
    persist_catalog,
)
from holdfast.durable.codec import Row, Update, encode
from holdfast.durable.preamble import read_preamble
from holdfast.durable.registry import AUDIT_LOG, COLLECTIONS, CONFIGS, ITEMS, ROLES, SETTINGS
from holdfast.durable.shard import SCHEMA, CatalogShard
from holdfast.durable.store import RETAIN_VERSIONS, RETENTION_STEP
from holdfast.durable.version import CATALOG_VERSION, MIN_VERSION
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CatalogOutOfSync,
    CodecMismatch,
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
from holdfast.persist import PersistClient, PersistConfig, Schema

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
NewClient = Callable[..., PersistClient]


@pytest.fixture(params=["memory", "file"])
def new_client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewClient]:
    """Opens clients on one store, each as another process would."""
    url = f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4()}"
    opened: list[PersistClient] = []

    def new(mode: str = "write") -> PersistClient:
        config = PersistConfig(debug_validate=True, maintenance="inline")
        client = PersistClient.open(url, mode="read" if mode == "read" else "write", config=config)
        opened.append(client)
        return client

    yield new
    for client in opened:
        client.close()


@pytest.fixture
def openable(new_client: NewClient) -> OpenableCatalog:
    return persist_catalog(new_client(), ORG)


def writable(openable: OpenableCatalog, holder: str = "me", generation: int = 0) -> Catalog:
    return openable.open(
        OpenMode.WRITABLE, deploy_generation=generation, holder=holder, purpose="a test of the catalog"
    )


def role(number: int, name: str) -> Object[pb.RoleKey, pb.RoleValue]:
    return Object(pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=name))


def roles(catalog: ReadOnlyCatalog) -> list[str]:
    return sorted(
        found.value.name for found in catalog.objects(ROLES) if found.value.name != "holdfast_system"
    )


def behind(new_client: NewClient) -> CatalogShard:
    """The catalog's shard in the hands of somebody who follows no rules."""
    return CatalogShard(new_client(), catalog_shard_id(ORG), purpose="a test that meddles")


def test_the_shard_id_is_derived_from_the_organization() -> None:
    # sha256("11111111-2222-3333-4444-555555555555catalog"), its first 16 bytes.
    assert catalog_shard_id(ORG) == "s8845742b-c13a-584a-3324-b02e4223f6ef"
    upper_case = "{11111111-2222-3333-4444-55555555555A}"
    assert catalog_shard_id(upper_case) == catalog_shard_id(uuid.UUID(upper_case))
    with pytest.raises(BadInput, match="is not a UUID"):
        catalog_shard_id("me")


def test_before_the_first_open_there_is_nothing(openable: OpenableCatalog) -> None:
    assert not openable.is_initialized()
    assert openable.epoch() is None
    assert openable.deploy_generation() is None
    assert openable.config("user_version") is None
    for ask in (openable.check_open, openable.dump, lambda: openable.open(OpenMode.READ_ONLY)):
        with pytest.raises(Uninitialized):
            ask()


def test_the_first_open_writes_the_initial_objects_at_time_0(openable: OpenableCatalog) -> None:
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


def test_each_open_for_writing_raises_the_epoch_by_one_commit(new_client: NewClient) -> None:
    for expected in (1, 2, 3):
        catalog = writable(persist_catalog(new_client(), ORG))
        assert catalog.fence_token().epoch == expected
        assert catalog.upper == expected
        assert len(catalog.objects(COLLECTIONS[CONFIGS.kind])) == 1


def test_what_was_committed_is_there_after_the_process_was_killed(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    assert catalog.ensure_item("holdfast", "public", "flights", definition="v1") == "u1"
    with catalog.transaction() as tx:
        tx.insert(ROLES, *_pair(role(7, "never committed")))
        # The process ends here, without a close.
        reopened = writable(persist_catalog(new_client(), ORG))
    assert reopened.fence_token().epoch == 2
    assert reopened.ensure_item("holdfast", "public", "flights", definition="v1") == "u1"
    assert reopened.ensure_item("holdfast", "public", "other") == "u2"
    assert roles(reopened) == []
    names = [event.value.object_name for event in reopened.stream(AUDIT_LOG)]
    assert names.count("holdfast.public.flights") == 1


def test_the_first_handle_is_fenced_by_the_second(new_client: NewClient) -> None:
    first = writable(persist_catalog(new_client(), ORG), "first")
    tx = first.transaction()
    tx.insert(ROLES, *_pair(role(1, "mine")))
    second = writable(persist_catalog(new_client(), ORG), "second")
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


def test_a_fenced_handle_learns_it_by_asking(new_client: NewClient) -> None:
    first = writable(persist_catalog(new_client(), ORG), "first")
    first.confirm_leadership()
    writable(persist_catalog(new_client(), ORG), "second")
    assert roles(first) == []  # the memory may be stale
    with pytest.raises(Fenced):
        first.confirm_leadership()


def test_a_lower_generation_is_refused_and_changes_nothing(new_client: NewClient) -> None:
    newer = writable(persist_catalog(new_client(), ORG), "newer", generation=2)
    before = newer.dump()
    for mode in (OpenMode.WRITABLE, OpenMode.SAVEPOINT):
        with pytest.raises(Fenced):
            persist_catalog(new_client(), ORG).open(mode, deploy_generation=1, holder="older", purpose="test")
    newer.confirm_leadership()
    assert newer.dump() == before
    greater = writable(persist_catalog(new_client(), ORG), "greater", generation=5)
    assert greater.fence_token().rank == (5, 2)


def test_of_many_that_open_at_once_one_may_write(new_client: NewClient) -> None:
    count = 4
    start = threading.Barrier(count)
    opened: list[Catalog] = []

    def run(number: int) -> None:
        one = persist_catalog(new_client(), ORG)
        start.wait()
        opened.append(writable(one, f"holder {number}"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(catalog.fence_token().epoch for catalog in opened) == list(range(1, count + 1))
    for catalog in opened:
        if catalog.fence_token().epoch == count:
            assert catalog.allocate_ids(IdKind.USER_ITEM) == [1]
        else:
            with pytest.raises(Fenced):
                catalog.allocate_ids(IdKind.USER_ITEM)


def test_a_lower_token_than_mine_stops_me(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG), generation=2)
    shard = behind(new_client)
    _replace_token(shard, FenceToken(1, 9, "restored", "test"))
    with pytest.raises(FenceRegressed) as caught:
        catalog.allocate_ids(IdKind.USER_ITEM)
    assert "stop all writers" in caught.value.hint
    with pytest.raises(FenceRegressed):
        catalog.confirm_leadership()


def test_a_token_of_my_rank_with_another_nonce_is_not_mine(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    mine = catalog.fence_token()
    _replace_token(behind(new_client), FenceToken(*mine.rank, mine.holder, mine.purpose))
    with pytest.raises(Fenced):
        catalog.confirm_leadership()


def test_a_lost_token_stops_me(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    shard = behind(new_client)
    row = read_preamble(shard, shard.upper()).fence_row
    assert row is not None
    shard.append([Update(row, -1)], shard.upper())
    with pytest.raises(FenceRegressed):
        catalog.sync()


def test_contents_that_no_fence_announced_are_out_of_sync(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    shard = behind(new_client)
    tx = catalog.transaction()
    tx.insert(ROLES, *_pair(role(1, "mine")))
    shard.append([Update(encode(ROLES, *_pair(role(2, "theirs"))), 1)], shard.upper())
    with pytest.raises(CatalogOutOfSync):
        catalog.commit_transaction(tx)
    assert not tx.is_open
    # The commit has brought the memory up to date: now it is a matter of trying again.
    assert roles(catalog) == ["theirs"]
    catalog.set_objects(ROLES, [role(1, "mine")])
    assert roles(catalog) == ["mine", "theirs"]
    shard.append([Update(encode(ROLES, *_pair(role(3, "again"))), 1)], shard.upper())
    with pytest.raises(CatalogOutOfSync):
        catalog.confirm_leadership()
    catalog.confirm_leadership()


def test_empty_progress_does_not_lose_a_commit(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    writer = new_client().writer(catalog.place, SCHEMA, purpose="a test that seals")
    tx = catalog.transaction()
    tx.insert(ROLES, *_pair(role(1, "mine")))
    writer.seal(10)
    catalog.commit_transaction(tx)
    assert catalog.upper == 11
    writer.seal(20)
    catalog.confirm_leadership()
    assert catalog.upper == 20
    reopened = writable(persist_catalog(new_client(), ORG))
    assert (roles(reopened), reopened.upper) == (["mine"], 21)


def test_a_fenced_process_finds_the_fence_before_rows_that_it_cannot_decode(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    reader = persist_catalog(new_client(), ORG).open(OpenMode.READ_ONLY)
    shard = behind(new_client)
    _upgrade_to(shard, CATALOG_VERSION + 1, catalog.fence_token())
    with pytest.raises(Fenced):
        catalog.sync()
    for _ in range(2):  # the first time change by change, then by reading it all anew
        with pytest.raises(VersionTooNew, match=f"version {CATALOG_VERSION + 1}"):
            reader.sync()
    openable = persist_catalog(new_client(), ORG)
    assert (openable.epoch(), openable.is_initialized()) == (2, True)
    assert openable.config("user_version") == CATALOG_VERSION + 1
    for ask in (openable.check_open, openable.dump, lambda: writable(openable)):
        with pytest.raises(VersionTooNew):
            ask()
    assert openable.epoch() == 2


def test_a_version_below_the_least_is_deprecated(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    _upgrade_to(behind(new_client), MIN_VERSION - 1, catalog.fence_token())
    with pytest.raises(Deprecated, match=f"version {MIN_VERSION - 1}"):
        writable(persist_catalog(new_client(), ORG))


def test_one_transaction_at_a_time(openable: OpenableCatalog) -> None:
    catalog = writable(openable)
    with catalog.transaction() as tx:
        for ask in (catalog.transaction, lambda: catalog.allocate_ids(IdKind.USER_ROLE)):
            with pytest.raises(TransactionInProgress):
                ask()
        tx.insert(ROLES, *_pair(role(1, "a")))
    with pytest.raises(BadInput, match="not open on this catalog"):
        catalog.commit_transaction(tx)
    foreign = writable(openable, "another").transaction()
    with pytest.raises(BadInput, match="not open on this catalog"):
        catalog.commit_transaction(foreign)
    assert foreign.is_open


def test_a_transaction_is_all_or_nothing(openable: OpenableCatalog) -> None:
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


def test_a_reader_follows_and_is_not_fenced(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG), "first")
    readers = [persist_catalog(new_client(mode), ORG).open(OpenMode.READ_ONLY) for mode in ("write", "read")]
    catalog.set_objects(ROLES, [role(1, "a")])
    second = writable(persist_catalog(new_client(), ORG), "second")
    second.set_objects(ROLES, [role(1, "b")])
    for reader in readers:
        assert roles(reader) == []
        reader.sync()
        assert roles(reader) == ["b"]
        assert (reader.upper, reader.fence_token()) == (second.upper, second.fence_token())
        assert reader.snapshot()[ROLES.kind] == reader.objects(ROLES)
        reader.close()
    assert persist_catalog(new_client(), ORG).epoch() == 2


def test_a_reading_client_writes_nothing(new_client: NewClient) -> None:
    client = new_client()
    catalog = writable(persist_catalog(client, ORG))
    before = client.inspect(catalog.place).seqno
    openable = persist_catalog(new_client("read"), ORG)
    with openable.open(OpenMode.READ_ONLY) as reader:
        assert reader.object_counts() == catalog.object_counts()
    with openable.open(OpenMode.SAVEPOINT, holder="try", purpose="test") as savepoint:
        savepoint.set_objects(ROLES, [role(1, "a")])
    openable.check_open()
    openable.dump()
    assert client.inspect(catalog.place).seqno == before
    for ask in (lambda: writable(openable), lambda: openable.initialize(holder="a", purpose="b")):
        with pytest.raises(NotWritable):
            ask()


@pytest.mark.parametrize("initialized", [True, False])
def test_a_savepoint_changes_nothing_durable(new_client: NewClient, initialized: bool) -> None:
    client = new_client()
    openable = persist_catalog(client, ORG)
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


def test_initializing_happens_once_and_fences_nobody(new_client: NewClient) -> None:
    openable = persist_catalog(new_client(), ORG)
    assert openable.initialize(holder="me", purpose="test", deploy_generation=1)
    assert (openable.epoch(), openable.deploy_generation()) == (1, 1)
    catalog = writable(openable, generation=1)
    assert not openable.initialize(holder="me", purpose="test")
    catalog.confirm_leadership()
    assert openable.epoch() == 2


def test_a_writer_says_who_it_is(openable: OpenableCatalog) -> None:
    for holder, purpose in (("", "p"), ("h", "")):
        with pytest.raises(BadInput, match="holder and a purpose"):
            openable.open(OpenMode.WRITABLE, holder=holder, purpose=purpose)
    assert not openable.is_initialized()


def test_every_type_has_a_getter(openable: OpenableCatalog) -> None:
    catalog = writable(openable)
    counts = catalog.object_counts()
    for collection in COLLECTIONS.values():
        assert len(list(getattr(catalog, f"get_{collection.name}")())) == counts[collection.name]
    with pytest.raises(AttributeError):
        catalog.get_nothing()
    with pytest.raises(BadInput, match="stream"):
        catalog.objects(AUDIT_LOG)


def test_dumps_travel_in_time(openable: OpenableCatalog) -> None:
    catalog = writable(openable)
    catalog.set_objects(ROLES, [role(1, "a")])
    catalog.set_objects(ROLES, [role(1, "b")])
    for as_of, expected in ((0, []), (1, ["a"]), (2, ["b"]), (None, ["b"])):
        for dumped in (json.loads(openable.dump(as_of)), json.loads(catalog.dump(as_of))):
            assert set(dumped) == {row.name for row in COLLECTIONS.values()}
            found = [row["value"]["name"] for row in dumped["roles"] if "user" in row["key"]["id"]]
            assert found == expected
    with pytest.raises(HoldfastError, match="as_of 3 is not complete"):
        openable.dump(3)


def test_subscribers_get_each_committed_change_once_in_order(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    reader = persist_catalog(new_client(), ORG).open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    assert subscription.next(0) == []
    catalog.set_objects(ROLES, [role(1, "a")])
    catalog.set_objects(ROLES, [role(1, "b")])
    got = []
    while not got or got[-1].time < catalog.upper - 1:
        got += subscription.next(10)
    assert [(c.time, c.collection, c.object.value.name, c.diff) for c in got] == [
        (1, ROLES, "a", 1),
        (2, ROLES, "a", -1),
        (2, ROLES, "b", 1),
    ]
    writable(persist_catalog(new_client(), ORG))
    (gone, come) = subscription.next(10)
    assert (gone.object.value.epoch, gone.diff, come.object.value.epoch, come.diff) == (1, -1, 2, 1)
    subscription.close()


def test_retention_keeps_the_last_versions_and_lets_go_of_older_ones() -> None:
    client = PersistClient.open(f"memory://{uuid.uuid4()}", config=PersistConfig(maintenance="inline"))
    catalog = writable(persist_catalog(client, ORG))
    holds = {hold.purpose: hold.since for hold in client.inspect(catalog.place).holds}
    assert holds["catalog retention"] == 0
    writer = client.writer(catalog.place, SCHEMA, purpose="a test that seals")
    writer.seal(RETAIN_VERSIONS + RETENTION_STEP - 1)
    catalog.set_objects(ROLES, [role(1, "a")])
    upper = RETAIN_VERSIONS + RETENTION_STEP
    assert catalog.upper == upper
    assert catalog.since == RETENTION_STEP
    holds = {hold.purpose: hold.since for hold in client.inspect(catalog.place).holds}
    assert holds["catalog retention"] == upper - RETAIN_VERSIONS
    # The next commits are within the step: they cost one version of the state each.
    before = client.inspect(catalog.place).seqno
    for number in range(2, 12):
        catalog.set_objects(ROLES, [role(number, f"r{number}")])
    assert client.inspect(catalog.place).seqno <= before + 10 + 2
    assert catalog.since == RETENTION_STEP
    catalog.dump(RETENTION_STEP)
    with pytest.raises(AsOfTooEarly):
        catalog.dump(RETENTION_STEP - 1)


def test_a_row_that_is_there_twice_is_corrupt(new_client: NewClient) -> None:
    catalog = writable(persist_catalog(new_client(), ORG))
    row = encode(SETTINGS, pb.SettingKey(name="x"), pb.SettingValue(value="y"))
    shard = behind(new_client)
    shard.append([Update(row, 1), Update(row, 1)], shard.upper())
    with pytest.raises(CorruptBlob, match="one copy"):
        catalog.sync()
    with pytest.raises(CorruptBlob, match="each row once"):
        writable(persist_catalog(new_client(), ORG))


def test_another_kind_of_shard_is_no_catalog(new_client: NewClient) -> None:
    client = new_client()
    writer = client.writer(catalog_shard_id(ORG), Schema.of(key={"id": "int64"}), purpose="test")
    writer.compare_and_append([{"id": 1}], 0, 1)
    for ask in (persist_catalog(client, ORG).is_initialized, lambda: writable(persist_catalog(client, ORG))):
        with pytest.raises(CodecMismatch):
            ask()


def test_organizations_do_not_see_each_other(new_client: NewClient) -> None:
    client = new_client()
    writable(persist_catalog(client, ORG)).set_objects(ROLES, [role(1, "a")])
    other = writable(persist_catalog(client, uuid.uuid4()))
    assert (roles(other), other.fence_token().epoch) == ([], 1)


def test_threads_may_share_a_handle(openable: OpenableCatalog) -> None:
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


def _pair(object_: Object[pb.RoleKey, pb.RoleValue]) -> tuple[pb.RoleKey, pb.RoleValue]:
    return object_.key, object_.value


def _replace_token(shard: CatalogShard, token: FenceToken) -> None:
    upper = shard.upper()
    shard.append(read_preamble(shard, upper).fence(token), upper)


def _upgrade_to(shard: CatalogShard, version: int, token: FenceToken) -> None:
    """What a Holdfast of another version commits when it takes over: rows that this one can't decode."""
    upper = shard.upper()
    preamble = read_preamble(shard, upper)
    key = pb.ConfigKey(key="user_version")
    changes = [
        *preamble.fence(FenceToken(0, 0, "other", "upgrade").after(token)),
        Update(encode(CONFIGS, key, pb.ConfigValue(value=CATALOG_VERSION)), -1),
        Update(encode(CONFIGS, key, pb.ConfigValue(value=version)), 1),
        Update(Row(b"\xff\xff", b"unknown kind"), 1),
        Update(Row(ROLES.kind.tag + b"\xff", b"\xff"), 1),
    ]
    shard.append(changes, upper)
