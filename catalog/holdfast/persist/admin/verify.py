"""The audit of a shard: reads everything that is stored of it again and checks it.

It reads the log, the rollups, the digests of cuts, the markers of two histories, and every row of every part
that the newest version names. It checks:

- checksums and sizes,
- each part's footer, row count, order, and bounds of times,
- the statistics by which readers skip rows,
- that a compacted run has each row once,
- that the log has no gap, and leads to the same state from every place where a replay can begin,
- the invariants of the state.

In memory are one page of the log, the state, and one batch of one part. Writes during the audit cause no
findings: the audit does not look for data that is gone because the shard moved on.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput, CorruptBlob, HoldfastError, VersionTooNew
from holdfast.persist.ids import BLOB_NAME
from holdfast.persist.parts.part_store import PartGone
from holdfast.persist.parts.runs import open_part
from holdfast.persist.rows.canonical import sort_updates, time_bounds
from holdfast.persist.rows.fold import fold
from holdfast.persist.rows.groups import GroupBounds, group_bounds
from holdfast.persist.rows.limits import key_of
from holdfast.persist.rows.order import Key, KeyRange, key_at
from holdfast.persist.rows.part import UNREADABLE, check_footer, decode_inline
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.rows.values import ordered_bits, values_of
from holdfast.persist.state.codec import decode_diff
from holdfast.persist.state.cuts import damaged_digests
from holdfast.persist.state.divergence import doubts
from holdfast.persist.state.invariants import check_state
from holdfast.persist.state.machine import Machine, load_rollup
from holdfast.persist.state.state import Batch, Part, ShardState, WriteMode, apply, live_keys
from holdfast.persist.stores import Entry

if TYPE_CHECKING:
    from holdfast.persist.client import PersistClient

_PAGE: Final = 256
_MOST_CUTS: Final = 20
_BATCH_ROWS: Final = 64 * 1024
_REPAIR: Final = (
    "put it back from a copy of the store; if the consensus store was restored from an older copy, run"
    " 'holdfast persist recover'"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: the shard, the key of the blob or row, what is wrong with it, and what to do."""

    shard_id: str
    key: str
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """How much of a shard was read."""

    shard_id: str
    rows: int
    parts: int
    versions: int
    findings: tuple[Finding, ...]


def verify(
    client: "PersistClient", shard_id: str, *, looking_at: Callable[[str], None] = lambda _: None
) -> Verified:
    """Audit one shard. Call `looking_at` with each key before it is read.

    Raises:
        BadInput: the shard does not exist.
        StorageError: a store failed.
    """
    machine = client.session.machine(shard_id)
    stored = client.location.blob.direct
    if stored is not client.location.blob:
        # Cached data says nothing about the store.
        location = replace(client.location, blob=stored)
        machine = Machine(shard_id, location, client.config, client.clock)
    audit = _Audit(machine, looking_at)
    try:
        state = machine.refresh()
    except (CorruptBlob, VersionTooNew, ValueError) as error:
        return Verified(shard_id, 0, 0, 0, (_fault(shard_id, shard_id, error),))
    if not state.exists:
        raise BadInput(
            f"shard {shard_id} does not exist in {client.location.blob.description}",
            hint="'holdfast persist inspect' shows all shards",
        )
    findings = tuple(audit.everything(state))
    return Verified(shard_id, audit.rows, audit.parts, audit.versions, findings)


def without_log(client: "PersistClient") -> tuple[Finding, ...]:
    """Return a finding for each shard that has blobs but no log, because its consensus store was lost.

    Raises:
        StorageError: a store failed.
    """
    found: Counter[str] = Counter()
    for meta in client.location.blob.list("s"):
        if BLOB_NAME.fullmatch(meta.key):
            found[meta.key.split("/")[0]] += 1
    # List the logs after the blobs, because a shard has a log before its first blob.
    logs = set(client.shards())
    return tuple(
        Finding(shard, f"{shard}/", f"the shard has blobs ({blobs:,}) but no log")
        for shard, blobs in found.items()
        if shard not in logs
    )


