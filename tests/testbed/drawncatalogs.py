"""Hypothesis strategies for small catalogs at any version of the format, as an old database left them.

The catalogs are consistent: references have targets, names and keys are unique, allocators are ahead of the
ids in use, and lists are sorted. Everything else may have any value that the types of the version allow. The
strategies read these types from the declarations (descriptors, and the JSON types of version 14), and not
from the upgrade steps.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from holdfast.catalog.config import USER_VERSION
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.upgrade import legacy_json_objects as legacy
from holdfast.catalog.upgrade.objects import collections_of
from testbed.oldcatalogs import Json, make_row, protobuf_at

Draw = Callable[[st.SearchStrategy[Any]], Any]
Id = tuple[str, int]

SYSTEM_ROLE: Id = ("system", 1)
PUBLIC: Id = ("public", 0)

# In this order, so that what refers to others comes after them.
_WITH_ID = (Kind.ROLE, Kind.DATABASE, Kind.SCHEMA, Kind.CLUSTER, Kind.CLUSTER_REPLICA, Kind.ITEM)
_WITHOUT_ID = (
    Kind.TIMESTAMP,
    Kind.CLUSTER_INTROSPECTION_SOURCE_INDEX,
    Kind.COMMENT,
    Kind.DEFAULT_PRIVILEGE,
    Kind.SYSTEM_PRIVILEGE,
    Kind.SYSTEM_CONFIGURATION,
    Kind.SYSTEM_OBJECT_MAPPING,
    Kind.SETTING,
    Kind.AUDIT_LOG,
    Kind.STORAGE_USAGE,
)
_UNIQUE = {
    Kind.DATABASE: ("name",),
    Kind.SCHEMA: ("database_id", "name"),
    Kind.ROLE: ("name",),
    Kind.CLUSTER: ("name",),
    Kind.CLUSTER_REPLICA: ("cluster_id", "name"),
    Kind.CLUSTER_INTROSPECTION_SOURCE_INDEX: ("index_id",),
    Kind.ITEM: ("schema_id", "name"),
    Kind.SYSTEM_OBJECT_MAPPING: ("id",),
}
_REFERS_TO = {
    "database_id": Kind.DATABASE,
    "schema_id": Kind.SCHEMA,
    "cluster_id": Kind.CLUSTER,
    "cluster_replica_id": Kind.CLUSTER_REPLICA,
    "item_id": Kind.ITEM,
    "index_id": Kind.ITEM,
    # Of a mapping: the item of a system object.
    "id": Kind.ITEM,
}
# References that may be missing.
_MAYBE = {("SchemaValue", "database_id"), ("DefaultPrivilegeKey", "database_id")} | {
    ("DefaultPrivilegeKey", "schema_id")
}
_NEVER_PUBLIC = ("owner_id", "role")
_IN_ORDER = {"memberships": ("role",), "privileges": ("grantee", "grantor")}

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=6),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
}
_TOKENS = st.fixed_dictionaries(
    {
        "deploy_generation": st.just(0),
        "epoch": st.integers(1, 2**32),
        "holder": _TEXT,
        "purpose": _TEXT,
        "nonce": st.binary(min_size=16, max_size=16),
    }
)
# What steps look at is drawn from few values, so that all their cases come up.
_TELLING = {
    ("ClusterReplicaValue", "name"): st.sampled_from(["r1", "r2", "r3", "r02", "other"]),
    ("ClusterReplicaValue", "size"): st.sampled_from(["1", "1", "1", "2"]),
    ("SystemPrivilegeValue", "privileges"): st.integers(0, 7).map(lambda bits: bits * 64),
}


def catalogs(version: int) -> st.SearchStrategy[tuple[Row, ...]]:
    """Any small catalog at a version."""
    return _catalogs(version)


@st.composite
def _catalogs(draw: Draw, version: int) -> tuple[Row, ...]:
    making = _Making(draw, version)
    making.put(Kind.FENCE_TOKEN, {}, draw(_TOKENS))
    making.put(Kind.CONFIG, {"key": USER_VERSION}, {"value": version})
    making.put_object(Kind.ROLE, SYSTEM_ROLE)
    for kind in _WITH_ID:
        for number in range(draw(st.integers(0, 4))):
            making.put_object(kind, (draw(st.sampled_from(["user", "user", "system"])), number * 7 + 2))
    for kind in _WITHOUT_ID:
        for _ in range(draw(st.integers(0, 2))):
            making.put_drawn(kind)
    for name in IdKind:
        making.put(Kind.ID_ALLOCATOR, {"name": str(name)}, {"next_id": draw(st.integers(100, 2**64 - 1))})
    return tuple(draw(st.permutations(list(making.rows.values()))))


class _Unresolved(Exception):
    """What is referred to isn't there."""


