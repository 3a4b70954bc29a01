"""Decides how to recover one shard whose log may be lost or older, from what is known about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from holdfast.errors import BadInput
from holdfast.persist.state.history import (
    History,
    Source,
    contradicts_rows,
    history_of,
    is_decided,
    is_one_history,
    upper_of,
)
from holdfast.persist.state.state import ShardState, StateDiff, blob_keys


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How one shard can be recovered.

    - `head` is the version at which its log ends now, or 0 if there is no log.
    - `seqno` is the version that the shard can return to, and `wall_ms` is when it was written. Both are None
      if no version is whole, or if nobody has chosen a history. Then `problem` gives the reason.
    - `seen` is the greatest known version.
    - `unnamed` counts the blobs that the version doesn't name: those of lost appends, and orphans.
    - `healthy` means that the log is whole, so nothing is lost.
    - `histories` are the histories to choose from, the log's first. It is empty if there is only one.
    - `beyond` is the newest version that has a row in the log after a gap, or 0 if there is none.
    """

    shard_id: str
    head: int
    seen: int
    seqno: int | None
    upper: int | None
    unnamed: int
    healthy: bool
    problem: str = ""
    wall_ms: int | None = None
    histories: tuple[History, ...] = ()
    beyond: int = 0

    @property
    def undecided(self) -> bool:
        """Whether somebody must choose between two histories."""
        return self.seqno is None and bool(self.histories)


