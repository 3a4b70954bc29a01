"""Databases, schemas, clusters and items have an owner, and tell who may do what with them.

Up to version 17 every role could do everything with every object. The upgrade takes nothing from anybody
except the right to drop and alter what is another's, which is what an owner is for:

- What is the system's (system ids) belongs to the system's role, the one of the lowest system id.
- What is the users' belongs to the user role of the lowest id, the one that was made first; where there is
  no user role, to the system's role.
- The owner has, granted by itself, all privileges that an object of that type can have.
- The public role has, granted by the owner, the same on users' objects, and usage and select on the system's.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from holdfast._pb import objects_v17_pb2 as v17
from holdfast._pb import objects_v18_pb2 as v18
from holdfast.catalog.upgrade.step import Kind, OldRows, Step, Update, carried, encode, read, replaced

_SELECT, _INSERT, _UPDATE, _DELETE, _USAGE, _CREATE = 1, 2, 4, 8, 16, 32
_READ_WRITE = _SELECT | _INSERT | _UPDATE | _DELETE
_OF_CONTAINERS = _USAGE | _CREATE
_OF_ITEMS: Mapping[int, int] = {
    v17.ObjectType.OBJECT_TYPE_COLLECTION: _READ_WRITE,
    v17.ObjectType.OBJECT_TYPE_CONNECTION: _USAGE,
    v17.ObjectType.OBJECT_TYPE_FUNCTION: _USAGE,
    v17.ObjectType.OBJECT_TYPE_MATERIALIZED_VIEW: _SELECT,
    v17.ObjectType.OBJECT_TYPE_SECRET: _USAGE,
    v17.ObjectType.OBJECT_TYPE_SOURCE: _SELECT,
    v17.ObjectType.OBJECT_TYPE_TABLE: _READ_WRITE,
    v17.ObjectType.OBJECT_TYPE_TYPE: _USAGE,
    v17.ObjectType.OBJECT_TYPE_VIEW: _SELECT,
}


@dataclass(frozen=True)
class _Owned:
    """A kind of objects that get an owner: their messages, and the privileges that one can have."""

    kind: Kind
    old: tuple[type[Message], type[Message]]
    new: tuple[type[Message], type[Message]]
    privileges: Callable[[Any], int]


def _of_container(_: Any) -> int:
    return _OF_CONTAINERS


def _of_item(item: v17.ItemValue) -> int:
    return _OF_ITEMS.get(item.type, 0)


_OWNED = (
    _Owned(
        Kind.DATABASE,
        (v17.DatabaseKey, v17.DatabaseValue),
        (v18.DatabaseKey, v18.DatabaseValue),
        _of_container,
    ),
    _Owned(
        Kind.SCHEMA,
        (v17.SchemaKey, v17.SchemaValue),
        (v18.SchemaKey, v18.SchemaValue),
        _of_container,
    ),
    _Owned(
        Kind.CLUSTER,
        (v17.ClusterKey, v17.ClusterValue),
        (v18.ClusterKey, v18.ClusterValue),
        _of_container,
    ),
    _Owned(
        Kind.ITEM,
        (v17.ItemKey, v17.ItemValue),
        (v18.ItemKey, v18.ItemValue),
        _of_item,
    ),
)


def _updates(old: OldRows) -> Iterator[Update]:
    systems_owner, users_owner = _owners(old)
    for owned in _OWNED:
        for row, old_key, old_value in read(old, owned.kind, *owned.old):
            key: Any = carried(old_key, owned.new[0])
            value: Any = carried(old_value, owned.new[1])
            of_user = key.id.HasField("user")
            owner = users_owner if of_user else systems_owner
            privileges = owned.privileges(old_value)
            value.owner_id.CopyFrom(owner)
            value.privileges.extend(
                _acl(owner, privileges, privileges if of_user else privileges & (_USAGE | _SELECT))
            )
            yield from replaced(row, encode(owned.kind, key, value))


STEP = Step(17, 18, _updates)


def _owners(old: OldRows) -> tuple[v18.RoleId, v18.RoleId]:
    """Who is to own what is the system's, and what is the users'."""
    system, user = [], []
    for _, role, _ in read(old, Kind.ROLE, v17.RoleKey, v17.RoleValue):
        match role.id.WhichOneof("id"):
            case "system":
                system.append(role.id.system)
            case "user":
                user.append(role.id.user)
    systems = v18.RoleId(system=min(system, default=1))
    return systems, v18.RoleId(user=min(user)) if user else systems


def _acl(owner: v18.RoleId, owners: int, publics: int) -> Iterator[v18.AclItem]:
    """What owner and public role may do. The public role comes after any other."""
    for grantee, privileges in ((owner, owners), (v18.RoleId(public=v18.Empty()), publics)):
        if privileges:
            yield v18.AclItem(grantee=grantee, grantor=owner, privileges=privileges)
