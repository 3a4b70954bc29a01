"""The log that is nothing but objects keeps its promises in every order of requests; bugs in it are found."""

import inspect
import os
import sys
import textwrap
from dataclasses import dataclass

import pytest

from holdfast.persist.storage.logstate import LogState
from holdfast.persist.storage.s3log import S3LogConsensus
from sim.logworld import LogWorld

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "400"))


@dataclass(frozen=True, slots=True)
class Bug:
    """In the source of the method `name` of `owner`, `old` gives way to `new`."""

    story: str
    owner: type
    name: str
    old: str
    new: str

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        method = getattr(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(method))
        assert source.count(self.old) == 1, f"{self.name} has no {self.old!r} any more: plant it elsewhere"
        space: dict[str, object] = {}
        code = compile(source.replace(self.old, self.new), f"<{self.name} with a bug>", "exec")
        exec(code, vars(sys.modules[self.owner.__module__]), space)
        monkeypatch.setattr(self.owner, self.name, space[self.name])


BUGS = (
    Bug(
        "a reader believes the end of the log without the floor",
        S3LogConsensus,
        "_catch_up",
        "if floor.floor <= position + ahead:",
        "if True:",
    ),
    Bug(
        "a put below the floor is a success",
        S3LogConsensus,
        "_confirm",
        "is_in = floor.floor <= added.position",
        "is_in = True",
    ),
    Bug(
        "old objects go before the floor is there",
        S3LogConsensus,
        "_checkpoint",
        "    self._objects.create(name,",
        "    self._delete_below(LOG_FOLDER, object_name(newer.floor)); self._objects.create(name,",
    ),
    Bug(
        "an object is taken over whatever its predecessor was",
        LogState,
        "follows",
        "added.position == self.position + 1 and added.previous == self.token",
        "added.position == self.position + 1",
    ),
    Bug(
        "a lost race is taken for a put that won",
        S3LogConsensus,
        "_create",
        "return unknown is not None and self._holds(turns, added)",
        "return True",
    ),
    Bug(
        "a put of unknown outcome is drafted anew instead of settled",
        S3LogConsensus,
        "_create",
        "return unknown is not None and self._holds(turns, added)",
        "return False",
    ),
    Bug(
        "the floor is put over that of another process",
        S3LogConsensus,
        "_checkpoint",
        "encode_floor(newer), tag)",
        "encode_floor(newer), self._read_floor()[1])",
    ),
)


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_every_order_of_requests_keeps_the_promises(first: int) -> None:
    for seed in range(first, min(first + 100, SEEDS)):
        try:
            LogWorld(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.story.replace(" ", "-"))
def test_the_simulation_of_the_log_finds(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(400):
        try:
            LogWorld(seed).run()
        except Exception:  # noqa: BLE001 - whatever goes wrong is what we look for
            return
    pytest.fail(f"no seed noticed that {bug.story}")


def test_the_worlds_of_the_log_meet_what_they_are_made_for() -> None:
    traces = []
    for seed in range(60):
        world = LogWorld(seed)
        world.run()
        traces += world.scheduler.trace
    text = "\n".join(traces)
    assert text.count(" slow create log") > 20
    assert text.count(" died") > 5
    assert text.count("replace floor -> True") > 100
    assert text.count("replace floor -> False") > 5
    assert text.count("-> False") > 100
