"""Garbage collection: deletes blobs that the state no longer names, and the log below the newest rollup.

A compaction, a newer rollup, the sweeper or the end of a shard makes a blob *garbage*: one commit removes it
from the live state and adds it to the table of garbage. The entry has the number of that version and the
store's time. The collector deletes the blob later, and then forgets the entry with another commit. Readers
are not asked. The following rules make sure that a slow reader still finds its parts.

1. *A reader with a lease reads an old version.* A reader pins the version that it reads. Its entry in the
   state has a `seqno_hold`, which is at most each version that it pins. A part that became garbage with
   version `g` is named by versions before `g` only. It is deleted only if `g` is at most the `seqno_hold` of
   every leased reader. So no leased reader is still reading a version that names it.
2. *A reader registers after the collector has read the state.* Its hold begins at the version of its
   registration, which is newer than the version that the collector knows. The collector deletes only what was
   garbage in its version. The new reader reads later versions, and they don't name this garbage.
3. *A reader has no lease.* It was opened with mode "read", it reads the records of all collections, its lease
   expired, or its process was stopped for too long. Nothing in the state protects it. So each part also waits
   for `gc_grace_s` after it became garbage. A reader that is even slower finds that a part is gone. It reads
   the newest version and plans its read again; if the since of that version has passed its time, it raises an
   error. It never returns wrong rows.
4. *The collector crashes.* A blob is deleted after the commit that made it garbage, so a crash between the
   two leaves an entry, and the next collector deletes the blob. A crash after the deletion leaves the entry
   too, and the next collector deletes a blob that is gone already, which has no effect. A blob can be deleted
   twice, but never too early.
5. *The store fails over to a standby that lags.* The promoted log may lack the commit that made a blob
   garbage, and still name the blob. So everything waits for `gc_grace_s`. A rollup waits too, because the
   promoted log needs the rollup that it names: the rows below it were cut. A busy shard replaces many rollups
   in that time, and a list of all of them would make its state large. So beyond the `MOST_ROLLUPS` that were
   replaced last, a rollup waits for at most `ROLLUPS_S`. A promoted log is readable if it lags at most
   `gc_grace_s`, and also at most `MOST_ROLLUPS` rollups or `ROLLUPS_S`.
6. *The log is lost.* The shard is then restored from its newest rollup. So a part is deleted only when the
   newest rollup no longer names it. A finalized shard needs no restore, so this rule does not apply to it.
7. *The consensus store is restored from a backup.* The older log names blobs that are garbage by now. With
   `retain_for_s`, all garbage, including rollups, waits for so long that the backup stays usable.
8. *Somebody erases a finalized shard* (`erase`). Its data is deleted without waiting for rules 3 and 5. A
   reader without a lease gets an error. If the store then fails over to a standby that lacks the end of the
   shard, that standby names blobs that are gone. Rules 7 and 9 still apply.
9. *The shard has two histories* (`holdfast.persist.state.divergence`). Nothing of it is deleted, because the
   other history may name it. This check lists blobs, so after it found something, the next check waits for up
   to a minute. Commits continue. Only a person can end this state.

All waiting is measured by the store's own clock if it has one, because the clocks of hosts disagree.
"""

from dataclasses import replace
from typing import Final

from holdfast.errors import NotErased
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import APPENDS_NAME, BLOB_NAME, CUT_NAME, rollup_seqno
from holdfast.persist.state.appends import forget_appends, keep_appends, names_writes
from holdfast.persist.state.command import ForgetGarbage
from holdfast.persist.state.cuts import cut_finalized_log, cut_log
from holdfast.persist.state.divergence import why_keep
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Garbage, ShardState, live_keys
from holdfast.persist.stores import LogRow
from holdfast.persist.upkeep.rollup import rollup_due, write_rollup

MOST_ROLLUPS: Final = 32
"""Number of replaced rollups per shard that are kept for `gc_grace_s`."""

