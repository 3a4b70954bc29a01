"""The faults of a world: how often storage calls fail, and how wrong the clocks of processes are."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import Determinate, Indeterminate
from holdfast.persist import Clock
from sim.disk import Disk
from sim.scheduler import Scheduler
from testbed.faults import Fault, FaultPlan, Operation, ProcessDeath


@dataclass(frozen=True, kw_only=True, slots=True)
class Weather:
    """How hard a world is on its processes: probabilities per storage call."""

    error_rate: float = 0.0
    death_rate: float = 0.0
    slow_rate: float = 0.0
    sleep_rate: float = 0.0
    """That the process stands still in the middle of a call, for longer than a lease perhaps."""
    jump_rate: float = 0.0
    """That the process's wall clock is set forward or back."""
    outage_rate: float = 0.0
    """That a store can't be reached by anybody for a while."""
    power_rate: float = 0.0
    """That power fails, per call and per step of a file that is written, in a world that has a disk."""


SOUND = Weather()
CROWDED = Weather(error_rate=0.15, slow_rate=0.1)
"""That of worlds whose processes share writers: many outcomes are unknown while others append."""
WEATHERS = (
    SOUND,
    Weather(error_rate=0.06),
    Weather(death_rate=0.01),
    Weather(slow_rate=0.12),
    Weather(error_rate=0.05, death_rate=0.008, slow_rate=0.06),
    Weather(sleep_rate=0.02, jump_rate=0.03, power_rate=0.01),
    Weather(outage_rate=0.01, slow_rate=0.03, power_rate=0.01),
    Weather(
        error_rate=0.02,
        death_rate=0.004,
        slow_rate=0.03,
        sleep_rate=0.01,
        jump_rate=0.02,
        outage_rate=0.004,
        power_rate=0.005,
    ),
)
SLEEPS_S = (0.02, 0.2, 1.0, 5.0)
OUTAGES_S = (0.01, 0.05, 0.5, 2.0)
JUMPS_S = (-86_400.0, -5.0, -0.1, 0.1, 5.0, 86_400.0)


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
    """The world's time as a process has it: the wall clock may be wrong, and both stand still in a sleep."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.offset_s = 0.0
        self.missed_s = 0.0

    def wall_ms(self) -> int:
        return self._scheduler.wall_ms() + int(self.offset_s * 1000)

    def monotonic(self) -> float:
        return self._scheduler.now - self.missed_s

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


class Grid:
    """What all processes share: power, and the ways to the stores."""

    def __init__(self, scheduler: Scheduler, disk: Disk | None, audit: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.disk = disk
        self._audit = audit
        self.failures = 0
        self._down_until: dict[str, float] = {}

    def lose_power(self) -> None:
        """Stop all processes where they are; what is not flushed may be gone."""
        assert self.disk is not None
        self.failures += 1
        self.scheduler.meet("fault: power loss")
        for what, count in self.disk.lose_power().items():
            if count:
                self.scheduler.meet(what, f"({count})")
        self._audit()

    def break_down(self, store: str, seconds: float) -> None:
        """Let nobody reach a store for a while."""
        self.scheduler.meet(f"fault: {store} can't be reached", f"for {seconds} s")
        self._down_until[store] = self.scheduler.now + seconds

    def is_down(self, store: str) -> bool:
        """Whether a store can't be reached now."""
        return self.scheduler.now < self._down_until.get(store, 0.0)

    def mend(self) -> None:
        """Let everything be reached again."""
        self._down_until.clear()


class Exposure:
    """One process in the weather: each of its storage calls comes here before and after its effect."""

    def __init__(self, grid: Grid, weather: Weather, clock: SimClock) -> None:
        self.grid, self.weather, self.clock = grid, weather, clock
        self.scheduler = grid.scheduler
        self._random: random.Random = grid.scheduler.random
        self._power = grid.failures

    def before(self, store: str, what: str, *, writes: bool) -> None:
        """Let others run, then perhaps sleep, die, or find the store out of reach."""
        self.scheduler.pause()
        self.step(what)
        self._sleep("before")
        if self._strikes(self.weather.jump_rate):
            self.jump(self._random.choice(JUMPS_S))
        if self._strikes(self.weather.outage_rate) and not self.grid.is_down(store):
            self.grid.break_down(store, self._random.choice(OUTAGES_S))
        if self.grid.is_down(store):
            self.scheduler.note(f"{what}: {store} can't be reached")
            error = Indeterminate if writes and self._random.random() < 0.5 else Determinate
            raise error(f"{what}: {store} can't be reached")

    def after(self) -> None:
        """The answer is on its way: the world may be another one when it arrives."""
        if self._random.random() < 0.3:
            self.scheduler.pause()
        self._sleep("after")
        self._check_power()

    def step(self, what: str) -> None:
        """Stop here if power has failed, or fails now."""
        self._check_power()
        if self.grid.disk is not None and self._strikes(self.weather.power_rate):
            self.scheduler.note(f"{what}: power fails")
            self.grid.lose_power()
            self._check_power()

    def file_step(self, what: str) -> None:
        """As `step`, where a file or folder changes: others may run before it does."""
        if self.weather is not SOUND and self._random.random() < 0.1:
            self.scheduler.pause()
        self.step(f"disk: {what}")

    def jump(self, seconds: float) -> None:
        """Set the wall clock."""
        self.clock.offset_s += seconds
        way = "forward" if seconds > 0 else "back"
        self.scheduler.meet(f"fault: wall clock {way}", f"by {abs(seconds)} s")

    def is_slow(self, what: str) -> bool:
        """Whether the caller gives up on this write, which takes effect later."""
        slow = self._strikes(self.weather.slow_rate)
        if slow:
            self.scheduler.meet("fault: slow", what)
        return slow

    def _sleep(self, when: str) -> None:
        if not self._strikes(self.weather.sleep_rate):
            return
        seconds = self._random.choice(SLEEPS_S)
        self.scheduler.meet(f"fault: asleep {when} the effect", f"for {seconds} s")
        if self._random.random() < 0.5:
            # As a machine that is suspended: its monotonic clock does not know.
            self.scheduler.meet("fault: monotonic clock stood still", f"for {seconds} s")
            self.clock.missed_s += seconds
        self.scheduler.sleep(seconds)
        self._check_power()

    def _check_power(self) -> None:
        if self._power != self.grid.failures:
            raise ProcessDeath("power failed")

    def _strikes(self, rate: float) -> bool:
        return rate > 0 and self._random.random() < rate
