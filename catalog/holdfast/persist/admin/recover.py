"""Recovery: the log of each shard is made anew from rollups in Blob, after the consensus store was lost or an
older copy of it was restored.

- What is known is what rollups know: a shard comes back as of its newest whole one, or as of its log where
  that leads further. What was committed after is lost; nothing of Blob is deleted or replaced. Small updates
  leave nothing in Blob, so after a log was lost nobody knows whether anything was committed after the rollup.
- A rollup that contradicts the log, or another rollup, is of another history (`histories`): the store was
  restored from an older copy and written to since. The caller must choose one; the other is lost.
- A whole state is one whose blobs are all there. Garbage collection keeps it so: what the newest rollup names
  is never deleted.
- A recovered shard goes on at version `epoch * 2^40`, of an epoch that nobody has seen. So no attempt of a
  process that still runs on the lost log can land, and one that reads the new log finds another epoch than
  it knows and fails (`Machine.advance_to`) instead of mixing both. Leases, writers and claims are dropped.
  So with the write lock: it is free, at row `recoveries * 2^40`, and who holds an older row is fenced.
- Nothing is known of a shard that has no whole rollup and no log. If one of its id is made again, its log
  begins at 1: only stopping every client keeps one that knows the lost log out of it.
- The location gets a new count of recoveries in both stores, in Blob first and in Consensus last: between
  these, and with a store from before, it can't be opened. A recovery that was cut short is done again.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from holdfast.errors import BadInput, CorruptBlob, HoldfastError, LocationMismatch, StorageError
from holdfast.persist.admin.recoverable import Choice, Known, Look, ShardPlan
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import BLOB_NAME, EPOCH_BITS, rollup_key
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import decode_state, encode_diff, encode_state
from holdfast.persist.state.divergence import row_of
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
    part_keys,
)
from holdfast.persist.stores import Blob, Consensus, Location, MemoryConsensus
from holdfast.persist.stores.location import (
    BLOB_KEY,
    CONSENSUS_KEY,
    decode_location,
    decode_recoveries,
    encode_location,
    read_location,
)
from holdfast.persist.stores.overlay import OverlayBlob

_MOST_TRIED: Final = 8


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a recovery would do, or has done. `complete` says that nothing is lost for certain.

    `lost` says why the logs end earlier than they did, if the consensus store itself shows that.
    """

    location_id: str
    healthy: bool
    shards: tuple[ShardPlan, ...]
    complete: bool
    lost: str = ""


class Recovery:
    """A look at the stores of a location that is perhaps not whole, and its repair."""

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
        """Look at all shards; `looking_at` is called with the id of each before.

        Raises:
            BadInput: `blob` is not of a location, or `choice` names what can't be had.
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
        location_id = decode_location(stored, f"{BLOB_KEY} in {blob.description}")
        entry = consensus.heads([CONSENSUS_KEY]).get(CONSENSUS_KEY)
        if entry is not None:
            where = f"{CONSENSUS_KEY} in {consensus.description}"
            decided = decode_location(entry.data, where)
            if decided != location_id:
                raise LocationMismatch(
                    f"{blob.description} belongs to location {location_id},"
                    f" {consensus.description} to {decided}",
                    hint="give a consensus store that is empty, or an older copy of the right one",
                )
        self._location = Location(blob, consensus, location_id)
        self._config = config or PersistConfig()
        self._clock = clock or Clock()
        self._stored, self._entry = stored, entry
        self._lost = consensus.lost()
        self._known = {known.plan.shard_id: known for known in self._look(looking_at)}

    @property
    def plan(self) -> RecoveryPlan:
        """What can be done."""
        paired = self._entry is not None and self._recoveries() == decode_recoveries(self._entry.data)
        shards = tuple(known.plan for known in self._known.values())
        healthy = paired and all(shard.healthy for shard in shards)
        # Logs that are whole tell all; whether the store is an older copy only its owner knows.
        complete = self._entry is not None and all(shard.healthy for shard in shards)
        why = "" if self._lost is None else self._lost.why
        return RecoveryPlan(
            str(self._location.location_id), healthy and not why, shards, complete and not why, why
        )

    def _recoveries(self) -> int:
        return decode_recoveries(self._stored)

    def run(self, *, restored: bool = False) -> RecoveryPlan:
        """Do it; every other client of the location must have stopped.

        `restored` says that the consensus store is an older copy even where nothing shows it.

        Raises:
            BadInput: the consensus store is healthy, or can't be recovered in place, or a shard has two
                histories and nobody has chosen one. Nothing was written.
        """
        plan = self.plan
        undecided = [shard.shard_id for shard in plan.shards if shard.undecided]
        if undecided:
            raise BadInput(
                f"{len(undecided)} shards have two histories, such as {undecided[0]}",
                hint="choose which one to keep; the other is lost",
            )
        if plan.healthy and not restored:
            raise BadInput(
                f"{self._location.consensus.description} is healthy: there is nothing to recover",
                hint="if it is an older copy all the same, say so with --restored",
            )
        blob, consensus = self._location.blob, self._location.consensus
        before = max(self._recoveries(), decode_recoveries(self._entry.data) if self._entry else 0)
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
                f"{consensus.description} was changed meanwhile", hint="stop all its clients, and try again"
            )
        return plan

    def preview(self) -> Location:
        """The location as it would be, in memory above the stores: nothing is written to them.

        Shards that don't come back are missing from it.
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
        """Begin the log of a shard anew with a state, in an epoch that nobody has seen."""
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
                f"the log of {plan.shard_id} moved meanwhile", hint="stop all clients, and try again"
            )

    def _free_lock(self, recoveries: int) -> None:
        """Let the rows of the write lock go on where nobody has held one, also in the log that was lost."""
        consensus = self._location.consensus
        head = consensus.heads([LOCK_KEY]).get(LOCK_KEY)
        epoch = max(recoveries, (head.seqno >> EPOCH_BITS) + 1 if head is not None else 0)
        hostname, now = self._config.hostname, self._clock.wall_ms()
        row = LockRow(
            epoch << EPOCH_BITS, "recovery", "", hostname, now, token=uuid.uuid4().bytes, released=True
        )
        if not consensus.restart(LOCK_KEY, row.seqno, encode_lock(row)):
            raise StorageError("the write lock moved meanwhile", hint="stop all clients, and try again")

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
        # After the rollups were listed, and before the parts: a client may write although it must not.
        entry = self._location.consensus.heads([shard]).get(shard)
        problems: list[str] = []
        logged = self._of_log(shard, problems) if entry is not None else None
        if logged is not None and not part_keys(logged) <= keys:
            keys = {meta.key for meta in self._location.blob.list(f"{shard}/")}
        head = entry.seqno if entry is not None else 0
        newest = rollups[0][0] if rollups else 0
        cut = self._lost is not None
        beyond = self._lost.heads.get(shard, 0) if self._lost is not None else 0
        look = Look(shard, keys, head, max(newest, head, beyond), beyond=beyond, is_cut=cut)
        look.problems += problems
        if entry is None:
            look.problems.append("it has no log")
        if beyond:
            look.problems.append(f"its log breaks off before version {beyond}")
        if logged is not None:
            look.add(logged, "log")
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

    def _of_rollup(self, shard: str, seqno: int, key: str, problems: list[str]) -> ShardState | None:
        data = self._location.blob.get(key)
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
