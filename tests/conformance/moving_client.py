"""A separate application process that continues while its catalog is moved between two stores.

Arguments: the mode (`write`, `read` or `follow`), and the addresses of stash and persist as JSON. It prints
one JSON line for each event, with times of the clock that all processes of the host share, until its standard
input ends. It writes the numbers 0, 1, 2, ..., so a catalog that lacks one has lost it.
"""

import json
import select
import sys
import time
import uuid
from typing import Any

from holdfast.catalog import (
    Catalog,
    OpenableCatalog,
    OpenMode,
    ReadOnlyCatalog,
    persist_catalog,
    stash_catalog,
)
from holdfast.catalog.move.linked import linked_catalog
from holdfast.catalog.move.reopen import reopened
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.errors import AsOfTooEarly, MigrationInProgress, NotSourceOfTruth
from holdfast.persist import PersistClient

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")
MOVED = (NotSourceOfTruth, MigrationInProgress)
PATIENCE_S = 120.0
OPENED_FOR = {"holder": "application", "purpose": "a test of a move"}


def linked(address: dict[str, Any], mode: str) -> OpenableCatalog:
    """The catalog on its two stores, following the truth."""
    stash = stash_catalog(address["stash"], read_only=mode == "read")
    client = PersistClient.open(**address["persist"], mode="read" if mode == "read" else "write")
    return linked_catalog(stash, persist_catalog(client, ORG), backend=Backend.STASH)


def tell(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def go_on() -> bool:
    """Whether standard input is still open; takes a moment, so that the catalog isn't flooded."""
    readable, _, _ = select.select([sys.stdin], [], [], 0.01)
    return not readable


def numbers(catalog: ReadOnlyCatalog) -> int:
    """How many numbers the catalog has; all from 0 on, or it lost some."""
    found = sorted(int(each.key.name) for each in catalog.objects(SETTINGS) if each.key.name.isdigit())
    assert found == list(range(len(found))), found
    return len(found)


def moved(catalog: OpenableCatalog, error: Exception, mode: OpenMode) -> Any:
    """The catalog where it is now."""
    began = time.monotonic_ns()
    tell(lost=type(error).__name__, truth=getattr(error, "truth", None))
    found = reopened(catalog, error, mode=mode, timeout_s=PATIENCE_S, **OPENED_FOR)
    tell(read=numbers(found), began=began, ended=time.monotonic_ns())
    return found


def write(openable: OpenableCatalog) -> None:
    catalog: Catalog = openable.open(OpenMode.WRITABLE, **OPENED_FOR)
    number = numbers(catalog)
    while go_on():
        began = time.monotonic_ns()
        try:
            catalog.set_setting(str(number), "written")
        except MOVED as error:
            catalog = moved(openable, error, OpenMode.WRITABLE)
            assert numbers(catalog) == number
        else:
            tell(acked=number, began=began, ended=time.monotonic_ns())
            number += 1


def read(openable: OpenableCatalog) -> None:
    catalog = openable.open(OpenMode.READ_ONLY)
    while go_on():
        began = time.monotonic_ns()
        try:
            catalog.sync()
        except MOVED as error:
            catalog = moved(openable, error, OpenMode.READ_ONLY)
        else:
            tell(read=numbers(catalog), began=began, ended=time.monotonic_ns())


def follow(openable: OpenableCatalog) -> None:
    catalog = openable.open(OpenMode.READ_ONLY)
    tell(anew=numbers(catalog))
    subscription = catalog.subscribe()
    frontier = subscription.frontier
    while go_on():
        try:
            changes = subscription.next(1.0)
        except MOVED as error:
            subscription.close()
            catalog = moved(openable, error, OpenMode.READ_ONLY)
            try:
                subscription = catalog.subscribe(frontier)
            except AsOfTooEarly:
                # What was missed is in another store's history: read anew, and go on from there.
                tell(anew=numbers(catalog))
                subscription = catalog.subscribe()
        else:
            for change in changes:
                if change.collection is SETTINGS and change.object.key.name.isdigit():
                    tell(number=int(change.object.key.name), diff=change.diff)
        frontier = subscription.frontier


if __name__ == "__main__":
    does = {"write": write, "read": read, "follow": follow}[sys.argv[1]]
    does(linked(json.loads(sys.argv[2]), "write" if does is write else "read"))
