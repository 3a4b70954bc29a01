"""Upkeep of a shard: rollups, compaction, expiry of leases, garbage collection, truncation of the log.

Order, so that a crash at any point loses nothing: a rollup is written, then committed (which makes the older
ones garbage); a compaction's parts are written, then committed in exchange for exactly their batches; blobs
are deleted after the commit that made them garbage; the log is truncated last, below the newest rollup.
A deletion that is forgotten is done again; one too early can't happen.
"""

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from holdfast.errors import BadInput, CorruptBlob, HoldfastError
from holdfast.persist.clock import Clock
from holdfast.persist.command import AddRollup, Command, ExpireHandles, ForgetGarbage, InstallCompaction
from holdfast.persist.config import PersistConfig
from holdfast.persist.consolidate import consolidate_updates
from holdfast.persist.ids import new_id, rollup_key
from holdfast.persist.machine import Machine, commit
from holdfast.persist.part import checksum, decode_inline
from holdfast.persist.partstore import PartGone, delete_parts, write_run
from holdfast.persist.read import ReadHandle
from holdfast.persist.runs import Since, merged
from holdfast.persist.snapshot import replan
from holdfast.persist.state import Batch, Garbage, Rollup, ShardState, WriteMode
from holdfast.persist.statecodec import encode_state

log = logging.getLogger(__name__)


MOST_WRITERS: Final = 128
"""How many writer entries a shard keeps: an append in doubt stays so when as many others appended since."""

# Recording a rollup and forgetting what it made garbage.
_ROLLUP_VERSIONS: Final = 2


def rollup_due(state: ShardState, config: PersistConfig) -> bool:
    """Whether the log since the newest rollup has become long; of a finalized shard, has anything to lose."""
    newest = state.latest_rollup
    if state.finalized:
        # The one batch that is left has the version of the end as its id.
        (end,) = state.batches
        return newest is None or newest.seqno < end.id or state.seqno - newest.seqno > _ROLLUP_VERSIONS
    return state.seqno - (newest.seqno if newest else 0) >= config.rollup_every


def plan_compaction(batches: Sequence[Batch], config: PersistConfig) -> tuple[Batch, ...]:
    """The neighbouring batches to merge next: the newest run of one level that is long enough.

    Merging `fanin` batches of a level gives one of the next, so n appends leave O(log n) batches and each
    update is rewritten O(log n) times.
    """
    end = len(batches)
    while end > 0:
        start = end
        while start > 0 and batches[start - 1].level == batches[end - 1].level:
            start -= 1
        if end - start >= config.compaction_fanin:
            return tuple(batches[start:end])
        end = start
    return ()


def due(state: ShardState, config: PersistConfig) -> bool:
    """Whether a shard wants upkeep now."""
    return rollup_due(state, config) or bool(plan_compaction(state.batches, config))


def write_rollup(machine: Machine) -> None:
    """Write the newest version as a rollup and record it."""
    state = machine.state
    if not rollup_due(state, machine.config):
        return
    data = encode_state(state)
    key = rollup_key(machine.shard_id, state.seqno)
    machine.location.blob.put(key, data)
    rollup = Rollup(state.seqno, key, len(data), checksum(data))
    (installed,) = commit([(machine, AddRollup(rollup, machine.clock.wall_ms()))])
    if not installed:
        machine.location.blob.delete(key)


def compact(machine: Machine, writer_id: str, between: Callable[[], None] = lambda: None) -> bool:
    """Merge one run of batches; whether there was one to merge.

    What is in blobs is merged piece by piece: memory holds about one part of the result. `between` is called
    now and then meanwhile.
    """
    state = machine.state
    batches = plan_compaction(state.batches, machine.config)
    if not batches or state.finalized:
        return False
    try:
        parts = write_run(
            machine,
            writer_id=writer_id,
            schema=state.schema,
            schema_id=max(state.schemas),
            pieces=_merged(machine, state, batches, between),
        )
    except PartGone as gone:
        replan(machine, state, gone)
        return True
    ids = tuple(batch.id for batch in batches)
    command = InstallCompaction(ids, state.since, parts, machine.clock.wall_ms())
    (installed,) = commit([(machine, command)])
    if not installed:
        delete_parts(machine, parts)
    return True


