"""The plan of an upgrade: runs every step and checks its result, before anything is durable.

Each step runs once, on a temporary copy (see `scratch`). Its changes are committed from there, one step after
the other. So an upgrade that would fail at a later step is refused before it begins.

Invariants
- After each step every key occurs once, and unique fields are unique, decoded with the messages of that
  version. At the end every row is one of the current version.
- Memory does not grow with the size of the catalog.
- Object types that no step may change (fence token, config, settings, audit log) are not copied. They are
  read from the store.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version as version_of
from typing import Any, Self

from holdfast.catalog import config
from holdfast.catalog.contents import Contents
from holdfast.catalog.objects.codec import TAG_BYTES, Row, RowUpdate, decode
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind, ObjectType
from holdfast.catalog.stores.preamble import Preamble, version_row
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.upgrade import STEPS
from holdfast.catalog.upgrade.objects import collections_of
from holdfast.catalog.upgrade.scratch import Scratch
from holdfast.catalog.upgrade.shape import same_bytes
from holdfast.catalog.upgrade.step import Step
from holdfast.catalog.upgrade_report import Size, StepReport
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput, UniquenessViolation

_UNTOUCHED = tuple(kind for kind, row in OBJECT_TYPES.items() if not row.migratable)
# The most characters of a key that messages show.
_SHOWN = 200


@dataclass(frozen=True)
class Chain:
    """The steps of this Holdfast up to version `current`, by the version that each step starts from.

    `build` is the library version that the guards of steps get. `collections` returns the object types of a
    version.
    """

    steps: Mapping[int, Step]
    current: int
    build: str
    collections: Callable[[int], Mapping[Kind, ObjectType[Any, Any]]]


def released() -> Chain:
    """The chain of this Holdfast."""
    return Chain(STEPS, CATALOG_VERSION, version_of("holdfast"), collections_of)


@dataclass
class Planned:
    """A step that has run on the temporary copy. Sizes are those of the migratable kinds."""

    source: int
    target: int
    before: Mapping[Kind, Size]
    after: Mapping[Kind, Size]
    seconds: float

    def committed(self, seconds: float) -> StepReport:
        """The report of the step, if its commit took this many seconds."""
        before, after = map(_by_name, (self.before, self.after))
        return StepReport(self.source, self.target, before, after, self.seconds + seconds)


class Plan(Contents):
    """The upgrade of the catalog with the preamble `seen`, and its contents after the upgrade.

    You must close it. The constructor raises:
        CorruptBlob: a row is not one of its version, or a step makes a change that steps may not make.
        UniquenessViolation: two objects of a version share a unique field.
        BadInput: a row becomes larger than the store accepts.
        Determinate: there is no space for temporary files.
    """

    def __init__(self, store: CatalogStore, seen: Preamble, chain: Chain) -> None:
        self._store = store
        self.seen = seen
        self._chain = chain
        self.source = seen.config[config.USER_VERSION]
        self.steps: list[Planned] = []
        self._scratch = Scratch()
        # The object type that the rows were checked with, by kind and by the state that added the rows.
        self._checked: dict[tuple[Kind, int], ObjectType[Any, Any]] = {}
        try:
            self._scratch.load(store.batches(seen.upper - 1, but=_UNTOUCHED))
            before = self._scratch.sizes()
            for version in range(self.source, chain.current):
                before = self._work_out(version, before)
            self._check_current()
        except BaseException:
            self._scratch.close()
            raise

    def updates(self, version: int, seen: Preamble) -> Iterator[RowUpdate]:
        """The updates that the step from `version` commits after `seen`: its changes and the new version."""
        yield from seen.raise_version(version + 1)
        yield from self._scratch.updates(version - self.source + 1)

    def rows(self, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """The rows of the upgraded catalog, of the given kinds or of all, with the current fence token."""
        asked = tuple(kinds) or tuple(OBJECT_TYPES)
        kept = [kind for kind in asked if not OBJECT_TYPES[kind].migratable]
        for row in self._store.rows(self.seen.upper - 1, kept) if kept else ():
            yield version_row(self._chain.current) if row == self.seen.version_row else row
        for kind in asked:
            if OBJECT_TYPES[kind].migratable:
                yield from self._scratch.rows(kind)

    def close(self) -> None:
        """Delete the temporary copy."""
        self._scratch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work_out(self, version: int, before: Mapping[Kind, Size]) -> Mapping[Kind, Size]:
        start = time.monotonic()
        step = self._chain.steps[version]
        needed = step.guard is None or step.guard(self._chain.build)
        touched = self._scratch.apply(step.updates(self._scratch) if needed else (), source=version)
        self._check_step(version, touched)
        self._check_fits(version, touched)
        after = {**before, **self._scratch.sizes()}
        self.steps.append(Planned(version, step.target, before, after, time.monotonic() - start))
        return after

    def _check_step(self, version: int, touched: Iterable[Kind]) -> None:
        """Check the rows that the step from `version` added, and older rows of its kinds not checked yet."""
        collections = self._chain.collections(version + 1)
        for kind in touched:
            collection = collections.get(kind)
            if collection is not None:
                states = range(self._scratch.state + 1)
                self._check(collection, [state for state in states if (kind, state) not in self._checked])

    def _check_fits(self, version: int, touched: Iterable[Kind]) -> None:
        """Check that the store accepts the size of each row that the step from `version` adds."""
        limit = self._store.max_row_bytes
        if limit is None:
            return
        for kind in touched:
            row = self._scratch.added_beyond(kind, self._scratch.state, limit)
            if row is not None:
                bytes_, target = len(row.key) + len(row.value), version + 1
                raise BadInput(
                    f"the {self._named(row, target)} would have {bytes_:,} bytes at version {target},"
                    f" {self._store.place} takes {limit:,}",
                    hint="make it smaller with the Holdfast that wrote the catalog",
                )

    def _named(self, row: Row, version: int) -> str:
        """The name of a row of a version, as messages show it."""
        collection = self._chain.collections(version).get(row.kind)
        key = row.key[TAG_BYTES:].hex() if collection is None else _text(decode(collection, row).key)
        return f"row of {OBJECT_TYPES[row.kind]} {key if len(key) <= _SHOWN else key[:_SHOWN] + '...'}"

    def _check_current(self) -> None:
        """Check rows that were not checked yet, or only with messages unlike those of the current version."""
        for kind, collection in self._chain.collections(self._chain.current).items():
            if collection.migratable:
                old = {state: self._checked.get((kind, state)) for state in range(self._scratch.state + 1)}
                self._check(
                    collection,
                    [state for state, by in old.items() if by is None or not same_bytes(by, collection)],
                )

    def _check(self, collection: ObjectType[Any, Any], states: Iterable[int]) -> None:
        """Check that the rows that these states added are objects of a collection, with unique names."""
        for state in states:
            self._checked[collection.kind, state] = collection
            rows = self._scratch.added(collection.kind, state)
            if collection.unique_by is None:
                for _, row in rows:
                    decode(collection, row)
            else:
                self._scratch.note_names(_names(collection, rows))
        if collection.unique_by is not None:
            self._refuse_shared_names(collection, f"upgraded from version {self.source}")

    def _refuse_shared_names(self, collection: ObjectType[Any, Any], how: str) -> None:
        shared = self._scratch.shared_name(collection.kind)
        if shared is not None:
            first, second = (decode(collection, row) for row in shared)
            raise UniquenessViolation(
                f"two objects of {collection}, {how}, would have the same unique value:"
                f" {_text(first.key)} and {_text(second.key)}",
                hint="rename or drop one of them with the Holdfast that wrote the catalog",
            )


def _names(collection: ObjectType[Any, Any], rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, bytes]]:
    assert collection.unique_by is not None
    for number, row in rows:
        unique = collection.unique_by(decode(collection, row).value)
        yield number, blake2b(repr(unique).encode(), digest_size=16).digest()


def _by_name(sizes: Mapping[Kind, Size]) -> Mapping[str, Size]:
    return {OBJECT_TYPES[kind].name: size for kind, size in sizes.items()}


def _text(message: Any) -> str:
    return " ".join(str(message).split())
