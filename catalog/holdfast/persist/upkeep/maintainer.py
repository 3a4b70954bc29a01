"""Runs the upkeep of a client's shards, in a separate thread or in the writer's thread.

- Upkeep is never needed for correctness. Failures are logged, and the work is tried again after a later
  commit. An error of upkeep never reaches the caller of a commit or of a close, because the commit has
  landed.
- A client that wrote to a shard writes a rollup of it when it closes, with every setting of `maintenance`. So
  if a store loses its consensus, it keeps all that closed clients wrote. This takes at most about
  `_LONGEST_CLOSE_S`.
- A fenced client stops its upkeep, and logs this once. So does a client that met another history, unless a
  call has already raised that.
"""

import heapq
import logging
import queue
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Fenced,
    FenceRegressed,
    HoldfastError,
    LogRegressed,
)
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import new_id
from holdfast.persist.state.command import Command, ExpireHandles, Handle
from holdfast.persist.state.divergence import ForkGuard
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.stores import Location
from holdfast.persist.upkeep.garbage import collect_garbage, garbage_due, log_is_long, now_for
from holdfast.persist.upkeep.leases import LeaseWatch, drop_handles, left_behind
from holdfast.persist.upkeep.rollup import closing_rollup_due, write_early_rollup, write_rollups
from holdfast.persist.upkeep.round import due, maintain
from holdfast.persist.upkeep.survey import Survey

log = logging.getLogger(__name__)


_STOP: Final = ""
_SOONER: Final = "\0"
"""Not a shard: a reader with a shorter lease has come, so the next heartbeat is due sooner."""
_LONGEST_CLOSE_S: Final = 5.0
_TOGETHER: Final = 16
"""The shards whose last rollups a close writes at once."""
_CHECK_STORE_EVERY_S: Final = 3600.0
# Merging everything that came since then costs little more than merging eight batches. The writers of small
# appends share their interpreter with this thread.
_REST_S: Final = 0.1
_EARLIEST: Final = 0.5
"""The smallest part of the time between heartbeats after which the first one is sent."""


class Leased(Protocol):
    """A read handle whose lease must be renewed."""

    @property
    def shard_id(self) -> str:
        """The shard that the handle reads."""

    @property
    def lease_s(self) -> float:
        """The length of its lease, in seconds."""

    def heartbeat(self) -> None:
        """Renew the lease."""

    def close(self) -> None:
        """Release the lease."""