def _merged(
    machine: Machine, state: ShardState, batches: Sequence[Batch], between: Callable[[], None]
) -> Iterator[pa.Table]:
    """The updates of batches consolidated at since, in the total order."""
    schema, since = state.schema, state.since
    runs = [run for batch in batches for run in batch.runs]
    inline = [part.inline for run in runs for part in run if part.inline is not None]
    if len(inline) == sum(map(len, runs)):
        # Small: the stream's fixed cost would be most of it.
        sources = [decode_inline(data, schema, key="an inline part") for data in inline]
        yield consolidate_updates(schema, sources, since)
        return
    for piece in merged(machine, schema, runs, Since(since)):
        yield piece
        between()


def deletable(state: ShardState, config: PersistConfig, now_ms: int) -> list[Garbage]:
    """The garbage that nobody can need any more.

    A part waits for the readers that may be reading a version that names it, and for `gc_grace_s` for
    those that nobody knows of. A rollup does not wait: who misses it finds a newer one in the log.
    """
    hold = state.seqno_hold
    grace_ms = config.gc_grace_s * 1000
    return [
        garbage
        for garbage in state.garbage.values()
        if is_rollup(garbage.blob_key) or (garbage.seqno <= hold and now_ms - garbage.wall_ms >= grace_ms)
    ]


def is_rollup(key: str) -> bool:
    """Whether a blob key is that of a rollup."""
    return key.split("/")[1].startswith("v")


def collect_garbage(machine: Machine) -> None:
    """Delete what is no longer needed and truncate the log below the newest rollup."""
    state = machine.state
    dead = deletable(state, machine.config, machine.clock.wall_ms())
    for garbage in dead:
        machine.location.blob.delete(garbage.blob_key)
    newest = state.latest_rollup
    gc_seqno = newest.seqno + 1 if newest else 0
    if gc_seqno > state.gc_seqno:
        machine.location.consensus.truncate(machine.shard_id, gc_seqno)
    if dead or gc_seqno > state.gc_seqno:
        keys = tuple(garbage.blob_key for garbage in dead)
        commit([(machine, ForgetGarbage(keys, gc_seqno))])


def garbage_due(state: ShardState, config: PersistConfig, now_ms: int) -> bool:
    """Whether garbage has waited for its grace, or the log of a finalized shard can shrink."""
    return bool(deletable(state, config, now_ms)) or (state.finalized and rollup_due(state, config))


def surplus_writers(state: ShardState) -> list[str]:
    """The writers beyond `MOST_WRITERS` that have been silent for longest.

    Processes that live shorter than a lease see nobody silent for the whole of one, so that leases alone
    bound nothing; and no clock is asked, for a writer entry that goes too early costs no update.
    """
    return list(state.writers)[: max(len(state.writers) - MOST_WRITERS, 0)]


def drop_handles(machine: Machine, silent: ExpireHandles) -> None:
    """Drop, in one commit, what is silent, surplus, or was closed in this process."""
    state = machine.state
    # Not one with an append in flight or in doubt.
    closed = machine.closed & machine.settled
    gone = dict.fromkeys([*closed, *surplus_writers(state)])
    writers = tuple((id_, state.writers[id_].heartbeats) for id_ in gone if id_ in state.writers)
    if silent.readers or silent.writers or writers:
        commit([(machine, ExpireHandles(silent.readers, (*silent.writers, *writers)))])
    machine.closed -= closed
    machine.settled -= closed


