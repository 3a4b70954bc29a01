"""A transaction on the catalog: changes on top of the cache, and the updates to commit that follow from them.

Invariants
- Copy-on-write: it copies the objects that it changes and reads the others from the cache. Its cost depends
  on the number of changed objects, and not on the size of the catalog.
- It has no I/O and no clock. The handle that opened it commits it. A handle has one open transaction at a
  time.
- It retracts the stored bytes.
- A key is checked at once. Unique names are checked at the end, so that two objects may swap their names.
- An append-only object is new if its id is the allocator's next one or a later one, which moves the
  allocator.
- Neither an id allocator nor a timeline goes back.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import config
from holdfast.catalog.cache import Cache
from holdfast.catalog.objects import allocation
from holdfast.catalog.objects.codec import (
    Object,
    Row,
    RowUpdate,
    encode,
    encode_key,
    encode_value,
    known,
    known_value,
)
from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.message_json import json_text
from holdfast.catalog.objects.packed import Keys
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    FENCE_TOKENS,
    ID_ALLOCATORS,
    OBJECT_TYPES,
    TIMESTAMPS,
    K,
    Kind,
    ObjectType,
    V,
)
from holdfast.errors import BadInput, UniquenessViolation

_ID_LIMIT = 1 << 64


def not_open(place: str) -> BadInput:
    """The error for a commit of a transaction that isn't the open one of the handle."""
    return BadInput(
        f"can't commit to the catalog in {place}: the transaction is not open on this handle",
        hint="commit a transaction once, with the handle that began it; to try again, begin another one",
    )


_ALLOCATOR_KEYS = {kind: encode_key(ID_ALLOCATORS, pb.IdAllocatorKey(name=kind)) for kind in IdKind}