@dataclass(frozen=True, slots=True)
class Known:
    """The plan for a shard, and the state that it returns to."""

    plan: ShardPlan
    state: ShardState | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which history to keep of shards that have two.

    `of_all` keeps the log's, or the one with the greatest version. `versions` chooses by shard, and takes
    precedence.
    """

    of_all: Literal["log", "newest"] | None = None
    versions: Mapping[str, int] = field(default_factory=dict)

    def of(self, shard_id: str, histories: Sequence[History]) -> History | None:
        """The history of a shard to keep. None if nobody has chosen.

        Raises:
            BadInput: no history has the chosen version, or its blobs are gone.
        """
        if shard_id in self.versions:
            found = [each for each in histories if each.seqno == self.versions[shard_id]]
        elif self.of_all == "newest":
            found = [max(histories, key=lambda each: each.seqno)]
        elif self.of_all == "log":
            found = [each for each in histories if each.source == "log"]
        else:
            return None
        if len(found) != 1 or not found[0].whole:
            offered = " and ".join(f"{each.seqno} ({each.source})" for each in histories if each.whole)
            raise BadInput(
                f"the history that you chose for {shard_id} can't be restored:"
                " the shard has no such version, or some of its blobs are gone",
                hint=f"these versions can be restored: {offered or 'none'}; choose with {shard_id}=VERSION",
            )
        return found[0]


class Look:
    """Collects the known versions of one shard, and finds the newest whole one of each history."""

    def __init__(
        self, shard: str, keys: set[str], head: int, seen: int, *, beyond: int = 0, is_cut: bool = False
    ) -> None:
        self._shard = shard
        self._keys = keys
        self._head = head
        self._seen = seen
        self._beyond = beyond
        self._is_cut = is_cut
        self._logged: ShardState | None = None
        # The rows of a log that can't be replayed, and what is known of its newest version.
        self._rows: Sequence[StateDiff] = ()
        self._end: ShardState | None = None
        self._doubted = False
        # The versions of each history, in the order in which they were added.
        self._found: list[list[tuple[ShardState, Source, bool]]] = []
        self.problems: list[str] = []

    def covers(self, seqno: int, key: str) -> bool:
        """Whether a rollup need not be read: the log names it, or an earlier recovery decided about it."""
        log = self._logged
        if log is None or self._missing(log, []):
            return False
        named = key in log.garbage or any(rollup.blob_key == key for rollup in log.rollups.values())
        return named or is_decided(seqno, log.seqno)

    def add_rows(self, rows: Sequence[StateDiff], *, doubted: bool) -> None:
        """Add the rows of a log that can't be replayed, instead of the log.

        `doubted` is whether something other than a rollup shows another history. Then all rollups after the
        last row belong to it.
        """
        self._rows, self._doubted = rows, doubted
        last = rows[-1]
        self._end = ShardState(self._shard, seqno=last.seqno, wall_ms=last.wall_ms, hostname=last.hostname)
        self._found.append([(self._end, "log", False)])

    def add(self, state: ShardState, source: Source, row: StateDiff | None = None) -> None:
        """Add a version to its history. Add the log first, and then the rollups, newest first.

        `row` is the log's own row of this version, if the log has it.
        """
        if source == "log":
            self._logged = state
        found = (state, source, not self._missing(state, self.problems))
        for history in self._found:
            if all(self._is_one_history(known, state, row) for known, _, _ in history):
                history.append(found)
                return
        self._found.append([found])

    def _is_one_history(self, known: ShardState, state: ShardState, row: StateDiff | None) -> bool:
        if known is self._end:
            after = state.seqno > known.seqno and not is_decided(known.seqno, state.seqno)
            return not (after and self._doubted) and not contradicts_rows(state, self._rows)
        return is_one_history(known, state, row if known is self._logged else None)

    def _history_of(self, state: ShardState, source: Source, *, whole: bool) -> History:
        history = history_of(state, source, whole=whole)
        return replace(history, upper=upper_of(self._rows)) if state is self._end else history

    def result(self, choice: Choice) -> Known:
        """The plan for the shard."""
        best = [self._best(history) for history in self._found]
        known = [(self._history_of(state, source, whole=whole), state) for state, source, whole in best]
        histories = tuple(history for history, _ in known)
        if len(known) > 1:
            taken = choice.of(self._shard, histories)
            if taken is None:
                self.problems.insert(0, "two histories")
                return Known(self._lost(histories), None)
            state = next(state for history, state in known if history is taken)
            return self._as(state, healthy=False, histories=histories)
        if not known or not histories[0].whole:
            return Known(self._lost(()), None)
        (state, source, _) = best[0]
        healthy = source == "log" and state.seqno >= self._head and not self._is_cut
        return self._as(state, healthy=healthy)

    def _best(self, history: list[tuple[ShardState, Source, bool]]) -> tuple[ShardState, Source, bool]:
        """The newest whole version of a history, or the newest one if none is whole.

        If it comes from a rollup of a log that can't be replayed, its source is the log.
        """
        state, source, whole = max(history, key=lambda each: (each[2], each[0].seqno))
        return state, "log" if any(each is self._end for each, _, _ in history) else source, whole

    def _lost(self, histories: tuple[History, ...]) -> ShardPlan:
        problem = "; ".join(dict.fromkeys(self.problems))
        unnamed = sum(1 for key in self._keys if "/w" in key)
        return ShardPlan(
            self._shard,
            self._head,
            self._seen,
            None,
            None,
            unnamed,
            healthy=False,
            problem=problem,
            histories=histories,
            beyond=self._beyond,
        )

    def _as(self, state: ShardState, *, healthy: bool, histories: tuple[History, ...] = ()) -> Known:
        unnamed = sum(1 for key in self._keys - _parts(state) - state.garbage.keys() if "/w" in key)
        plan = ShardPlan(
            self._shard,
            self._head,
            self._seen,
            state.seqno,
            state.upper,
            unnamed,
            healthy=healthy,
            wall_ms=state.wall_ms,
            histories=histories,
            beyond=self._beyond,
        )
        return Known(plan, state)

    def _missing(self, state: ShardState, problems: list[str]) -> bool:
        lost = sorted(_parts(state) - self._keys)
        if lost:
            problems.append(f"version {state.seqno} names {len(lost)} blobs that are gone, such as {lost[0]}")
        return bool(lost)


def _parts(state: ShardState) -> set[str]:
    return {*blob_keys([*state.batches, *state.pending.values()])}