def of_store(client: "PersistClient") -> tuple[Finding, ...]:
    """Return a finding if the consensus store itself is damaged, below the rows of its logs.

    Raises:
        StorageError: the store can't be read now.
    """
    consensus = client.location.consensus
    try:
        consensus.check_integrity()
    except CorruptBlob as error:
        return (_fault("", consensus.description, error),)
    return ()


def _fault(shard_id: str, key: str, error: Exception) -> Finding:
    """Return the finding for an error. `key` names the damaged object if the error does not."""
    what, hint = str(error), error.hint if isinstance(error, HoldfastError) else ""
    if isinstance(error, CorruptBlob):
        key = error.key
        # This audit was already run.
        hint = _REPAIR if "persist verify" in hint else hint
        what = what.replace(f"{key} in {error.store}", key, 1)
    if what.startswith((f"{key} is ", f"{key} has ")):
        what = f"it{what.removeprefix(key)}"
    return Finding(shard_id, key, what, hint)


class _Audit:
    def __init__(self, machine: Machine, looking_at: Callable[[str], None]) -> None:
        self._machine = machine
        self._looking_at = looking_at
        self.rows = self.parts = self.versions = 0

    def everything(self, state: ShardState) -> Iterator[Finding]:
        try:
            check_state(state)
        except AssertionError as error:
            yield self._finding(state.shard_id, str(error))
        yield from self._helpers()
        yield from self._log(state)
        for batch in state.batches:
            for run in batch.runs:
                yield from self._run(state, batch, run)
        for pending in state.pending.values():
            for run in pending.runs:
                yield from self._run(state, None, run)

    def _helpers(self) -> Iterator[Finding]:
        """Yield faults of the small blobs that upkeep needs to detect two histories."""
        try:
            for doubt in doubts(self._machine):
                what = f"nothing is deleted, because there may be two histories: {doubt.why}"
                yield self._finding(doubt.key, what)
            for key, what in damaged_digests(self._machine.location, self._machine.shard_id):
                yield self._finding(key, f"{what}; the next cut of the log replaces it")
        except (CorruptBlob, VersionTooNew) as error:
            yield self._fault(self._machine.shard_id, error)

    def _finding(self, key: str, what: str, hint: str = "") -> Finding:
        return Finding(self._machine.shard_id, key, what, hint)

    def _fault(self, key: str, error: Exception) -> Finding:
        return _fault(self._machine.shard_id, key, error)

    def _log(self, state: ShardState) -> Iterator[Finding]:
        """Yield faults of the log. If it was cut during the check, check the rest of it again."""
        for _ in range(_MOST_CUTS):
            found = [*self._log_to(state)]
            if not found:
                return
            try:
                newest = self._machine.refresh()
            except (CorruptBlob, VersionTooNew):
                break
            if newest.latest_rollup == state.latest_rollup:
                break
            state = newest
        yield from found

    def _log_to(self, state: ShardState) -> Iterator[Finding]:
        """Check that the log leads to the state: from the newest rollup, and from row 1 if it is there."""
        rollup = state.latest_rollup
        current = ShardState(state.shard_id)
        kept: ShardState | None = current
        if rollup is not None:
            self._looking_at(rollup.blob_key)
            try:
                kept = load_rollup(self._machine.location, rollup)
            except (CorruptBlob, VersionTooNew) as error:
                yield self._fault(rollup.blob_key, error)
                return
            if kept is None:
                if rollup.blob_key in live_keys(self._machine.refresh()):
                    yield self._finding(rollup.blob_key, "the rollup is gone", _REPAIR)
                return
            if kept.shard_id != state.shard_id or kept.seqno != rollup.seqno:
                what = (
                    f"it is version {kept.seqno} of {kept.shard_id}, not {rollup.seqno} of {state.shard_id}"
                )
                yield self._finding(rollup.blob_key, what)
                return
        assert kept is not None
        following = False
        for entry in self._entries(state.seqno):
            if not following:
                # Start at the beginning or after the rollup. A replay can't start at rows in between.
                if entry.seqno == current.seqno + 1 or entry.seqno == kept.seqno + 1:
                    following = True
                    current = current if entry.seqno == current.seqno + 1 else kept
                elif entry.seqno <= kept.seqno:
                    continue
            try:
                current = self._step(current, entry)
            except (CorruptBlob, VersionTooNew) as error:
                yield self._fault(f"{state.shard_id} log {entry.seqno}", error)
                return
            if current.seqno == kept.seqno and rollup is not None and current != kept:
                yield self._finding(rollup.blob_key, "the rollup differs from what the log leads to")
        if not following:
            current = kept
        if current.seqno != state.seqno:
            yield self._finding(
                f"{state.shard_id} log", f"it leads to version {current.seqno}, but the head is {state.seqno}"
            )
        elif current != state:
            yield self._finding(f"{state.shard_id} log", f"it leads to a different version {state.seqno}")

    def _step(self, state: ShardState, entry: Entry) -> ShardState:
        key = f"{state.shard_id} log {entry.seqno}"
        self._looking_at(key)
        self.versions += 1
        diff = decode_diff(entry.data, key)
        if diff.seqno != entry.seqno or diff.seqno != state.seqno + 1 or diff.shard_id != state.shard_id:
            found = f"version {diff.seqno} of {diff.shard_id}"
            raise CorruptBlob(key, f"version {state.seqno + 1} of {state.shard_id}", found)
        try:
            return apply(state, diff)
        except (ValueError, StopIteration, IndexError) as error:
            raise CorruptBlob(key, "changes of the version before", str(error) or "others") from None

    def _entries(self, last: int) -> Iterator[Entry]:
        """Yield the rows of the log up to a version, a page at a time."""
        start = 0
        while True:
            page = self._machine.location.consensus.scan(self._machine.shard_id, start, _PAGE)
            yield from (entry for entry in page if entry.seqno <= last)
            if len(page) < _PAGE or page[-1].seqno >= last:
                return
            start = page[-1].seqno + 1

    def _run(self, state: ShardState, batch: Batch | None, run: Sequence[Part]) -> Iterator[Finding]:
        last: Key | None = None
        for part in run:
            key = part.blob_key or f"an inline part of batch {batch.id if batch else 'pending'}"
            self._looking_at(key)
            mode = state.write_mode
            check = _PartCheck(state.schemas[part.schema_id], part, batch, last, mode)
            try:
                for rows in self._rows(check, part, key):
                    check.take(rows)
                check.end()
            except PartGone:
                newest = self._machine.refresh()
                if newest.seqno == state.seqno or key in live_keys(newest):
                    yield self._finding(key, "the part is gone", _REPAIR)
                last = None
                continue
            except (CorruptBlob, VersionTooNew) as error:
                yield self._fault(key, error)
            yield from (self._finding(key, what) for what in dict.fromkeys(check.faults))
            last = check.last if part.inline is None else None
            self.rows += check.rows
            self.parts += 1

    def _rows(self, check: "_PartCheck", part: Part, key: str) -> Iterator[pa.RecordBatch]:
        if part.inline is not None:
            if len(part.inline) != part.size_bytes:
                raise CorruptBlob(key, f"{part.size_bytes} bytes", f"{len(part.inline)} bytes")
            yield from decode_inline(part.inline, check.schema, key=key).to_batches()
            return
        with open_part(self._machine, part) as file:
            try:
                with pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as parquet:
                    check_footer(parquet.metadata, check.schema, key=key)
                    names = check.schema.arrow_updates.names
                    for index, bounds in enumerate(group_bounds(check.schema, parquet.metadata)):
                        check.group = bounds
                        yield from parquet.iter_batches(_BATCH_ROWS, row_groups=[index], columns=names)
            except UNREADABLE as error:
                raise CorruptBlob(key, "a Parquet part", " ".join(str(error).split())[:200]) from None


