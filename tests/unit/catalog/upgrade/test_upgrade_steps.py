"""Each step takes any catalog of its version to the next version, and loses nothing."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.cache import Cache
from holdfast.catalog.dump import dump_json
from holdfast.catalog.objects.codec import Row, RowUpdate, decode
from holdfast.catalog.objects.registry import (
    CLUSTERS,
    DATABASES,
    DEFAULT_PRIVILEGES,
    ITEMS,
    OBJECT_TYPES,
    ROLES,
    SCHEMAS,
    Kind,
    ObjectType,
)
from holdfast.catalog.privileges import PUBLIC, all_privileges
from holdfast.catalog.upgrade import STEPS, objects
from holdfast.catalog.upgrade.step import carried, replaced
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.errors import CorruptBlob, Deprecated, UpgradeNeeded, VersionTooNew
from testbed.drawncatalogs import catalogs
from testbed.oldcatalogs import StoredRows, make_row, protobuf_at, rows_of, upgraded

VERSIONS = range(MIN_VERSION, CATALOG_VERSION + 1)
each_version = pytest.mark.parametrize("version", VERSIONS)
drawn = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Which rows a step may change.
TOUCHED = {
    14: {kind for kind in Kind if not protobuf_at(14, kind)},
    15: {Kind.ROLE},
    16: {Kind.CLUSTER},
    17: {Kind.DATABASE, Kind.SCHEMA, Kind.CLUSTER, Kind.ITEM},
    18: {Kind.DEFAULT_PRIVILEGE},
}


def shown_id(version: int, kind: Kind, id_: Any) -> str:
    if not protobuf_at(version, kind):
        return str(id_)
    ((space, number),) = id_.items()
    return "p" if space == "public" else f"{space[0]}{number}"


def what_is_kept(version: int, rows: tuple[Row, ...]) -> dict[Kind, Counter[str]]:
    """By kind the ids, names and whatever else has no reason to change."""
    found: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind if kind is not Kind.CONFIG}
    for row in rows:
        if row.kind is Kind.CONFIG:
            continue
        key, value = objects.decode(version, row)
        same = {
            name: str(value[name])
            for name in ("name", "comment", "definition", "size", "ts")
            if name in value
        }
        if "id" in key and row.kind not in (Kind.COMMENT, Kind.AUDIT_LOG, Kind.STORAGE_USAGE):
            same["id"] = shown_id(version, row.kind, key["id"])
        found[row.kind][json.dumps(same, sort_keys=True)] += 1
    return found


@each_version
@drawn
@given(data=st.data())
def test_any_catalog_arrives_at_the_current_version(version: int, data: st.DataObject) -> None:
    rows = data.draw(catalogs(version))
    arrived = upgraded(rows, version)
    # The cache refuses what isn't of this version, and what isn't unique.
    cache = Cache(arrived)
    assert sum(cache.counts().values()) == len(rows)
    assert what_is_kept(CATALOG_VERSION, arrived) == what_is_kept(version, rows)
    shuffled = tuple(data.draw(st.permutations(rows)))
    assert sorted(upgraded(shuffled, version)) == sorted(arrived)
    assert json.loads(dump_json(rows)).keys() == json.loads(dump_json(arrived)).keys()


@pytest.mark.parametrize("source", STEPS)
@drawn
@given(data=st.data())
def test_a_step_retracts_what_is_stored_and_touches_only_its_kinds(source: int, data: st.DataObject) -> None:
    rows = data.draw(catalogs(source))
    updates = list(STEPS[source].updates(StoredRows(rows)))
    assert {update.row.kind for update in updates} <= TOUCHED.get(source, set(Kind))
    retracted = [update.row for update in updates if update.diff == -1]
    assert set(retracted) <= set(rows)
    assert len(set(retracted)) == len(retracted)
    added = [update.row for update in updates if update.diff == 1]
    # Where bytes stay equal nothing is said.
    assert not set(added) & set(retracted)
    for row in added:
        objects.decode(source + 1, row)


@each_version
def test_big_catalogs_are_the_same_each_time_and_arrive_too(version: int) -> None:
    rows = tuple(rows_of(version, items=40, seed=5))
    assert rows == tuple(rows_of(version, items=40, seed=5))
    assert rows != tuple(rows_of(version, items=40, seed=6))
    counts = Cache(upgraded(rows, version)).counts()
    assert (counts["items"], counts["comments"], counts["storage_usage"], counts["audit_log"]) == (
        40,
        10,
        10,
        10,
    )


def at(version: int, *made: tuple[Kind, dict[str, Any], dict[str, Any]]) -> Cache:
    """The current catalog that objects at a version become."""
    config = make_row(version, Kind.CONFIG, {"key": "user_version"}, {"value": version})
    return Cache(upgraded([config, *(make_row(version, *each) for each in made)], version))


def values(cache: Cache, collection: ObjectType[Any, Any]) -> dict[str, Any]:
    return {found.value.name: found.value for found in cache.objects(collection)}


USER, SYSTEM, ANYBODY = {"user": 1}, {"system": 1}, {"public": {}}


def test_roles_get_the_attributes_that_they_had_in_effect() -> None:
    cache = at(
        15,
        (Kind.ROLE, {"id": SYSTEM}, {"name": "sys"}),
        (Kind.ROLE, {"id": USER}, {"name": "u"}),
        (Kind.ROLE, {"id": {"user": 2}}, {"name": "v"}),
        (Kind.SYSTEM_PRIVILEGE, {"grantee": USER, "grantor": SYSTEM}, {"privileges": 64}),
        (Kind.SYSTEM_PRIVILEGE, {"grantee": USER, "grantor": {"user": 2}}, {"privileges": 256}),
        (Kind.SYSTEM_PRIVILEGE, {"grantee": ANYBODY, "grantor": SYSTEM}, {"privileges": 128}),
    )
    found = {name: value.attributes for name, value in values(cache, ROLES).items()}
    assert found == {
        "sys": pb.RoleAttributes(inherit=True, create_database=True, superuser=True, login=True),
        "u": pb.RoleAttributes(
            inherit=True, create_role=True, create_database=True, create_cluster=True, login=True
        ),
        "v": pb.RoleAttributes(inherit=True, create_database=True, login=True),
    }


@pytest.mark.parametrize(
    ("replicas", "managed"),
    [
        ([], None),
        ([("r1", "3")], pb.ManagedCluster(size="3", replication_factor=1)),
        (
            [("r2", "3", "b"), ("r1", "3", "a"), ("r3", "3", "b")],
            pb.ManagedCluster(size="3", replication_factor=3, availability_zones=["a", "b"]),
        ),
        ([("r1", "3"), ("r2", "4")], None),
        ([("r1", "3"), ("r3", "3")], None),
        ([("r01", "3")], None),
        ([("r0", "3"), ("r1", "3")], None),
    ],
)
def test_clusters_that_look_managed_are(
    replicas: list[tuple[str, ...]], managed: pb.ManagedCluster | None
) -> None:
    made: list[tuple[Kind, dict[str, Any], dict[str, Any]]] = [
        (Kind.CLUSTER, {"id": USER}, {"name": "c"}),
        (Kind.CLUSTER, {"id": {"user": 2}}, {"name": "other"}),
        (Kind.CLUSTER_REPLICA, {"id": {"user": 99}}, {"cluster_id": {"user": 2}, "name": "r7", "size": "9"}),
    ]
    for number, (name, size, *zone) in enumerate(replicas):
        value = {"cluster_id": USER, "name": name, "size": size}
        zoned = {"availability_zone": zone[0]} if zone else {}
        made.append((Kind.CLUSTER_REPLICA, {"id": {"user": number}}, value | zoned))
    cluster = values(at(16, *made), CLUSTERS)["c"]
    if managed is None:
        assert cluster.WhichOneof("variant") == "unmanaged"
    else:
        assert cluster.managed == managed


def owners(*roles: dict[str, Any]) -> Cache:
    return at(
        17,
        *((Kind.ROLE, {"id": role}, {"name": str(role)}) for role in roles),
        (Kind.DATABASE, {"id": USER}, {"name": "users"}),
        (Kind.SCHEMA, {"id": {"system": 4}}, {"name": "systems"}),
        (Kind.ITEM, {"id": USER}, {"name": "table", "type": "OBJECT_TYPE_TABLE", "schema_id": {"system": 4}}),
        (
            Kind.ITEM,
            {"id": SYSTEM},
            {"name": "view", "type": "OBJECT_TYPE_TABLE", "schema_id": {"system": 4}},
        ),
        (Kind.ITEM, {"id": {"user": 2}}, {"name": "index", "type": "OBJECT_TYPE_INDEX"}),
    )


def test_the_first_user_role_owns_what_is_the_users_and_nobody_loses_anything() -> None:
    cache = owners({"user": 9}, {"system": 3}, {"user": 4}, {"system": 2})
    user, system = pb.RoleId(user=4), pb.RoleId(system=2)
    database, schema = values(cache, DATABASES)["users"], values(cache, SCHEMAS)["systems"]
    assert (database.owner_id, schema.owner_id) == (user, system)
    assert list(database.privileges) == [
        pb.AclItem(grantee=user, grantor=user, privileges=48),
        pb.AclItem(grantee=PUBLIC, grantor=user, privileges=48),
    ]
    assert list(schema.privileges) == [
        pb.AclItem(grantee=system, grantor=system, privileges=48),
        pb.AclItem(grantee=PUBLIC, grantor=system, privileges=16),
    ]
    items = values(cache, ITEMS)
    assert [(each.grantee, each.privileges) for each in items["table"].privileges] == [
        (user, 15),
        (PUBLIC, 15),
    ]
    assert [(each.grantee, each.privileges) for each in items["view"].privileges] == [
        (system, 15),
        (PUBLIC, 1),
    ]
    assert items["index"].owner_id == user
    assert not items["index"].privileges


@pytest.mark.parametrize("roles", [(), (SYSTEM,)])
def test_without_user_roles_the_system_owns_it(roles: tuple[dict[str, Any], ...]) -> None:
    cache = owners(*roles)
    assert values(cache, DATABASES)["users"].owner_id == pb.RoleId(system=1)
    assert len(values(cache, DATABASES)["users"].privileges) == 2


def test_the_step_grants_what_new_objects_can_have_too() -> None:
    for name, number in pb.ObjectType.items():
        item = {"name": "i", "type": name, "schema_id": USER}
        cache = at(17, (Kind.ITEM, {"id": USER}, item))
        if name in (
            "OBJECT_TYPE_CLUSTER",
            "OBJECT_TYPE_DATABASE",
            "OBJECT_TYPE_SCHEMA",
            "OBJECT_TYPE_SYSTEM",
        ):
            continue
        granted = {each.privileges for each in values(cache, ITEMS)["i"].privileges}
        assert granted == ({int(all_privileges(number))} - {0}), name


def test_default_privileges_stay_for_everybody() -> None:
    key = {"schema_id": USER, "object_type": "OBJECT_TYPE_TABLE", "grantee": SYSTEM}
    (found,) = at(18, (Kind.DEFAULT_PRIVILEGE, key, {"privileges": 3})).objects(DEFAULT_PRIVILEGES)
    assert found.key == pb.DefaultPrivilegeKey(
        schema_id=pb.ObjectId(user=1),
        object_type=pb.ObjectType.OBJECT_TYPE_TABLE,
        grantee=pb.RoleId(system=1),
        grantor=PUBLIC,
    )
    assert found.value.privileges == 3


@pytest.mark.parametrize("source", [source for source in TOUCHED if source > 14])
def test_damage_is_told_by_the_kind_of_the_row(source: int) -> None:
    kind = min(TOUCHED[source])
    for value in (b"\xff", b"\xf8\x01\x01"):
        with pytest.raises(CorruptBlob, match=f"kind {kind.name.lower()}"):
            list(STEPS[source].updates(StoredRows([Row(kind.tag, value)])))


def test_steps_are_written_with_what_mentions_only_changes_and_loses_no_field() -> None:
    old = Row(Kind.ITEM.tag, b"old")
    assert list(replaced(old, Row(*old))) == []
    new = Row(Kind.ITEM.tag, b"new")
    assert list(replaced(old, new)) == [RowUpdate(old, -1), RowUpdate(new, 1)]
    with pytest.raises(TypeError, match="has not all fields of"):
        carried(pb.ItemValue(owner_id=PUBLIC), pb.RoleKey)


@each_version
@drawn
@given(data=st.data())
def test_rows_of_any_version_come_back_from_their_json(version: int, data: st.DataObject) -> None:
    for row in data.draw(catalogs(version)):
        key, value = json.loads(json.dumps(objects.decode(version, row)))
        assert objects.encode(version, row.kind, key, value) == row


@each_version
def test_an_older_catalog_is_not_taken_for_a_current_one(version: int) -> None:
    rows = tuple(rows_of(version, items=4))
    if version == CATALOG_VERSION:
        assert Cache(rows).counts()["items"] == 4
        return
    with pytest.raises(UpgradeNeeded, match=f"version {version}, and must be upgraded to {CATALOG_VERSION}"):
        Cache(rows)


@pytest.mark.parametrize(
    ("version", "error"), [(MIN_VERSION - 1, Deprecated), (CATALOG_VERSION + 1, VersionTooNew)]
)
def test_versions_out_of_reach_are_errors(version: int, error: type[Exception]) -> None:
    config = make_row(CATALOG_VERSION, Kind.CONFIG, {"key": "user_version"}, {"value": version})
    tries: list[Callable[[], object]] = [
        lambda: objects.collections_of(version),
        lambda: dump_json([config]),
        lambda: Cache([config]),
    ]
    for each in tries:
        with pytest.raises(error):
            each()


def test_the_current_version_is_what_the_registry_says() -> None:
    assert objects.collections_of(CATALOG_VERSION) is OBJECT_TYPES
    for row in rows_of(CATALOG_VERSION, items=4):
        decode(OBJECT_TYPES[row.kind], row)