class LeaseWatch:
    """Finds handles that stopped to live: no heartbeat for their whole lease, on this process's own clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def expired(self, state: ShardState) -> ExpireHandles:
        """What to expire now."""
        with self._lock:
            return self._expired(state)

    def _expired(self, state: ShardState) -> ExpireHandles:
        now = self._clock.monotonic()

        def silent(id_: str, heartbeats: int, lease_ms: int) -> bool:
            key = (state.shard_id, id_)
            count, since = self._seen.get(key, (-1, now))
            if count != heartbeats:
                self._seen[key] = (heartbeats, now)
                return False
            return now - since > lease_ms / 1000

        readers = tuple(
            (r.id, r.heartbeats)
            for r in state.leased_readers.values()
            if silent(r.id, r.heartbeats, r.lease_ms)
        )
        writers = tuple(
            (w.id, w.heartbeats) for w in state.writers.values() if silent(w.id, w.heartbeats, w.lease_ms)
        )
        live = {*state.leased_readers, *state.writers}
        for key in [key for key in self._seen if key[0] == state.shard_id and key[1] not in live]:
            del self._seen[key]
        return ExpireHandles(readers, writers)


def maintain(
    machine: Machine, leases: LeaseWatch, writer_id: str, between: Callable[[], None] = lambda: None
) -> None:
    """Do all the upkeep that a shard wants now; `between` is called now and then where it takes long."""
    if not machine.refresh().exists:
        return
    drop_handles(machine, leases.expired(machine.state))
    unreadable: HoldfastError | None = None
    try:
        while machine.state.write_mode is WriteMode.APPEND and compact(machine, writer_id, between):
            between()
    except (BadInput, CorruptBlob) as error:
        # Updates that can't be merged must not let the log and the garbage grow too.
        unreadable = error
    if machine.state.finalized:
        # Before it, so that the last rollup has no garbage to name; perhaps it ended while we compacted.
        collect_garbage(machine)
    write_rollup(machine)
    collect_garbage(machine)
    if unreadable is not None:
        raise unreadable


_STOP: Final = ""


class Maintainer:
    """Runs the upkeep of a client's shards, in a thread of its own or in the writer's."""

    def __init__(
        self, config: PersistConfig, clock: Clock, machines: Callable[[], Sequence[Machine]]
    ) -> None:
        self._machines = machines
        self._config = config
        self._clock = clock
        self._leases = LeaseWatch(clock)
        self._writer_id = new_id("w")
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._waiting: dict[str, Machine] = {}
        self._lock = threading.Lock()
        # Weak: a reader that is dropped without being closed loses its lease in time.
        self._readers: weakref.WeakSet[ReadHandle] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0

    def after_commit(self, machine: Machine) -> None:
        """Note that a shard has moved."""
        if self._config.maintenance == "off" or not due(machine.state, self._config):
            return
        if self._config.maintenance == "inline":
            # The commit that brought us here is done: it must not look failed.
            self._guarded(partial(self.run, machine), machine.shard_id)
            return
        with self._lock:
            if machine.shard_id in self._waiting:
                return
            self._waiting[machine.shard_id] = machine
            self._start()
        self._queue.put(machine.shard_id)

    def run(self, machine: Machine) -> None:
        """Do a shard's upkeep now."""
        maintain(machine, self._leases, self._writer_id, self._beat_when_due)

    def watch(self, reader: ReadHandle) -> None:
        """Send heartbeats for a reader from now on."""
        with self._lock:
            self._readers.add(reader)
            if self._config.maintenance == "background":
                self._start()

    def forget(self, reader: ReadHandle) -> None:
        """Send none any more."""
        with self._lock:
            self._readers.discard(reader)

    def close(self) -> None:
        """Finish what waits, give up the leases of readers and the entries of writers, and stop."""
        thread = self._thread
        if thread is not None:
            self._queue.put(_STOP)
            thread.join()
        for reader in list(self._readers):
            self._guarded(reader.close, reader.shard_id)
        self._guarded(self._drop_writers, "all shards")

    def _drop_writers(self) -> None:
        steps: list[tuple[Machine, Command]] = []
        for machine in self._machines():
            writers = machine.state.writers
            mine = tuple((id_, writers[id_].heartbeats) for id_ in machine.settled if id_ in writers)
            if mine:
                steps.append((machine, ExpireHandles((), mine)))
        if steps:
            commit(steps)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="holdfast-maintenance", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        self._next_beat = self._clock.monotonic() + self._config.lease_s / 4
        while True:
            # A shard that always has work must not keep the leases of others from their heartbeat.
            self._beat_when_due()
            try:
                shard_id = self._queue.get(timeout=max(0.0, self._next_beat - self._clock.monotonic()))
            except queue.Empty:
                continue
            if shard_id == _STOP:
                return
            with self._lock:
                machine = self._waiting.pop(shard_id)
            self._guarded(partial(self.run, machine), shard_id)

    def _beat_when_due(self) -> None:
        # Only the thread of its own sends heartbeats: with upkeep in the writer's there are none to be late.
        if threading.current_thread() is not self._thread or self._clock.monotonic() < self._next_beat:
            return
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            self._guarded(reader.heartbeat, reader.shard_id)
        self._next_beat = self._clock.monotonic() + self._config.lease_s / 4
        for machine in self._machines():
            # By what is known here: a shard that nobody uses costs no look at the store.
            if garbage_due(machine.state, self._config, self._clock.wall_ms()):
                self._guarded(partial(self.run, machine), machine.shard_id)

    def _guarded(self, work: Callable[[], None], shard_id: str) -> None:
        try:
            work()
        except HoldfastError as error:
            # Upkeep is never needed for correctness and is tried again after a later commit.
            log.warning("upkeep of %s failed: %s", shard_id, error)
        except Exception:
            # In the caller's thread the checks of tests must be heard; ours must live on for the heartbeats.
            if threading.current_thread() is not self._thread:
                raise
            log.exception("upkeep of %s failed", shard_id)
