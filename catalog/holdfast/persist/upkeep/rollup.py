"""Rollups: the whole state of a shard in one blob, so that opening the shard replays only a short log.

The blob is written before the version that names it. That version makes the older rollups garbage. If the log
of a shard is lost, the newest rollup is what is left. So each client that closes writes a rollup of every
shard that it wrote to. While clients stay open, upkeep writes the first rollup of a young shard before its
log is long. Then it writes one whenever the log has doubled. This happens in the background, and only a few
times in the life of a shard.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import EPOCH_BITS, rollup_key
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.command import AddRollup, Command
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import Rollup, ShardState

# The versions that recording a rollup and forgetting its garbage add.
_ROLLUP_VERSIONS: Final = 2
_FEW: Final = 8


def rollup_due(state: ShardState, config: PersistConfig) -> bool:
    """Whether the log since the newest rollup is long. For a finalized shard: whether a rollup is missing."""
    newest = state.latest_rollup
    if state.finalized:
        # The only remaining batch has the version of the shard's end as its id.
        (end,) = state.batches
        return newest is None or newest.seqno < end.id or state.seqno - newest.seqno > _ROLLUP_VERSIONS
    return state.seqno - (newest.seqno if newest else 0) >= config.rollup_every


def early_rollup_due(state: ShardState) -> bool:
    """Whether the shard would lose half of its versions or more if it lost its log."""
    if not state.exists or state.finalized:
        return False
    newest = state.latest_rollup
    if newest is None:
        return True
    before = newest.seqno & ((1 << EPOCH_BITS) - 1)
    return state.seqno - newest.seqno >= max(_FEW, before)


def write_early_rollup(machine: Machine) -> None:
    """Write a rollup if the newest version needs an early one. Raises the same errors as `commit`."""
    if early_rollup_due(machine.state) and early_rollup_due(machine.refresh()):
        write_rollup(machine)


def closing_rollup_due(state: ShardState, written: int) -> bool:
    """Whether a client that closes, and wrote version `written`, must write a rollup that includes it."""
    newest = state.latest_rollup
    return state.exists and not state.finalized and (newest is None or newest.seqno < written)


def write_rollup(machine: Machine) -> None:
    """Write the newest version as a rollup, and record the rollup in the state."""
    write_rollups([machine])


def write_rollups(
    machines: Sequence[Machine], also: Sequence[tuple[Machine, Command]] = (), *, until_s: float = inf
) -> None:
    """Write the newest version of each shard as a rollup. Record them in one commit, after the steps `also`.

    The shards are those of one client. No write of a rollup begins at `until_s` of its clock or later. Raises
    like `commit`.
    """
    if not machines:
        if also:
            commit(also)
        return
    first, blob = machines[0], machines[0].location.blob
    # A client that knows that it is fenced, or that the log has another history, uploads nothing.
    first.check_open()
    _ = first.fence.held
    written: list[tuple[Machine, Rollup]] = []

    def write(machine: Machine) -> None:
        if first.clock.monotonic() >= until_s:
            return
        state = machine.state
        data = encode_state(state)
        key = rollup_key(machine.shard_id, state.seqno)
        blob.put(key, data)
        written.append((machine, Rollup(state.seqno, key, len(data), checksum(data))))

    def store_ahead_ms() -> float:
        return first.store_ms() - 1000 * first.clock.monotonic()

    asks: list[Callable[[], float | None]] = [partial(write, machine) for machine in machines]
    *_, ahead_ms = blob.together([*asks, store_ahead_ms])
    assert ahead_ms is not None
    now_ms = round(ahead_ms + 1000 * first.clock.monotonic())
    steps = [*also, *((machine, AddRollup(rollup, now_ms)) for machine, rollup in written)]
    installed = commit(steps)[len(also) :] if steps else ()
    for (_, rollup), is_installed in zip(written, installed, strict=True):
        # None: the outcome was unknown, and turned out to be a success.
        if is_installed is False:
            blob.delete(rollup.blob_key)
