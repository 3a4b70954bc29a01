"""Acquires, renews, and releases the Lease of the operator (see `lease_rules` for the rules).

The elector of the `kubernetes` client is not used, because it waits in `time.sleep` and can't be stopped,
measures by the time of day, ends at the first refused connection, doesn't release the Lease, and can't say
whether it holds the Lease at this moment. Every write here needs to know that.

Invariants
- `leads` only reads a clock. Any thread may call it. In a process that slept too long, it returns False
  before anything else runs.
- An elector that has lost the Lease never takes it again. Its process ends.
- Its requests use their own connection and threads, and end before the renew deadline. So slow requests of
  others can't cost the Lease.
"""

import asyncio
import logging
import math
import random
from enum import Enum, auto
from typing import Final

from holdfast_operator.engine import lease_rules
from holdfast_operator.engine.clock import BootClock, Clock
from holdfast_operator.engine.kube import Conflict, Exists, Gone, Kube, KubeError, ResourceType
from holdfast_operator.engine.lease_rules import NOBODY, LeaseRecord, Sight, Timing
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.troubles import Troubles

log = logging.getLogger(__name__)

LEASES: Final = ResourceType("coordination.k8s.io", "v1", "leases")
_JITTER: Final = 0.2


class LeaseStanding(Enum):
    """Whether this process holds the Lease, after reading it."""

    HELD = auto()
    LOST = auto()
    UNKNOWN = auto()
    """The Lease can't be read. It is known at the renew deadline at the latest."""


