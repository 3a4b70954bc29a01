"""Reads and writes the declared objects of a catalog as rows. Only this module knows their messages.

A mark is a setting named `declared/<organization>/<type>/<id>`. Ids are never reused, so another object of
the same name has no mark. A system configuration has no id, so its mark contains its name instead. A catalog
that was filled with a copy of another organization's catalog also has that organization's marks. They have no
effect, and the copied objects count as created by others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, assert_never

from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import OBJECT_TYPES, IdKind, Object, ObjectType, Transaction, format_id
from holdfast.catalog.objects.registry import (
    CLUSTER_INTROSPECTION_SOURCE_INDEXES,
    CLUSTER_REPLICAS,
    CLUSTERS,
    COMMENTS,
    DATABASES,
    DEFAULT_PRIVILEGES,
    ITEMS,
    ROLES,
    SCHEMAS,
    SETTINGS,
    SYSTEM_CONFIGURATIONS,
)
from holdfast.catalog.privileges import SYSTEM_ROLE, Privilege, privileges_of_new
from holdfast_operator.catalogs.objects import (
    UNMANAGED,
    AlterObject,
    Change,
    CreateObject,
    DeclaredType,
    DropObject,
    ForgetObject,
    FoundObject,
    ObjectContents,
    ObjectName,
    UnmarkObject,
    droppable,
    managed,
    mark_of,
    replicas_of,
)

_MARK: Final = "declared/"
_NAMED: Final = 3
_AUDITED: Final[Mapping[DeclaredType, pb.ObjectType]] = {
    DeclaredType.DATABASE: pb.ObjectType.OBJECT_TYPE_DATABASE,
    DeclaredType.SCHEMA: pb.ObjectType.OBJECT_TYPE_SCHEMA,
    DeclaredType.ROLE: pb.ObjectType.OBJECT_TYPE_ROLE,
    DeclaredType.CLUSTER: pb.ObjectType.OBJECT_TYPE_CLUSTER,
    DeclaredType.REPLICA: pb.ObjectType.OBJECT_TYPE_CLUSTER_REPLICA,
    DeclaredType.CONFIGURATION: pb.ObjectType.OBJECT_TYPE_SYSTEM,
}
_IDS: Final[Mapping[DeclaredType, IdKind]] = {
    DeclaredType.DATABASE: IdKind.USER_DATABASE,
    DeclaredType.SCHEMA: IdKind.USER_SCHEMA,
    DeclaredType.ROLE: IdKind.USER_ROLE,
    DeclaredType.CLUSTER: IdKind.USER_CLUSTER,
    DeclaredType.REPLICA: IdKind.USER_REPLICA,
}
_COLLECTIONS: Final[Mapping[DeclaredType, ObjectType[Any, Any]]] = {
    DeclaredType.DATABASE: DATABASES,
    DeclaredType.SCHEMA: SCHEMAS,
    DeclaredType.ROLE: ROLES,
    DeclaredType.CLUSTER: CLUSTERS,
    DeclaredType.REPLICA: CLUSTER_REPLICAS,
    DeclaredType.CONFIGURATION: SYSTEM_CONFIGURATIONS,
}
_OWNED: Final = frozenset({DeclaredType.DATABASE, DeclaredType.SCHEMA, DeclaredType.CLUSTER})
_DROP: Final = pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_DROP
_ALTER: Final = pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_ALTER
_CREATE: Final = pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE


def contents(tx: Transaction, declared: Mapping[ObjectName, str], *, organization_id: str) -> ObjectContents:
    """Returns the catalog's objects of the types that can be declared, and the users of those to drop."""
    ours = f"{_MARK}{organization_id}/"
    marks = {row.key.name: row.value.value for row in tx.objects(SETTINGS) if row.key.name.startswith(ours)}
    if not marks and not declared:
        return ObjectContents()
    named = dict(_named(tx))
    found = {
        name: FoundObject(
            _value(name, row), _is_system(name, row), marks.pop(ours + _mark_id(name, row), None)
        )
        for name, row in named.items()
    }
    users = _users(tx, {name: named[name] for name in droppable(declared, ObjectContents(found))})
    for name, by in users.items():
        found[name] = FoundObject(found[name].value, found[name].system, found[name].mark, by)
    return ObjectContents(found, frozenset(marks))


