"""Declared objects: what is changed in a catalog, on the catalog's own transactions."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import IdKind, Object, Transaction, format_id
from holdfast.catalog.cache import Cache
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    CLUSTER_INTROSPECTION_SOURCE_INDEXES,
    CLUSTER_REPLICAS,
    CLUSTERS,
    COMMENTS,
    DATABASES,
    DEFAULT_PRIVILEGES,
    ITEMS,
    ROLES,
    SCHEMAS,
    SETTINGS,
    SYSTEM_CONFIGURATIONS,
    SYSTEM_PRIVILEGES,
)
from holdfast_operator.api.catalog_objects import CatalogObjects
from holdfast_operator.catalogs.object_rows import carry_out, contents
from holdfast_operator.catalogs.objects import (
    UNMANAGED,
    CreateObject,
    DeclaredType,
    KeptObject,
    ObjectContents,
    ObjectName,
    ObjectsPlan,
    declared_by,
    plan_objects,
)

EVERYTHING = {
    "databases": [{"name": "shop", "schemas": [{"name": "raw"}, {"name": "clean"}]}],
    "roles": [{"name": "analyst"}],
    "clusters": [{"name": "batch", "size": "2", "replicas": 2}],
    "systemConfigurations": {"max_clusters": "10"},
}


class World:
    """A catalog in memory that an operator and others write to."""

    def __init__(self) -> None:
        self.organization = "o1"
        self.cache = Cache()
        self.cache.apply(initial_updates(Bootstrap(), 1))
        self.events: list[pb.AuditLogValue] = []

    def write(self, change: Callable[[Transaction], Any]) -> Any:
        """One transaction of somebody."""
        tx = Transaction(self.cache, now_ms=2)
        result = change(tx)
        updates = tx.updates()
        self.cache.apply(updates)
        self.events += [
            AUDIT_LOG.value.FromString(u.row.value) for u in updates if u.row.kind is AUDIT_LOG.kind
        ]
        return result

    def look(self, objects: Mapping[str, Any] | None) -> ObjectsPlan:
        """What the operator would do."""
        declared = declared_by(None if objects is None else CatalogObjects.model_validate(objects))
        return plan_objects(declared, self.contents(declared))

    def contents(self, declared: Mapping[ObjectName, str]) -> ObjectContents:
        return contents(Transaction(self.cache), declared, organization_id=self.organization)

    def declare(self, objects: Mapping[str, Any] | None) -> ObjectsPlan:
        """Let the operator carry its plan out; the plan that is then left."""
        plan = self.look(objects)
        self.write(lambda tx: carry_out(tx, plan.changes, organization_id=self.organization, user="operator"))
        return self.look(objects)

    def names(self) -> set[str]:
        """All that can be declared, in words, with the values."""
        everything = declared_by(CatalogObjects.model_validate(EVERYTHING))
        found = self.contents(everything).objects
        return {f"{name} {about.value}".strip() for name, about in found.items() if not about.system}

    def find(self, collection: Any, like: Any) -> Object[Any, Any]:
        found = Transaction(self.cache).find(collection, like)
        assert found is not None
        return found

    def marks(self) -> dict[str, str]:
        return {
            row.key.name: row.value.value
            for row in self.cache.objects(SETTINGS)
            if row.key.name.startswith("declared/o1/")
        }


INITIAL = World().names()


def add_item(tx: Transaction, database: str = "shop", schema: str = "raw", name: str = "orders") -> None:
    parent = tx.find(DATABASES, pb.DatabaseValue(name=database))
    assert parent is not None
    there = tx.find(SCHEMAS, pb.SchemaValue(database_id=parent.key.id, name=schema))
    assert there is not None
    (number,) = tx.allocate_ids(IdKind.USER_ITEM)
    value = pb.ItemValue(schema_id=there.key.id, name=name, type=pb.ObjectType.OBJECT_TYPE_TABLE)
    tx.insert(ITEMS, pb.ItemKey(id=pb.ObjectId(user=number)), value)


def add_role(tx: Transaction, name: str) -> pb.RoleKey:
    (number,) = tx.allocate_ids(IdKind.USER_ROLE)
    key = pb.RoleKey(id=pb.RoleId(user=number))
    tx.insert(ROLES, key, pb.RoleValue(name=name))
    return key


def add_replica(tx: Transaction, cluster: str, name: str, size: str = "9") -> None:
    there = tx.find(CLUSTERS, pb.ClusterValue(name=cluster))
    assert there is not None
    (number,) = tx.allocate_ids(IdKind.USER_REPLICA)
    value = pb.ClusterReplicaValue(cluster_id=there.key.id, name=name, size=size)
    tx.insert(CLUSTER_REPLICAS, pb.ClusterReplicaKey(id=pb.ObjectId(user=number)), value)


def set_configuration(tx: Transaction, name: str, value: str) -> None:
    tx.set(
        SYSTEM_CONFIGURATIONS, pb.SystemConfigurationKey(name=name), pb.SystemConfigurationValue(value=value)
    )


def test_all_that_is_declared_is_made_with_its_events_and_then_there_is_nothing_to_do() -> None:
    world = World()
    first = world.look(EVERYTHING)
    assert all(isinstance(change, CreateObject) for change in first.changes)
    left = world.declare(EVERYTHING)
    assert (left.changes, left.kept, left.adopted, left.declared) == ((), (), (), 8)
    assert world.names() - INITIAL == {
        "database shop",
        "schema shop.raw",
        "schema shop.clean",
        "role analyst",
        "cluster batch 2 x 2",
        "cluster replica batch.r1 2",
        "cluster replica batch.r2 2",
        "system configuration max_clusters 10",
    }
    assert len(world.marks()) == 8
    events = [(event.object_name, event.user) for event in world.events]
    assert sorted(events) == sorted(
        (name, "operator")
        for name in (
            *("shop", "shop.raw", "shop.clean", "analyst", "batch", "batch.r1", "batch.r2", "max_clusters"),
        )
    )


def test_what_is_not_declared_any_more_goes_and_leaves_no_mark() -> None:
    world = World()
    world.declare(EVERYTHING)
    fewer = {**EVERYTHING, "roles": [], "databases": [{"name": "shop", "schemas": [{"name": "clean"}]}]}
    world.declare(fewer)
    assert {"role analyst", "schema shop.raw"} & world.names() == set()
    assert {"database shop", "schema shop.clean"} <= world.names()
    left = world.declare(None)
    assert left == ObjectsPlan()
    assert (world.names(), world.marks()) == (INITIAL, {})


def test_an_empty_catalog_of_declarations_is_not_looked_through() -> None:
    world = World()
    assert world.contents({}).objects == {}


def test_what_others_made_is_adopted_and_never_dropped() -> None:
    world = World()
    world.write(lambda tx: add_role(tx, "analyst"))
    world.write(lambda tx: set_configuration(tx, "max_clusters", "3"))
    default = {"name": "default", "size": "4", "replicas": 2}
    left = world.declare({**EVERYTHING, "clusters": [default]})
    assert [str(name) for name in left.adopted] == [
        *("role analyst", "cluster default", "cluster replica default.r1"),
        "system configuration max_clusters",
    ]
    assert {"cluster replica default.r1 4", "cluster replica default.r2 4"} <= world.names()
    assert "cluster default 2 x 4" in world.names()
    world.declare(None)
    # What the operator added to it goes; what it was given stays as it was last declared.
    assert "cluster replica default.r2 4" not in world.names()
    assert "cluster default 1 x 4" in world.names()
    assert {"role analyst", "cluster replica default.r1 4", "system configuration max_clusters 10"} <= (
        world.names()
    )


def test_what_others_use_is_kept_and_they_are_named_until_they_let_go() -> None:
    world = World()
    world.declare(EVERYTHING)
    for number in range(5):
        world.write(lambda tx, n=number: add_item(tx, name=f"t{n}"))
    world.write(lambda tx: add_replica(tx, "batch", "extra"))
    analyst = world.find(ROLES, pb.RoleValue(name="analyst")).key.id
    privilege = pb.SystemPrivilegeKey(grantee=analyst, grantor=analyst)
    world.write(lambda tx: tx.insert(SYSTEM_PRIVILEGES, privilege, pb.SystemPrivilegeValue(privileges=64)))
    left = world.declare(None)
    assert left.changes == ()
    assert left.kept == (
        KeptObject(ObjectName(DeclaredType.DATABASE, ("shop",)), ("schema shop.raw",)),
        KeptObject(
            ObjectName(DeclaredType.SCHEMA, ("shop", "raw")), ("item t0", "item t1", "item t2", "more")
        ),
        KeptObject(ObjectName(DeclaredType.ROLE, ("analyst",)), ("system_privileges",)),
        KeptObject(ObjectName(DeclaredType.CLUSTER, ("batch",)), ("cluster replica batch.extra",)),
    )
    world.write(lambda tx: [tx.delete(ITEMS, row.key) for row in list(tx.objects(ITEMS))])
    world.write(lambda tx: tx.delete(SYSTEM_PRIVILEGES, privilege))
    left = world.declare(None)
    assert [str(each.name) for each in left.kept] == ["cluster batch"]
    # One that has a replica more than it was told to have isn't managed.
    assert {"cluster batch", "cluster replica batch.extra 9"} <= world.names()


def test_what_means_nothing_without_an_object_goes_with_it() -> None:
    world = World()
    world.declare(EVERYTHING)
    batch = world.find(CLUSTERS, pb.ClusterValue(name="batch")).key.id
    shop = world.find(DATABASES, pb.DatabaseValue(name="shop")).key.id

    def others(tx: Transaction) -> None:
        tx.insert(COMMENTS, pb.CommentKey(cluster_id=batch), pb.CommentValue(comment="nightly"))
        tx.insert(COMMENTS, pb.CommentKey(database_id=pb.ObjectId(user=1)), pb.CommentValue(comment="x"))
        tx.insert(
            CLUSTER_INTROSPECTION_SOURCE_INDEXES,
            pb.ClusterIntrospectionSourceIndexKey(cluster_id=batch, name="i"),
            pb.ClusterIntrospectionSourceIndexValue(index_id=pb.ObjectId(system=9)),
        )
        tx.insert(
            DEFAULT_PRIVILEGES,
            pb.DefaultPrivilegeKey(database_id=shop, grantee=pb.RoleId(public=pb.Empty())),
            pb.DefaultPrivilegeValue(privileges=1),
        )

    world.write(others)
    before = len(list(world.cache.objects(DEFAULT_PRIVILEGES)))
    world.declare(None)
    assert world.names() == INITIAL
    assert [row.value.comment for row in world.cache.objects(COMMENTS)] == ["x"]
    assert list(world.cache.objects(CLUSTER_INTROSPECTION_SOURCE_INDEXES)) == []
    assert len(list(world.cache.objects(DEFAULT_PRIVILEGES))) == before - 1


def test_drift_is_mended() -> None:
    world = World()
    world.declare(EVERYTHING)
    there = world.names()
    analyst = world.find(ROLES, pb.RoleValue(name="analyst")).key

    def drift(tx: Transaction) -> None:
        tx.delete(ROLES, analyst)
        set_configuration(tx, "max_clusters", "99")
        batch = tx.find(CLUSTERS, pb.ClusterValue(name="batch"))
        assert batch is not None
        replica = tx.find(CLUSTER_REPLICAS, pb.ClusterReplicaValue(cluster_id=batch.key.id, name="r1"))
        assert replica is not None
        replica.value.size = "64"
        tx.update(CLUSTER_REPLICAS, replica.key, replica.value)

    world.write(drift)
    assert world.declare(EVERYTHING).changes == ()
    assert world.names() == there
    # What was mended is still the operator's.
    world.declare(None)
    assert (world.names(), world.marks()) == (INITIAL, {})


def test_what_others_changed_since_is_theirs() -> None:
    world = World()
    world.declare(EVERYTHING)
    analyst = world.find(ROLES, pb.RoleValue(name="analyst")).key
    world.write(lambda tx: tx.update(ROLES, analyst, pb.RoleValue(name="boss")))
    world.write(lambda tx: set_configuration(tx, "max_clusters", "99"))
    world.declare(None)
    assert world.names() - INITIAL == {"role boss", "system configuration max_clusters 99"}
    assert world.marks() == {}


def test_what_is_in_something_that_others_renamed_is_theirs_too() -> None:
    world = World()
    world.declare(EVERYTHING)
    for collection, value in (
        (DATABASES, pb.DatabaseValue(name="shop")),
        (CLUSTERS, pb.ClusterValue(name="batch")),
    ):
        row = world.find(collection, value)
        row.value.name = "theirs"
        world.write(lambda tx, c=collection, r=row: tx.update(c, r.key, r.value))
    before = foreign(world)
    world.declare(EVERYTHING)
    world.declare(None)
    assert world.names() - INITIAL == {
        *("database theirs", "schema theirs.raw", "schema theirs.clean", "cluster theirs 2 x 2"),
        *("cluster replica theirs.r1 2", "cluster replica theirs.r2 2"),
    }
    assert before <= foreign(world)
    assert world.marks() == {}


def test_what_is_theirs_stays_theirs_when_it_is_declared_under_its_new_name() -> None:
    world = World()
    world.declare({"clusters": [{"name": "batch", "size": "2"}]})
    batch = world.find(CLUSTERS, pb.ClusterValue(name="batch"))
    batch.value.name = "theirs"
    world.write(lambda tx: tx.update(CLUSTERS, batch.key, batch.value))
    world.declare({"clusters": [{"name": "theirs", "size": "3"}]})
    world.declare(None)
    assert world.names() - INITIAL == {"cluster theirs 1 x 3", "cluster replica theirs.r1 3"}


def test_what_was_copied_from_another_organization_is_as_if_others_had_made_it() -> None:
    world = World()
    world.declare(EVERYTHING)
    there = world.names()
    # The other one's marks come with the copy.
    world.organization = "o2"
    assert world.declare(None) == ObjectsPlan()
    assert len(world.declare(EVERYTHING).adopted) == 8
    world.declare(None)
    assert world.names() == there


def test_one_made_anew_by_others_is_theirs() -> None:
    world = World()
    world.declare(EVERYTHING)
    analyst = world.find(ROLES, pb.RoleValue(name="analyst")).key
    world.write(lambda tx: tx.delete(ROLES, analyst))
    world.write(lambda tx: add_role(tx, "analyst"))
    left = world.declare(EVERYTHING)
    assert [str(name) for name in left.adopted] == ["role analyst"]
    world.declare(None)
    assert "role analyst" in world.names()


def test_a_cluster_is_managed_while_it_has_exactly_its_replicas() -> None:
    world = World()
    batch = {"name": "batch", "size": "2", "replicas": 1}
    world.declare({"clusters": [batch]})
    world.write(lambda tx: add_replica(tx, "batch", "r2"))
    world.declare({"clusters": [batch]})
    assert "cluster batch" in world.names()
    world.declare({"clusters": [{**batch, "replicas": 2}]})
    assert {"cluster batch 2 x 2", "cluster replica batch.r2 2"} <= world.names()
    world.declare({"clusters": [{**batch, "replicas": 0}]})
    assert {"cluster batch", "cluster replica batch.r2 2"} <= world.names()
    world.write(lambda tx: tx.delete(CLUSTER_REPLICAS, next(_replicas(tx, "r2"))))
    world.declare({"clusters": [{**batch, "replicas": 0}]})
    assert "cluster batch 0 x 2" in world.names()


def _replicas(tx: Transaction, name: str) -> Iterator[pb.ClusterReplicaKey]:
    return (row.key for row in tx.objects(CLUSTER_REPLICAS) if row.value.name == name)


def test_new_objects_belong_to_the_system_and_everybody_may_use_them() -> None:
    world = World()
    world.declare(EVERYTHING)
    shop = world.find(DATABASES, pb.DatabaseValue(name="shop")).value
    first = world.find(DATABASES, pb.DatabaseValue(name="holdfast")).value
    assert (shop.owner_id, shop.privileges) == (first.owner_id, first.privileges)
    assert world.find(ROLES, pb.RoleValue(name="analyst")).value.attributes.login
    batch = world.find(CLUSTERS, pb.ClusterValue(name="batch")).value
    default = world.find(CLUSTERS, pb.ClusterValue(name="default")).value
    assert (batch.owner_id, batch.privileges) == (default.owner_id, default.privileges)


def test_a_role_that_owns_something_is_kept() -> None:
    world = World()
    world.declare(EVERYTHING)
    analyst = world.find(ROLES, pb.RoleValue(name="analyst")).key.id
    holdfast = world.find(DATABASES, pb.DatabaseValue(name="holdfast"))
    holdfast.value.owner_id.CopyFrom(analyst)
    world.write(lambda tx: tx.update(DATABASES, holdfast.key, holdfast.value))
    (kept,) = world.declare(None).kept
    assert (str(kept.name), kept.users) == ("role analyst", ("databases holdfast",))


def test_what_is_the_system_s_is_not_touched() -> None:
    world = World()

    def add_system_cluster(tx: Transaction) -> None:
        key = pb.ClusterKey(id=pb.ObjectId(system=tx.allocate_ids(IdKind.SYSTEM_CLUSTER)[0]))
        tx.insert(CLUSTERS, key, pb.ClusterValue(name="probe"))

    world.write(add_system_cluster)
    left = world.declare({"clusters": [{"name": "probe"}], "roles": [{"name": "a"}]})
    assert [str(name) for name in left.taken] == ["cluster probe", "cluster replica probe.r1"]
    assert left.changes == ()
    assert world.names() - INITIAL == {"role a"}


NAMES = st.sampled_from(["a", "b", "c", "default", "holdfast", "public"])
UNIQUE: Any = {"max_size": 3, "unique": True}
OBJECTS = st.fixed_dictionaries(
    {
        "databases": st.dictionaries(NAMES, st.lists(NAMES, **UNIQUE), max_size=3).map(
            lambda found: [{"name": k, "schemas": [{"name": s} for s in v]} for k, v in found.items()]
        ),
        "roles": st.lists(NAMES, **UNIQUE).map(lambda found: [{"name": name} for name in found]),
        "clusters": st.dictionaries(
            NAMES, st.tuples(st.sampled_from("12"), st.integers(0, 2)), max_size=3
        ).map(lambda found: [{"name": k, "size": v[0], "replicas": v[1]} for k, v in found.items()]),
        "systemConfigurations": st.dictionaries(NAMES, st.sampled_from("xy"), max_size=3),
    }
)
OTHERS = st.one_of(
    st.tuples(st.just("role"), NAMES),
    st.tuples(st.just("item"), NAMES),
    st.tuples(st.just("replica"), NAMES),
    st.tuples(st.just("configuration"), NAMES),
    st.tuples(st.just("drop role"), NAMES),
    st.tuples(st.just("drop items"), NAMES),
)


def act(tx: Transaction, what: str, name: str) -> None:
    """What others do, as far as it is possible."""
    match what:
        case "role":
            if tx.find(ROLES, pb.RoleValue(name=name)) is None:
                add_role(tx, name)
        case "item":
            for schema in list(tx.objects(SCHEMAS)):
                like = pb.ItemValue(schema_id=schema.key.id, name=name)
                if schema.value.name == name and tx.find(ITEMS, like) is None:
                    key = pb.ItemKey(id=pb.ObjectId(user=tx.allocate_ids(IdKind.USER_ITEM)[0]))
                    tx.insert(ITEMS, key, like)
        case "replica":
            there = tx.find(CLUSTERS, pb.ClusterValue(name=name))
            if there is not None:
                like_replica = pb.ClusterReplicaValue(cluster_id=there.key.id, name="r2")
                if tx.find(CLUSTER_REPLICAS, like_replica) is None:
                    add_replica(tx, name, "r2")
        case "configuration":
            set_configuration(tx, name, "z")
        case "drop role":
            role = tx.find(ROLES, pb.RoleValue(name=name))
            if role is not None:
                tx.delete(ROLES, role.key)
        case "drop items":
            for item in list(tx.objects(ITEMS)):
                if item.value.name == name:
                    tx.delete(ITEMS, item.key)
        case _:
            raise AssertionError(what)


def foreign(world: World) -> set[str]:
    """The ids of what the operator has no mark of."""
    marked = {name.removeprefix("declared/o1/") for name in world.marks()}
    found = {
        f"{kind}/{format_id(row.key.id)}"
        for kind, collection in (
            ("database", DATABASES),
            ("schema", SCHEMAS),
            ("role", ROLES),
            ("cluster", CLUSTERS),
            ("replica", CLUSTER_REPLICAS),
            ("item", ITEMS),
        )
        for row in world.cache.objects(collection)  # type: ignore[var-annotated]
    }
    found |= {f"configuration/{row.key.name}" for row in world.cache.objects(SYSTEM_CONFIGURATIONS)}
    return found - marked


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.lists(OTHERS, max_size=3), st.none() | OBJECTS), min_size=1, max_size=5))
def test_whatever_was_declared_and_done_by_others_one_step_is_enough_and_nobody_loses_anything(
    rounds: list[tuple[list[tuple[str, str]], dict[str, Any] | None]],
) -> None:
    world = World()
    for actions, objects in rounds:
        for what, name in actions:
            world.write(lambda tx, w=what, n=name: act(tx, w, n))
        before = foreign(world)
        left = world.declare(objects)
        assert left.changes == ()
        assert before <= foreign(world)
        declared = declared_by(None if objects is None else CatalogObjects.model_validate(objects))
        there = world.contents(declared).objects
        assert set(declared) <= set(there)
        assert all(
            there[name].value in {value, UNMANAGED if name.type is DeclaredType.CLUSTER else value}
            for name, value in declared.items()
        )
        # What has a mark is declared, or is kept for a reason.
        marked = {name for name, about in there.items() if about.mark is not None}
        assert marked <= {*declared, *(each.name for each in left.kept)}
        assert all(each.users for each in left.kept)


@pytest.mark.parametrize("type_", list(DeclaredType))
def test_every_type_has_a_parent_or_none(type_: DeclaredType) -> None:
    name = ObjectName(type_, ("a", "b"))
    assert (name.parent is None) == (type_ not in {DeclaredType.SCHEMA, DeclaredType.REPLICA})
    assert name.parent is None or name.parent.rank < name.rank