class Elector:
    """One candidate for one Lease."""

    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Creates a candidate. `identity` must be unique, and nobody else may use `kube`."""
        self._kube = kube
        self._metrics = metrics
        self._namespace = namespace
        self._name = name
        self._me = identity
        self._timing = timing or Timing()
        self._clock = clock or BootClock()
        self._rng = rng or random.Random()  # noqa: S311 - spreads requests
        self._sight: Sight | None = None
        self._told = ""
        self._troubles: Troubles[str] = Troubles(log)
        self._read_at = -math.inf
        self._until = -math.inf
        self._lost = asyncio.Event()
        metrics.leader.set(0)

    def __str__(self) -> str:
        return f"Lease {self._namespace}/{self._name}"

    @property
    def identity(self) -> str:
        """The name of this candidate."""
        return self._me

    def leads(self) -> bool:
        """Returns whether this process may act now. Any thread may call it."""
        return self._clock.monotonic() < self._until

    def stale(self) -> str:
        """Returns why a candidate that stands by would not notice a free Lease, or empty if it would."""
        age = self._clock.monotonic() - self._read_at
        if age <= self._timing.duration:
            return ""
        return self._troubles.said(self._name) or f"{self} can't be read"

    async def acquire(self, stop: asyncio.Event) -> bool:
        """Stands by until this process holds the Lease. Returns False if `stop` is set before that."""
        while not stop.is_set():
            try:
                pause = await self._try()
            except KubeError as error:
                self._count("error")
                self._troubles.tell(self._name, f"{self} can't be requested: {error}")
                pause = self._pause()
            else:
                self._troubles.over(self._name, f"{self} can be requested again")
            if pause is None:
                return True
            await self._clock.wait(stop, pause)
        return False

    async def keep(self) -> None:
        """Renews the Lease while this process holds it. Returns when the Lease is lost."""
        while not self._lost.is_set():
            await self._clock.wait(self._lost, self._pause())
            left = self._until - self._clock.monotonic()
            if left <= 0:
                log.warning("%s was not renewed for %g s", self, self._timing.renew_deadline)
                break
            try:
                async with asyncio.timeout(left):
                    if not await self._renew():
                        break
            except (KubeError, TimeoutError) as error:
                self._count("error")
                why = "no response in time" if isinstance(error, TimeoutError) else error
                self._troubles.tell(self._name, f"{self} could not be renewed: {why}")
            else:
                self._troubles.over(self._name, f"{self} is renewed again")
        self._lose()

    async def confirm(self) -> LeaseStanding:
        """Reads the Lease again. If another process holds it, the Lease is lost."""
        try:
            record = await self._read()
        except KubeError as error:
            log.warning("%s can't be read: %s", self, error)
            return LeaseStanding.UNKNOWN
        if record is None:
            return LeaseStanding.UNKNOWN
        if record.holder != self._me or not self.leads():
            self._lose()
            return LeaseStanding.LOST
        return LeaseStanding.HELD

    async def release(self) -> None:
        """Releases the Lease, so that another process needn't wait. This process must no longer act.

        If the Lease can't be released, it expires by itself.
        """
        leads, record = self.leads(), self._record()
        self._until = -math.inf
        self._metrics.leader.set(0)
        if not leads or record is None:
            return
        try:
            try:
                await self._patch(record, lease_rules.given_back())
            except Conflict:
                # A last renewal, whose response nobody waited for, may have changed it.
                again = await self._read()
                if again is None or again.holder != self._me:
                    return
                await self._patch(again, lease_rules.given_back())
            self._count("released")
        except KubeError as error:
            log.info("%s could not be released and expires by itself: %s", self, error)

    def close(self) -> None:
        """Closes the connection."""
        self._kube.close()

    async def _try(self) -> float | None:
        """Takes the Lease if it is free, and returns None. Otherwise returns seconds until the next check."""
        record = await self._read()
        if record is not None:
            wait = lease_rules.free_at(self._see(record), self._me, self._timing) - self._clock.monotonic()
            if wait > 0:
                self._count("held_by_other")
                self._tell(f"standing by: {record.holder} holds {self}")
                return min(wait, self._pause())
        if not await self._write(record, take=True):
            return self._pause()
        self._count("acquired")
        self._metrics.leader.set(1)
        log.info("leading: %s holds %s", self._me, self)
        return None

    async def _renew(self) -> bool:
        """Renews the Lease. Returns False if another process holds it."""
        if await self._write(self._record(), take=False):
            self._count("renewed")
            return True
        # Somebody changed it, or an earlier renewal by this process whose response was lost.
        record = await self._read()
        if record is not None and record.holder not in {NOBODY, self._me}:
            log.warning("%s now holds %s", record.holder, self)
            return False
        ours = record is not None and record.holder == self._me
        if await self._write(record, take=not ours):
            self._count("renewed")
        return True

    async def _write(self, record: LeaseRecord | None, *, take: bool) -> bool:
        asked, now = self._clock.monotonic(), self._clock.wall()
        takes = take or record is None
        spec = lease_rules.taken(record, self._me, self._timing, now) if takes else lease_rules.renewed(now)
        try:
            if record is None:
                body = {
                    "apiVersion": f"{LEASES.group}/{LEASES.version}",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": spec,
                }
                written = LeaseRecord.of(await self._kube.create(LEASES, self._namespace, body))
            else:
                written = await self._patch(record, spec)
        except (Exists, Conflict, Gone):
            return False
        self._see(written)
        self._until = asked + self._timing.renew_deadline
        return True

    async def _patch(self, record: LeaseRecord, spec: lease_rules.Json) -> LeaseRecord:
        body = {"metadata": {"resourceVersion": record.version}, "spec": spec}
        return LeaseRecord.of(await self._kube.patch(LEASES, self._namespace, self._name, body))

    async def _read(self) -> LeaseRecord | None:
        try:
            record = LeaseRecord.of(await self._kube.get_of(LEASES, self._namespace, self._name))
        except Gone:
            record = None
        self._read_at = self._clock.monotonic()
        return record

    def _see(self, record: LeaseRecord) -> Sight:
        self._sight = lease_rules.sighted(self._sight, record, self._clock.monotonic())
        return self._sight

    def _record(self) -> LeaseRecord | None:
        return self._sight.record if self._sight else None

    def _pause(self) -> float:
        return self._timing.retry_period * (1 - _JITTER * self._rng.random())

    def _lose(self) -> None:
        if not self._lost.is_set():
            self._lost.set()
            self._count("lost")
        self._until = -math.inf
        self._metrics.leader.set(0)

    def _tell(self, text: str) -> None:
        """Logs a text once, and not at every check."""
        if text != self._told:
            log.info("%s", text)
            self._told = text

    def _count(self, outcome: str) -> None:
        self._metrics.lease_requests.labels(outcome).inc()
