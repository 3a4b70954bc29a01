"""The compaction job: Spark's executors merge the batches of each shard of a collection into one.

    python -m holdfast.spark.jobs.compact '<JSON spec, or the path of a spec>'

- It merges the shards of the current rendition, because readers read that one. A rendition that is being
  filled has little to merge, and a retired one is dropped soon.
- The driver claims all batches of a shard, cuts its keys into a few ranges, and renews the claim while tasks
  merge one range each. Once all ranges of a shard are merged, it installs their parts, in the order of the
  ranges, in exchange for exactly those batches. Batches that were appended since the claim stay next to the
  result.
- Batches that another process has claimed are left to it. The driver then claims the most adjacent batches of
  the rest.
- An installed result never changes contents at or after the since, and is installed completely or not at all.
  So each shard is installed by itself, and what is installed stays if the attempt is killed. The change of
  the JobRecord from Running(attempt) to Done records the result. No concurrent process can make it wrong: if
  one of them has merged batches, the others find them gone.
- Claims carry the name of the job and the attempt. The next attempt ends the claims of earlier attempts, and
  their results can't be installed after that. Their uploads are swept once they are old enough.
- Shards whose batches other processes are merging, or have merged, are left alone if the rest of their
  batches gains nothing. The result counts them.
- The job needs no hold. The shard names the claimed batches until they are replaced. The merge keeps all
  times from the claim's since apart, even if the since moves during the job.

The record's result: `shards` is the number of shards of the rendition. They are `compacted`, `skipped`
(nothing to gain, also because an earlier attempt compacted them) or `left` (to others). For the compacted
shards, `batches` is the number of batches that were merged, `rows_before` and `rows` count stored updates,
and `bytes_before` and `bytes` are their sizes.

Exit codes: 0 it is done (now, or before by the same attempt); 1 it failed and a new attempt may succeed; 2
the spec, or what it asks for, is wrong; 3 the store failed; 4 fenced; 143 it was terminated.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.collections import CollectionInfo, StorageController
from holdfast.collections.record.jobs import hold_purpose
from holdfast.errors import CollectionNotFound, HandleExpired, HoldfastError
from holdfast.persist import CompactionPiece, CompactionTask, PersistClient, StoredSize
from holdfast.persist.state.state import Part
from holdfast.spark.jobs import program
from holdfast.spark.jobs.folder import AttemptTaken
from holdfast.spark.jobs.merging import Merged, merge_pieces
from holdfast.spark.jobs.program import Say, assigned, on_record, session, unless_committed
from holdfast.spark.jobs.spec import CompactSpec
from holdfast.spark.jobs.tasks import run_tasks
from holdfast.spark.options import tasks_worth


def main(arguments: Sequence[str]) -> int:
    """Run the job that the one argument describes. Returns the exit code."""
    return program.main(arguments, CompactSpec, lambda spec, say: run(spec, say=say))


def run(spec: CompactSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Run the spec unless this attempt is done. Raises `Fenced` if it isn't the current attempt.

    `say` is called with the progress. Runs on `spark`, or on its own session. An error of the work itself is
    recorded as the attempt's failure before it is raised.
    """
    started = time.monotonic()
    with spec.place.open_to_write() as client:
        controller = StorageController(client)
        if (info := assigned(controller, spec, say)) is None:
            return
        with unless_committed(controller, spec, say):
            with on_record(controller, spec):
                if info.dropped:
                    raise CollectionNotFound(info.end)
                result = _compacted(client, controller, info, spec, say, spark)
            controller.finish_job(spec.job_id, spec.attempt, result)
            say(
                f"{result['compacted']} of {result['shards']} shards are compacted,"
                f" {result['rows_before']:,} stored rows are {result['rows']:,},"
                f" {time.monotonic() - started:.1f} s"
            )


_NOTHING: Final = StoredSize(0, 0)


