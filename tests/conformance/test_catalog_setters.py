"""Targeted setters on every kind of catalog: each makes its change in one commit, or changes nothing."""

from collections.abc import Callable

import pytest

from conformance.catalogs import EMBEDDED, PROTOCOL, Catalogs, writable
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, IdKind, Object
from holdfast.catalog.objects.registry import (
    CLUSTER_REPLICAS,
    COMMENTS,
    SETTINGS,
    SYSTEM_CONFIGURATIONS,
    SYSTEM_OBJECT_MAPPINGS,
    TIMESTAMPS,
)
from holdfast.errors import BadInput, TransactionInProgress, UniquenessViolation

U1 = pb.ObjectId(user=1)
TABLE = pb.ObjectType.OBJECT_TYPE_TABLE


def one_commit(catalog: Catalog, change: Callable[[], object]) -> object:
    before = catalog.upper
    found = change()
    assert catalog.upper == before + 1
    return found


def refused(catalog: Catalog, change: Callable[[], object], said: str) -> None:
    before = catalog.upper, catalog.dump()
    with pytest.raises(BadInput, match=said):
        change()
    assert (catalog.upper, catalog.dump()) == before


def replica(
    number: int, name: str, size: str = "1", cluster: int = 1
) -> Object[pb.ClusterReplicaKey, pb.ClusterReplicaValue]:
    value = pb.ClusterReplicaValue(cluster_id=pb.ObjectId(user=cluster), name=name, size=size)
    return Object(pb.ClusterReplicaKey(id=pb.ObjectId(user=number)), value)


def replicas(catalog: Catalog) -> dict[int, tuple[str, str]]:
    return {r.key.id.user: (r.value.name, r.value.size) for r in catalog.objects(CLUSTER_REPLICAS)}


