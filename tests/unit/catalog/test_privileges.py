"""The owners of new objects, and the rights on them."""

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.cache import Cache
from holdfast.catalog.initialize import Bootstrap, initial_updates
from holdfast.catalog.items import ensure_item
from holdfast.catalog.objects.registry import CLUSTERS, DATABASES, DEFAULT_PRIVILEGES, ITEMS, ROLES, SCHEMAS
from holdfast.catalog.privileges import (
    PUBLIC,
    SYSTEM_NAME,
    SYSTEM_ROLE,
    Privilege,
    all_privileges,
    privileges_of_new,
    role_named,
)
from holdfast.catalog.transaction import Transaction

TABLE = pb.ObjectType.OBJECT_TYPE_TABLE
ALICE, BOB = pb.RoleId(user=1), pb.RoleId(user=2)
READ = Privilege.SELECT
ALL = 15


def opened(bootstrap: Bootstrap) -> Cache:
    return Cache(update.row for update in initial_updates(bootstrap, 1000))


@pytest.fixture
def tx() -> Transaction:
    return Transaction(opened(Bootstrap(roles=("alice", "bob"))))


def default(
    tx: Transaction,
    grantee: pb.RoleId,
    grantor: pb.RoleId,
    privileges: int,
    *,
    database: int | None = None,
    schema: int | None = None,
    object_type: pb.ObjectType = TABLE,
) -> None:
    key = pb.DefaultPrivilegeKey(
        database_id=None if database is None else pb.ObjectId(user=database),
        schema_id=None if schema is None else pb.ObjectId(user=schema),
        object_type=object_type,
        grantee=grantee,
        grantor=grantor,
    )
    tx.insert(DEFAULT_PRIVILEGES, key, pb.DefaultPrivilegeValue(privileges=privileges))


def of_new(tx: Transaction, owner: pb.RoleId = ALICE, public: int = 0) -> list[tuple[pb.RoleId, int]]:
    found = privileges_of_new(
        tx, TABLE, owner, database=pb.ObjectId(user=1), schema=pb.ObjectId(user=1), public=public
    )
    assert all(each.grantor == owner for each in found)
    return [(each.grantee, each.privileges) for each in found]


def test_the_owner_may_do_everything_and_others_nothing(tx: Transaction) -> None:
    assert of_new(tx) == [(ALICE, ALL)]
    assert of_new(tx, public=READ | Privilege.USAGE) == [(ALICE, ALL), (PUBLIC, READ)]


def test_default_privileges_are_for_the_objects_of_their_grantor_or_of_everybody(tx: Transaction) -> None:
    default(tx, BOB, ALICE, Privilege.SELECT)
    default(tx, BOB, PUBLIC, Privilege.INSERT | Privilege.CREATE_ROLE)
    default(tx, SYSTEM_ROLE, BOB, Privilege.DELETE)
    assert of_new(tx) == [(ALICE, ALL), (BOB, 3)]
    assert of_new(tx, BOB) == [(SYSTEM_ROLE, 8), (BOB, ALL)]


def test_default_privileges_are_for_a_type_and_a_place(tx: Transaction) -> None:
    default(tx, BOB, PUBLIC, 1, database=1)
    default(tx, BOB, PUBLIC, 2, database=1, schema=1)
    default(tx, BOB, PUBLIC, 4, database=2)
    default(tx, BOB, PUBLIC, 8, database=1, schema=2)
    default(tx, BOB, PUBLIC, 8, object_type=pb.ObjectType.OBJECT_TYPE_VIEW)
    assert of_new(tx) == [(ALICE, ALL), (BOB, 3)]


def test_only_what_a_type_can_have_is_granted() -> None:
    assert all_privileges(pb.ObjectType.OBJECT_TYPE_SYSTEM) == 448
    assert all_privileges(pb.ObjectType.OBJECT_TYPE_INDEX) == 0
    cache = opened(Bootstrap())
    assert (
        privileges_of_new(Transaction(cache), pb.ObjectType.OBJECT_TYPE_INDEX, SYSTEM_ROLE, public=511) == []
    )


def test_an_item_belongs_to_who_made_it_and_stays_so() -> None:
    cache = opened(Bootstrap(roles=("alice", "bob")))
    tx = Transaction(cache)
    default(tx, PUBLIC, BOB, READ, object_type=pb.ObjectType.OBJECT_TYPE_COLLECTION)
    for user in ("bob", "nobody", ""):
        ensure_item(tx, "holdfast", "public", f"of {user}", user=user)
    ensure_item(tx, "holdfast", "public", "of bob", user="alice", definition="new")
    cache.apply(tx.updates())
    found = {item.value.name: item.value for item in cache.objects(ITEMS)}
    assert {name: value.owner_id for name, value in found.items()} == {
        "of bob": BOB,
        "of nobody": SYSTEM_ROLE,
        "of ": SYSTEM_ROLE,
    }
    assert found["of bob"].definition == "new"
    assert [(each.grantee, each.privileges) for each in found["of bob"].privileges] == [
        (BOB, ALL),
        (PUBLIC, 1),
    ]
    assert [each.grantee for each in found["of "].privileges] == [SYSTEM_ROLE]


def test_the_system_role_is_the_one_of_that_name() -> None:
    tx = Transaction(opened(Bootstrap(roles=("alice",))))
    assert role_named(tx, SYSTEM_NAME) == SYSTEM_ROLE
    assert role_named(tx, "alice") == ALICE


@pytest.mark.parametrize(("roles", "owner"), [(("alice", "bob"), ALICE), ((), SYSTEM_ROLE)])
def test_what_a_new_catalog_has_belongs_to_its_first_role(roles: tuple[str, ...], owner: pb.RoleId) -> None:
    cache = opened(Bootstrap(roles=roles))
    for collection in (DATABASES, SCHEMAS, CLUSTERS):
        for found in cache.objects(collection):
            expected = SYSTEM_ROLE if found.key.id.HasField("system") else owner
            assert found.value.owner_id == expected
            assert list(found.value.privileges) == [
                pb.AclItem(grantee=expected, grantor=expected, privileges=48),
                pb.AclItem(grantee=PUBLIC, grantor=expected, privileges=16),
            ]
    attributes = {found.value.name: found.value.attributes for found in cache.objects(ROLES)}
    assert attributes[SYSTEM_NAME].superuser
    assert all(not value.superuser and value.login for name, value in attributes.items() if name in roles)


@pytest.mark.parametrize(
    ("sizes", "managed"),
    [(("2", "2"), pb.ManagedCluster(size="2", replication_factor=2)), (("1", "2"), None), ((), None)],
)
def test_the_default_cluster_is_managed_where_it_can_be(
    sizes: tuple[str, ...], managed: pb.ManagedCluster | None
) -> None:
    clusters = {
        found.value.name: found.value for found in opened(Bootstrap(replica_sizes=sizes)).objects(CLUSTERS)
    }
    assert clusters["default"].WhichOneof("variant") == ("unmanaged" if managed is None else "managed")
    assert managed is None or clusters["default"].managed == managed
    assert clusters[SYSTEM_NAME].HasField("unmanaged")
