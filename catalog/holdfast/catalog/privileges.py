"""Owners and privileges of new objects.

The functions depend only on what a transaction sees. The database on top decides who may do what.
"""

from collections.abc import Iterator, Mapping
from enum import IntFlag
from types import MappingProxyType

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.objects.registry import DEFAULT_PRIVILEGES, ROLES
from holdfast.catalog.transaction import Transaction


class Privilege(IntFlag):
    """The bits of a set of privileges."""

    SELECT = 1
    INSERT = 2
    UPDATE = 4
    DELETE = 8
    USAGE = 16
    CREATE = 32
    CREATE_ROLE = 64
    CREATE_DATABASE = 128
    CREATE_CLUSTER = 256


SYSTEM_NAME = "holdfast_system"
"""The name of the system's role and of its cluster."""

SYSTEM_ROLE = pb.RoleId(system=1)
"""The system's role: the first role of every catalog."""

PUBLIC = pb.RoleId(public=pb.Empty())

OF_SYSTEM = Privilege.CREATE_ROLE | Privilege.CREATE_DATABASE | Privilege.CREATE_CLUSTER

_READ_WRITE = Privilege.SELECT | Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE
_CONTAINER = Privilege.USAGE | Privilege.CREATE
_OF_TYPES: Mapping[int, Privilege] = MappingProxyType(
    {
        pb.ObjectType.OBJECT_TYPE_CLUSTER: _CONTAINER,
        pb.ObjectType.OBJECT_TYPE_COLLECTION: _READ_WRITE,
        pb.ObjectType.OBJECT_TYPE_CONNECTION: Privilege.USAGE,
        pb.ObjectType.OBJECT_TYPE_DATABASE: _CONTAINER,
        pb.ObjectType.OBJECT_TYPE_FUNCTION: Privilege.USAGE,
        pb.ObjectType.OBJECT_TYPE_MATERIALIZED_VIEW: Privilege.SELECT,
        pb.ObjectType.OBJECT_TYPE_SCHEMA: _CONTAINER,
        pb.ObjectType.OBJECT_TYPE_SECRET: Privilege.USAGE,
        pb.ObjectType.OBJECT_TYPE_SOURCE: Privilege.SELECT,
        pb.ObjectType.OBJECT_TYPE_SYSTEM: OF_SYSTEM,
        pb.ObjectType.OBJECT_TYPE_TABLE: _READ_WRITE,
        pb.ObjectType.OBJECT_TYPE_TYPE: Privilege.USAGE,
        pb.ObjectType.OBJECT_TYPE_VIEW: Privilege.SELECT,
    }
)


def all_privileges(object_type: int) -> Privilege:
    """All privileges that exist for an object type (`ObjectType`)."""
    return _OF_TYPES.get(object_type, Privilege(0))


def privileges_of_new(
    tx: Transaction,
    object_type: pb.ObjectType,
    owner: pb.RoleId,
    *,
    database: pb.ObjectId | None = None,
    schema: pb.ObjectId | None = None,
    public: int = 0,
) -> list[pb.AclItem]:
    """The privileges of a new object, in the order in which they are stored.

    The owner has all privileges. Others have the default privileges for its objects in that place, and the
    public role also has `public`. The owner grants all of them.
    """
    possible = all_privileges(object_type)
    granted: dict[tuple[int, int], int] = {}
    for grantee, privileges in (
        (owner, possible),
        (PUBLIC, public & possible),
        *_defaults(tx, object_type, owner, database, schema),
    ):
        if privileges & possible:
            rank = _rank(grantee)
            granted[rank] = granted.get(rank, 0) | privileges & possible
    return [
        pb.AclItem(grantee=_role(rank), grantor=owner, privileges=granted[rank]) for rank in sorted(granted)
    ]


def role_named(tx: Transaction, name: str) -> pb.RoleId:
    """The role with that name. The system's role if there is none."""
    found = tx.find(ROLES, pb.RoleValue(name=name)) if name else None
    return SYSTEM_ROLE if found is None else found.key.id


def _defaults(
    tx: Transaction,
    object_type: pb.ObjectType,
    owner: pb.RoleId,
    database: pb.ObjectId | None,
    schema: pb.ObjectId | None,
) -> Iterator[tuple[pb.RoleId, int]]:
    for default in tx.objects(DEFAULT_PRIVILEGES):
        key = default.key
        if (
            key.object_type == object_type
            and key.grantor in (PUBLIC, owner)
            and (not key.HasField("database_id") or key.database_id == database)
            and (not key.HasField("schema_id") or key.schema_id == schema)
        ):
            yield key.grantee, default.value.privileges


def _rank(role: pb.RoleId) -> tuple[int, int]:
    """The sort key of a role: system before user before public, then by number."""
    match role.WhichOneof("id"):
        case "system":
            return 1, role.system
        case "user":
            return 2, role.user
    return 3, 0


def _role(rank: tuple[int, int]) -> pb.RoleId:
    match rank:
        case 1, number:
            return pb.RoleId(system=number)
        case 2, number:
            return pb.RoleId(user=number)
    return PUBLIC