@dataclass
class _Making:
    """A catalog half made."""

    draw: Draw
    version: int
    rows: dict[bytes, Row] = field(default_factory=dict)
    ids: dict[Kind, list[Id]] = field(default_factory=lambda: {kind: [] for kind in _WITH_ID})
    seen: set[str] = field(default_factory=set)

    def put(self, kind: Kind, key: Json, value: Json) -> bool:
        """Add an object, if its key and what must be unique are free."""
        row = make_row(self.version, kind, key, value)
        unique = json.dumps([kind, [value.get(name) for name in _UNIQUE.get(kind, ())]], default=str)
        if row.key in self.rows or (kind in _UNIQUE and unique in self.seen):
            return False
        self.rows[row.key] = row
        self.seen.add(unique)
        return True

    def put_object(self, kind: Kind, id_: Id) -> None:
        """Add an object with an id of its own, if it has all that it refers to."""
        try:
            value = self.value_of(kind)
        except _Unresolved:
            return
        if id_ not in self.ids[kind] and self.put(kind, {"id": self.id(kind, id_)}, value):
            self.ids[kind].append(id_)

    def put_drawn(self, kind: Kind) -> None:
        """Add an object of which also the key is drawn."""
        try:
            self.put(kind, self._draw_type(kind, 0), self.value_of(kind))
        except _Unresolved:
            return

    def value_of(self, kind: Kind) -> Json:
        """A value of a kind."""
        return self._draw_type(kind, 1)

    def id(self, kind: Kind, id_: Id) -> Any:
        """An id as it is written at this version."""
        if not protobuf_at(self.version, kind):
            return "p" if id_ == PUBLIC else f"{id_[0][0]}{id_[1]}"
        return {"public": {}} if id_ == PUBLIC else {id_[0]: id_[1]}

    def _draw_type(self, kind: Kind, part: int) -> Json:
        if protobuf_at(self.version, kind):
            collection = collections_of(self.version)[kind]
            message = collection.value if part else collection.key
            return self._message(message.DESCRIPTOR, kind)
        object_type = legacy.OBJECTS[kind][part]
        if object_type is legacy.CommentKey:
            return self._legacy_comment()
        return {
            name: self._legacy_field(object_type.__name__, name, hint, kind)
            for name, hint in get_type_hints(object_type).items()
        }

    def _message(self, descriptor: Descriptor, kind: Kind) -> Json:
        drawn: Json = {}
        # One of each oneof is there; what is optional is a oneof of its own, and may be missing.
        chosen = {
            self.draw(st.sampled_from([each.name for each in oneof.fields])) for oneof in descriptor.oneofs
        }
        for each in descriptor.fields:
            optional = len(each.containing_oneof.fields) == 1 if each.containing_oneof else False
            if optional and self.draw(st.booleans()):
                continue
            if each.containing_oneof and each.name not in chosen:
                continue
            if (value := self._field(descriptor, each, kind)) is not None:
                drawn[each.name] = value
        return drawn

    def _field(self, descriptor: Descriptor, each: FieldDescriptor, kind: Kind) -> Any:
        if each.is_repeated:
            return self._repeated(descriptor, each, kind)
        return self._single(descriptor, each, kind)

    def _single(self, descriptor: Descriptor, each: FieldDescriptor, kind: Kind) -> Any:
        if (inner := each.message_type) is not None:
            match inner.name:
                case "ObjectId":
                    found = self._reference(descriptor.name, each.name)
                    return None if found is None else self.id(kind, found)
                case "RoleId":
                    return self.id(kind, self._role(each.name))
            return self._message(inner, kind)
        if each.enum_type is not None:
            return self.draw(st.sampled_from(each.enum_type.values[1:])).number
        return self.draw(_TELLING.get((descriptor.name, each.name), _SCALARS[each.type]))

    def _repeated(self, descriptor: Descriptor, each: FieldDescriptor, kind: Kind) -> list[Any]:
        drawn = [self._single(descriptor, each, kind) for _ in range(self.draw(st.integers(0, 2)))]
        if each.name in _IN_ORDER:
            by_rank = {tuple(_rank(one[name]) for name in _IN_ORDER[each.name]): one for one in drawn}
            return [by_rank[rank] for rank in sorted(by_rank)]
        return sorted(set(drawn)) if each.message_type is None else drawn

    def _reference(self, owner: str, name: str) -> Id | None:
        known = self.ids[_REFERS_TO[name]]
        if (owner, name) in _MAYBE and (not known or self.draw(st.booleans())):
            return None
        if not known:
            raise _Unresolved
        found: Id = self.draw(st.sampled_from(known))
        return found

    def _role(self, name: str) -> Id:
        known = [*self.ids[Kind.ROLE], *([] if name in _NEVER_PUBLIC else [PUBLIC])]
        found: Id = self.draw(st.sampled_from(known or [SYSTEM_ROLE]))
        return found

    def _legacy_field(self, owner: str, name: str, hint: Any, kind: Kind) -> Any:
        maybe = isinstance(hint, UnionType)
        inner = get_args(hint)[0] if maybe else hint
        if inner is legacy.ObjectId:
            found = self._reference(owner, name)
            return None if found is None else self.id(kind, found)
        if inner is legacy.RoleId:
            return self.id(kind, self._role(name))
        if maybe and self.draw(st.booleans()):
            return None
        if inner is legacy.ObjectType:
            return str(self.draw(st.sampled_from(legacy.ObjectType)))
        scalar = FieldDescriptor.TYPE_STRING if inner is str else FieldDescriptor.TYPE_UINT64
        return self.draw(_TELLING.get((owner, name), _SCALARS[scalar]))

    def _legacy_comment(self) -> Json:
        of = self.draw(st.sampled_from(legacy.Commented))
        found = self._role("of") if of is legacy.Commented.ROLE else self._reference("", f"{of}_id")
        assert found is not None
        column = self.draw(st.none() | st.integers(0, 2**32 - 1))
        return {"object": str(of), "id": self.id(Kind.COMMENT, found), "column": column}


def _rank(id_: Json) -> tuple[int, int]:
    ((space, number),) = id_.items()
    return ("system", "user", "public").index(space), 0 if space == "public" else number
