"""Writes a catalog with the installed Holdfast, then commits once more on request.

Run it with `persist URL [CONSENSUS]` or `stash URL`. It prints one line of JSON for each of the two, and
waits for a line in between. It uses only features that the earliest Holdfast also has.
"""

import json
import sys
from typing import Any

from holdfast._pb import objects_pb2 as pb
from holdfast.errors import HoldfastError

try:
    from holdfast import catalog as durable
    from holdfast.catalog.objects.registry import COMMENTS, ROLES, Kind
    from holdfast.catalog.version import CATALOG_VERSION
except ImportError:  # In an earlier Holdfast the catalog has other module names.
    from holdfast import durable  # type: ignore[attr-defined, no-redef]
    from holdfast.durable.registry import (  # type: ignore[import-not-found, no-redef]
        COMMENTS,
        ROLES,
        Kind,
    )
    from holdfast.durable.version import CATALOG_VERSION  # type: ignore[import-not-found, no-redef]

ORG = "11111111-2222-3333-4444-555555555555"
HOLDER = {"holder": "an earlier process", "purpose": "a test of upgrades"}


def openable(kind: str, *place: str) -> Any:
    """The catalog."""
    if kind == "stash":
        return durable.stash_catalog(place[0])
    from holdfast.persist import PersistClient

    url = {"url": place[0]} if len(place) == 1 else {"blob": place[0], "consensus": place[1]}
    return durable.persist_catalog(PersistClient.open(**url), ORG)


def main() -> None:
    """Write, tell, wait, and write again."""
    at = openable(*sys.argv[1:])
    catalog = at.open(durable.OpenMode.WRITABLE, **HOLDER)
    items = {name: catalog.ensure_item("holdfast", "public", name) for name in ("a", "b", "gone", "ü" * 60)}
    catalog.drop_item("holdfast", "public", "gone")
    with catalog.transaction() as tx:
        for number in range(1, 301):
            tx.insert(ROLES, pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=f"role {number}"))
        catalog.commit_transaction(tx)
    for number in range(1, 60):
        catalog.dangerous_edit(ROLES, pb.RoleKey(id=pb.RoleId(user=number)), None)
    key = pb.CommentKey(item_id=pb.ObjectId(user=int(items["a"][1:])), column=1)
    catalog.dangerous_edit(COMMENTS, key, pb.CommentValue(comment="of an earlier version"))
    told = {
        "version": CATALOG_VERSION,
        "kinds": len(Kind),
        "items": items,
        "allocated": catalog.allocate_ids(durable.IdKind.USER_ITEM, 5),
        "dump": json.loads(at.dump()),
        "epoch": catalog.fence_token().epoch,
    }
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    try:
        catalog.allocate_ids(durable.IdKind.USER_ITEM, 1)
        said = "committed"
    except HoldfastError as error:
        said = type(error).__name__
    try:
        openable(*sys.argv[1:]).open(durable.OpenMode.WRITABLE, **HOLDER)
        opened = "opened"
    except HoldfastError as error:
        opened = type(error).__name__
    print(json.dumps({"commit": said, "open": opened}), flush=True)


if __name__ == "__main__":
    main()
