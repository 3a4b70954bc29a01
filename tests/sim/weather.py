"""What a world does to its processes: how often their storage calls fail, and what their clocks are worth."""

from dataclasses import dataclass

from holdfast.persist import Clock
from holdfast.persist.storage.faults import Fault, FaultPlan, Operation
from sim.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Weather:
    """How hard a world is on its processes: probabilities per storage call."""

    error_rate: float
    death_rate: float
    slow_rate: float


SOUND = Weather(0.0, 0.0, 0.0)
WEATHERS = (
    SOUND,
    Weather(0.06, 0.0, 0.0),
    Weather(0.0, 0.01, 0.0),
    Weather(0.0, 0.0, 0.12),
    Weather(0.05, 0.008, 0.06),
)


class CountingPlan:
    """A plan whose faults are counted: one that never comes proves nothing."""

    def __init__(self, plan: FaultPlan, scheduler: Scheduler) -> None:
        self._plan, self._scheduler = plan, scheduler
        self._dead = False

    def decide(self, operation: Operation) -> Fault:
        fault = self._plan.decide(operation)
        if fault is not Fault.NONE and not self._dead:
            self._scheduler.meet(f"fault: {fault.value}", operation.name)
        self._dead = self._dead or fault in (Fault.DEATH_BEFORE, Fault.DEATH_AFTER)
        return fault


class SimClock(Clock):
    """The world's time; the wall clock of each process may be wrong, and jump."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_s = 0.0

    def wall_ms(self) -> int:
        return int((1_000_000 + self._scheduler.now + self.offset_s) * 1000)

    def monotonic(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)
