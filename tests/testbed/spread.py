"""Distributes a run with `-n` over processes, in units of whole files or folders.

Invariants
- One process runs all tests of a unit. The tests of Spark are one unit, because its session is slow to start.
  The tests of a node are one unit, because a machine has one node. The tests of pages are one unit, because
  they share a browser and what it looks at. Otherwise a unit is a file. So the fixtures of a module are made
  once, as in a run without `-n`.
- A process runs the tests of an API server one after another, and then stops its server.
- The longest units begin first, so that the processes end at the same time. Inside a unit, tests run in the
  order of a run without `-n`.
- Tests of a cluster mostly wait. So one process does other tests meanwhile, as long as there are any.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from xdist.scheduler.loadscope import LoadScopeScheduling

PIECES: Final = ("tests/spark", "tests/cluster", "tests/browser")
"""Folders that are one unit."""
_CLUSTER: Final = ("tests/crash/test_killed_operators.py", "tests/apiserver", "tests/helm")
FIRST: Final = (
    *("tests/spark", "tests/cluster", *_CLUSTER, "tests/browser"),
    *("tests/sim", "tests/moves", "tests/crash", "tests/conformance"),
)
"""What takes longest in one piece; the many short files are left to even out the end."""
_FEW_AND_LONG: Final = (
    "_model.py",
    "_mutants.py",
    "_faults.py",
    "_kills.py",
    "_killed.py",
    "_kafka_renditions.py",
    "test_release.py",
    "test_requirements.py",
    "test_site.py",
)
"""Files of few tests that each take long end with this: histories, processes that are killed, and builds."""


def unit(nodeid: str) -> str:
    """The unit that a test is in."""
    file = nodeid.split("::", 1)[0]
    return next((folder for folder in PIECES if file.startswith(f"{folder}/")), file)


def rank(name: str, tests: int) -> tuple[int, int]:
    """What a unit of so many tests is sorted by; the least is begun first."""
    place = next((place for place, prefix in enumerate(FIRST) if name.startswith(prefix)), len(FIRST))
    if place == len(FIRST) and not name.endswith(_FEW_AND_LONG):
        place += 1
    return place, -tests


def waits(name: str) -> bool:
    """Whether the tests of a unit mostly wait for a cluster."""
    return name.startswith(("tests/cluster", *_CLUSTER))


def choose(units: Mapping[str, int], others: Sequence[str]) -> str:
    """The unit that a process begins, of units with so many tests. `others` are at work meanwhile."""
    found = list(units)
    if others and all(map(waits, others)):
        found = [name for name in units if not waits(name)] or found
    return min(found, key=lambda name: rank(name, units[name]))


class Spread(LoadScopeScheduling):  # type: ignore[misc] # xdist comes without types
    """Hands out units, the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def remove_node(self, node: Any) -> str | None:
        # Units that are done would be handed out again. A process that gets no test from one waits for ever.
        workload = self.assigned_work[node]
        for name in [name for name, tests in workload.items() if all(tests.values())]:
            del workload[name]
        crashed: str | None = super().remove_node(node)
        return crashed

    def _reschedule(self, node: Any) -> None:
        super()._reschedule(node)
        # A process begins a test only when it knows the next one, or that there is none.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: object) -> None:
        others = [[*work][-1] for other, work in self.assigned_work.items() if work and other is not node]
        chosen = choose({name: len(tests) for name, tests in self.workqueue.items()}, others)
        self.workqueue.move_to_end(chosen, last=False)
        # A process may have ended, which xdist learns a little later. It takes the unit back then.
        with suppress(OSError):
            super()._assign_work_unit(node)
