"""Acceptance: keep the history that a shard's log has now, and collect its garbage again.

Clients may write during an acceptance. So it does not delete a rollup. One commit makes the rollup garbage,
like an orphan (`holdfast.persist.admin.sweep`), and garbage collection deletes it. This is safe for these
reasons:

- The commit skips blobs that its version names. So a rollup that the log relies on stays, even if it was
  considered foreign.
- No later version names a condemned rollup. A rollup of a version up to the head can't be recorded once a
  rollup of a later version is. So `accept` first records such a later one. A rollup of a version after the
  head is foreign: it was put after its version was committed, and the head was read after the rollup was
  listed. Its writer knows a row that the log does not have, so none of its commits can land.
- Markers are deleted last, and only those that existed before the commit.

One risk remains: a store that breaks its promise, shows an older log for a moment, and accepts the commit.
Such a store has lost all later commits. The rollups of these versions become garbage, like their other blobs.
"""

from dataclasses import dataclass
from typing import Literal

from holdfast.errors import CorruptBlob, HoldfastError
from holdfast.persist.ids import EPOCH_BITS, MARKER_NAME, rollup_seqno
from holdfast.persist.state.command import CondemnOrphans
from holdfast.persist.state.divergence import (
    Doubt,
    Marker,
    Recorded,
    doubts,
    marker_keys,
    newest_shared,
    read_marker,
    read_rollup,
    recorded_rollups,
    unknown_rollups,
)
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import ShardState
from holdfast.persist.upkeep.rollup import write_rollup


@dataclass(frozen=True, slots=True)
class Side:
    """What is known about one history of a shard, and the source of that knowledge.

    - `source` is the log, a client that ended and left a marker, a rollup, or something unreadable.
    - `seqno` is the version of the log or rollup, or the version that the client knew.
    - `wall_ms` and `hostname` are when and where that version was written, or when and where the client
      noticed that the log had another history.
    - `lost` is the least number of versions that are lost if the log is kept.
    - `lost_after_ms` is when the newest version was written that certainly belongs to both histories. Writes
      of this history that were acknowledged after that may be lost.
    - `why` describes the evidence for the history.

    Unknown fields are None.
    """

    source: Literal["log", "client", "rollup", "unknown"]
    seqno: int | None = None
    upper: int | None = None
    wall_ms: int | None = None
    hostname: str | None = None
    lost: int | None = None
    why: str = ""
    lost_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TwoHistories:
    """A shard that may have two histories: the log's, which `accept` keeps, and the evidence of others.

    `others` has the newest evidence of each source, and `more` counts the rest. `of` is what the shard is
    for, if a client that left a marker knew it.
    """

    shard_id: str
    kept: Side
    others: tuple[Side, ...]
    more: int = 0
    of: str = ""


def two_histories(machine: Machine) -> TwoHistories | None:
    """What is known about the histories of a shard. None if nothing shows that it has two.

    Refresh the machine first. This reads only the newest marker, the newest rollup, and a rollup of both
    histories.
    """
    found = list(doubts(machine))
    if not found:
        return None
    log = machine.state
    markers = sorted((each for each in found if MARKER_NAME.fullmatch(each.key)), key=_marker_seqno)
    rollups = sorted((each for each in found if rollup_seqno(each.key) is not None), key=_rollup_seqno)
    rest = [each for each in found if each not in markers and each not in rollups]
    others = [
        *(Side("unknown", why=each.why) for each in rest[:1]),
        *(_of_marker(machine, each) for each in markers[-1:]),
        *(_of_rollup(machine, each) for each in rollups[-1:]),
    ]
    kept = Side("log", log.seqno, log.upper, log.wall_ms, log.hostname)
    return TwoHistories(
        machine.shard_id, kept, tuple(others), len(found) - len(others), _of(machine, markers)
    )


def _of(machine: Machine, markers: list[Doubt]) -> str:
    """What the shard is for, according to the newest marker; "" if that is unknown."""
    try:
        marker = read_marker(machine.location.blob, markers[-1].key) if markers else None
    except CorruptBlob:
        return ""
    return "" if marker is None else marker.of


def _marker_seqno(doubt: Doubt) -> int:
    found = MARKER_NAME.fullmatch(doubt.key)
    return int(found["seqno"]) if found is not None else 0


def _rollup_seqno(doubt: Doubt) -> int:
    return rollup_seqno(doubt.key) or 0


def _of_marker(machine: Machine, doubt: Doubt) -> Side:
    try:
        marker = read_marker(machine.location.blob, doubt.key)
    except CorruptBlob:
        marker = None
    if marker is None:
        return Side("unknown", why=doubt.why)
    lost = _lost_since(marker, machine.state)
    since = _shared_ms(machine, marker.rollups)
    return Side("client", marker.seqno, None, marker.wall_ms, marker.hostname, lost, doubt.why, since)


def _shared_ms(machine: Machine, rollups: Recorded) -> int | None:
    """When the newest version was written that certainly belongs to both histories; None if unknown."""
    try:
        shared = newest_shared(machine.location, machine.state, rollups)
    except HoldfastError:
        return None
    return None if shared is None else shared.wall_ms


def _lost_since(marker: Marker, log: ShardState) -> int:
    """The least number of versions that only the client's history has: those after the end of the log."""
    return 1 if marker.found is not None else _lost_after(marker.head or log.seqno, marker.seqno)


def _lost_after(end: int, seqno: int) -> int:
    """The least number of versions up to `seqno`, which is lost, that a log with this end lacks.

    Numbers between two epochs belong to no version.
    """
    begin = seqno >> EPOCH_BITS << EPOCH_BITS
    return max(1, seqno - max(end, begin))


def _of_rollup(machine: Machine, doubt: Doubt) -> Side:
    seqno = _rollup_seqno(doubt)
    lost = _lost_after(machine.state.seqno, seqno)
    try:
        state = read_rollup(machine.location, machine.shard_id, doubt.key, seqno)
    except HoldfastError:
        state = None
    if state is None:
        return Side("unknown", seqno, why=doubt.why)
    since = _shared_ms(machine, recorded_rollups(state))
    return Side("rollup", seqno, state.upper, state.wall_ms, state.hostname, lost, doubt.why, since)


def accept(machine: Machine) -> None:
    """Keep the history that a shard's log has now. Afterwards, garbage collection can continue.

    Markers are deleted. Rollups of other histories, and damaged rollups that no version names, become
    garbage. The parts of other histories become orphans, which a sweep finds.

    Raises:
        LogRegressed: the log has another history than the one that this client has read.
        StorageError: a store failed. The acceptance may be incomplete; try again.
    """
    machine.refresh()
    markers = marker_keys(machine.location.blob, machine.shard_id)
    foreign = [doubt.key for doubt in unknown_rollups(machine)]
    if foreign:
        _condemn(machine, foreign)
    for key in markers:
        machine.location.blob.delete(key)


def _condemn(machine: Machine, rollups: list[str]) -> None:
    newest = machine.state.latest_rollup
    recorded = newest.seqno if newest is not None else 0
    if any(recorded < (rollup_seqno(key) or 0) <= machine.state.seqno for key in rollups):
        write_rollup(machine)
    now = machine.store_ms()
    commit([(machine, CondemnOrphans(tuple((key, now) for key in rollups)))])