class _PartCheck:
    """Compares the rows of one part, batch by batch, with the state and with the part's own footer."""

    def __init__(
        self, schema: Schema, part: Part, batch: Batch | None, last: Key | None, mode: WriteMode
    ) -> None:
        self.schema = schema
        self.last = last
        self.rows = 0
        self.faults: list[str] = []
        self.group: GroupBounds | None = None
        self._part = part
        self._compacted = batch is not None and batch.level > 0
        # A seal may have split the part. Then only its rows at some times count.
        self._cut = mode is WriteMode.WRITE_SEAL and not self._compacted
        self._times: tuple[int, int] | None = None
        self._names = [*schema.names, TIME]

    def take(self, rows: pa.RecordBatch) -> None:
        """Check the next rows."""
        if not rows.num_rows:
            return
        updates = self.schema.arrow_updates
        rows = pa.RecordBatch.from_arrays([rows.column(n) for n in updates.names], schema=updates)
        self.rows += rows.num_rows
        if (values_of(rows.column(DIFF)) == 0).any():
            self.faults.append("a row has diff 0")
        low, high = time_bounds(rows) or (0, 0)
        known = self._times or (low, high)
        self._times = (min(known[0], low), max(known[1], high))
        if self._part.inline is None:
            self._check_order(rows)
            self._check_group(rows, low)

    def end(self) -> None:
        """Check the part as a whole."""
        part = self._part
        if self.rows != part.rows:
            self.faults.append(f"it has {self.rows} rows, not {part.rows}")
        if self._times is None:
            return
        low, high = self._times
        cut = self._cut and low <= part.lower and part.upper - 1 <= high
        if not cut and (low, high) != (part.lower, part.upper - 1):
            self.faults.append(f"its times are {low} to {high}, not {part.lower} to {part.upper - 1}")

    def _check_order(self, rows: pa.RecordBatch) -> None:
        first = key_at(self._names, rows, 0)
        if self.last is not None and (first < self.last or (self._compacted and first == self.last)):
            self.faults.append("its rows are not sorted, or a row occurs twice")
        self.last = key_at(self._names, rows, rows.num_rows - 1)
        kept, _ = fold(self._names, rows, np.ones(rows.num_rows, np.int64))
        if self._compacted and len(kept) != rows.num_rows:
            self.faults.append("a compacted run has a row twice")
        bits = sort_updates(self.schema, pa.Table.from_batches([rows])).select(self._names)
        if not _same(bits, pa.Table.from_batches([rows]).select(self._names)):
            self.faults.append("its rows are not sorted")

    def _check_group(self, rows: pa.RecordBatch, low: int) -> None:
        assert self.group is not None
        if low < self.group.earliest:
            self.faults.append(f"its statistics exclude times before {self.group.earliest}, but one is {low}")
        names = self._names[:1]
        first, last = key_at(names, rows, 0), key_at(names, rows, rows.num_rows - 1)
        exact = (KeyRange(lower=key) for key in (first, last))
        inside = all(each.may_meet(self.group.low, self.group.high) for each in exact)
        if not inside or (self.group.low is not None and first < self.group.low):
            self.faults.append(f"its statistics exclude a value of {names[0]} that it has")
        least, greatest = key_of(self._part.least), key_of(self._part.greatest)
        if (least is not None and first < least) or (greatest is not None and greatest < last):
            self.faults.append(f"its limits in the state exclude a value of {names[0]} that it has")


def _same(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables are equal. NaN is equal to itself."""
    return all(
        _bits(left).equals(_bits(right)) for left, right in zip(one.columns, other.columns, strict=True)
    )


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    return pa.chunked_array([ordered_bits(chunk) for chunk in column.chunks])