def carry_out(tx: Transaction, changes: Iterable[Change], *, organization_id: str, user: str) -> None:
    """Makes the changes of a plan in `tx`. Each one adds an event by `user` to the audit log."""

    def mark(name: ObjectName, row: Object[Any, Any]) -> pb.SettingKey:
        return pb.SettingKey(name=f"{_MARK}{organization_id}/{_mark_id(name, row)}")

    def set_mark(name: ObjectName, row: Object[Any, Any]) -> None:
        tx.set(SETTINGS, mark(name, row), pb.SettingValue(value=mark_of(name, _value(name, row))))

    for change in changes:
        match change:
            case CreateObject(name, value):
                row = _create(tx, name, value)
                set_mark(name, row)
                _audit(tx, _CREATE, name, row, user)
            case AlterObject(name, value):
                row = _alter(tx, name, value)
                marked = tx.get(SETTINGS, mark(name, row)) is not None
                if marked and name.type is DeclaredType.CONFIGURATION:
                    set_mark(name, row)
                _audit(tx, _ALTER, name, row, user)
            case DropObject(name):
                row = _find(tx, name)
                _drop(tx, name, row)
                tx.delete(SETTINGS, mark(name, row))
                _audit(tx, _DROP, name, row, user)
            case UnmarkObject(name):
                tx.delete(SETTINGS, mark(name, _find(tx, name)))
            case ForgetObject(lost):
                tx.delete(SETTINGS, pb.SettingKey(name=lost))
            case _:
                assert_never(change)


def _create(tx: Transaction, name: ObjectName, value: str) -> Object[Any, Any]:
    key, made = _key(tx, name), _message(tx, name, value)
    tx.insert(_COLLECTIONS[name.type], key, made)
    return Object(key, made)


def _alter(tx: Transaction, name: ObjectName, value: str) -> Object[Any, Any]:
    row = _find(tx, name)
    match name.type:
        case DeclaredType.CLUSTER:
            _set_variant(row.value, value)
        case DeclaredType.REPLICA:
            row.value.size = value
        case DeclaredType.CONFIGURATION:
            row.value.value = value
        case DeclaredType.DATABASE | DeclaredType.SCHEMA | DeclaredType.ROLE:
            raise AssertionError(name)
        case _:
            assert_never(name.type)
    tx.update(_COLLECTIONS[name.type], row.key, row.value)
    return row


def _drop(tx: Transaction, name: ObjectName, row: Object[Any, Any]) -> None:
    """Removes the object, and the rows that mean nothing without it."""
    tx.delete(_COLLECTIONS[name.type], row.key)
    match name.type:
        case DeclaredType.DATABASE:
            _delete_where(tx, COMMENTS, lambda each: each.key.database_id == row.key.id)
            _delete_where(tx, DEFAULT_PRIVILEGES, lambda each: each.key.database_id == row.key.id)
        case DeclaredType.SCHEMA:
            _delete_where(tx, COMMENTS, lambda each: each.key.schema_id == row.key.id)
            _delete_where(tx, DEFAULT_PRIVILEGES, lambda each: each.key.schema_id == row.key.id)
        case DeclaredType.ROLE:
            _delete_where(tx, COMMENTS, lambda each: each.key.role_id == row.key.id)
        case DeclaredType.CLUSTER:
            _delete_where(tx, COMMENTS, lambda each: each.key.cluster_id == row.key.id)
            _delete_where(
                tx, CLUSTER_INTROSPECTION_SOURCE_INDEXES, lambda each: each.key.cluster_id == row.key.id
            )
        case DeclaredType.REPLICA:
            _delete_where(tx, COMMENTS, lambda each: each.key.cluster_replica_id == row.key.id)
        case DeclaredType.CONFIGURATION:
            pass
        case _:
            assert_never(name.type)


def _delete_where(
    tx: Transaction, collection: ObjectType[Any, Any], applies: Callable[[Object[Any, Any]], bool]
) -> None:
    for row in [each for each in tx.objects(collection) if applies(each)]:
        tx.delete(collection, row.key)


