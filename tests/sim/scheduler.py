"""Runs many simulated processes in one real one. They take turns by one seed.

Each process is a thread, but only the one that has the baton runs. It passes the baton on only at the points
where a process would wait for the outside world. So a run depends only on its seed, and can be repeated. Time
is virtual: each step advances it, and it jumps forward when all processes sleep.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable

MOST_STEPS = 100_000
"""No world needs a tenth of that; one that does goes round in circles."""


EPOCH_S = 4_000_000_000
"""When worlds begin: after any real time, so that nothing in them is old by the clock of the host."""

TASK = "sim-"
"""What the names of the threads of simulated processes begin with."""


class Endless(AssertionError):
    """The processes work and work, and never come to an end."""


class Aborted(BaseException):
    """Another process of the simulation has failed; this one must end."""


class Task:
    """One simulated process."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.work = work
        self.baton = threading.Lock()
        self.baton.acquire()
        self.wakes = 0.0
        self.done = False


class Scheduler:
    """Runs tasks by turns. `random` is the only source of chance; `now` are the seconds that have passed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.trace: list[str] = []
        self.telling = False
        """Whether somebody will read the trace: then each version tells what it changed."""
        self.met: Counter[str] = Counter()
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._finished = threading.Event()
        self._failure: BaseException | None = None
        self._late: list[tuple[int, Callable[[], object]]] = []

    def wall_ms(self) -> int:
        """The time of the world in ms since the epoch, as a clock shows it that is right."""
        return int((EPOCH_S + self.now) * 1000)

    def run(self, tasks: dict[str, Callable[[], None]]) -> None:
        """Run all tasks to their end; the first failure of one is raised here."""
        self._tasks = [Task(name, work) for name, work in tasks.items()]
        threads = [
            threading.Thread(target=self._main, args=(task,), name=f"{TASK}{task.name}", daemon=True)
            for task in self._tasks
        ]
        for thread in threads:
            thread.start()
        self._hand_on(None)
        self._finished.wait()
        for thread in threads:
            thread.join()
        self._current = None
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """A point where others may run before this task goes on. Outside of a task: nothing."""
        task = self._current
        if task is None:
            return
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Endless(f"no end after {MOST_STEPS} steps")
        self.now += self.random.random() * 0.002
        self._land()
        self._hand_on(task)

    def sleep(self, seconds: float) -> None:
        """Let others run until the time has come."""
        if self._current is None:
            self.now += seconds
            return
        self._current.wakes = self.now + seconds
        self.pause()

    def later(self, what: str, effect: Callable[[], object]) -> None:
        """Do `effect` some steps later, whoever runs then."""
        who = self._current.name if self._current else "-"

        def landing() -> None:
            self.note(f"{what} of {who}, which was slow -> {effect()}")

        self._late.append((self.steps + self.random.randint(1, 40), landing))

    def land_all(self) -> None:
        """Do all effects that are still under way."""
        while self._late:
            self._late.pop(self.random.randrange(len(self._late)))[1]()

    def meet(self, what: str, where: str = "") -> None:
        """Count, and add to the trace, that something happened which the world is made for."""
        self.met[what] += 1
        self.note(f"** {what} {where}".rstrip())

    def note(self, what: str) -> None:
        """Add to the trace what came of the running process's action."""
        self.head(f"    {what}")

    def head(self, what: str) -> None:
        """Add to the trace what the running process does next."""
        name = self._current.name if self._current else "end"
        self.trace.append(f"{self.now:9.4f} {name:4} {what}")

    def _land(self) -> None:
        due = [item for item in self._late if item[0] <= self.steps]
        if due:
            self._late = [item for item in self._late if item[0] > self.steps]
            for _, effect in due:
                effect()

    def _hand_on(self, task: Task | None) -> None:
        """Give the baton to one that may run, and wait until it comes back to `task`, if that goes on."""
        waiting = [other for other in self._tasks if not other.done]
        if not waiting:
            self._finished.set()
            return
        ready = [other for other in waiting if other.wakes <= self.now]
        if not ready:
            following = min(waiting, key=lambda other: other.wakes)
            self.now = following.wakes
            ready = [following]
        chosen = ready[0] if len(ready) == 1 else self.random.choice(ready)
        if chosen is not task:
            self._current = chosen
            chosen.baton.release()
            if task is not None and not task.done:
                task.baton.acquire()
        if self._failure is not None and task is not None and not task.done:
            raise Aborted

    def _main(self, task: Task) -> None:
        task.baton.acquire()
        try:
            if self._failure is None:
                task.work()
        except Aborted:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            if self._failure is None:
                self._failure = error
        task.done = True
        self._hand_on(task)
