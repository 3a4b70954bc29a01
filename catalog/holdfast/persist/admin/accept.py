"""Acceptance: the history that the log of a shard has now counts, and its garbage is collected again.

Clients may write meanwhile. So a rollup is not deleted here: it becomes garbage in one commit, as an orphan
does (`holdfast.persist.admin.sweep`), and goes as garbage does. This is safe:

- The commit spares what its version names. So whatever was taken for foreign, a rollup that the log relies on
  stays.
- No later version names a rollup that was condemned. One of a version up to the head is never recorded after
  one of a later version is: such a one is recorded first. One of a version after the head is foreign: it was
  put after its version was committed, and the head was read after it was listed. Its writer knows a row that
  the log does not have, so none of its commits can land.
- Markers are deleted last, and only those that were there before the commit.

What remains: a store that shows an older log for a moment, against its promise, and takes the commit. It has
lost what was committed since, and the rollups of those versions become garbage like the rest of them.
"""

from holdfast.persist.ids import rollup_seqno
from holdfast.persist.state.command import CondemnOrphans
from holdfast.persist.state.divergence import marker_keys, unknown_rollups
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.upkeep.rollup import write_rollup


def accept(machine: Machine) -> None:
    """Keep the history that the log of a shard has now: nothing hinders its garbage collection any more.

    Markers are deleted. Rollups of other histories, and damaged ones that no version names, become garbage;
    the parts of other histories become orphans, which a sweep finds.

    Raises:
        LogRegressed: the log has another history than the one that this client has read.
        StorageError: a store did not answer. What is accepted may be incomplete: try again.
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
