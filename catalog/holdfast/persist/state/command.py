"""The commands on a shard, and the three possible outcomes, as values."""

from dataclasses import dataclass

from holdfast.errors import CLOSED, HoldfastError
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.state import Change, Part, PendingBatch, Rollup, WriteMode


@dataclass(frozen=True, slots=True)
class Commit:
    """The changes make the next version. The command returns `result` once they are durable."""

    changes: tuple[Change, ...]
    result: object = None


@dataclass(frozen=True, slots=True)
class NoOp:
    """Nothing has to change: the command has no effect, or its effect is there already."""

    result: object = None


@dataclass(frozen=True, slots=True)
class Reject:
    """The command is not possible on this version."""

    error: HoldfastError


Outcome = Commit | NoOp | Reject


@dataclass(frozen=True, slots=True)
class Handle:
    """The identity of a writer or reader, as it is recorded when it registers.

    A `registered` writer has an entry because it uploads. The entry must still exist when the writer commits:
    without the entry, a sweeper treats the uploads as orphans.
    """

    id: str
    purpose: str
    hostname: str
    lease_ms: int
    registered: bool = False


@dataclass(frozen=True, slots=True)
class RegisterWriter:
    """Register a writer before its first upload, and create the shard if needed. Result: the schema id.

    A `heartbeat` above 0 renews the lease of a registered writer. It counts the heartbeats.
    """

    writer: Handle
    schema: Schema
    mode: WriteMode = WriteMode.APPEND
    heartbeat: int = 0


@dataclass(frozen=True, slots=True)
class EvolveSchema:
    """Register a schema that may follow the shard's newest one. Result: its id."""

    schema: Schema


