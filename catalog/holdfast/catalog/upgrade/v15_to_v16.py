"""What a role may do beyond single objects becomes part of the role, and roles can be members of roles.

Up to version 15 a role was a name; that it may create roles, databases or clusters was told by system
privileges alone, and there was no difference between a person and a group. A role now has attributes. They
begin as what was the case: what system privileges give to the role itself or to the public role, every role
can be connected as, and the system's own (of system ids) need no privilege. System privileges stay as they
are. Nobody is a member of anything yet.
"""

from collections.abc import Iterator

from holdfast._pb import objects_v15_pb2 as v15
from holdfast._pb import objects_v16_pb2 as v16
from holdfast.catalog.upgrade.step import Kind, OldRows, Step, Update, carried, encode, read, replaced

_CREATE_ROLE, _CREATE_DATABASE, _CREATE_CLUSTER = 64, 128, 256


def _updates(old: OldRows) -> Iterator[Update]:
    granted: dict[bytes, int] = {}
    for _, grant, given in read(old, Kind.SYSTEM_PRIVILEGE, v15.SystemPrivilegeKey, v15.SystemPrivilegeValue):
        grantee = _bytes(grant.grantee)
        granted[grantee] = granted.get(grantee, 0) | given.privileges
    everybody = granted.get(_bytes(v15.RoleId(public=v15.Empty())), 0)
    for row, key, value in read(old, Kind.ROLE, v15.RoleKey, v15.RoleValue):
        privileges = granted.get(_bytes(key.id), 0) | everybody
        attributes = v16.RoleAttributes(
            inherit=True,
            create_role=bool(privileges & _CREATE_ROLE),
            create_database=bool(privileges & _CREATE_DATABASE),
            create_cluster=bool(privileges & _CREATE_CLUSTER),
            superuser=key.id.HasField("system"),
            login=True,
        )
        role = v16.RoleValue(name=value.name, attributes=attributes)
        yield from replaced(row, encode(Kind.ROLE, carried(key, v16.RoleKey), role))


STEP = Step(15, 16, _updates)


def _bytes(role: v15.RoleId) -> bytes:
    return role.SerializeToString(deterministic=True)