class Transaction:
    """Changes that become visible together, when the catalog that opened the transaction commits them.

    Not thread-safe.

    `base` is the upper of the contents that it sees. `now_ms` is the time of all its audit events.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        base: int = 0,
        now_ms: int = 0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.base, self.now_ms = base, now_ms
        self._cache = cache
        self._changes: dict[Kind, dict[bytes, Row | None]] = {}
        # The keys to which a unique value was assigned. They may have another one by now.
        self._named: dict[Kind, Keys] = {}
        # The append-only rows that a repair retracts. The cache doesn't have them.
        self._retracted: dict[bytes, Sequence[Row]] = {}
        self._on_close = on_close
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it can still be changed and committed."""
        return self._open

    def close(self) -> None:
        """Drop the changes. Does nothing after the commit."""
        if self._open:
            self._open = False
            self._on_close()

    def get(self, collection: ObjectType[K, V], key: K) -> V | None:
        """The value of a key in this transaction. Raises `BadInput` for a type that isn't cached."""
        row = self._row(_cached(collection), encode_key(collection, key))
        return None if row is None else known_value(collection, row.value)

    def find(self, collection: ObjectType[K, V], like: V) -> Object[K, V] | None:
        """The object with the same unique value as `like`, for example the schema and name of an item."""
        if collection.unique_by is None:
            raise BadInput(
                f"an object of {collection} can't be found by its value: values of this type are not unique",
                hint="get it by its key",
            )
        wanted = collection.unique_by(like)
        changes = self._changes.get(collection.kind, {})
        for key in self._changed_with(collection, wanted):
            row = changes[key]
            assert row is not None
            return known(collection, row)
        table = self._cache.table(collection.kind)
        holder = table.holder(wanted)
        row = None if holder is None or holder in changes else table.get(holder)
        return None if row is None else known(collection, row)

    def objects(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        """All objects of a type in this transaction."""
        changes = self._changes.get(_cached(collection).kind, {})
        for key, row in self._cache.table(collection.kind).items():
            if key not in changes:
                yield known(collection, row)
        yield from (known(collection, row) for row in list(changes.values()) if row is not None)

    def insert(self, collection: ObjectType[K, V], key: K, value: V) -> None:
        """Add an object. Raises `UniquenessViolation` if the key exists.

        The id of an append-only object must be allocated in this transaction, or be beyond its allocator,
        which then moves after it. Any other id may have been used before, and raises `UniquenessViolation`.
        """
        row = self._checked(collection, key, value)
        known = row.key in self._changes.get(collection.kind, {})
        if self._row(collection, row.key) is not None if collection.cached else known:
            raise UniquenessViolation(f"{collection} already has an object with key {json_text(key)}")
        if collection.append_only:
            self._check_new(collection, key)
            self._move_beyond(collection, key)
        self._check_onward(collection, key, row.key, value)
        self._put(collection, row.key, row, value)

    def update(self, collection: ObjectType[K, V], key: K, value: V) -> None:
        """Replace the value of an object.

        Raises `BadInput` if it doesn't exist or its type is append-only.
        """
        row = self._checked(_changeable(collection), key, value)
        if self._row(collection, row.key) is None:
            raise _missing(collection, key)
        self._check_onward(collection, key, row.key, value)
        self._put(collection, row.key, row, value)

    def set(self, collection: ObjectType[K, V], key: K, value: V) -> None:
        """Insert the object or replace its value."""
        row = self._checked(_changeable(collection), key, value)
        self._check_onward(collection, key, row.key, value)
        self._put(collection, row.key, row, value)

    def delete(self, collection: ObjectType[K, V], key: K) -> None:
        """Remove an object. Raises `BadInput` if it doesn't exist or its type is append-only."""
        encoded = encode_key(_changeable(collection), key)
        _check_changeable(key)
        if self._row(collection, encoded) is None:
            raise _missing(collection, key)
        self._check_onward(collection, key, encoded, None)
        self._put(collection, encoded, None)

    def dangerous_put(
        self, collection: ObjectType[K, V], key: K, value: V | None, *, stored: Sequence[Row] = ()
    ) -> None:
        """Insert, replace or (`value` None) delete any object, for repairs by hand.

        Append-only types, reserved config and going back are all allowed. `stored` are the stored rows of an
        append-only object. Only the fence token is refused.
        """
        encoded = encode_key(collection, key)
        self._put(collection, encoded, None if value is None else encode(collection, key, value), value)
        if not collection.cached:
            self._retracted[encoded] = stored
        if collection.append_only and value is not None:
            self._move_beyond(collection, key)

    def allocate_ids(self, kind: IdKind, n: int = 1) -> list[int]:
        """Allocate `n` ids that were never used and that no object of the kind has."""
        if n < 0:
            raise BadInput(f"can't allocate {n} ids: expected 0 or more")
        next_id = _next_id(self._row(ID_ALLOCATORS, _ALLOCATOR_KEYS[kind]))
        found: list[int] = []
        while len(found) < n:
            # Check that the remaining ids fit.
            if next_id + n - len(found) >= _ID_LIMIT:
                raise BadInput(f"the ids of {kind} are used up")
            if not self._is_taken(kind, next_id):
                found.append(next_id)
            next_id += 1
        if n:
            self._move_allocator(kind, next_id)
        return found

    def audit(
        self,
        event_type: pb.AuditLogEventType,
        object_type: pb.ObjectType,
        object_id: str,
        object_name: str,
        *,
        user: str = "",
        details: Mapping[str, str] | None = None,
    ) -> int:
        """Add an event to the audit log. Returns its id."""
        (event_id,) = self.allocate_ids(IdKind.AUDIT_LOG)
        value = pb.AuditLogValue(
            event_type=event_type,
            object_type=object_type,
            object_id=object_id,
            object_name=object_name,
            details=[pb.AuditLogDetail(name=name, value=text) for name, text in (details or {}).items()],
            user=user,
            occurred_at_ms=self.now_ms,
        )
        self.insert(AUDIT_LOG, pb.AuditLogKey(id=event_id), value)
        return event_id

    def updates(self) -> tuple[RowUpdate, ...]:
        """The updates to commit: retractions of stored bytes, and additions. Empty if nothing changed.

        Raises `UniquenessViolation`, naming the object, if two objects would have the same unique value.
        """
        found: list[RowUpdate] = []
        for kind, changes in sorted(self._changes.items()):
            collection = OBJECT_TYPES[kind]
            if collection.cached:
                self._check_unique(collection, changes)
            for key, row in changes.items():
                stored = self._stored(collection, key)
                found += (RowUpdate(old, -1) for old in stored if old != row)
                if row is not None and row not in stored:
                    found.append(RowUpdate(row, 1))
        return tuple(found)

    def _row(self, collection: ObjectType[Any, Any], key: bytes) -> Row | None:
        changes = self._changes.get(collection.kind, {})
        return changes[key] if key in changes else self._cache.table(collection.kind).get(key)

    def _stored(self, collection: ObjectType[Any, Any], key: bytes) -> Sequence[Row]:
        if not collection.cached:
            return self._retracted.get(key, ())
        row = self._cache.table(collection.kind).get(key)
        return () if row is None else (row,)

    def _is_taken(self, kind: IdKind, number: int) -> bool:
        """Whether an object has the id though it was not allocated, because somebody wrote it by hand."""
        if kind not in allocation.KEYED:
            return False
        return self._row(allocation.KEYED[kind][0], allocation.key_with(kind, number)) is not None

    def _check_new(self, collection: ObjectType[Any, Any], key: Any) -> None:
        # The allocator before this transaction, which may use all ids that it has allocated itself.
        encoded = _ALLOCATOR_KEYS[allocation.APPENDED[collection.kind]]
        next_id = _next_id(self._cache.table(ID_ALLOCATORS.kind).get(encoded))
        if key.id < next_id:
            raise UniquenessViolation(
                f"{collection} may already have an object with key {json_text(key)}:"
                f" ids below {next_id} are used",
                hint="allocate an id in the transaction",
            )

    def _move_beyond(self, collection: ObjectType[Any, Any], key: Any) -> None:
        kind = allocation.APPENDED[collection.kind]
        if key.id < _next_id(self._row(ID_ALLOCATORS, _ALLOCATOR_KEYS[kind])):
            return
        if key.id + 1 >= _ID_LIMIT:
            raise BadInput(
                f"{collection} can't have an object with key {json_text(key)}:"
                " its id is the last one, and no id could follow it"
            )
        self._move_allocator(kind, key.id + 1)

    def _move_allocator(self, kind: IdKind, next_id: int) -> None:
        key, value = pb.IdAllocatorKey(name=kind), pb.IdAllocatorValue(next_id=next_id)
        row = Row(_ALLOCATOR_KEYS[kind], encode_value(ID_ALLOCATORS, value))
        self._check_onward(ID_ALLOCATORS, key, row.key, value)
        self._put(ID_ALLOCATORS, row.key, row)

    def _check_onward(
        self, collection: ObjectType[Any, Any], key: Any, encoded: bytes, value: Message | None
    ) -> None:
        if collection not in (ID_ALLOCATORS, TIMESTAMPS):
            return
        # A deletion in this transaction must not make it go back either. Usually both rows are the same.
        for row in {self._row(collection, encoded), self._cache.table(collection.kind).get(encoded)}:
            there = None if row is None else known_value(collection, row.value)
            allocation.check_onward(collection, key, there, value)

    def _checked(self, collection: ObjectType[K, V], key: K, value: V) -> Row:
        row = encode(collection, key, value)
        _check_changeable(key)
        return row

    def _put(
        self, collection: ObjectType[Any, Any], key: bytes, row: Row | None, value: Message | None = None
    ) -> None:
        if not self._open:
            raise BadInput(
                "the transaction is closed: its changes were committed or dropped", hint="begin another one"
            )
        if collection is FENCE_TOKENS:
            raise BadInput(
                "a transaction can't change the fence token of its catalog",
                hint="leave the fence token out of the transaction; to raise it, open the catalog with"
                " OpenMode.WRITABLE, or run 'holdfast catalog fence --at-least N'",
            )
        self._changes.setdefault(collection.kind, {})[key] = row
        if collection.unique_by is not None and value is not None:
            self._named.setdefault(collection.kind, Keys()).add(collection.unique_by(value), key)

    def _changed_with(self, collection: ObjectType[Any, Any], unique: Hashable) -> Iterator[bytes]:
        """The keys of changed objects with this unique value."""
        assert collection.unique_by is not None
        changes = self._changes.get(collection.kind, {})
        named = self._named.get(collection.kind)
        for key in () if named is None else named.of(unique):
            row = changes[key]
            if row is not None and collection.unique_by(known_value(collection, row.value)) == unique:
                yield key

    def _check_unique(self, collection: ObjectType[Any, Any], changes: dict[bytes, Row | None]) -> None:
        if collection.unique_by is None:
            return
        table = self._cache.table(collection.kind)
        for key, row in changes.items():
            if row is None:
                continue
            value = known_value(collection, row.value)
            unique = collection.unique_by(value)
            holder = table.holder(unique)
            shared = any(other != key for other in self._changed_with(collection, unique))
            if shared or not (holder is None or holder in changes):
                raise UniquenessViolation(
                    f"two objects of {collection} would have the same unique value: {json_text(value)}"
                )


def _next_id(row: Row | None) -> int:
    """The next id of an allocator."""
    return 1 if row is None else known_value(ID_ALLOCATORS, row.value).next_id


def _cached(collection: ObjectType[K, V]) -> ObjectType[K, V]:
    if not collection.cached:
        raise BadInput(f"{collection} is append-only and not kept in memory: read it as a stream")
    return collection


def _changeable(collection: ObjectType[K, V]) -> ObjectType[K, V]:
    if collection.append_only:
        raise BadInput(f"{collection} is append-only: its objects can't be changed or deleted")
    return collection


def _missing(collection: ObjectType[Any, Any], key: Message) -> BadInput:
    return BadInput(
        f"{collection} has no object with key {json_text(key)}",
        hint="'holdfast catalog dump' shows all objects with their keys",
    )


def _check_changeable(key: Message) -> None:
    if isinstance(key, pb.ConfigKey):
        config.check_changeable(key.key)
