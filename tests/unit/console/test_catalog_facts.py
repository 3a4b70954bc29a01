"""A catalog for people: objects with owners, the audit log, the difference of two times, and no secrets."""

from collections.abc import Iterator

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, OpenMode, catalog_shard_id, persist_catalog
from holdfast.catalog.objects.registry import DATABASES, ITEMS, ROLES, SCHEMAS, SYSTEM_CONFIGURATIONS
from holdfast.console.facts import catalog as facts
from holdfast.console.facts.catalog import (
    CatalogFacts,
    Group,
    catalog_at,
    catalog_difference,
    catalogs_in,
    commits,
    reading_catalog,
    shard_of,
)
from holdfast.console.facts.rows import TimeRefused
from holdfast.errors import BadInput
from holdfast.persist import PersistClient
from unit.collections.stores import Stores

ORG = "00000000-0000-4000-8000-000000000007"
SHARD = catalog_shard_id(ORG)
ADA = pb.RoleId(user=7)
SECRETS = ("hunter2", "s3cr3t")


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with Stores().open() as client:
        yield client


def item(number: int, name: str, type_: "pb.ObjectType", definition: str) -> tuple[pb.ItemKey, pb.ItemValue]:
    value = pb.ItemValue(
        schema_id=pb.ObjectId(user=5),
        name=name,
        type=type_,
        definition=definition,
        owner_id=ADA,
        privileges=[pb.AclItem(grantee=pb.RoleId(public=pb.Empty()), grantor=ADA, privileges=3)],
    )
    return pb.ItemKey(id=pb.ObjectId(user=number)), value


def fill(client: PersistClient) -> list[int]:
    """A catalog with some objects. Returns its time after each of three commits."""
    times = []
    with persist_catalog(client, ORG).open(OpenMode.WRITABLE, holder="test", purpose="test") as catalog:
        assert isinstance(catalog, Catalog)
        with catalog.transaction() as tx:
            tx.insert(
                ROLES, pb.RoleKey(id=ADA), pb.RoleValue(name="ada", attributes=pb.RoleAttributes(login=True))
            )
            tx.insert(
                DATABASES, pb.DatabaseKey(id=pb.ObjectId(user=4)), pb.DatabaseValue(name="shop", owner_id=ADA)
            )
            tx.insert(
                SCHEMAS,
                pb.SchemaKey(id=pb.ObjectId(user=5)),
                pb.SchemaValue(database_id=pb.ObjectId(user=4), name="public2", owner_id=ADA),
            )
            catalog.commit_transaction(tx)
        times.append(catalog.upper - 1)
        with catalog.transaction() as tx:
            tx.insert(ITEMS, *item(10, "<b>orders", pb.ObjectType.OBJECT_TYPE_TABLE, "create table orders"))
            tx.insert(ITEMS, *item(11, "key", pb.ObjectType.OBJECT_TYPE_SECRET, "hunter2"))
            tx.insert(
                ITEMS,
                *item(
                    12,
                    "pg",
                    pb.ObjectType.OBJECT_TYPE_CONNECTION,
                    "to postgres (user 'u', password = 'hunter2')",
                ),
            )
            tx.insert(
                SYSTEM_CONFIGURATIONS,
                pb.SystemConfigurationKey(name="smtp_password"),
                pb.SystemConfigurationValue(value="s3cr3t"),
            )
            tx.audit(
                pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
                pb.ObjectType.OBJECT_TYPE_TABLE,
                "u10",
                "<b>orders",
                user="ada",
                details={"password": "s3cr3t", "schema": "public2"},
            )
            catalog.commit_transaction(tx)
        times.append(catalog.upper - 1)
        with catalog.transaction() as tx:
            tx.update(ITEMS, *item(10, "<b>orders", pb.ObjectType.OBJECT_TYPE_TABLE, "create table orders2"))
            tx.update(ITEMS, *item(11, "key", pb.ObjectType.OBJECT_TYPE_SECRET, "hunter2 again"))
            tx.delete(ITEMS, item(12, "", pb.ObjectType.OBJECT_TYPE_TABLE, "")[0])
            catalog.commit_transaction(tx)
        times.append(catalog.upper - 1)
    return times


def group(found: CatalogFacts, kind: str) -> Group:
    return next(each for each in found.groups if each.kind == kind)


def test_objects_with_names_of_what_they_refer_to(client: PersistClient) -> None:
    times = fill(client)
    with reading_catalog(client, SHARD) as (store, reach):
        assert reach.upper == times[-1] + 1
        found = catalog_at(store, times[1])
    items = {one.path: one for one in group(found, "items").objects}
    orders = items["shop.public2.<b>orders"]
    assert (orders.id, orders.type, orders.owner) == ("u10", "table", "ada")
    assert [(each.grantee, each.grantor, each.names) for each in orders.privileges] == [
        ("PUBLIC", "ada", ("SELECT", "INSERT"))
    ]
    assert {one.path for one in group(found, "schemas").objects} >= {"shop.public2"}
    assert group(found, "items").total == 3
    assert [one.path for one in group(found, "default_privileges").objects] == [
        "PUBLIC on each new type of any role"
    ]
    # A value without a text is not shown.
    assert {one.path: [name for name, _ in one.fields] for one in group(found, "roles").objects} == {
        "ada": ["attributes"],
        "holdfast_system": ["attributes"],
    }
    (event,) = [each for each in found.events if each.user == "ada"]
    assert (event.event, event.object_type, event.object_name) == ("create", "table", "<b>orders")


