"""Finds orphans: blobs that no version names and that no live writer is about to name.

Every crash may leave orphans, because leaking a blob is better than losing one. A blob is an orphan only if
both of these are true:

- Its writer is not in the state. A writer registers before its first upload. The uploads were listed before
  the state was read. Once the writer's entry is gone, nothing that it uploaded can be committed any more. A
  rollup has no writer. It is spared until a rollup of its version or a later one is recorded, because it
  can't be recorded after that.
- It is older than any upload may be when it is committed (`LONGEST_UPLOAD_S`, by the store's clock).

The sweep does not delete an orphan. One commit makes it garbage of the shard. This commit competes with every
append, and garbage collection deletes the blob later. If a shard has blobs of versions that the log does not
know, the log was lost or is an old copy. The sweep skips such a shard.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist.ids import BLOB_NAME
from holdfast.persist.multi_write import LONGEST_UPLOAD_S
from holdfast.persist.state.command import CondemnOrphans
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import ShardState, live_keys
from holdfast.persist.stores import BlobMeta
from holdfast.persist.upkeep.garbage import collect_garbage, is_homeless, now_for, uncovered
from holdfast.persist.upkeep.rollup import write_rollup

if TYPE_CHECKING:
    from holdfast.persist.client import PersistClient


@dataclass(frozen=True, slots=True)
class Orphan:
    """A blob that nobody needs, and how long ago it was put."""

    key: str
    size_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Swept:
    """The results for a shard: orphans, the number of blobs that are too young, and why it was skipped."""

    shard_id: str
    orphans: tuple[Orphan, ...]
    young: int
    refused: str = ""


def sweep(
    client: "PersistClient",
    *,
    older_than_s: float = LONGEST_UPLOAD_S,
    delete: bool = False,
    looking_at: Callable[[str], None] = lambda _: None,
) -> Iterator[Swept]:
    """Look for orphans in all shards that have blobs, one after the other; with `delete`, remove them.

    `looking_at` is called with each shard before. In memory are the old blobs of one shard. Check values from
    users with `check_age` first.

    Raises:
        NotWritable: `delete` with a client of mode "read".
    """
    if delete:
        client.session.check_writable()
    blobs = client.location.blob
    now = blobs.clock_ms()
    if now is None:
        now = client.clock.wall_ms()
    for folder, found in groupby(blobs.list("s"), key=lambda meta: meta.key.split("/")[0]):
        looking_at(folder)
        metas = list(found)
        if not any(_parsed(metas)):
            continue
        try:
            yield sweep_shard(client.session.machine(folder), metas, now, older_than_s, delete=delete)
        except CorruptBlob as error:
            yield Swept(folder, (), 0, str(error))


def sweep_shard(
    machine: Machine, metas: list[BlobMeta], now_ms: int, older_than_s: float, *, delete: bool
) -> Swept:
    """Look for orphans among a shard's blobs, which were listed before; with `delete`, remove them."""
    state = machine.refresh()
    refused = _refusal(state, metas)
    if refused:
        return Swept(machine.shard_id, (), 0, refused)
    named = live_keys(state)
    suspects = [
        meta
        for meta in metas
        if meta.key not in named and meta.key not in state.garbage and is_homeless(state, meta.key)
    ]
    orphans = [
        Orphan(meta.key, meta.size, (now_ms - meta.modified_ms) / 1000)
        for meta in suspects
        if meta.modified_ms is not None and now_ms - meta.modified_ms >= older_than_s * 1000
    ]
    if delete and orphans:
        orphans = _condemn(machine, orphans, now_ms)
    return Swept(machine.shard_id, tuple(orphans), len(suspects) - len(orphans))


def _refusal(state: ShardState, metas: list[BlobMeta]) -> str:
    """Return why the sweep can't identify orphans in a shard, or "" if it can."""
    if not state.exists:
        return "the consensus store has no log of it"
    # Garbage of a version after the log's head belongs to a history that was given up.
    unknown = [meta for meta in metas if meta.key not in state.garbage]
    newest = max((int(found["seqno"] or 0) for found in _parsed(unknown)), default=0)
    if newest > state.seqno:
        return f"its log ends at version {state.seqno}, but there is a blob of version {newest}"
    return ""


def _parsed(metas: list[BlobMeta]) -> Iterator[re.Match[str]]:
    return (found for meta in metas if (found := BLOB_NAME.fullmatch(meta.key)))


def _condemn(machine: Machine, orphans: list[Orphan], now_ms: int) -> list[Orphan]:
    """Make orphans garbage and collect them. Return those that were still orphans at the commit."""
    blobs = tuple((orphan.key, max(0, int(now_ms - orphan.age_s * 1000))) for orphan in orphans)
    (condemned,) = commit([(machine, CondemnOrphans(blobs))])
    assert isinstance(condemned, tuple)
    if uncovered(machine.state, machine.config, now_for(machine)):
        write_rollup(machine)
    collect_garbage(machine)
    return [orphan for orphan in orphans if orphan.key in condemned]


def check_age(older_than_s: float) -> float:
    """Return an age for `sweep`, or raise `BadInput` if uploads in progress may be as old."""
    if older_than_s < LONGEST_UPLOAD_S:
        raise BadInput(
            f"an age of {older_than_s / 3600:g} hours is too low: blobs younger than"
            f" {LONGEST_UPLOAD_S / 3600:g} hours may belong to uploads in progress",
            hint=f"give an age of at least {LONGEST_UPLOAD_S / 3600:g} hours",
        )
    return older_than_s