def _key(tx: Transaction, name: ObjectName) -> Any:
    if name.type is DeclaredType.CONFIGURATION:
        return pb.SystemConfigurationKey(name=name.path[0])
    (number,) = tx.allocate_ids(_IDS[name.type])
    id_ = pb.RoleId(user=number) if name.type is DeclaredType.ROLE else pb.ObjectId(user=number)
    return _COLLECTIONS[name.type].key(id=id_)


def _message(tx: Transaction, name: ObjectName, value: str) -> Any:
    """Returns a new object. Like a catalog's first objects, the system owns it and everybody may use it."""
    made = _named_message(tx, name)
    match name.type:
        case DeclaredType.ROLE:
            made.attributes.CopyFrom(pb.RoleAttributes(inherit=True, login=True))
        case DeclaredType.CLUSTER:
            _set_variant(made, value)
        case DeclaredType.REPLICA:
            made.size = value
        case DeclaredType.CONFIGURATION:
            made.value = value
        case DeclaredType.DATABASE | DeclaredType.SCHEMA:
            pass
        case _:
            assert_never(name.type)
    if name.type in _OWNED:
        made.owner_id.CopyFrom(SYSTEM_ROLE)
        database = made.database_id if name.type is DeclaredType.SCHEMA else None
        made.privileges.extend(
            privileges_of_new(tx, _AUDITED[name.type], SYSTEM_ROLE, database=database, public=Privilege.USAGE)
        )
    return made


def _named_message(tx: Transaction, name: ObjectName) -> Any:
    """Returns the part of an object that is needed to find it."""
    own = name.path[-1]
    parent = None if name.parent is None else _find(tx, name.parent).key.id
    match name.type:
        case DeclaredType.DATABASE:
            return pb.DatabaseValue(name=own)
        case DeclaredType.SCHEMA:
            return pb.SchemaValue(database_id=parent, name=own)
        case DeclaredType.ROLE:
            return pb.RoleValue(name=own)
        case DeclaredType.CLUSTER:
            return pb.ClusterValue(name=own)
        case DeclaredType.REPLICA:
            return pb.ClusterReplicaValue(cluster_id=parent, name=own)
        case DeclaredType.CONFIGURATION:
            return pb.SystemConfigurationValue()
        case _:
            assert_never(name.type)


def _set_variant(cluster: pb.ClusterValue, value: str) -> None:
    asked = replicas_of(value)
    if asked is None:
        cluster.unmanaged.SetInParent()
    else:
        # The placement of the replicas stays the same.
        cluster.managed.replication_factor, cluster.managed.size = asked


def _find(tx: Transaction, name: ObjectName) -> Object[Any, Any]:
    if name.type is DeclaredType.CONFIGURATION:
        key = pb.SystemConfigurationKey(name=name.path[0])
        value = tx.get(SYSTEM_CONFIGURATIONS, key)
        found: Object[Any, Any] | None = None if value is None else Object(key, value)
    else:
        found = tx.find(_COLLECTIONS[name.type], _named_message(tx, name))
    if found is None:
        raise AssertionError(f"{name} is in the plan, but not in the catalog")
    return found


def _named(tx: Transaction) -> Iterator[tuple[ObjectName, Object[Any, Any]]]:
    """Yields all objects that could be declared, parents first. Schemas without a database can't be."""
    parents: dict[str, str] = {}
    for type_ in (DeclaredType.DATABASE, DeclaredType.CLUSTER, DeclaredType.ROLE):
        for row in tx.objects(_COLLECTIONS[type_]):
            parents[f"{type_}/{format_id(row.key.id)}"] = row.value.name
            yield ObjectName(type_, (row.value.name,)), row
    for row in tx.objects(SCHEMAS):
        if row.value.HasField("database_id"):
            database = parents.get(f"{DeclaredType.DATABASE}/{format_id(row.value.database_id)}")
            if database is not None:
                yield ObjectName(DeclaredType.SCHEMA, (database, row.value.name)), row
    for row in tx.objects(CLUSTER_REPLICAS):
        cluster = parents.get(f"{DeclaredType.CLUSTER}/{format_id(row.value.cluster_id)}")
        if cluster is not None:
            yield ObjectName(DeclaredType.REPLICA, (cluster, row.value.name)), row
    for row in tx.objects(SYSTEM_CONFIGURATIONS):
        yield ObjectName(DeclaredType.CONFIGURATION, (row.key.name,)), row


