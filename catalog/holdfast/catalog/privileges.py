"""Owners and privileges of new objects.

Pure functions of what a transaction sees. Who may do what is decided by the database on top, not here.
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
"""The name of the system's role, and of its cluster."""

SYSTEM_ROLE = pb.RoleId(system=1)
"""The system's role: the first that any catalog gets."""

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
    """What anybody can be allowed to do with an object of a type (`ObjectType`)."""
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
    """Who may do what with a new object, in the order in which it is stored.

    The owner may do everything; others what the default privileges for its objects in that place say, and
    the public role `public` besides. All of it is granted by the owner.
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
    """The role of that name; the system's where there is none."""
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
    """System before user before public, then by number."""
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