ROLLUPS_S: Final = 60.0
"""Seconds for which all other replaced rollups wait."""


def ripe(state: ShardState, config: PersistConfig, now_ms: int) -> list[Garbage]:
    """Return the garbage that has waited long enough. `now_ms` is the store's time.

    All garbage waits for `gc_grace_s`, because of readers without a lease and failovers, and for
    `retain_for_s`, because of restores. A part also waits for readers that may read a version that names it.
    A reader that misses a rollup finds a newer one in the log. If many rollups wait, the oldest wait less.
    """
    if not state.garbage:
        # A client with thousands of idle shards asks for each of them, again and again.
        return []
    hold = state.seqno_hold
    retain_ms = config.retain_for_s * 1000
    grace_ms = max(config.gc_grace_s * 1000, retain_ms)
    rollups = [garbage for garbage in state.garbage.values() if is_rollup(garbage.blob_key)]
    rollups.sort(key=lambda garbage: garbage.wall_ms)
    many = {garbage.blob_key for garbage in rollups[:-MOST_ROLLUPS]}
    least_ms = min(grace_ms, max(ROLLUPS_S * 1000, retain_ms))
    found = []
    for garbage in state.garbage.values():
        waited = now_ms - garbage.wall_ms
        if is_rollup(garbage.blob_key):
            if waited >= (least_ms if garbage.blob_key in many else grace_ms):
                found.append(garbage)
        elif garbage.seqno <= hold and waited >= grace_ms:
            found.append(garbage)
    return found


def deletable(state: ShardState, config: PersistConfig, now_ms: int) -> list[Garbage]:
    """Return the garbage of `ripe` that the newest rollup does not name."""
    found = ripe(state, config, now_ms)
    if state.finalized:
        return found
    newest = state.latest_rollup
    covered = newest.seqno if newest else 0
    return [garbage for garbage in found if is_rollup(garbage.blob_key) or garbage.seqno <= covered]


def uncovered(state: ShardState, config: PersistConfig, now_ms: int) -> bool:
    """Whether some garbage waits only for a newer rollup."""
    return len(ripe(state, config, now_ms)) > len(deletable(state, config, now_ms))


def is_rollup(key: str) -> bool:
    """Whether a blob key is the key of a rollup."""
    return key.partition("/")[2].startswith("v")


def _is_tombstone(state: ShardState, garbage: Garbage) -> bool:
    """Whether a rollup was written after the end of its shard. Every later one has the same information."""
    if not state.finalized:
        return False
    (end,) = state.batches
    seqno = rollup_seqno(garbage.blob_key)
    return seqno is not None and seqno >= end.id


def now_for(machine: Machine) -> int:
    """Return the store's time, or 0 without a request if there is no garbage."""
    return machine.store_ms() if machine.state.garbage else 0


def cover_and_collect(machine: Machine) -> None:
    """Write a rollup if one is due or garbage waits only for it. Then collect garbage."""
    if rollup_due(machine.state, machine.config) or uncovered(
        machine.state, machine.config, now_for(machine)
    ):
        write_rollup(machine)
    collect_garbage(machine)


def is_erased(state: ShardState) -> bool:
    """Whether a shard is finalized, and neither its log nor its known blobs contain data any more."""
    if not state.finalized:
        return False
    (end,) = state.batches
    return state.gc_seqno > end.id and all(_is_tombstone(state, each) for each in state.garbage.values())


def erase(machine: Machine) -> None:
    """Delete all data of a finalized shard now. What `retain_for_s` keeps stays.

    Only the record that the shard was finalized stays. An upload that is in progress may leave one blob,
    which the sweeper finds. Does nothing if the data is gone.

    Raises:
        NotErased: the shard has two histories, so nothing of it may be deleted.
    """
    config = replace(machine.config, gc_grace_s=0.0)
    if is_erased(machine.refresh()):
        return
    if rollup_due(machine.state, config):
        write_rollup(machine)
    machine.look_again()
    if why := why_keep(machine):
        raise NotErased(f"nothing of {machine.shard_id} is deleted: {why}")
    if not config.retain_for_s:
        _delete_uploads(machine)
    # This commits that the shard is erased, so it comes last.
    collect_garbage(machine, config)
    if machine.kept_because:
        raise NotErased(f"nothing of {machine.shard_id} is deleted: {machine.kept_because}")