@dataclass(slots=True)
class _Claim:
    """Batches of a shard that this attempt has claimed, and the results of its pieces, by their numbers."""

    task: CompactionTask
    before: StoredSize = _NOTHING
    pieces: list[CompactionPiece] = field(default_factory=list)
    merged: dict[int, Merged] = field(default_factory=dict)
    is_installed: bool = False

    @property
    def is_merged(self) -> bool:
        """Whether there are results of all pieces."""
        return len(self.merged) == len(self.pieces)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that replace the batches, in the order of their keys."""
        return tuple(part for number in range(len(self.pieces)) for part in self.merged[number] or ())


def _compacted(
    client: PersistClient,
    controller: StorageController,
    info: CollectionInfo,
    spec: CompactSpec,
    say: Say,
    spark: SparkSession | None,
) -> dict[str, Any]:
    """Everything except the record: merge and install. Returns the result."""
    shards = info.holding.shards
    with ExitStack() as stack:
        claims, left = _claimed(client, shards, spec, stack)
        # If the attempt was ended before it claimed anything, its claims were not ended with it.
        controller.check_attempt(spec.job_id, spec.attempt)
        _merge(client, claims, spec, f"{info.name}: {len(claims)} of {len(shards)} shards", say, spark)
    return _result(len(shards), claims, left)


def _claimed(
    client: PersistClient, shards: Sequence[str], spec: CompactSpec, stack: ExitStack
) -> tuple[list[_Claim], int]:
    """Claim the batches that are worth merging, until the end of the stack. Also returns how many shards are
    left.

    Raises `AttemptTaken` if another process of this attempt works on a shard.
    """
    mine = hold_purpose(spec.job_id, spec.attempt)
    before = {hold_purpose(spec.job_id, attempt) for attempt in range(1, spec.attempt)}
    claims: list[_Claim] = []
    left = 0

    def others(shard: str) -> tuple[str, ...]:
        found = client.compactions.claimants(shard)
        if mine in found:
            raise AttemptTaken(
                f"attempt {spec.attempt} of job {spec.job_id} was already started: it compacts {shard}",
                hint="start a new attempt, or wait for that one",
            )
        return found

    for shard in shards:
        client.compactions.end(shard, before)
        # First, because this attempt's other process may have left batches that came later.
        others(shard)
        task = client.compactions.claim(shard, purpose=mine, full=True)
        if task is not None:
            claim = _Claim(task)
            claims.append(claim)
            stack.callback(_give_up, client, claim)
            continue
        left += bool(others(shard))
    return claims, left


def _give_up(client: PersistClient, claim: _Claim) -> None:
    """Release a claim that was not installed. If the store fails, its lease ends it."""
    if not claim.is_installed:
        with suppress(HoldfastError):
            client.compactions.release(claim.task)


def _merge(
    client: PersistClient,
    claims: Sequence[_Claim],
    spec: CompactSpec,
    what: str,
    say: Say,
    spark: SparkSession | None,
) -> None:
    """Let executors merge the claimed batches, and install each shard once all of its pieces are merged.

    A claim whose batches are gone is not installed.
    """
    for claim in claims:
        claim.pieces = _pieces(client, claim, max(1, spec.partitions // len(claims)))
    flat = [(claim, number) for claim in claims for number in range(len(claim.pieces))]
    count = min(spec.partitions, len(flat))
    say(f"{what} in {count} tasks")
    if not flat:
        return
    # Task n has piece n and every `count`-th piece after it.
    of_task = [flat[index::count] for index in range(count)]

    def note(index: int, answer: tuple[Merged, ...]) -> None:
        for (claim, number), parts in zip(of_task[index], answer, strict=True):
            claim.merged[number] = parts
            if claim.is_merged and None not in claim.merged.values():
                done = f"{sum(each.is_merged for each in claims)} of {len(claims)} shards are merged"
                say(f"{done}, installing {claim.task.shard_id}")
                # A fenced attempt may install too: either the next one has ended its claims, or it finds less
                # to do.
                claim.is_installed = client.compactions.install(claim.task, claim.parts)

    with session(spec, spark) as running:
        run_tasks(
            running.sparkContext,
            [[claim.pieces[number] for claim, number in each] for each in of_task],
            functools.partial(merge_pieces, place=spec.place, location_id=client.location_id),
            what=f"compact {what}",
            progress=lambda done: say(f"{done} of {count} tasks are done"),
            meanwhile=_renewing(client, claims),
            each=note,
        )


def _pieces(client: PersistClient, claim: _Claim, most: int) -> list[CompactionPiece]:
    """The pieces of a claim, divided if that is worth it. Empty if its batches are gone."""
    try:
        claim.before = client.compactions.size(claim.task)
        return client.compactions.pieces(claim.task, min(most, tasks_worth(*claim.before)))
    except HandleExpired:
        return []


def _renewing(client: PersistClient, claims: Sequence[_Claim]) -> Callable[[], None]:
    """A function that renews all claims that are due."""
    renewals = [client.compactions.renewal(claim.task) for claim in claims]

    def renew() -> None:
        for each in renewals:
            # The result of a lost claim is refused. The others are still worth the work.
            with suppress(HandleExpired):
                each()

    return renew


def _result(shards: int, claims: Sequence[_Claim], left: int) -> dict[str, Any]:
    done = [claim for claim in claims if claim.is_installed]
    parts = [part for claim in done for part in claim.parts]
    return {
        "shards": shards,
        "compacted": len(done),
        "skipped": shards - len(claims) - left,
        "left": left + len(claims) - len(done),
        "batches": sum(len(claim.task.batch_ids) for claim in done),
        "rows_before": sum(claim.before.rows for claim in done),
        "rows": sum(part.rows for part in parts),
        "bytes_before": sum(claim.before.size_bytes for claim in done),
        "bytes": sum(part.size_bytes for part in parts),
    }


if __name__ == "__main__":
    program.end_when_told()
    sys.exit(main(sys.argv[1:]))
