"""The contents of a new catalog."""

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.cache import Cache
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.items import drop_item, ensure_item
from holdfast.catalog.objects.codec import RowUpdate, decode
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    CLUSTER_REPLICAS,
    CLUSTERS,
    CONFIGS,
    DATABASES,
    ITEMS,
    ROLES,
    SCHEMAS,
    SYSTEM_CONFIGURATIONS,
    Kind,
)
from holdfast.catalog.transaction import Transaction
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput, UniquenessViolation


def opened(bootstrap: Bootstrap | None = None) -> Cache:
    cache = Cache()
    cache.apply(initial_updates(bootstrap or Bootstrap(), 1000))
    return cache


def test_it_is_made_at_the_current_version_and_only_added_to() -> None:
    updates = initial_updates(Bootstrap(), 1000)
    assert {update.diff for update in updates} == {1}
    cache = opened()
    version = cache.get(CONFIGS, pb.ConfigKey(key="user_version"))
    assert version is not None
    assert version.value == CATALOG_VERSION


def test_the_same_bootstrap_gives_the_same_bytes() -> None:
    bootstrap = Bootstrap(roles=("r",), system_configurations={"max_tables": "10"})
    assert initial_updates(bootstrap, 5) == initial_updates(bootstrap, 5)


def test_it_has_what_people_expect_to_find() -> None:
    cache = opened()
    assert [found.value.name for found in cache.objects(DATABASES)] == ["holdfast"]
    schemas = {found.value.name: found.value for found in cache.objects(SCHEMAS)}
    assert schemas["public"].database_id == pb.ObjectId(user=1)
    system = ["holdfast_catalog", "holdfast_internal", "information_schema"]
    assert [name for name, value in schemas.items() if not value.HasField("database_id")] == system
    assert [found.value.name for found in cache.objects(ROLES)] == ["holdfast_system"]
    assert [found.value.name for found in cache.objects(CLUSTERS)] == ["holdfast_system", "default"]


def test_the_bootstrap_adds_to_it() -> None:
    cache = opened(
        Bootstrap(
            default_cluster="work",
            replica_sizes=("2", "3"),
            roles=("alice", "bob"),
            system_configurations={"max_tables": "10"},
        )
    )
    assert "work" in [found.value.name for found in cache.objects(CLUSTERS)]
    replicas = [(found.value.name, found.value.size) for found in cache.objects(CLUSTER_REPLICAS)]
    assert replicas == [("r1", "2"), ("r2", "3")]
    assert [found.value.name for found in cache.objects(ROLES)] == ["holdfast_system", "alice", "bob"]
    settings = [(found.key.name, found.value.value) for found in cache.objects(SYSTEM_CONFIGURATIONS)]
    assert settings == [("max_tables", "10")]


@pytest.mark.parametrize(
    "bootstrap",
    [
        Bootstrap(roles=("a", "a")),
        Bootstrap(roles=("holdfast_system",)),
        Bootstrap(default_cluster="holdfast_system"),
    ],
)
def test_a_name_given_twice_is_refused(bootstrap: Bootstrap) -> None:
    with pytest.raises(UniquenessViolation):
        initial_updates(bootstrap, 0)


def test_an_item_is_made_once_brought_up_to_date_and_dropped() -> None:
    cache = opened()
    ids, counts = [], []
    for definition in ("v1", "v1", "v2"):
        tx = Transaction(cache, now_ms=2000)
        ids.append(ensure_item(tx, "holdfast", "public", "flights", definition=definition, user="me"))
        updates = tx.updates()
        cache.apply(updates)
        counts.append(len(updates))
    assert ids == ["u1", "u1", "u1"]
    assert counts[1] == 0
    assert [found.value.definition for found in cache.objects(ITEMS)] == ["v2"]
    tx = Transaction(cache, now_ms=3000)
    assert drop_item(tx, "holdfast", "public", "flights") == "u1"
    events = _events(tx.updates())
    assert [(e.event_type, e.object_id, e.object_name, e.occurred_at_ms) for e in events] == [
        (pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_DROP, "u1", "holdfast.public.flights", 3000)
    ]
    cache.apply(tx.updates())
    tx = Transaction(cache)
    assert drop_item(tx, "holdfast", "public", "flights") is None
    assert drop_item(tx, "nowhere", "public", "flights") is None
    assert tx.updates() == ()
    assert ensure_item(tx, "holdfast", "public", "flights") == "u2"


def test_an_item_needs_a_place_and_a_name_that_is_free() -> None:
    tx = Transaction(opened())
    with pytest.raises(BadInput, match="no database 'other'"):
        ensure_item(tx, "other", "public", "t")
    with pytest.raises(BadInput, match="no schema 'other' in database 'holdfast'"):
        ensure_item(tx, "holdfast", "other", "t")
    with pytest.raises(BadInput, match="name"):
        ensure_item(tx, "holdfast", "public", "")
    ensure_item(tx, "holdfast", "public", "t", object_type=pb.ObjectType.OBJECT_TYPE_MATERIALIZED_VIEW)
    with pytest.raises(BadInput, match=r"holdfast\.public\.t is materialized view u1, not collection"):
        ensure_item(tx, "holdfast", "public", "t")


def _events(updates: tuple[RowUpdate, ...]) -> list[pb.AuditLogValue]:
    return [decode(AUDIT_LOG, row).value for row, _ in updates if row.kind is Kind.AUDIT_LOG]
