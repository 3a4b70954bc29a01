"""What an upgrade is going to do: every step worked out, and its result checked, before anything is durable.

All steps run on a temporary copy (see `scratch`), each once; what they changed is committed from there, one
step after the other. An upgrade that can't be done to its end is therefore refused before it begins.

Invariants
- After each step every key is there once, and what must be unique is, by the messages of that version. At the
  end every row is one of the current version.
- Memory is bounded, whatever the size of the catalog.
- What no step may change (fence token, config, settings, audit log) is not copied: it is read from the store.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version as version_of
from typing import Any, Self

from holdfast.catalog import config
from holdfast.catalog.contents import Contents
from holdfast.catalog.objects.codec import TAG_BYTES, Row, Update, decode
from holdfast.catalog.objects.registry import COLLECTIONS, Collection, Kind
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

_UNTOUCHED = tuple(kind for kind, row in COLLECTIONS.items() if not row.migratable)
# So many characters of a key are shown.
_SHOWN = 200


@dataclass(frozen=True)
class Chain:
    """The steps of this Holdfast, by the version that each starts from, to version `current`.

    `build` is what the guards of steps are asked with; `collections` gives the object types of a version.
    """

    steps: Mapping[int, Step]
    current: int
    build: str
    collections: Callable[[int], Mapping[Kind, Collection[Any, Any]]]


def released() -> Chain:
    """The chain of this Holdfast."""
    return Chain(STEPS, CATALOG_VERSION, version_of("holdfast"), collections_of)


@dataclass
class Planned:
    """A step that is worked out. Sizes are of the migratable kinds."""

    source: int
    target: int
    before: Mapping[Kind, Size]
    after: Mapping[Kind, Size]
    seconds: float

    def committed(self, seconds: float) -> StepReport:
        """The report of the step, whose commit took so many seconds."""
        before, after = map(_by_name, (self.before, self.after))
        return StepReport(self.source, self.target, before, after, self.seconds + seconds)


class Plan(Contents):
    """The upgrade of what `seen` is the preamble of, and the contents after it; to be closed.

    Raises, when it is made: `CorruptBlob` for rows that aren't of their version, or a step that does what no
    step may; `UniquenessViolation`; `BadInput` for a row that becomes larger than the store takes;
    `Determinate` where there is no room for temporary files.
    """

    def __init__(self, store: CatalogStore, seen: Preamble, chain: Chain) -> None:
        self._store = store
        self.seen = seen
        self._chain = chain
        self.source = seen.config[config.USER_VERSION]
        self.steps: list[Planned] = []
        self._scratch = Scratch()
        # What the rows of a kind that a state added were checked by.
        self._checked: dict[tuple[Kind, int], Collection[Any, Any]] = {}
        try:
            self._scratch.load(store.batches(seen.upper - 1, but=_UNTOUCHED))
            before = self._scratch.sizes()
            for version in range(self.source, chain.current):
                before = self._work_out(version, before)
            self._check_current()
        except BaseException:
            self._scratch.close()
            raise

    def updates(self, version: int, seen: Preamble) -> Iterator[Update]:
        """What the step from `version` commits on the state of `seen`: its changes and the new version."""
        yield from seen.raise_version(version + 1)
        yield from self._scratch.updates(version - self.source + 1)

    def rows(self, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """The catalog as it will be, of the given kinds or of all, under the fence token that it has now."""
        asked = tuple(kinds) or tuple(COLLECTIONS)
        kept = [kind for kind in asked if not COLLECTIONS[kind].migratable]
        for row in self._store.rows(self.seen.upper - 1, kept) if kept else ():
            yield version_row(self._chain.current) if row == self.seen.version_row else row
        for kind in asked:
            if COLLECTIONS[kind].migratable:
                yield from self._scratch.rows(kind)

    def close(self) -> None:
        """Give up the temporary copy."""
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
        """What the step from `version` added, and what it left alone of a kind that none changed before."""
        collections = self._chain.collections(version + 1)
        for kind in touched:
            collection = collections.get(kind)
            if collection is not None:
                states = range(self._scratch.state + 1)
                self._check(collection, [state for state in states if (kind, state) not in self._checked])

    def _check_fits(self, version: int, touched: Iterable[Kind]) -> None:
        """That the store takes what the step from `version` adds."""
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
        """A row of a version, for people."""
        collection = self._chain.collections(version).get(row.kind)
        key = row.key[TAG_BYTES:].hex() if collection is None else _text(decode(collection, row).key)
        return f"row of {COLLECTIONS[row.kind]} {key if len(key) <= _SHOWN else key[:_SHOWN] + '...'}"

    def _check_current(self) -> None:
        """What was not checked, or by messages that differ from those of the current version."""
        for kind, collection in self._chain.collections(self._chain.current).items():
            if collection.migratable:
                old = {state: self._checked.get((kind, state)) for state in range(self._scratch.state + 1)}
                self._check(
                    collection,
                    [state for state, by in old.items() if by is None or not same_bytes(by, collection)],
                )

    def _check(self, collection: Collection[Any, Any], states: Iterable[int]) -> None:
        """That the rows that these states added are objects of a collection, and unique among all."""
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

    def _refuse_shared_names(self, collection: Collection[Any, Any], how: str) -> None:
        shared = self._scratch.shared_name(collection.kind)
        if shared is not None:
            first, second = (decode(collection, row) for row in shared)
            raise UniquenessViolation(
                f"two of the {collection}, {how}, would share what must be unique:"
                f" {_text(first.key)} and {_text(second.key)}",
                hint="rename or drop one of them with the Holdfast that wrote the catalog",
            )


def _names(collection: Collection[Any, Any], rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, bytes]]:
    assert collection.unique_by is not None
    for number, row in rows:
        unique = collection.unique_by(decode(collection, row).value)
        yield number, blake2b(repr(unique).encode(), digest_size=16).digest()


def _by_name(sizes: Mapping[Kind, Size]) -> Mapping[str, Size]:
    return {COLLECTIONS[kind].name: size for kind, size in sizes.items()}


def _text(message: Any) -> str:
    return " ".join(str(message).split())
