"""The shared state of a client's handles: its stores, a state cache per shard, and its write lock.

Handles use the session and never import the client, so there is no import cycle.
"""

import threading
from typing import Literal, Protocol

from holdfast.errors import BadInput, NotWritable
from holdfast.forks import OwnerProcess
from holdfast.persist.checks import check_purpose
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.host_clock import HostClock
from holdfast.persist.ids import check_shard_id, new_id
from holdfast.persist.notify import ChangeFollower, ChangeServer
from holdfast.persist.state.command import Handle
from holdfast.persist.state.divergence import ForkGuard, KnownRow, recorded_rollups
from holdfast.persist.state.lock import Fence, no_lock
from holdfast.persist.state.machine import Machine, closed_client
from holdfast.persist.stores import Location
from holdfast.persist.stores.watch import Watches
from holdfast.persist.upkeep.maintainer import Maintainer

Mode = Literal["write", "read"]


class Session:
    """The shards of one location in one process. Thread-safe."""

    def __init__(self, location: Location, mode: Mode, config: PersistConfig, clock: Clock) -> None:
        self.location = location
        self.mode = mode
        self.config = config
        self.clock = clock
        self.fence = Fence()
        """The write lock that the commits of this client must find, if the client took it."""
        self.machines: dict[str, Machine] = {}
        """The state caches of all shards that this client has used, by shard id."""
        self.history = ForkGuard(
            location,
            hostname=config.hostname,
            read_only=mode == "read",
            known=self._known_rows,
        )
        self.maintainer = Maintainer(
            location, config, clock, self._new_machine, self._all_machines, self.history
        )
        # One object for all shards, because a process may have thousands of shards that nobody waits for.
        self._watches = Watches()
        self._host_clock = HostClock(location, clock, config.clock_ahead_s)
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._teller: ChangeServer | None = None
        self._follower: ChangeFollower | None = None
        self._closed = False

    def check_open(self) -> None:
        """Raise `BadInput` if the client is closed, and `UsedAfterFork` in another process."""
        self._owner.check("this client")
        if self._closed:
            raise closed_client(self.location)

    def check_writable(self) -> None:
        """Raise `NotWritable` if the client has mode "read"."""
        self.check_open()
        if self.mode == "read":
            raise NotWritable(
                f"this client of {self.location.blob.description} was opened with mode 'read'",
                hint="open another client with mode 'write'",
            )

    def check_locked(self, shard_id: str) -> None:
        """Raise `NotWritable` if this client has not taken the write lock, `Fenced` if it has lost it."""
        self.check_open()
        if self.fence.held is None:
            raise no_lock(shard_id)

    def now_ms(self) -> int:
        """Return the time for what is written now, in ms since the epoch, limited by the stores' clocks."""
        self.check_open()
        return self._host_clock.now_ms()

    def store_ms(self) -> int | None:
        """Return the earliest time of the stores' clocks, or None if none is known."""
        self.check_open()
        return self._host_clock.store_ms()

    def new_handle(self, kind: str, purpose: str, *, lease_s: float | None = None) -> Handle:
        """Return the record of a new writer (`w`) or reader (`r`), with a new id.

        A lease of `lease_s` seconds replaces that of the configuration if it is shorter and the client's
        thread can send the heartbeats.
        """
        longest = self.config.lease_s
        shorter = lease_s is not None and self.config.maintenance == "background"
        lease = min(longest, lease_s) if shorter and lease_s is not None else longest
        return Handle(new_id(kind), check_purpose(purpose), self.config.hostname, int(lease * 1000))

    def machine(self, shard_id: str) -> Machine:
        """Return the shard's state cache in this client. Raises `BadInput` if the client is closed."""
        self.check_open()
        with self._lock:
            self.check_open()
            machine = self.machines.get(shard_id)
            if machine is None:
                machine = self._new_machine(check_shard_id(shard_id))
                machine.tell = self._teller.changed if self._teller is not None else None
                machine.is_told = self._is_told
                self.machines[shard_id] = machine
            return machine

    def existing(self, shard_id: str) -> Machine:
        """Like `machine`, at the newest version. Raises `BadInput` if the shard does not exist."""
        machine = self.machine(shard_id)
        if not machine.refresh().exists:
            raise BadInput(
                f"shard {shard_id} does not exist in {self.location.blob.description}",
                hint="'holdfast persist inspect' shows all shards",
            )
        return machine

    def _new_machine(self, shard_id: str) -> Machine:
        return Machine(
            shard_id, self.location, self.config, self.clock, self.fence, self.history, self._watches
        )

    def _all_machines(self) -> list[Machine]:
        return list(self.machines.values())

    def _known_rows(self) -> list[KnownRow]:
        versions = [(machine.shard_id, machine.version) for machine in self._all_machines()]
        return [
            KnownRow(shard, version.seqno, version.digest, recorded_rollups(version.state))
            for shard, version in versions
            if version.digest is not None
        ]

    def publish_changes(self, url: str) -> str:
        """Serve notifications of new versions at `url`. See `PersistClient.publish_changes`."""
        self.check_open()
        with self._lock:
            if self._teller is not None:
                raise BadInput(
                    f"this client already serves its changes at {self._teller.address}",
                    hint="let the other clients follow that address",
                )
            self._teller = ChangeServer(url, self.location.location_id)
            for machine in self.machines.values():
                machine.tell = self._teller.changed
            return self._teller.address

    def follow_changes(self, url: str) -> None:
        """Follow the notifications at `url`. See `PersistClient.follow_changes`."""
        self.check_open()
        with self._lock:
            if self._follower is not None:
                raise BadInput(
                    "this client already follows the changes of another client",
                    hint="open another client, which follows the second one",
                )
            self._follower = ChangeFollower(url, self.location.location_id, self._heard)

    def _heard(self, shard_id: str | None) -> None:
        machines = self._all_machines() if shard_id is None else [self.machines.get(shard_id)]
        for machine in machines:
            if machine is not None:
                machine.wake()

    def _is_told(self) -> bool:
        return self._follower is not None and self._follower.is_connected

    def begin_close(self) -> bool:
        """Refuse new work and finish waiting upkeep. Return False if already closed, or in a forked child."""
        if not self._owner.is_here:
            return False
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        self.maintainer.close()
        return True

    def close_stores(self) -> None:
        """End notifications, drop the state caches, and close the stores."""
        if self._teller is not None:
            self._teller.close()
        for machine in self.machines.values():
            machine.close()
        if self._follower is not None:
            self._follower.close()
        self.location.close()


class HasSession(Protocol):
    """A client, as handles see it."""

    @property
    def session(self) -> Session:
        """The shared state of the client's handles."""
