"""Compaction: neighbouring batches give way to one of equal contents, consolidated at since.

- The parts are written first, then committed in exchange for exactly the batches that they were made from; a
  result whose batches are gone is dropped and its parts deleted.
- Geometric levels: merging `compaction_fanin` batches of one level gives one of the next, so n appends leave
  O(log n) batches and each update is rewritten O(log n) times.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from holdfast.persist.command import InstallCompaction
from holdfast.persist.config import PersistConfig
from holdfast.persist.consolidate import consolidate_updates
from holdfast.persist.machine import Machine, commit
from holdfast.persist.partstore import PartGone, delete_parts, read_inline
from holdfast.persist.runs import Since, merged
from holdfast.persist.runwriter import write_run
from holdfast.persist.snapshot import replan
from holdfast.persist.state import Batch, ShardState


def plan_compaction(batches: Sequence[Batch], config: PersistConfig) -> tuple[Batch, ...]:
    """The neighbouring batches to merge next: the newest run of one level that is long enough.

    Merging `fanin` batches of a level gives one of the next, so n appends leave O(log n) batches and each
    update is rewritten O(log n) times.
    """
    end = len(batches)
    while end > 0:
        start = end
        while start > 0 and batches[start - 1].level == batches[end - 1].level:
            start -= 1
        if end - start >= config.compaction_fanin:
            return tuple(batches[start:end])
        end = start
    return ()


def compact(machine: Machine, writer_id: str, between: Callable[[], None] = lambda: None) -> bool:
    """Merge one run of batches; whether there was one to merge.

    What is in blobs is merged piece by piece: memory holds about one part of the result. `between` is called
    now and then meanwhile.
    """
    state = machine.state
    batches = plan_compaction(state.batches, machine.config)
    if not batches or state.finalized:
        return False
    try:
        parts = write_run(
            machine,
            writer_id=writer_id,
            schema=state.schema,
            schema_id=max(state.schemas),
            pieces=_merged(machine, state, batches, between),
        )
    except PartGone as gone:
        replan(machine, state, gone)
        return True
    ids = tuple(batch.id for batch in batches)
    command = InstallCompaction(ids, state.since, parts, machine.store_ms())
    (installed,) = commit([(machine, command)])
    if not installed:
        delete_parts(machine, parts)
    return True


def _merged(
    machine: Machine, state: ShardState, batches: Sequence[Batch], between: Callable[[], None]
) -> Iterator[pa.Table]:
    """The updates of batches consolidated at since, in the total order."""
    schema, since = state.schema, state.since
    runs = [run for batch in batches for run in batch.runs]
    inline = [part for run in runs for part in run if part.inline is not None]
    if len(inline) == sum(map(len, runs)):
        # Small: the stream's fixed cost would be most of it.
        sources = [read_inline(machine, schema, part) for part in inline]
        yield consolidate_updates(schema, sources, since)
        return
    for piece in merged(machine, schema, runs, Since(since)):
        yield piece
        between()