def test_no_secret_is_shown(client: PersistClient) -> None:
    times = fill(client)
    with reading_catalog(client, SHARD) as (store, _):
        shown = repr(catalog_at(store, times[1])) + repr(catalog_difference(store, times[0], times[2]))
        shown += repr(catalog_difference(store, times[1], times[2]))
    assert all(secret not in shown for secret in SECRETS)
    assert "create table orders" in shown


@pytest.mark.parametrize(
    "text",
    [
        "PASSWORD = 'hunter2'",
        "password 'hunter2'",
        "sasl_password='it''s hunter2'",
        '{"password": "hunter2"}',
        "secret_access_key = 'hunter2'",
        "ACCESS KEY 'hunter2'",
        "postgresql://u:hunter2@host/db",
        "token: 'hunter2'",
    ],
)
def test_texts_that_look_like_secrets_are_masked(text: str) -> None:
    assert "hunter2" not in facts._masked(text)


def test_a_search_finds_by_name_owner_type_and_id(client: PersistClient) -> None:
    times = fill(client)
    with reading_catalog(client, SHARD) as (store, _):
        for search, number in (
            ("ORDERS", 1),
            ("ada", 2),
            ("secret", 1),
            ("u11", 1),
            ("shop.public2", 2),
            ("zzz", 0),
        ):
            found = group(catalog_at(store, times[2], search), "items")
            assert (found.found, found.total, len(found.objects)) == (number, 2, number), search


def test_only_the_first_objects_are_kept(client: PersistClient) -> None:
    times = fill(client)
    with reading_catalog(client, SHARD) as (store, _):
        found = group(catalog_at(store, times[1], most=2), "items")
    assert [one.path for one in found.objects] == ["shop.public2.<b>orders", "shop.public2.key"]
    assert found.found == 3


def test_the_difference_of_two_times(client: PersistClient) -> None:
    times = fill(client)
    with reading_catalog(client, SHARD) as (store, _):
        found = catalog_difference(store, times[1], times[2])
        assert [(each.sign, each.path) for each in found.changes if each.kind == "items"] == [
            ("~", "shop.public2.<b>orders"),
            ("~", "shop.public2.key"),
            ("-", "shop.public2.pg"),
        ]
        (field,) = found.changes[0].fields
        assert field.before is not None
        assert field.after is not None
        assert (field.name, field.before.text, field.after.text) == (
            "definition",
            "create table orders",
            "create table orders2",
        )
        assert (found.added, found.removed, found.changed) == (0, 1, 2)
        first = catalog_difference(store, times[0], times[1])
        told = {each.name: each.after and each.after.text for each in first.changes[0].fields}
        assert told == {
            "schema": "shop.public2",
            "name": "<b>orders",
            "type": "table",
            "definition": "create table orders",
            "owner": "ada",
            "privileges": "PUBLIC: SELECT, INSERT",
        }
        assert (first.added, first.removed, first.changed) == (4, 0, 0)
        assert [each.object_name for each in first.events] == ["<b>orders"]
        assert catalog_difference(store, times[0], times[0]).changes == ()
        with pytest.raises(BadInput):
            catalog_difference(store, times[1], times[0])


def test_times_that_cannot_be_read(client: PersistClient) -> None:
    fill(client)
    with reading_catalog(client, SHARD) as (_, reach):
        assert reach.time("") == reach.latest
        for given in ("2026-01-01", "99999", "-1", "x"):
            with pytest.raises(TimeRefused) as refused:
                reach.time(given)
            assert refused.value.nearest == reach.latest


def test_catalogs_are_found_among_other_shards(client: PersistClient) -> None:
    assert catalogs_in(client) == ()
    fill(client)
    assert catalogs_in(client) == (SHARD,)
    assert catalogs_in(client, [SHARD]) == ()
    assert shard_of(ORG) == shard_of(SHARD) == SHARD
    with pytest.raises(BadInput):
        shard_of("../../etc")
    with pytest.raises(BadInput), reading_catalog(client, shard_of("00000000-0000-4000-8000-000000000008")):
        pass


def test_commits_say_when_and_by_whom(client: PersistClient) -> None:
    times = fill(client)
    with reading_catalog(client, SHARD) as (_, reach):
        found = {each.time: each for each in commits(client, reach)}
    assert set(times) <= set(found)
    assert all(found[time].at_ms for time in times)
