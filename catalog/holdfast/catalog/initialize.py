"""The contents of a new catalog: built at the current version, and committed in one append with the fence
token.

The catalog is not tied to one database product, so it starts with little: one database with one schema, the
system's schemas, its role and cluster, and a default cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import config
from holdfast.catalog.cache import Cache
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.ids import IdKind, format_id
from holdfast.catalog.objects.registry import (
    CLUSTER_REPLICAS,
    CLUSTERS,
    CONFIGS,
    DATABASES,
    DEFAULT_PRIVILEGES,
    ID_ALLOCATORS,
    ROLES,
    SCHEMAS,
    SETTINGS,
    SYSTEM_CONFIGURATIONS,
    SYSTEM_PRIVILEGES,
    TIMESTAMPS,
)
from holdfast.catalog.privileges import (
    OF_SYSTEM,
    PUBLIC,
    SYSTEM_NAME,
    SYSTEM_ROLE,
    Privilege,
    privileges_of_new,
)
from holdfast.catalog.transaction import Transaction
from holdfast.catalog.version import CATALOG_VERSION

DEFAULT_DATABASE = "holdfast"
DEFAULT_SCHEMA = "public"
SYSTEM_SCHEMAS = ("holdfast_catalog", "holdfast_internal", "information_schema")
CONTENT_VERSION = "catalog_content_version"
TIMELINE = "epoch_milliseconds"


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """What the first open of a catalog adds to the system's own objects. Later opens ignore it.

    `replica_sizes` gives the default cluster one replica each, named r1, r2, ... If all have the same size,
    the cluster is managed. The first of `roles` owns the default database, its schema and the default
    cluster; without roles, the system's role does. Everybody may use them.
    """

    default_cluster: str = "default"
    replica_sizes: Sequence[str] = ("1",)
    roles: Sequence[str] = ()
    system_configurations: Mapping[str, str] = field(default_factory=dict)


def initial_updates(bootstrap: Bootstrap, now_ms: int) -> tuple[RowUpdate, ...]:
    """The first rows of a catalog. They are committed together with its first fence token.

    Raises `UniquenessViolation` if the bootstrap uses a name twice, or a name of the system.
    """
    version = encode(CONFIGS, pb.ConfigKey(key=config.USER_VERSION), pb.ConfigValue(value=CATALOG_VERSION))
    tx = Transaction(Cache(), now_ms=now_ms)
    tx.insert(SETTINGS, pb.SettingKey(name=CONTENT_VERSION), pb.SettingValue(value="1"))
    for kind in IdKind:
        tx.insert(ID_ALLOCATORS, pb.IdAllocatorKey(name=kind), pb.IdAllocatorValue(next_id=1))
    tx.insert(TIMESTAMPS, pb.TimestampKey(timeline=TIMELINE), pb.TimestampValue(ts=now_ms))
    _add_system_objects(tx)
    _add_user_objects(tx, bootstrap)
    return (RowUpdate(version, 1), *tx.updates())


def _add_system_objects(tx: Transaction) -> None:
    role = pb.RoleId(system=_next(tx, IdKind.SYSTEM_ROLE))
    attributes = pb.RoleAttributes(
        inherit=True, create_role=True, create_database=True, create_cluster=True, superuser=True, login=True
    )
    tx.insert(ROLES, pb.RoleKey(id=role), pb.RoleValue(name=SYSTEM_NAME, attributes=attributes))
    tx.insert(
        SYSTEM_PRIVILEGES,
        pb.SystemPrivilegeKey(grantee=role, grantor=role),
        pb.SystemPrivilegeValue(privileges=OF_SYSTEM),
    )
    tx.insert(
        DEFAULT_PRIVILEGES,
        pb.DefaultPrivilegeKey(object_type=pb.ObjectType.OBJECT_TYPE_TYPE, grantee=PUBLIC, grantor=PUBLIC),
        pb.DefaultPrivilegeValue(privileges=Privilege.USAGE),
    )
    for name in SYSTEM_SCHEMAS:
        schema = pb.ObjectId(system=_next(tx, IdKind.SYSTEM_SCHEMA))
        privileges = _privileges(tx, pb.ObjectType.OBJECT_TYPE_SCHEMA, role)
        tx.insert(
            SCHEMAS, pb.SchemaKey(id=schema), pb.SchemaValue(name=name, owner_id=role, privileges=privileges)
        )
    cluster = pb.ObjectId(system=_next(tx, IdKind.SYSTEM_CLUSTER))
    value = pb.ClusterValue(
        name=SYSTEM_NAME,
        unmanaged=pb.Empty(),
        owner_id=role,
        privileges=_privileges(tx, pb.ObjectType.OBJECT_TYPE_CLUSTER, role),
    )
    tx.insert(CLUSTERS, pb.ClusterKey(id=cluster), value)


def _add_user_objects(tx: Transaction, bootstrap: Bootstrap) -> None:
    owner = _add_roles(tx, bootstrap.roles)
    database = pb.ObjectId(user=_next(tx, IdKind.USER_DATABASE))
    tx.insert(
        DATABASES,
        pb.DatabaseKey(id=database),
        pb.DatabaseValue(
            name=DEFAULT_DATABASE,
            owner_id=owner,
            privileges=_privileges(tx, pb.ObjectType.OBJECT_TYPE_DATABASE, owner),
        ),
    )
    _audit_create(tx, pb.ObjectType.OBJECT_TYPE_DATABASE, database, DEFAULT_DATABASE)
    schema = pb.ObjectId(user=_next(tx, IdKind.USER_SCHEMA))
    tx.insert(
        SCHEMAS,
        pb.SchemaKey(id=schema),
        pb.SchemaValue(
            database_id=database,
            name=DEFAULT_SCHEMA,
            owner_id=owner,
            privileges=_privileges(tx, pb.ObjectType.OBJECT_TYPE_SCHEMA, owner),
        ),
    )
    _audit_create(tx, pb.ObjectType.OBJECT_TYPE_SCHEMA, schema, f"{DEFAULT_DATABASE}.{DEFAULT_SCHEMA}")
    _add_default_cluster(tx, bootstrap, owner)
    for name, setting in bootstrap.system_configurations.items():
        tx.insert(
            SYSTEM_CONFIGURATIONS,
            pb.SystemConfigurationKey(name=name),
            pb.SystemConfigurationValue(value=setting),
        )


def _add_roles(tx: Transaction, names: Sequence[str]) -> pb.RoleId:
    """Create the roles. Returns the first one, or the system's role if there are none."""
    made = []
    for name in names:
        role = pb.RoleId(user=_next(tx, IdKind.USER_ROLE))
        attributes = pb.RoleAttributes(inherit=True, login=True)
        tx.insert(ROLES, pb.RoleKey(id=role), pb.RoleValue(name=name, attributes=attributes))
        _audit_create(tx, pb.ObjectType.OBJECT_TYPE_ROLE, role, name)
        made.append(role)
    return made[0] if made else SYSTEM_ROLE