class Maintainer:
    """Runs the upkeep of a client's shards, in a separate thread or in the writer's thread."""

    def __init__(
        self,
        location: Location,
        config: PersistConfig,
        clock: Clock,
        new_machine: Callable[[str], Machine],
        machines: Callable[[], Sequence[Machine]],
        history: ForkGuard,
    ) -> None:
        self._location = location
        self._history = history
        self._machines = machines
        self._config = config
        self._clock = clock
        self._leases = LeaseWatch(clock)
        lease_ms = int(config.lease_s * 1000)
        self._writer = Handle(new_id("w"), "upkeep", config.hostname, lease_ms)
        self._survey = Survey(location, config, new_machine, machines, start=f"s{self._writer.id[1:]}")
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._waiting: dict[str, Machine] = {}
        # Used by the thread: which shards get upkeep when, and when each got its last one.
        self._resting: list[tuple[float, str]] = []
        self._kept_s: dict[str, float] = {}
        self._lock = threading.Lock()
        # Weak references: if a reader is dropped without being closed, its lease expires.
        self._readers: weakref.WeakSet[Leased] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0
        # The same for readers whose lease is shorter than that of the configuration.
        self._next_short_beat = float("inf")
        # The newest version of each shard that this client wrote.
        self._written: dict[str, int] = {}
        self._is_fenced = False
        self._next_store_check = 0.0
        # The last unexpected error of each shard's upkeep, as a text.
        self._defects: dict[str, str] = {}

    def after_commit(self, machine: Machine) -> None:
        """Record that this client has written to a shard, and start upkeep if it is due."""
        self._written[machine.shard_id] = machine.state.seqno
        is_waiting = machine.shard_id in self._waiting
        if self._config.maintenance == "off" or (is_waiting and self._thread is not None):
            return
        if not due(machine.state, self._config):
            if self._thread is None and self._config.maintenance == "background":
                # The thread writes the first rollups of young shards.
                self._guarded(self._start_once, machine.shard_id)
            return
        if self._config.maintenance == "inline":
            self._guarded(partial(self.run, machine), machine.shard_id)
            self._check_store_when_due()
            return
        with self._lock:
            is_waiting = machine.shard_id in self._waiting
            self._waiting[machine.shard_id] = machine
        if not is_waiting:
            self._queue.put(machine.shard_id)
        if self._thread is None:
            self._guarded(self._start_once, machine.shard_id)

    def run(self, machine: Machine) -> None:
        """Do a shard's upkeep now."""
        maintain(machine, self._leases, self._writer, self._beat_when_due)

    def watch(self, reader: Leased) -> None:
        """Send heartbeats for a reader from now on."""
        with self._lock:
            self._readers.add(reader)
            if self._config.maintenance == "background":
                self._start()
        if reader.lease_s < self._config.lease_s:
            self._queue.put(_SOONER)

    def end_silent_leases(self, machine: Machine) -> None:
        """End the leases of a shard that had no heartbeat for their whole length, as this process saw it."""
        if machine.refresh().exists:
            drop_handles(machine, self._leases.expired(machine.state))

    def forget(self, reader: Leased) -> None:
        """Stop sending heartbeats for a reader."""
        with self._lock:
            self._readers.discard(reader)

    def close(self) -> None:
        """Finish waiting upkeep, release the leases of readers and the entries of writers, and stop."""
        thread = self._thread
        if thread is not None:
            self._queue.put(_STOP)
            thread.join()
        for reader in list(self._readers):
            self._guarded(reader.close, reader.shard_id)
        self._guarded(self._leave, "all shards")

    def _leave(self) -> None:
        """Drop this client's writers, and write a rollup of each shard that it wrote to.

        Stop at the first failure of the store.
        """
        until = self._clock.monotonic() + _LONGEST_CLOSE_S
        drops = self._drops()
        written = [machine for machine in self._machines() if machine.shard_id in self._written]
        for start in range(0, len(written), _TOGETHER):
            self._write_rollups(written[start : start + _TOGETHER], drops, until)
            drops = []
            if self._clock.monotonic() >= until:
                break
        if drops:
            commit(drops)
        left = sum(closing_rollup_due(each.state, self._written[each.shard_id]) for each in written)
        if left and self._clock.monotonic() >= until:
            log.warning(
                "%d of %d shards have no rollup of their newest version, because closing took too long;"
                " what was written since their last rollup is only in the consensus store",
                left,
                len(written),
            )

    def _write_rollups(
        self, machines: Sequence[Machine], drops: Sequence[tuple[Machine, Command]], until: float
    ) -> None:
        """Write the last rollups of some shards, in one commit with `drops`. Begin nothing after `until`.

        If one of them can't have a rollup, that is logged, and the others get theirs.
        """
        try:
            due = [m for m in machines if closing_rollup_due(m.state, self._written[m.shard_id])]
            write_rollups(due, drops, until_s=until)
            for machine in machines:
                is_long = self._config.maintenance != "off" and log_is_long(machine.state, self._config)
                if is_long and self._clock.monotonic() < until:
                    collect_garbage(machine)
        except LogRegressed:
            raise
        except Exception as error:
            # The close must continue in any case, because it releases what the client holds open.
            is_of_one = isinstance(error, CorruptBlob | BadInput)
            if isinstance(error, HoldfastError | AssertionError) and not is_of_one:
                raise
            if not drops and len(machines) == 1:
                if is_of_one:
                    log.warning("%s has no rollup of its newest version: %s", machines[0].shard_id, error)
                else:
                    log.exception("%s has no rollup of its newest version", machines[0].shard_id)
                return
        else:
            return
        if drops:
            commit(drops)
        for machine in machines:
            self._write_rollups([machine], (), until)

    def _still_fenced(self) -> bool:
        """Whether the client is still fenced. It may have taken the lock again."""
        for machine in self._machines():
            try:
                _ = machine.fence.held
            except (Fenced, FenceRegressed):
                return True
        self._is_fenced = False
        return False

    def _drops(self) -> list[tuple[Machine, Command]]:
        return [
            (machine, ExpireHandles((), mine))
            for machine in self._machines()
            if (mine := left_behind(machine.state, tuple(machine.settled)))
        ]

    def _start_once(self) -> None:
        with self._lock:
            self._start()

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._loop, name="holdfast-maintenance", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # The process has too many threads, or it is ending.
            self._thread = None
            raise

    def _loop(self) -> None:
        # An operator opens many clients at its start. They don't all write their first rollups at the same
        # moment, because each sends its first heartbeat sooner, by a random time. The later ones follow it.
        share = random.uniform(_EARLIEST, 1.0)  # noqa: S311 - jitter is no secret
        self._next_beat = self._clock.monotonic() + share * self._config.lease_s / 4
        while True:
            # Even if a shard always has work, the leases of others need their heartbeats.
            self._beat_when_due()
            now = self._clock.monotonic()
            if self._resting and self._resting[0][0] <= now:
                self._run_waiting(heapq.heappop(self._resting)[1])
                continue
            beat = min(self._next_beat, self._next_short_beat)
            until = min(beat, self._resting[0][0]) if self._resting else beat
            try:
                shard_id = self._queue.get(timeout=max(0.0, until - now))
            except queue.Empty:
                continue
            if shard_id == _STOP:
                for _, waiting in self._resting:
                    self._run_waiting(waiting)
                return
            if shard_id == _SOONER:
                self._plan_short_beats(self._clock.monotonic())
                continue
            before = self._kept_s.get(shard_id)
            heapq.heappush(self._resting, (now if before is None else before + _REST_S, shard_id))

    def _run_waiting(self, shard_id: str) -> None:
        with self._lock:
            machine = self._waiting.pop(shard_id)
        self._guarded(partial(self.run, machine), shard_id)
        self._kept_s[shard_id] = self._clock.monotonic()

    def _beat_when_due(self) -> None:
        # Only this thread sends heartbeats. With upkeep in the writer's thread there are none.
        if threading.current_thread() is not self._thread:
            return
        if self._clock.monotonic() >= self._next_short_beat:
            self._next_short_beat = float("inf")
            self._beat(self._short_leases())
            self._plan_short_beats(self._clock.monotonic())
        if self._clock.monotonic() < self._next_beat:
            return
        with self._lock:
            readers = list(self._readers)
        self._beat([each for each in readers if each.lease_s >= self._config.lease_s])
        self._next_beat = self._clock.monotonic() + self._config.lease_s / 4
        for machine in self._machines():
            # This uses the cached version, so a shard that nobody uses costs no request.
            self._guarded(partial(self._free, machine), machine.shard_id)
        self._guarded(self._look_around, "other shards")
        self._check_store_when_due()

    def _beat(self, readers: Sequence[Leased]) -> None:
        for reader in readers:
            self._guarded(reader.heartbeat, reader.shard_id)

    def _short_leases(self) -> list[Leased]:
        with self._lock:
            return [each for each in self._readers if each.lease_s < self._config.lease_s]

    def _plan_short_beats(self, now: float) -> None:
        """Plan the next heartbeats of the readers with a shorter lease, if there are any."""
        shortest = min((each.lease_s for each in self._short_leases()), default=None)
        if shortest is not None:
            self._next_short_beat = min(self._next_short_beat, now + shortest / 4)

    def _check_store_when_due(self) -> None:
        now = self._clock.monotonic()
        if now >= self._next_store_check:
            self._next_store_check = now + _CHECK_STORE_EVERY_S
            self._guarded(self._location.consensus.check_integrity, "the consensus store")

    def _free(self, machine: Machine) -> None:
        if garbage_due(machine.state, self._config, now_for(machine)):
            self.run(machine)
        write_early_rollup(machine)

    def _look_around(self) -> None:
        for machine in self._survey.next():
            self._guarded(partial(self._look_at, machine), machine.shard_id)

    def _look_at(self, machine: Machine) -> None:
        if self._survey.wants_upkeep(machine):
            self.run(machine)
        write_early_rollup(machine)

    def _guarded(self, work: Callable[[], None], shard_id: str) -> None:
        if self._is_fenced and self._still_fenced():
            return
        was_raised = self._history.ended is not None
        try:
            work()
        except (Fenced, FenceRegressed) as error:
            # Everything that this client tries fails from now on, and its writers raise the error.
            self._is_fenced = True
            level = logging.INFO if isinstance(error, Fenced) else logging.WARNING
            log.log(level, "upkeep stops: %s", error)
        except LogRegressed as error:
            # The client has ended, and every call raises this error from now on.
            # If another thread ended it at the same time, that thread raises or logs the error.
            if not was_raised and self._history.ended_by == threading.get_ident():
                log.warning("upkeep stops: %s; %s", error, error.hint)
        except HoldfastError as error:
            # Upkeep is never needed for correctness, and is tried again after a later commit.
            log.warning("upkeep of %s failed: %s", shard_id, error)
        except Exception as error:
            # Tests must see failed checks. Otherwise the thread must survive to send heartbeats.
            if self._config.debug_validate and threading.current_thread() is not self._thread:
                raise
            # Log it once, because every commit would meet it again.
            if self._defects.get(shard_id) != repr(error):
                self._defects[shard_id] = repr(error)
                log.exception("upkeep of %s failed", shard_id)
        else:
            self._defects.pop(shard_id, None)
