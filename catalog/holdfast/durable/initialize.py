"""What a new catalog holds: built at the current version, committed in one append with the fence token.

The catalog is open to one database product, so it starts with little: one database with one schema, the
system's schemas, its role and cluster, and a default cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import config
from holdfast.durable.cache import Cache
from holdfast.durable.codec import Update, encode
from holdfast.durable.ids import IdKind, format_id
from holdfast.durable.registry import (
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
from holdfast.durable.transaction import Transaction
from holdfast.durable.version import CATALOG_VERSION

DEFAULT_DATABASE = "holdfast"
DEFAULT_SCHEMA = "public"
SYSTEM_NAME = "holdfast_system"
SYSTEM_SCHEMAS = ("holdfast_catalog", "holdfast_internal", "information_schema")
CONTENT_VERSION = "catalog_content_version"
TIMELINE = "epoch_milliseconds"

USAGE = 16
ALL_SYSTEM_PRIVILEGES = 64 | 128 | 256


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """What the first open of a catalog puts into it beyond the system's own; later opens ignore it.

    `replica_sizes` gives the default cluster one replica each, named r1, r2, ...
    """

    default_cluster: str = "default"
    replica_sizes: Sequence[str] = ("1",)
    roles: Sequence[str] = ()
    system_configurations: Mapping[str, str] = field(default_factory=dict)


def initial_updates(bootstrap: Bootstrap, now_ms: int) -> tuple[Update, ...]:
    """The first rows of a catalog, which its first fence token is committed with.

    Raises `UniquenessViolation` when the bootstrap names something twice or as the system does.
    """
    version = encode(CONFIGS, pb.ConfigKey(key=config.USER_VERSION), pb.ConfigValue(value=CATALOG_VERSION))
    tx = Transaction(Cache(), now_ms=now_ms)
    tx.insert(SETTINGS, pb.SettingKey(name=CONTENT_VERSION), pb.SettingValue(value="1"))
    for kind in IdKind:
        tx.insert(ID_ALLOCATORS, pb.IdAllocatorKey(name=kind), pb.IdAllocatorValue(next_id=1))
    tx.insert(TIMESTAMPS, pb.TimestampKey(timeline=TIMELINE), pb.TimestampValue(ts=now_ms))
    _add_system_objects(tx)
    _add_user_objects(tx, bootstrap)
    return (Update(version, 1), *tx.updates())


def _add_system_objects(tx: Transaction) -> None:
    role = pb.RoleId(system=_next(tx, IdKind.SYSTEM_ROLE))
    tx.insert(ROLES, pb.RoleKey(id=role), pb.RoleValue(name=SYSTEM_NAME))
    tx.insert(
        SYSTEM_PRIVILEGES,
        pb.SystemPrivilegeKey(grantee=role, grantor=role),
        pb.SystemPrivilegeValue(privileges=ALL_SYSTEM_PRIVILEGES),
    )
    tx.insert(
        DEFAULT_PRIVILEGES,
        pb.DefaultPrivilegeKey(
            object_type=pb.ObjectType.OBJECT_TYPE_TYPE, grantee=pb.RoleId(public=pb.Empty())
        ),
        pb.DefaultPrivilegeValue(privileges=USAGE),
    )
    for name in SYSTEM_SCHEMAS:
        schema = pb.ObjectId(system=_next(tx, IdKind.SYSTEM_SCHEMA))
        tx.insert(SCHEMAS, pb.SchemaKey(id=schema), pb.SchemaValue(name=name))
    cluster = pb.ObjectId(system=_next(tx, IdKind.SYSTEM_CLUSTER))
    tx.insert(CLUSTERS, pb.ClusterKey(id=cluster), pb.ClusterValue(name=SYSTEM_NAME))


def _add_user_objects(tx: Transaction, bootstrap: Bootstrap) -> None:
    database = pb.ObjectId(user=_next(tx, IdKind.USER_DATABASE))
    tx.insert(DATABASES, pb.DatabaseKey(id=database), pb.DatabaseValue(name=DEFAULT_DATABASE))
    _audit_create(tx, pb.ObjectType.OBJECT_TYPE_DATABASE, database, DEFAULT_DATABASE)
    schema = pb.ObjectId(user=_next(tx, IdKind.USER_SCHEMA))
    tx.insert(SCHEMAS, pb.SchemaKey(id=schema), pb.SchemaValue(database_id=database, name=DEFAULT_SCHEMA))
    _audit_create(tx, pb.ObjectType.OBJECT_TYPE_SCHEMA, schema, f"{DEFAULT_DATABASE}.{DEFAULT_SCHEMA}")
    cluster = pb.ObjectId(user=_next(tx, IdKind.USER_CLUSTER))
    tx.insert(CLUSTERS, pb.ClusterKey(id=cluster), pb.ClusterValue(name=bootstrap.default_cluster))
    _audit_create(tx, pb.ObjectType.OBJECT_TYPE_CLUSTER, cluster, bootstrap.default_cluster)
    for number, size in enumerate(bootstrap.replica_sizes, start=1):
        replica = pb.ObjectId(user=_next(tx, IdKind.USER_REPLICA))
        value = pb.ClusterReplicaValue(cluster_id=cluster, name=f"r{number}", size=size)
        tx.insert(CLUSTER_REPLICAS, pb.ClusterReplicaKey(id=replica), value)
        name = f"{bootstrap.default_cluster}.{value.name}"
        _audit_create(tx, pb.ObjectType.OBJECT_TYPE_CLUSTER_REPLICA, replica, name)
    for name in bootstrap.roles:
        role = pb.RoleId(user=_next(tx, IdKind.USER_ROLE))
        tx.insert(ROLES, pb.RoleKey(id=role), pb.RoleValue(name=name))
        _audit_create(tx, pb.ObjectType.OBJECT_TYPE_ROLE, role, name)
    for name, setting in bootstrap.system_configurations.items():
        tx.insert(
            SYSTEM_CONFIGURATIONS,
            pb.SystemConfigurationKey(name=name),
            pb.SystemConfigurationValue(value=setting),
        )


def _next(tx: Transaction, kind: IdKind) -> int:
    return tx.allocate_ids(kind)[0]


def _audit_create(
    tx: Transaction, object_type: pb.ObjectType, id_: pb.ObjectId | pb.RoleId, name: str
) -> None:
    tx.audit(pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE, object_type, format_id(id_), name)