def _add_default_cluster(tx: Transaction, bootstrap: Bootstrap, owner: pb.RoleId) -> None:
    cluster = pb.ObjectId(user=_next(tx, IdKind.USER_CLUSTER))
    value = pb.ClusterValue(
        name=bootstrap.default_cluster,
        owner_id=owner,
        privileges=_privileges(tx, pb.ObjectType.OBJECT_TYPE_CLUSTER, owner),
    )
    if len(set(bootstrap.replica_sizes)) == 1:
        value.managed.size = bootstrap.replica_sizes[0]
        value.managed.replication_factor = len(bootstrap.replica_sizes)
    else:
        value.unmanaged.SetInParent()
    tx.insert(CLUSTERS, pb.ClusterKey(id=cluster), value)
    _audit_create(tx, pb.ObjectType.OBJECT_TYPE_CLUSTER, cluster, bootstrap.default_cluster)
    for number, size in enumerate(bootstrap.replica_sizes, start=1):
        key = pb.ClusterReplicaKey(id=pb.ObjectId(user=_next(tx, IdKind.USER_REPLICA)))
        replica = pb.ClusterReplicaValue(cluster_id=cluster, name=f"r{number}", size=size)
        tx.insert(CLUSTER_REPLICAS, key, replica)
        name = f"{bootstrap.default_cluster}.{replica.name}"
        _audit_create(tx, pb.ObjectType.OBJECT_TYPE_CLUSTER_REPLICA, key.id, name)


def _privileges(tx: Transaction, object_type: pb.ObjectType, owner: pb.RoleId) -> list[pb.AclItem]:
    return privileges_of_new(tx, object_type, owner, public=Privilege.USAGE)


def _next(tx: Transaction, kind: IdKind) -> int:
    return tx.allocate_ids(kind)[0]


def _audit_create(
    tx: Transaction, object_type: pb.ObjectType, id_: pb.ObjectId | pb.RoleId, name: str
) -> None:
    tx.audit(pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE, object_type, format_id(id_), name)
