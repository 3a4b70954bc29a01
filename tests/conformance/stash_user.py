"""Appends to a stash with the installed Holdfast, and consolidates: `stash_user.py URL TIME`.

It prints the rows at that time, as text.
"""

import sys

from holdfast import stash as library
from holdfast.stash import open_stash

# An earlier Holdfast names it Update.
StashUpdate = getattr(library, "StashUpdate", None) or library.Update  # type: ignore[attr-defined]

url, at = sys.argv[1], int(sys.argv[2])
with open_stash(url, create=True, read_only=False, names={1: "one"}) as stash:
    updates = [StashUpdate(1, b"key%d" % at, b"value" * 100, 1)]
    if at:
        updates.append(StashUpdate(1, b"key%d" % (at - 1), b"value" * 100, -1))
    stash.append(updates, at)
    stash.hold("somebody", stash.frontiers().since)
    stash.release("somebody")
    stash.allow_compaction(at)
    stash.consolidate()
    print(sorted(map(tuple, stash.rows(at))))
