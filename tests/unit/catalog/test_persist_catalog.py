"""What only a catalog on persist does. `conformance/test_catalog_contract` has the common promises."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import (
    Catalog,
    Object,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    catalog_shard_id,
    persist_catalog,
)
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import ROLES, Kind
from holdfast.catalog.stores.persist import SCHEMA, CatalogShard
from holdfast.catalog.stores.store import RETAIN_VERSIONS, RETENTION_STEP
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CodecMismatch,
    NotWritable,
    ShardFinalized,
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


def test_the_shard_id_is_derived_from_the_organization() -> None:
    # sha256("11111111-2222-3333-4444-555555555555catalog"), its first 16 bytes.
    assert catalog_shard_id(ORG) == "s8845742b-c13a-584a-3324-b02e4223f6ef"
    upper_case = "{11111111-2222-3333-4444-55555555555A}"
    assert catalog_shard_id(upper_case) == catalog_shard_id(uuid.UUID(upper_case))
    with pytest.raises(BadInput, match="is not a UUID"):
        catalog_shard_id("me")


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


def _pair(object_: Object[pb.RoleKey, pb.RoleValue]) -> tuple[pb.RoleKey, pb.RoleValue]:
    return object_.key, object_.value


def test_nothing_is_committed_to_a_shard_that_has_ended(new_client: NewClient) -> None:
    client = new_client()
    store = CatalogShard(client, catalog_shard_id(ORG), purpose="test")
    update = RowUpdate(Row(Kind.ROLE.tag, b""), 1)
    store.append([update], 0)
    client.finalize(catalog_shard_id(ORG))
    with pytest.raises(ShardFinalized):
        store.append([update], 1)
    with pytest.raises(BadInput):
        store.append([update], store.upper())