def _delete_uploads(machine: Machine) -> None:
    """Delete what no version of a finalized shard names, and nobody can commit any more."""
    listed = [meta.key for meta in machine.location.blob.list(f"{machine.shard_id}/")]
    # Another process may have recorded a rollup since.
    state = machine.refresh()
    named = live_keys(state).union(state.garbage)
    for key in listed:
        if key not in named and is_homeless(state, key):
            machine.location.blob.delete(key)


def is_homeless(state: ShardState, key: str) -> bool:
    """Whether no process can still commit a blob that `state` does not name, and that was listed before.

    Names of another form don't belong to Holdfast.
    """
    cut = CUT_NAME.fullmatch(key)
    if cut is not None:
        # The digests of an earlier cut. The newest digests contain them.
        return int(cut["seqno"]) < state.gc_seqno
    if APPENDS_NAME.fullmatch(key):
        return state.finalized
    found = BLOB_NAME.fullmatch(key)
    if found is None:
        return False
    if found["writer"] is not None:
        return found["writer"] not in state.writers
    # A rollup of a later version may still be recorded, even if its writer slept for long.
    newest = state.latest_rollup
    return newest is not None and int(found["seqno"]) <= newest.seqno


def collect_garbage(machine: Machine, config: PersistConfig | None = None) -> None:
    """Delete garbage that is no longer needed, and truncate the log below the newest rollup.

    `config` says how long garbage waits. It defaults to that of the machine.
    """
    # The cached version may belong to a history that the store has lost.
    machine.refresh()
    state, digest = machine.version
    dead = deletable(state, config or machine.config, now_for(machine))
    newest = state.latest_rollup
    gc_seqno = newest.seqno + state.finalized if newest else 0
    waiting = state.garbage.values()
    if waiting and not dead and all(_is_tombstone(state, garbage) for garbage in waiting):
        # One later version cuts the log and forgets these rollups. Two would make another rollup due.
        gc_seqno = state.gc_seqno
    if (not dead and gc_seqno <= state.gc_seqno) or machine.keeps_everything():
        return
    assert digest is not None  # A shard without a version has nothing to delete.
    known = LogRow(state.seqno, digest)
    why = why_keep(machine)
    machine.keep_everything(why)
    if why:
        return
    for garbage in dead:
        machine.location.blob.delete(garbage.blob_key)
    if gc_seqno > state.gc_seqno:
        if not state.finalized and names_writes(machine.location, state, gc_seqno):
            keep_appends(machine.location, state, gc_seqno)
        if state.finalized:
            cut_finalized_log(machine.location, machine.shard_id, gc_seqno, known)
            forget_appends(machine.location, machine.shard_id)
        elif not cut_log(machine.location, machine.shard_id, gc_seqno, known):
            gc_seqno = state.gc_seqno
    if dead or gc_seqno > state.gc_seqno:
        keys = tuple(garbage.blob_key for garbage in dead)
        commit([(machine, ForgetGarbage(keys, gc_seqno))])


def garbage_due(state: ShardState, config: PersistConfig, now_ms: int) -> bool:
    """Whether some garbage has waited long enough, or the log of a finalized shard can shrink."""
    return bool(ripe(state, config, now_ms)) or (state.finalized and rollup_due(state, config))


def log_is_long(state: ShardState, config: PersistConfig) -> bool:
    """Whether the log has more rows than a new client should replay, counting rows below the newest rollup.

    If every client writes a rollup when it closes, no other rollup is ever due, so this check is needed too.
    """
    return state.seqno - state.gc_seqno >= config.rollup_every
