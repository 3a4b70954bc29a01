"""Recovery: recreates the log of each shard from the rollups in the blob store.

You need it after the consensus store was lost, or an older copy of it was restored.

- A shard comes back at the version of its newest whole rollup, or at the version of its log if that is newer.
  Later commits are lost. No blob is deleted or replaced. Small updates are only in the log, so if a log was
  lost, nobody knows whether anything was committed after the rollup.
- A rollup that contradicts the log, or another rollup, belongs to another history (`histories`): the store
  was restored from an older copy and then written to. The caller must choose one history. The other is lost.
- A log may have rows that can't be replayed, because the rollup that they name is gone. If another rollup has
  a version that a row of the log made, the later rows are replayed on it. Otherwise the rows are still
  compared with the rollups: they may belong to two histories.
- A state is whole if all of its blobs exist. Garbage collection never deletes a blob that the newest rollup
  names.
- A recovered shard continues at version `epoch * 2^40`, in an epoch that nobody has seen. So no attempt of a
  process that still uses the lost log can land. If such a process reads the new log, it finds an unknown
  epoch and fails (`Machine.advance_to`), and so doesn't mix the two logs. Leases, writers and claims are
  dropped. The write lock is treated in the same way: it is free, at row `recoveries * 2^40`, and a holder of
  an older row is fenced.
- Nothing is known about a shard that has neither a whole rollup nor a log. If a shard with its id is created
  again, the log begins at 1. Then a client that knows the lost log could continue in the new one. You prevent
  this only by stopping every client.
- The location gets a new count of recoveries in both stores, in the blob store first and in the consensus
  store last. Between these steps, or with an older copy of one store, the location can't be opened. Run an
  interrupted recovery again.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from holdfast.errors import BadInput, CorruptBlob, HoldfastError, LocationMismatch, StorageError
from holdfast.persist.admin.recoverable import Choice, Known, Look, ShardPlan
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import BLOB_NAME, EPOCH_BITS, rollup_key
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import decode_diff, decode_state, encode_diff, encode_state
from holdfast.persist.state.cuts import has_other_digests
from holdfast.persist.state.divergence import row_of, standing_markers
from holdfast.persist.state.history import contradiction
from holdfast.persist.state.invariants import check_state
from holdfast.persist.state.lock import LOCK_KEY, LockRow, encode_lock
from holdfast.persist.state.machine import APPLIER_VERSION, Machine
from holdfast.persist.state.state import (
    Change,
    Garbage,
    PutEntry,
    Rollup,
    ShardState,
    StateDiff,
    apply,
    part_keys,
)
from holdfast.persist.stores import Blob, Consensus, Location, MemoryConsensus
from holdfast.persist.stores.frame import MOST_BYTES
from holdfast.persist.stores.location import (
    BLOB_KEY,
    CONSENSUS_KEY,
    LocationRecord,
    decode_location,
    encode_location,
    read_location,
)
from holdfast.persist.stores.overlay import OverlayBlob
from holdfast.text import count

_MOST_TRIED: Final = 8
_SCAN_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a recovery would do, or has done. `complete` means that certainly nothing is lost.

    `lost` says why the logs end earlier than before, if the consensus store itself shows that. `paired` means
    that no recovery of the location was interrupted. Otherwise a log may be whole because an earlier run made
    it, and that run may have lost versions.
    """

    location_id: str
    healthy: bool
    shards: tuple[ShardPlan, ...]
    complete: bool
    lost: str = ""
    paired: bool = True


