# ruff: noqa: D102 - the transaction documents its methods
"""A transaction on both sides of a shadow. Every call goes to both, results are the primary's, and are
compared.

The clock is read once: both sides use the time of the primary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.catalog.interfaces import Catalog
from holdfast.catalog.objects.codec import Object, Row, RowUpdate, decode
from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.registry import FENCE_TOKENS, OBJECT_TYPES, K, ObjectType, V
from holdfast.catalog.shadow.side import ShadowSide
from holdfast.catalog.transaction import Transaction
from holdfast.errors import HoldfastError

T = TypeVar("T")


class ShadowTransaction(Transaction):
    """Two transactions that make the same changes. The catalog commits both."""

    def __init__(
        self, primary: Transaction, secondary: Transaction | None, side: ShadowSide[Catalog]
    ) -> None:
        self.base, self.now_ms = primary.base, primary.now_ms
        self.primary = primary
        self._secondary = secondary
        self._side = side
        if secondary is not None:
            secondary.now_ms = primary.now_ms

    @property
    def secondary(self) -> Transaction | None:
        """The transaction of the secondary. None if it has none, or has failed since."""
        return self._secondary if self._side.handle is not None else None

    @property
    def is_open(self) -> bool:
        return self.primary.is_open

    def close(self) -> None:
        self.primary.close()
        if self._secondary is not None:
            self._secondary.close()

    def get(self, collection: ObjectType[K, V], key: K) -> V | None:
        if collection is FENCE_TOKENS:
            return self.primary.get(collection, key)
        return self._both(f"get of {collection}", lambda tx: tx.get(collection, key))

    def find(self, collection: ObjectType[K, V], like: V) -> Object[K, V] | None:
        return self._both(f"find of {collection}", lambda tx: tx.find(collection, like))

    def objects(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        if collection is FENCE_TOKENS:
            return self.primary.objects(collection)
        return iter(self._both(f"{collection}", lambda tx: list(tx.objects(collection))))

    def insert(self, collection: ObjectType[K, V], key: K, value: V) -> None:
        self._both(f"insert into {collection}", lambda tx: tx.insert(collection, key, value))

    def update(self, collection: ObjectType[K, V], key: K, value: V) -> None:
        self._both(f"update of {collection}", lambda tx: tx.update(collection, key, value))

    def set(self, collection: ObjectType[K, V], key: K, value: V) -> None:
        self._both(f"set of {collection}", lambda tx: tx.set(collection, key, value))

    def delete(self, collection: ObjectType[K, V], key: K) -> None:
        self._both(f"delete of {collection}", lambda tx: tx.delete(collection, key))

    def dangerous_put(
        self, collection: ObjectType[K, V], key: K, value: V | None, *, stored: Sequence[Row] = ()
    ) -> None:
        self._both(
            f"edit of {collection}", lambda tx: tx.dangerous_put(collection, key, value, stored=stored)
        )

    def allocate_ids(self, kind: IdKind, n: int = 1) -> list[int]:
        return self._both(f"ids of {kind}", lambda tx: tx.allocate_ids(kind, n))

    def updates(self) -> tuple[RowUpdate, ...]:
        return self._both("what is to be committed", lambda tx: tx.updates(), form=_objects)

    def _both(
        self, what: str, call: Callable[[Transaction], T], *, form: Callable[[T], Any] = lambda found: found
    ) -> T:
        secondary = self.secondary
        try:
            mine = call(self.primary)
        except HoldfastError as error:
            if secondary is not None:
                self._side.refuses(what, error, lambda _: call(secondary))
            raise
        if secondary is not None:
            for theirs in self._side.attempt(what, lambda _: call(secondary)):
                self._side.compare(what, form(mine), form(theirs))
        return mine


def _objects(updates: tuple[RowUpdate, ...]) -> list[tuple[int, bytes, bytes, int]]:
    """The objects in updates, in a form that doesn't depend on the stored bytes."""
    found = []
    for row, diff in updates:
        object_ = decode(OBJECT_TYPES[row.kind], row)
        key, value = (m.SerializeToString(deterministic=True) for m in (object_.key, object_.value))
        found.append((int(row.kind), key, value, diff))
    return found
