"""Items by name. They connect a collection with the catalog.

The functions change a transaction and do nothing else. The catalog's handle commits it.
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
    """Create the item, or update its definition, and return its id (`u1`). Idempotent.

    A new item belongs to the role named `user`, or to the system's role if there is none, and gets the
    default privileges. An existing item keeps its owner and privileges. Raises `BadInput` if the database or
    the schema doesn't exist, or if the name belongs to an item of another type.
    """
    if not name:
        raise BadInput("the name of an item must not be empty")
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
    """Remove the item and return its id. Returns None if it doesn't exist, so this is idempotent."""
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
