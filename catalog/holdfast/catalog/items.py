"""Items by their names: what binds a storage collection to the catalog.

Pure changes of a transaction; the catalog's handle commits them.
"""

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.objects.ids import IdKind, format_id
from holdfast.catalog.objects.registry import DATABASES, ITEMS, SCHEMAS
from holdfast.catalog.privileges import privileges_of_new, role_named
from holdfast.catalog.transaction import Transaction
from holdfast.errors import BadInput

COLLECTION = pb.ObjectType.OBJECT_TYPE_COLLECTION


def ensure_item(
    tx: Transaction,
    database: str,
    schema: str,
    name: str,
    *,
    definition: str = "",
    object_type: pb.ObjectType = COLLECTION,
    user: str = "",
) -> str:
    """Make the item, or bring its definition up to date, and give its id (`u1`); idempotent.

    A new one belongs to the role named `user`, or to the system's where there is none, with the privileges
    that default privileges say; owner and privileges of one that is there stay as they are. Raises `BadInput`
    when database or schema don't exist, or the name belongs to an item of another type.
    """
    if not name:
        raise BadInput("an item needs a name that isn't empty")
    database_id, schema_id = _schema(tx, database, schema)
    full_name = f"{database}.{schema}.{name}"
    found = tx.find(ITEMS, pb.ItemValue(schema_id=schema_id, name=name))
    if found is None:
        owner = role_named(tx, user)
        value = pb.ItemValue(
            schema_id=schema_id,
            name=name,
            type=object_type,
            definition=definition,
            owner_id=owner,
            privileges=privileges_of_new(tx, object_type, owner, database=database_id, schema=schema_id),
        )
        (number,) = tx.allocate_ids(IdKind.USER_ITEM)
        key = pb.ItemKey(id=pb.ObjectId(user=number))
        tx.insert(ITEMS, key, value)
        tx.audit(
            pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
            object_type,
            format_id(key.id),
            full_name,
            user=user,
        )
        return format_id(key.id)
    id_ = format_id(found.key.id)
    if found.value.type != object_type:
        raise BadInput(
            f"{full_name} is {_type_name(found.value.type)} {id_}, not {_type_name(object_type)}",
            hint="choose another name, or drop that item first",
        )
    if found.value.definition != definition:
        found.value.definition = definition
        tx.update(ITEMS, found.key, found.value)
        tx.audit(pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_ALTER, object_type, id_, full_name, user=user)
    return id_


def drop_item(tx: Transaction, database: str, schema: str, name: str, *, user: str = "") -> str | None:
    """Remove the item and give its id; None when it isn't there, so that it is idempotent."""
    schema_id = _find_schema(tx, database, schema)
    found = None if schema_id is None else tx.find(ITEMS, pb.ItemValue(schema_id=schema_id, name=name))
    if found is None:
        return None
    id_ = format_id(found.key.id)
    tx.delete(ITEMS, found.key)
    tx.audit(
        pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_DROP,
        found.value.type,
        id_,
        f"{database}.{schema}.{name}",
        user=user,
    )
    return id_


def _schema(tx: Transaction, database: str, schema: str) -> tuple[pb.ObjectId, pb.ObjectId]:
    """The ids of the database and of its schema."""
    parent = tx.find(DATABASES, pb.DatabaseValue(name=database))
    if parent is None:
        raise BadInput(f"there is no database {database!r} in the catalog", hint="create it first")
    found = tx.find(SCHEMAS, pb.SchemaValue(database_id=parent.key.id, name=schema))
    if found is None:
        raise BadInput(f"there is no schema {schema!r} in database {database!r}", hint="create it first")
    return parent.key.id, found.key.id


def _find_schema(tx: Transaction, database: str, schema: str) -> pb.ObjectId | None:
    parent = tx.find(DATABASES, pb.DatabaseValue(name=database))
    if parent is None:
        return None
    found = tx.find(SCHEMAS, pb.SchemaValue(database_id=parent.key.id, name=schema))
    return None if found is None else found.key.id


def _type_name(object_type: pb.ObjectType) -> str:
    return pb.ObjectType.Name(object_type).removeprefix("OBJECT_TYPE_").lower().replace("_", " ")
