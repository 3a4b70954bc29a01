"""A summary of a shard for people and tools, made from its newest version."""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from holdfast.errors import CLOSED
from holdfast.persist.ids import fingerprint
from holdfast.persist.state.state import ShardState, WriteMode


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """A hold that keeps `since` back."""

    id: str
    kind: str
    purpose: str
    since: int
    hostname: str = ""
    token: str = ""
    """For a critical hold: the fingerprint of its token, "none" if the token is empty; never the token."""
    lease_s: float | None = None
    """The number of seconds without a heartbeat after which the hold ends; None if it never ends."""
    version: int | None = None
    """For a leased hold: the version whose blobs it protects from deletion."""


class StoredSize(NamedTuple):
    """The number of stored updates, and their size in bytes."""

    rows: int
    size_bytes: int


def staged_sizes(state: ShardState) -> dict[str, StoredSize]:
    """Return how much each staged batch of a version stores, by their names."""
    if state.write_mode is not WriteMode.APPEND:
        return {}
    return {
        name: StoredSize(sum(part.rows for part in batch.parts), sum(part.size_bytes for part in batch.parts))
        for name, batch in state.pending.items()
    }


def stored_size(state: ShardState) -> StoredSize:
    """Return the rows and bytes in the batches of a version."""
    parts = [part for batch in state.batches for part in batch.parts]
    return StoredSize(sum(part.rows for part in parts), sum(part.size_bytes for part in parts))


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A summary of a shard. Sizes are stored bytes, rows are stored updates, and frontier 2^64 means closed.

    `key` and `value` are the columns of the newest schema. `schemas` are all schemas of the shard, with their
    ids. If a seal split a part, the part counts both as sealed and as pending.
    """

    shard_id: str
    seqno: int
    since: int
    upper: int
    finalized: bool
    key: tuple[str, ...]
    value: tuple[str, ...]
    schemas: tuple[str, ...]
    batches: int
    parts: int
    inline_parts: int
    rows: int
    size_bytes: int
    mode: str
    pending: int
    pending_rows: int
    pending_size_bytes: int
    garbage: int
    rollup_seqno: int
    gc_seqno: int
    wall_ms: int
    hostname: str
    applier_version: str
    writers: tuple[str, ...]
    holds: tuple[HoldInfo, ...]

    def to_json(self) -> str:
        """Return the summary as JSON. A closed frontier is null."""
        value = asdict(self)
        for item in (value, *value["holds"]):
            for name in ("since", "upper"):
                if item.get(name) == CLOSED:
                    item[name] = None
        return json.dumps(value)


def shard_info(state: ShardState) -> ShardInfo:
    """Summarize a version."""
    parts = [part for batch in state.batches for part in batch.parts]
    pending = [part for batch in state.pending.values() for part in batch.parts]
    schema = state.schema
    leased = [
        HoldInfo(
            r.id,
            "leased",
            r.purpose,
            r.since,
            r.hostname,
            lease_s=r.lease_ms / 1000,
            version=r.seqno_hold,
        )
        for r in state.leased_readers.values()
    ]
    critical = [
        HoldInfo(c.id, "critical", c.purpose, c.since, token=fingerprint(c.id, c.opaque))
        for c in state.critical_readers.values()
    ]
    return ShardInfo(
        shard_id=state.shard_id,
        seqno=state.seqno,
        since=state.since,
        upper=state.upper,
        finalized=state.finalized,
        key=tuple(str(column) for column in schema.key),
        value=tuple(str(column) for column in schema.value),
        schemas=tuple(f"{id_}: {known}" for id_, known in state.schemas.items()),
        batches=len(state.batches),
        parts=len(parts),
        inline_parts=sum(part.inline is not None for part in parts),
        rows=sum(part.rows for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        mode=state.write_mode.name,
        pending=len(state.pending),
        pending_rows=sum(part.rows for part in pending),
        pending_size_bytes=sum(part.size_bytes for part in pending),
        garbage=len(state.garbage),
        rollup_seqno=max(state.rollups, default=0),
        gc_seqno=state.gc_seqno,
        wall_ms=state.wall_ms,
        hostname=state.hostname,
        applier_version=state.applier_version,
        writers=tuple(writer.purpose for writer in state.writers.values()),
        holds=(*leased, *critical),
    )