def mapping(
    name: str, number: int, fingerprint: str
) -> Object[pb.SystemObjectMappingKey, pb.SystemObjectMappingValue]:
    key = pb.SystemObjectMappingKey(schema_name="holdfast_catalog", object_type=TABLE, object_name=name)
    return Object(key, pb.SystemObjectMappingValue(id=pb.ObjectId(system=number), fingerprint=fingerprint))


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_each_setter_is_one_commit_that_the_next_process_finds(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    one_commit(
        catalog, lambda: catalog.set_system_object_mappings([mapping("t", 1, "a"), mapping("u", 2, "b")])
    )
    one_commit(catalog, lambda: catalog.set_system_object_mappings([mapping("t", 3, "c")]))
    one_commit(catalog, lambda: catalog.set_timestamps({"epoch_milliseconds": 1 << 62, "mine": 5}))
    index_key = pb.ClusterIntrospectionSourceIndexKey(cluster_id=U1, name="i")
    index = pb.ClusterIntrospectionSourceIndexValue(index_id=pb.ObjectId(system=9))
    one_commit(catalog, lambda: catalog.set_introspection_source_indexes([Object(index_key, index)]))
    one_commit(catalog, lambda: catalog.set_cluster_replicas([replica(1, "r1", "2"), replica(5, "r5")]))
    one_commit(catalog, lambda: catalog.replace_cluster_replicas(U1, [replica(5, "r1"), replica(6, "r2")]))
    one_commit(catalog, lambda: catalog.set_config("mine", 7))
    one_commit(catalog, lambda: catalog.set_setting("name", "x"))
    one_commit(catalog, lambda: catalog.upsert_system_configuration("max_tables", "9"))
    comment = pb.CommentKey(cluster_id=U1)
    one_commit(catalog, lambda: catalog.set_comment(comment, "first"))
    one_commit(catalog, lambda: catalog.set_comment(pb.CommentKey(item_id=U1, column=2), "column"))
    events = [pb.StorageUsageValue(size_bytes=size, collected_at_ms=1) for size in (10, 20)]
    assert one_commit(catalog, lambda: catalog.append_storage_usage(events)) == [1, 2]
    created = pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE
    event_id = one_commit(catalog, lambda: catalog.append_audit_event(created, TABLE, "u1", "t", user="me"))
    assert one_commit(catalog, lambda: catalog.allocate_ids(IdKind.SYSTEM_ITEM, 3)) == [1, 2, 3]

    after = writable(catalogs.openable())
    mapped = {
        m.key.object_name: (m.value.id.system, m.value.fingerprint)
        for m in after.objects(SYSTEM_OBJECT_MAPPINGS)
    }
    assert mapped == {"t": (3, "c"), "u": (2, "b")}
    assert {t.key.timeline: t.value.ts for t in after.objects(TIMESTAMPS)} == {
        "epoch_milliseconds": 1 << 62,
        "mine": 5,
    }
    assert list(after.get_cluster_introspection_source_indexes()) == [Object(index_key, index)]
    assert replicas(after) == {5: ("r1", "1"), 6: ("r2", "1")}
    assert catalogs.openable().config("mine") == 7
    assert pb.SettingKey(name="name") in [found.key for found in after.objects(SETTINGS)]
    assert [found.value.value for found in after.objects(SYSTEM_CONFIGURATIONS)] == ["9"]
    assert sorted(found.value.comment for found in after.objects(COMMENTS)) == ["column", "first"]
    assert sorted((e.key.id, e.value.size_bytes) for e in after.get_storage_usage()) == [(1, 10), (2, 20)]
    assert [e.value.user for e in after.get_audit_log() if e.key.id == event_id] == ["me"]
    assert after.allocate_ids(IdKind.SYSTEM_ITEM) == [4]


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_what_is_removed_is_gone_and_removing_nothing_commits_nothing(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    for name in ("a", "b", "c"):
        catalog.upsert_system_configuration(name, "1")
    assert one_commit(catalog, lambda: catalog.remove_system_configuration("a")) is True
    assert one_commit(catalog, catalog.clear_system_configurations) == 2
    catalog.set_setting("s", "1")
    one_commit(catalog, lambda: catalog.set_setting("s", None))
    comment = pb.CommentKey(cluster_id=U1)
    catalog.set_comment(comment, "c")
    one_commit(catalog, lambda: catalog.set_comment(comment, None))
    before = catalog.upper
    assert catalog.remove_system_configuration("a") is False
    assert catalog.clear_system_configurations() == 0
    catalog.set_setting("s", None)
    catalog.set_comment(comment, None)
    catalog.set_timestamps({})
    catalog.replace_cluster_replicas(U1, [replica(1, "r1")])
    assert catalog.allocate_ids(IdKind.USER_ITEM, 0) == []
    assert catalog.append_storage_usage([]) == []
    assert catalog.upper == before
    assert (list(catalog.objects(COMMENTS)), list(catalog.objects(SYSTEM_CONFIGURATIONS))) == ([], [])


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_what_has_no_meaning_changes_nothing(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    catalog.set_timestamps({"mine": 5})
    refused(
        catalog,
        lambda: catalog.set_timestamps({"other": 1, "mine": 4}),
        "'mine' is at 5 and can't go back",
    )
    refused(catalog, lambda: catalog.set_timestamps({"mine": 1 << 64}), "2\\^64")
    refused(catalog, lambda: catalog.set_config("mine", -1), "config mine is -1")
    refused(catalog, lambda: catalog.set_config("user_version", 99), "can't change config user_version")
    refused(catalog, lambda: catalog.set_config("migration/7", 1), "can't change config migration/7")
    refused(catalog, lambda: catalog.set_comment(pb.CommentKey(), "x"), "names no object")
    refused(catalog, lambda: catalog.replace_cluster_replicas(pb.ObjectId(user=9), []), "no cluster u9")
    other = [replica(2, "r2", cluster=7)]
    refused(catalog, lambda: catalog.replace_cluster_replicas(U1, other), "replica u2 belongs to another")
    catalog.set_cluster_replicas(other)
    refused(catalog, lambda: catalog.replace_cluster_replicas(U1, [replica(2, "r2")]), "replica u2 belongs")
    before = catalog.dump()
    with pytest.raises(UniquenessViolation):
        catalog.set_cluster_replicas([replica(8, "r2", cluster=7)])
    with pytest.raises(UniquenessViolation):
        catalog.set_system_object_mappings([mapping("t", 1, "a"), mapping("u", 1, "a")])
    with catalog.transaction(), pytest.raises(TransactionInProgress):
        catalog.set_config("mine", 1)
    assert catalog.dump() == before