class Recovery:
    """Inspects the stores of a location that may be damaged, and repairs it."""

    def __init__(
        self,
        blob: Blob,
        consensus: Consensus,
        *,
        config: PersistConfig | None = None,
        clock: Clock | None = None,
        choice: Choice | None = None,
        looking_at: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Inspect all shards. `looking_at` is called with the id of each shard before it is inspected.

        Raises:
            BadInput: `blob` belongs to no location, or `choice` names a history that can't be kept.
            LocationMismatch: the stores belong to different locations.
        """
        self._choice = choice or Choice()
        blob = blob.direct
        stored = read_location(blob)
        if stored is None:
            raise BadInput(
                f"{blob.description} has no {BLOB_KEY}: it is not the blob store of a location",
                hint=f"check the URL, or restore {BLOB_KEY} from a backup",
            )
        self._stored = decode_location(stored, f"{BLOB_KEY} in {blob.description}")
        location_id = self._stored.location_id
        entry = consensus.heads([CONSENSUS_KEY]).get(CONSENSUS_KEY)
        self._entry = entry
        self._decided: LocationRecord | None = None
        if entry is not None:
            self._decided = decode_location(entry.data, f"{CONSENSUS_KEY} in {consensus.description}")
            if self._decided.location_id != location_id:
                raise LocationMismatch(
                    f"{blob.description} belongs to location {location_id},"
                    f" {consensus.description} to {self._decided.location_id}",
                    hint="give a consensus store that is empty, or an older copy of the right one",
                )
        self._location = Location(blob, consensus, location_id)
        self._config = config or PersistConfig()
        self._clock = clock or Clock()
        self._lost = consensus.lost()
        self._known = {known.plan.shard_id: known for known in self._look(looking_at)}

    @property
    def plan(self) -> RecoveryPlan:
        """What `run` would do."""
        paired = self._decided == self._stored
        shards = tuple(known.plan for known in self._known.values())
        healthy = paired and all(shard.healthy for shard in shards)
        # Whole logs contain every commit, unless the store is an older copy. Only its owner knows that.
        complete = self._decided is not None and all(shard.healthy for shard in shards)
        why = "" if self._lost is None else self._lost.why
        return RecoveryPlan(
            str(self._location.location_id), healthy and not why, shards, complete and not why, why, paired
        )

    def run(self, *, restored: bool = False) -> RecoveryPlan:
        """Recover the location. First stop every other client of it.

        With `restored`, the consensus store is treated as an older copy, even if nothing shows that it is.

        Raises:
            BadInput: the consensus store is healthy, or can't be recovered in place, or a shard has two
                histories and none was chosen. Nothing was written.
        """
        plan = self.plan
        undecided = [shard.shard_id for shard in plan.shards if shard.undecided]
        if undecided:
            raise BadInput(
                f"there are two histories of {count(len(undecided), 'shard')}, such as {undecided[0]}",
                hint="choose which one to keep with --take log, --take newest or --take SHARD=VERSION; the"
                " other one is lost",
            )
        if plan.healthy and not restored:
            raise BadInput(
                f"{self._location.consensus.description} is healthy: there is nothing to recover",
                hint="if it is an older copy all the same, say so with --restored",
            )
        blob, consensus = self._location.blob, self._location.consensus
        before = max(each.recoveries for each in (self._stored, self._decided) if each is not None)
        stored = encode_location(self._location.location_id, recoveries=before + 1)
        consensus.check_restart()
        blob.put(BLOB_KEY, stored)
        for known in self._known.values():
            if known.state is not None:
                self._restart(known.plan, known.state, self._location)
        self._free_lock(before + 1)
        head = self._entry.seqno if self._entry else 0
        if not consensus.restart(CONSENSUS_KEY, head + 1, stored):
            raise StorageError(
                f"{consensus.description} changed during the recovery",
                hint="stop all its clients, and try again",
            )
        return plan

    def preview(self) -> Location:
        """The location as it would be after `run`. It is in memory: nothing is written to the stores.

        It lacks the shards that can't be recovered.
        """
        blob = OverlayBlob(self._location.blob)
        location = Location(blob, MemoryConsensus("preview"), self._location.location_id)
        for known in self._known.values():
            if known.state is not None:
                self._restart(known.plan, known.state, location)
        return location

    def opened(self) -> Location:
        """The location, after `run`."""
        return self._location

    def _restart(self, plan: ShardPlan, state: ShardState, location: Location) -> None:
        """Begin a new log of a shard with a state, in an epoch that nobody has seen."""
        now = self._location.blob.clock_ms() or self._clock.wall_ms()
        seqno = ((plan.seen >> EPOCH_BITS) + 1) << EPOCH_BITS
        old = {
            rollup.blob_key: Garbage(rollup.blob_key, state.seqno, now) for rollup in state.rollups.values()
        }
        begun = replace(
            state,
            seqno=seqno,
            wall_ms=max(state.wall_ms + 1, self._clock.wall_ms()),
            leased_readers={},
            writers={},
            claims={},
            rollups={},
            garbage={**state.garbage, **old},
        )
        data = encode_state(begun)
        rollup = Rollup(seqno, rollup_key(plan.shard_id, seqno), len(data), checksum(data))
        location.blob.put(rollup.blob_key, data)
        changes: tuple[Change, ...] = (PutEntry(rollup),)
        hostname = self._config.hostname
        diff = StateDiff(
            seqno + 1, plan.shard_id, APPLIER_VERSION, begun.wall_ms + 1, hostname, rollup, changes
        )
        if not location.consensus.restart(plan.shard_id, seqno + 1, encode_diff(diff)):
            raise StorageError(
                f"the log of {plan.shard_id} changed during the recovery",
                hint="stop all clients, and try again",
            )

    def _free_lock(self, recoveries: int) -> None:
        """Continue the rows of the write lock at a number that nobody has held, not even in the lost log."""
        consensus = self._location.consensus
        head = consensus.heads([LOCK_KEY]).get(LOCK_KEY)
        epoch = max(recoveries, (head.seqno >> EPOCH_BITS) + 1 if head is not None else 0)
        hostname, now = self._config.hostname, self._clock.wall_ms()
        row = LockRow(
            epoch << EPOCH_BITS, "recovery", "", hostname, now, token=uuid.uuid4().bytes, released=True
        )
        if not consensus.restart(LOCK_KEY, row.seqno, encode_lock(row)):
            raise StorageError(
                f"the write lock of {consensus.description} changed during the recovery",
                hint="stop all clients, and try again",
            )

    def _look(self, looking_at: Callable[[str], None]) -> Iterator[Known]:
        logs = {key for key in self._location.consensus.list_keys() if key.startswith("s")}
        looked: set[str] = set()
        listed = self._location.blob.list("s")
        for shard, found in groupby(listed, key=lambda meta: meta.key.split("/")[0]):
            keys = {meta.key for meta in found}
            if any(BLOB_NAME.fullmatch(key) for key in keys):
                looking_at(shard)
                looked.add(shard)
                logs.discard(shard)
                yield self._look_at(shard, keys)
        if self._lost is not None:
            logs |= {key for key in self._lost.heads if key.startswith("s")} - looked
        for shard in sorted(logs):
            looking_at(shard)
            yield self._look_at(shard, set())

    def _look_at(self, shard: str, keys: set[str]) -> Known:
        rollups = sorted(
            (
                (int(found["seqno"]), key)
                for key in keys
                if (found := BLOB_NAME.fullmatch(key)) is not None and found["seqno"]
            ),
            reverse=True,
        )
        # Read the head after listing the rollups and before the parts, in case a client still writes.
        entry = self._location.consensus.heads([shard]).get(shard)
        problems: list[str] = []
        logged = self._of_log(shard, problems) if entry is not None else None
        is_broken = entry is not None and logged is None
        rows = self._rows(shard, problems) if is_broken else []
        if rows:
            logged = self._rebuilt(shard, rows, rollups)
        if logged is not None and not part_keys(logged) <= keys:
            keys = {meta.key for meta in self._location.blob.list(f"{shard}/")}
        head = entry.seqno if entry is not None else 0
        newest = rollups[0][0] if rollups else 0
        cut = self._lost is not None
        beyond = self._lost.heads.get(shard, 0) if self._lost is not None else 0
        look = Look(shard, keys, head, max(newest, head, beyond), beyond=beyond, is_cut=cut or is_broken)
        look.problems += problems
        if entry is None:
            look.problems.append("it has no log")
        if beyond:
            look.problems.append(f"its log breaks off before version {beyond}")
        if logged is not None:
            look.add(logged, "log")
        elif rows:
            look.problems.append(f"versions {rows[0].seqno} to {rows[-1].seqno} of its log can't be replayed")
            look.add_rows(rows, doubted=self._is_doubted(shard))
        for seqno, key in [each for each in rollups if not look.covers(*each)][:_MOST_TRIED]:
            state = self._of_rollup(shard, seqno, key, look.problems)
            if state is not None:
                row = row_of(self._location, shard, seqno) if logged is not None else None
                look.add(state, "rollup", row)
        if not rollups:
            look.problems.append("no rollup of it was ever written")
        return look.result(self._choice)

    def _of_log(self, shard: str, problems: list[str]) -> ShardState | None:
        try:
            state = Machine(shard, self._location, self._config, self._clock).refresh()
            check_state(state)
        except (CorruptBlob, AssertionError) as error:
            problems.append(str(error))
            return None
        return state

    def _rows(self, shard: str, problems: list[str]) -> list[StateDiff]:
        """The rows of a log; empty if one of them is damaged."""
        rows: list[StateDiff] = []
        while True:
            start = rows[-1].seqno + 1 if rows else 0
            found = self._location.consensus.scan(shard, start, _SCAN_LIMIT)
            try:
                rows += [decode_diff(entry.data, f"{shard} log {entry.seqno}") for entry in found]
            except HoldfastError as error:
                problems.append(str(error))
                return []
            if len(found) < _SCAN_LIMIT:
                return rows

    def _rebuilt(
        self, shard: str, rows: Sequence[StateDiff], rollups: Sequence[tuple[int, str]]
    ) -> ShardState | None:
        """The end of a log whose own rollup is gone, from another rollup of a version that a row has made."""
        made = {row.seqno: number for number, row in enumerate(rows)}
        for seqno, key in [each for each in rollups if each[0] in made][:_MOST_TRIED]:
            state = self._of_rollup(shard, seqno, key, [])
            number = made[seqno]
            if state is None or contradiction(state, state, rows[number]):
                continue
            try:
                for row in rows[number + 1 :]:
                    state = apply(state, row)
                check_state(state)
            except (ValueError, LookupError, StopIteration, AssertionError):
                continue
            return state
        return None

    def _is_doubted(self, shard: str) -> bool:
        """Whether clients or cuts of the log knew other rows than the log has."""
        markers = standing_markers(self._location, shard, self._stored.recoveries)
        return any(True for _ in markers) or has_other_digests(self._location, shard)

    def _of_rollup(self, shard: str, seqno: int, key: str, problems: list[str]) -> ShardState | None:
        data = self._location.blob.get_start(key, MOST_BYTES)
        try:
            state = decode_state(data or b"", key)
            check_state(state)
        except (HoldfastError, AssertionError) as error:
            problems.append(str(error))
            return None
        if state.shard_id != shard or state.seqno != seqno:
            problems.append(f"{key} is version {state.seqno} of {state.shard_id}")
            return None
        return state
