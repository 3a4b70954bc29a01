"""Default privileges are told per grantor: whose new objects they are for.

Up to version 18 a default privilege was for the objects of everybody, and a role could not say what others
may do with its own objects only. Those that are there stay for everybody: their grantor is the public role.
"""

from collections.abc import Iterator

from holdfast._pb import objects_v18_pb2 as v18
from holdfast._pb import objects_v19_pb2 as v19
from holdfast.catalog.upgrade.step import Kind, OldRows, Step, Update, carried, encode, read, replaced


def _updates(old: OldRows) -> Iterator[Update]:
    for row, old_key, old_value in read(
        old, Kind.DEFAULT_PRIVILEGE, v18.DefaultPrivilegeKey, v18.DefaultPrivilegeValue
    ):
        key = carried(old_key, v19.DefaultPrivilegeKey)
        key.grantor.CopyFrom(v19.RoleId(public=v19.Empty()))
        value = carried(old_value, v19.DefaultPrivilegeValue)
        yield from replaced(row, encode(Kind.DEFAULT_PRIVILEGE, key, value))


STEP = Step(18, 19, _updates)
