"""What can be asked of a shard, as values: the commands, and the three answers to them."""

from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.state import Change, Part, PendingBatch, Rollup, WriteMode


@dataclass(frozen=True, slots=True)
class Commit:
    """These changes make the next version; `result` is the answer once they are durable."""

    changes: tuple[Change, ...]
    result: object = None


@dataclass(frozen=True, slots=True)
class NoOp:
    """Nothing has to change: the effect is there already, or there is none."""

    result: object = None


@dataclass(frozen=True, slots=True)
class Reject:
    """The command can't be done on this version."""

    error: HoldfastError


Outcome = Commit | NoOp | Reject


@dataclass(frozen=True, slots=True)
class Handle:
    """Who acts: what is recorded of a writer or reader when it registers.

    A writer that was `registered`, to upload, must still be known when it writes: once its entry is gone a
    sweeper takes what it uploaded for orphans.
    """

    id: str
    purpose: str
    hostname: str
    lease_ms: int
    registered: bool = False


@dataclass(frozen=True, slots=True)
class RegisterWriter:
    """Make the writer known before its first upload, and the shard with it. Result: the schema id.

    With a `heartbeat`, the count of these, it is known already and lives.
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
class Append:
    """Add `runs` at `expected_upper` and move the upper. Result: the new upper.

    The parts of a run follow each other in the total order.
    """

    writer: Handle
    token: bytes
    schema: Schema
    expected_upper: int
    new_upper: int
    runs: tuple[tuple[Part, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """Add `runs`, of times from the upper on, to what is pending, under the id `batch_id`.

    Only under the write lock of the location.
    """

    writer: Handle
    token: bytes
    schema: Schema
    batch_id: str
    runs: tuple[tuple[Part, ...], ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """Move the upper over all that is pending below `new_upper`. Result: the new upper.

    Only under the write lock of the location.
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
    """Move a reader's hold forward (never back) and say that it lives. Result: the `LeasedReader`."""

    reader_id: str
    since: int
    seqno_hold: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class DropReader:
    """Give up a leased hold."""

    reader_id: str


@dataclass(frozen=True, slots=True)
class ExpireHandles:
    """Drop readers and writers that have not moved beyond these heartbeat counts.

    A writer whose entry goes too early loses nothing: its next append makes it anew, or is refused where it
    may have uploaded, and only one that is in doubt at that moment stays `Indeterminate`: no record tells.
    """

    readers: tuple[tuple[str, int], ...]
    writers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class RegisterCritical:
    """Take the hold of this purpose with a token, or find it with whatever token it has.

    One that is not there is refused where since is past `not_past` already. Result: the `CriticalReader`.
    """

    purpose: str
    opaque: bytes
    not_past: int | None = None


@dataclass(frozen=True, slots=True)
class DowngradeCritical:
    """Move a critical hold forward and store `new_opaque`, if `opaque` is stored.

    Result: the `CriticalReader`.
    """

    id: str
    since: int
    opaque: bytes = b""
    new_opaque: bytes = b""


@dataclass(frozen=True, slots=True)
class ExpectUpper:
    """Change nothing; be rejected unless the upper is this. With other commands it is what they depend on."""

    upper: int


@dataclass(frozen=True, slots=True)
class DropCritical:
    """Give up a critical hold, if `opaque` is stored."""

    id: str
    opaque: bytes = b""


@dataclass(frozen=True, slots=True)
class AddRollup:
    """Record a rollup; older ones become garbage."""

    rollup: Rollup
    wall_ms: int


@dataclass(frozen=True, slots=True)
class InstallCompaction:
    """Replace exactly these batches by the result. Result: whether it is in; if not, none of it ever was.

    `since` is what the times were advanced to. The writer was registered before it uploaded anything, and is
    needed for what it uploaded; its entry ends with the result. With `fingerprint`, the batches must also
    have these contents: two histories of a log may give one id to different batches.
    """

    batch_ids: tuple[int, ...]
    since: int
    parts: tuple[Part, ...]
    writer_id: str
    wall_ms: int
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class ClaimBatches:
    """Announce that a writer compacts these batches, or that it still does: `heartbeat` counts these, from 0.

    Result: whether it may. It may not where another claims one of them or they are gone, nor with a heartbeat
    once its writer's entry is gone. A claim is no lock: it only saves work that is done already.
    """

    claim_id: str
    writer: Handle
    batch_ids: tuple[int, ...]
    heartbeat: int


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Give up a claim."""

    claim_id: str


@dataclass(frozen=True, slots=True)
class CondemnOrphans:
    """Make garbage of blobs (key, last put in ms) that no version names. Result: the keys that now are.

    What the state names, and what a registered writer has put, is spared.
    """

    blobs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class InstallPending:
    """As `InstallCompaction`, for pending batches: replace exactly these, if they are unchanged."""

    replaced: tuple[PendingBatch, ...]
    batch_id: str
    writer_id: str
    runs: tuple[tuple[Part, ...], ...]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class ForgetGarbage:
    """These blobs are deleted and the log is to be truncated below `gc_seqno`."""

    blob_keys: tuple[str, ...]
    gc_seqno: int


@dataclass(frozen=True, slots=True)
class FinalizeShard:
    """Close the shard for ever and drop all its data."""

    wall_ms: int


Command = (
    RegisterWriter
    | EvolveSchema
    | Append
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