@dataclass(frozen=True, slots=True)
class AppendRuns:
    """Add `runs` at `expected_upper` and move the upper. Result: the new upper.

    Each run is sorted as a whole.
    """

    writer: Handle
    token: bytes
    schema: Schema
    expected_upper: int
    new_upper: int
    runs: tuple[tuple[Part, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Add staged batches, each with a name and times in `[lower, upper)`, while the upper is `lower`.

    A batch whose name is taken is not added, because all uploads with one name have the same updates.
    Result: the names that others have taken. The updates count only once `AppendStaged` names their batches.
    """

    writer: Handle
    schema: Schema
    lower: int
    upper: int
    batches: tuple[tuple[str, tuple[tuple[Part, ...], ...]], ...]


@dataclass(frozen=True, slots=True)
class AppendStaged:
    """Like `AppendRuns`, for the updates of the staged batches with these names.

    `runs` has exactly their parts, and may join runs that don't overlap.
    """

    writer: Handle
    token: bytes
    schema: Schema
    expected_upper: int
    new_upper: int
    names: tuple[str, ...]
    runs: tuple[tuple[Part, ...], ...]


@dataclass(frozen=True, slots=True)
class DropStaged:
    """Drop the staged batches of times that begin before `below`. Their blobs become garbage."""

    wall_ms: int
    below: int = CLOSED


@dataclass(frozen=True, slots=True)
class Write:
    """Add `runs` as the pending batch `batch_id`. Their times are at or after the upper.

    The client must hold the write lock of the location.
    """

    writer: Handle
    token: bytes
    schema: Schema
    batch_id: str
    runs: tuple[tuple[Part, ...], ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """Move the upper to `new_upper`, past all pending updates below it. Result: the new upper.

    The client must hold the write lock of the location.
    """

    writer: Handle
    token: bytes
    schema: Schema
    expected_upper: int
    new_upper: int


@dataclass(frozen=True, slots=True)
class RegisterReader:
    """Take a leased hold at the shard's since. Result: the `LeasedReader`."""

    reader: Handle


@dataclass(frozen=True, slots=True)
class DowngradeReader:
    """Renew a reader's lease and move its hold forward (never back). Result: the `LeasedReader`."""

    reader_id: str
    since: int
    seqno_hold: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class DropReader:
    """Release a leased hold."""

    reader_id: str


@dataclass(frozen=True, slots=True)
class ExpireHandles:
    """Drop readers and writers whose heartbeat counts are still these.

    A writer whose entry is dropped too early loses no data. Its next append makes a new entry, or is refused
    if the writer may have uploaded.
    """

    readers: tuple[tuple[str, int], ...]
    writers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RegisterCritical:
    """Take the critical hold of this purpose with a token, or find the existing one with any token.

    A new hold is refused if since is already past `not_past`. Result: the `CriticalReader`.
    """

    purpose: str
    opaque: bytes
    not_past: int | None = None


@dataclass(frozen=True, slots=True)
class DowngradeCritical:
    """Move a critical hold forward and store `new_opaque`, if the stored token is `opaque`.

    Result: the `CriticalReader`.
    """

    id: str
    since: int
    opaque: bytes = b""
    new_opaque: bytes = b""


@dataclass(frozen=True, slots=True)
class ExpectUpper:
    """Require that the upper is `upper`, and change nothing. Other commands of the commit depend on it."""

    upper: int


@dataclass(frozen=True, slots=True)
class DropCritical:
    """Release a critical hold, if the stored token is `opaque`."""

    id: str
    opaque: bytes = b""


@dataclass(frozen=True, slots=True)
class AddRollup:
    """Record a rollup. Older rollups become garbage."""

    rollup: Rollup
    wall_ms: int


@dataclass(frozen=True, slots=True)
class InstallCompaction:
    """Replace exactly these batches by the merged parts. Result: whether the parts are installed.

    If the result is False, none of the parts was ever part of the shard. The times of the parts were advanced
    to `since`. The writer registered before its first upload. If the parts have blobs, its entry must still
    exist; the command drops it. With `fingerprint`, the batches must also have these contents, because two
    histories of a log may give the same id to different batches.
    """

    batch_ids: tuple[int, ...]
    since: int
    parts: tuple[Part, ...]
    writer_id: str
    wall_ms: int
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class ClaimBatches:
    """Announce that a writer compacts these batches, or still does; `heartbeat` counts the calls, from 0.

    Result: whether the writer may compact them. It may not if another claim has one of the batches, if a
    batch is gone, or if this is a heartbeat and the writer's entry is gone. A claim is not a lock. It only
    avoids duplicate work.
    """

    claim_id: str
    writer: Handle
    batch_ids: tuple[int, ...]
    heartbeat: int


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Release a claim."""

    claim_id: str


@dataclass(frozen=True, slots=True)
class CondemnOrphans:
    """Make garbage of orphans, given as pairs (key, last put in ms). Result: the keys that are garbage now.

    Blobs that the state names are spared, and so are the blobs of registered writers.
    """

    blobs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class InstallPending:
    """Replace exactly these pending batches, if they are unchanged; see `InstallCompaction`."""

    replaced: tuple[PendingBatch, ...]
    batch_id: str
    writer_id: str
    runs: tuple[tuple[Part, ...], ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class ForgetGarbage:
    """Record that these blobs are deleted and that the log is to be truncated below `gc_seqno`."""

    blob_keys: tuple[str, ...]
    gc_seqno: int


@dataclass(frozen=True, slots=True)
class FinalizeShard:
    """Close the shard for ever and drop all of its data."""

    wall_ms: int


Command = (
    RegisterWriter
    | EvolveSchema
    | AppendRuns
    | Stage
    | AppendStaged
    | DropStaged
    | Write
    | Seal
    | RegisterReader
    | DowngradeReader
    | DropReader
    | ExpireHandles
    | RegisterCritical
    | DowngradeCritical
    | DropCritical
    | ExpectUpper
    | AddRollup
    | InstallCompaction
    | ClaimBatches
    | ReleaseClaim
    | CondemnOrphans
    | InstallPending
    | ForgetGarbage
    | FinalizeShard
)
