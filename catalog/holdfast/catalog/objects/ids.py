"""Ids of catalog objects, their text form (`u1`, `s1`, `p`), and the allocators that they come from.

An id is never used twice: allocators only grow, and a transaction that allocates commits the new counter.
"""

import re
from enum import StrEnum, unique

from holdfast._pb import objects_pb2 as pb
from holdfast.errors import BadInput

_TEXT = re.compile(r"([us])([0-9]{1,20})")
_LIMIT = 1 << 64


@unique
class IdKind(StrEnum):
    """The allocators of ids, by the name of their rows."""

    USER_DATABASE = "user_database"
    SYSTEM_DATABASE = "system_database"
    USER_SCHEMA = "user_schema"
    SYSTEM_SCHEMA = "system_schema"
    USER_ROLE = "user_role"
    SYSTEM_ROLE = "system_role"
    USER_CLUSTER = "user_cluster"
    SYSTEM_CLUSTER = "system_cluster"
    USER_REPLICA = "user_replica"
    SYSTEM_REPLICA = "system_replica"
    USER_ITEM = "user_item"
    SYSTEM_ITEM = "system_item"
    AUDIT_LOG = "audit_log"
    STORAGE_USAGE = "storage_usage"


def format_id(id_: pb.ObjectId | pb.RoleId) -> str:
    """`u1` or `s1`, or `p` for the public role. Raises `BadInput` for an id that isn't set."""
    match id_.WhichOneof("id"):
        case "user":
            return f"u{id_.user}"
        case "system":
            return f"s{id_.system}"
        case "public":
            return "p"
    raise BadInput("the id of a catalog object is not set")


def parse_object_id(text: str) -> pb.ObjectId:
    """Parse `u1` or `s1`. Raises `BadInput` for anything else."""
    match = _TEXT.fullmatch(text)
    if not match or int(match[2]) >= _LIMIT:
        raise BadInput(f"{text!r} is not the id of a catalog object", hint="ids look like u1 or s1")
    number = int(match[2])
    return pb.ObjectId(user=number) if match[1] == "u" else pb.ObjectId(system=number)
