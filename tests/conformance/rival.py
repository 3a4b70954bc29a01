"""A process that changes a catalog concurrently with its rivals, and prints the result of each change.

Arguments: the address of the catalog as JSON, and the name of the process. It reads one order (JSON) per
line of its standard input, and prints one JSON line for each result:

- `{"do": "open"}` takes the catalog over;
- `{"do": "begin", "change": [what, n]}` begins a transaction and makes the change in it;
- `{"do": "commit"}` commits it. With `"bug": true` it opens the catalog again and makes the changes that it
  decided on before, without looking again;
- `{"do": "round", "n": n}` makes all changes of that number, opens the catalog again whenever it is fenced,
  and prints each attempt before and after it.

Each commit has one event in the audit log. The event's object is named after the attempt.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from conformance.catalogs import catalogs_at, writable
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, IdKind, Transaction
from holdfast.catalog.items import ensure_item
from holdfast.catalog.objects.codec import decode
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    DATABASES,
    ID_ALLOCATORS,
    ITEMS,
    OBJECT_TYPES,
    ROLES,
    SCHEMAS,
    SETTINGS,
)
from holdfast.errors import BadInput, CatalogOutOfSync, Fenced, Indeterminate, UniquenessViolation

DATABASE = "holdfast"


class Rival:
    """One process that writes."""

    def __init__(self, address: dict[str, str], name: str) -> None:
        self._catalogs = catalogs_at(address)
        self._openable = self._catalogs.openable()
        self._name = name
        self._number = 0
        self._catalog: Catalog | None = None
        self._tx: Transaction | None = None
        self._attempt = ""

    def open(self) -> None:
        """Take the catalog over, until nobody takes it at the same moment."""
        if self._catalog is not None:
            self._catalog.close()
        while True:
            try:
                self._catalog = writable(self._openable, self._name)
            except (Fenced, CatalogOutOfSync):
                continue
            return

    def begin(self, what: str, n: int) -> dict[str, Any]:
        """Make a change in a transaction that stays open; what the change is."""
        assert self._catalog is not None
        self._number += 1
        self._attempt = f"{self._name}/{self._number}"
        attempt: dict[str, Any] = {"attempt": self._attempt, "change": [what, n]}
        self._tx = None
        try:
            self._tx = self._catalog.transaction()
            attempt["ids"] = CHANGES[what](self._tx, n)
        except (BadInput, Fenced) as error:
            if self._tx is not None:
                self._tx.close()
                self._tx = None
            return attempt | answer_of(error)
        note(self._tx, self._attempt)
        return attempt

    def commit(self, *, bug: bool = False) -> dict[str, str]:
        """Commit what was begun; the answer."""
        assert self._tx is not None
        tx, self._tx = self._tx, None
        if bug:
            tx = self._decided_before(tx)
        assert self._catalog is not None
        try:
            self._catalog.commit_transaction(tx)
        except (BadInput, Fenced, CatalogOutOfSync, UniquenessViolation, Indeterminate) as error:
            return answer_of(error)
        return {"answer": "done"}

    def _decided_before(self, tx: Transaction) -> Transaction:
        """The same changes in a transaction that nobody has fenced, without looking again."""
        changes = [
            update for update in tx.updates() if update.row.kind not in (AUDIT_LOG.kind, ID_ALLOCATORS.kind)
        ]
        tx.close()
        self.open()
        assert self._catalog is not None
        tx = self._catalog.transaction()
        for row, diff in sorted(changes, key=lambda update: update.diff):
            there = decode(OBJECT_TYPES[row.kind], row)
            tx.dangerous_put(OBJECT_TYPES[row.kind], there.key, there.value if diff == 1 else None)
        note(tx, self._attempt)
        return tx

    def round(self, n: int) -> Iterator[dict[str, Any]]:
        """Make all changes; one that is fenced is made again, as another attempt."""
        for what in CHANGES:
            while True:
                attempt = self.begin(what, n)
                yield attempt
                if "answer" not in attempt:
                    attempt |= self.commit()
                    yield attempt
                if attempt["answer"] != "fenced":
                    break
                self.open()

    def carry_out(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What it says to an order."""
        match order.pop("do"):
            case "open":
                self.open()
                yield {"done": True}
            case "begin":
                yield self.begin(*order["change"])
            case "commit":
                yield self.commit(**order)
            case "round":
                yield from self.round(**order)
                yield {"done": True}


def answer_of(error: Exception) -> dict[str, str]:
    """What a process is told by an error."""
    if isinstance(error, Indeterminate):
        answer = "unknown"
    else:
        answer = "fenced" if isinstance(error, (Fenced, CatalogOutOfSync)) else "refused"
    return {"answer": answer, "error": type(error).__name__}


def note(tx: Transaction, attempt: str) -> None:
    """Add the event of an attempt."""
    create = pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE
    tx.audit(create, pb.ObjectType.OBJECT_TYPE_ROLE, "", attempt)


def name_it(tx: Transaction, n: int) -> list[int]:
    """A new role of a name that others want too."""
    (number,) = tx.allocate_ids(IdKind.USER_ROLE)
    tx.insert(ROLES, pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=f"name-{n}"))
    return []


def allocate(tx: Transaction, n: int) -> list[int]:
    """Ids that nothing is made of."""
    return tx.allocate_ids(IdKind.USER_CLUSTER, n % 3 + 1)


def count(tx: Transaction, n: int) -> list[int]:
    """One more than there were."""
    key = pb.SettingKey(name="count")
    found = tx.get(SETTINGS, key)
    number = 0 if found is None else int(found.value)
    tx.set(SETTINGS, key, pb.SettingValue(value=str(number + 1)))
    return []


def schema_key(tx: Transaction, n: int) -> tuple[pb.ObjectId, pb.SchemaKey]:
    database = tx.find(DATABASES, pb.DatabaseValue(name=DATABASE))
    assert database is not None
    schema = tx.find(SCHEMAS, pb.SchemaValue(database_id=database.key.id, name=f"s{n}"))
    if schema is None:
        raise BadInput("the schema is gone")
    return database.key.id, schema.key


def drop_schema(tx: Transaction, n: int) -> list[int]:
    """Drop a schema that nothing is in."""
    _, key = schema_key(tx, n)
    if any(item.value.schema_id == key.id for item in tx.objects(ITEMS)):
        raise BadInput("something is in the schema")
    tx.delete(SCHEMAS, key)
    return []


def make_item(tx: Transaction, n: int) -> list[int]:
    """Make an item in a schema that is there."""
    ensure_item(tx, DATABASE, f"s{n}", "item")
    return []


def make_schemas(tx: Transaction, numbers: range) -> None:
    """The schemas that the rivals quarrel about."""
    database = tx.find(DATABASES, pb.DatabaseValue(name=DATABASE))
    assert database is not None
    for n, number in zip(numbers, tx.allocate_ids(IdKind.USER_SCHEMA, len(numbers)), strict=True):
        value = pb.SchemaValue(database_id=database.key.id, name=f"s{n}")
        tx.insert(SCHEMAS, pb.SchemaKey(id=pb.ObjectId(user=number)), value)


CHANGES: dict[str, Callable[[Transaction, int], list[int]]] = {
    "name": name_it,
    "ids": allocate,
    "count": count,
    "drop": drop_schema,
    "item": make_item,
}


def say(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)


def main(address: str, name: str) -> None:
    rival = Rival(json.loads(address), name)
    say({"done": True})
    for line in sys.stdin:
        for said in rival.carry_out(json.loads(line)):
            say(said)


if __name__ == "__main__":
    main(*sys.argv[1:])