def _value(name: ObjectName, row: Object[Any, Any]) -> str:
    match name.type:
        case DeclaredType.CLUSTER:
            if not row.value.HasField("managed"):
                return UNMANAGED
            return managed(row.value.managed.replication_factor, row.value.managed.size)
        case DeclaredType.REPLICA:
            return str(row.value.size)
        case DeclaredType.CONFIGURATION:
            return str(row.value.value)
        case DeclaredType.DATABASE | DeclaredType.SCHEMA | DeclaredType.ROLE:
            return ""
        case _:
            assert_never(name.type)


def _is_system(name: ObjectName, row: Object[Any, Any]) -> bool:
    return name.type is not DeclaredType.CONFIGURATION and row.key.id.HasField("system")


def _users(
    tx: Transaction, doomed: Mapping[ObjectName, Object[Any, Any]]
) -> Mapping[ObjectName, tuple[str, ...]]:
    """Describes the first few users of each object to drop.

    A catalog can have many items. So they are read only if necessary, and only until enough users are found.
    """
    return {
        **_first_users(_of_type(doomed, DeclaredType.SCHEMA), _item_schemas(tx)),
        **_first_users(_of_type(doomed, DeclaredType.ROLE), _role_users(tx)),
    }


def _of_type(doomed: Mapping[ObjectName, Object[Any, Any]], type_: DeclaredType) -> Mapping[str, ObjectName]:
    return {format_id(row.key.id): name for name, row in doomed.items() if name.type is type_}


def _first_users(
    names: Mapping[str, ObjectName], mentions: Iterable[tuple[str, str]]
) -> Mapping[ObjectName, tuple[str, ...]]:
    """Returns the users that mention each name's id. Reads `mentions` until each has more than it lists."""
    users: dict[str, list[str]] = {id_: [] for id_ in names}
    wanting = set(names)
    if wanting:
        for id_, user in mentions:
            if id_ in wanting:
                users[id_].append(user)
                if len(users[id_]) > _NAMED:
                    wanting.discard(id_)
                    if not wanting:
                        break
    return {names[id_]: _shortened(by) for id_, by in users.items()}


def _item_schemas(tx: Transaction) -> Iterator[tuple[str, str]]:
    for item in tx.objects(ITEMS):
        yield format_id(item.value.schema_id), f"item {item.value.name}"


def _role_users(tx: Transaction) -> Iterator[tuple[str, str]]:
    """Yields each mention of a role: its id and the row. Comments and the role's own row don't count."""
    for collection in OBJECT_TYPES.values():
        if collection is COMMENTS or not collection.cached:
            continue
        for row in tx.objects(collection):
            mentioned = {format_id(id_) for id_ in (*_role_ids(row.key), *_role_ids(row.value))}
            if collection is ROLES:
                mentioned.discard(format_id(row.key.id))
            text = f"{collection} {getattr(row.value, 'name', '')}".strip()
            yield from ((role, text) for role in mentioned)


def _role_ids(message: Message) -> Iterator[pb.RoleId]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in value if field.is_repeated else (value,):
            if isinstance(each, pb.RoleId):
                yield each
            else:
                yield from _role_ids(each)


def _shortened(users: list[str]) -> tuple[str, ...]:
    return (*users[:_NAMED], *(["more"] if len(users) > _NAMED else ()))


def _mark_id(name: ObjectName, row: Object[Any, Any]) -> str:
    id_ = name.path[0] if name.type is DeclaredType.CONFIGURATION else format_id(row.key.id)
    return f"{name.type.name.lower()}/{id_}"


def _audit(
    tx: Transaction, event: pb.AuditLogEventType, name: ObjectName, row: Object[Any, Any], user: str
) -> None:
    value = _value(name, row)
    id_ = name.path[0] if name.type is DeclaredType.CONFIGURATION else format_id(row.key.id)
    details = {"value": value} if value else None
    tx.audit(event, _AUDITED[name.type], id_, ".".join(name.path), user=user, details=details)
