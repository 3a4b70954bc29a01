"""The compaction job: the batches of each shard of a collection become one, merged by Spark's executors.

    python -m holdfast.spark.jobs.compact '<JSON spec or the path of one>'

- It is the rendition that holds now whose shards are merged: that is what readers read. One that hydrates
  has little to merge, and one that retires goes.
- The driver claims all batches of a shard, cuts its keys into few ranges, and renews the claim while tasks
  merge one range each. It installs their parts, in the order of the ranges, in exchange for exactly those
  batches. What was appended meanwhile stays beside them.
- An installed result never changes contents at or after `since`, and is installed whole or not at all. So
  the shards are installed one by one, and the step of the JobRecord from Running(attempt) to Done tells what
  came of it. No rival of this attempt can make it wrong: what one of them has merged the others find gone.
- Claims carry the name of the job and the attempt. The next attempt ends those of the ones before it, after
  which nothing of theirs is installed; what they uploaded is swept once it is old enough.
- Shards whose batches others are merging, or have merged, are left alone, and the result says so.
- It needs no hold: what it reads is named by the shard until it is replaced, and the times that it tells
  apart are those from the claim's `since` on, however far `since` moves meanwhile.

The record's result: `shards` of the rendition, of these `compacted`, `skipped` (nothing to gain) and `left`
(to others); of those compacted the `batches` that became one each, `rows_before` and `rows` (stored updates),
`bytes_before` and `bytes`.

Exit codes: 0 it is done (now, or before by the same attempt); 1 it failed and a new attempt may succeed;
2 the spec or what it asks for is wrong; 3 the store failed; 4 fenced; 143 it was told to end.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
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
    """Run the job that the one argument describes and return the exit code."""
    return program.main(arguments, CompactSpec, lambda spec, say: run(spec, say=say))


def run(spec: CompactSpec, *, say: Say, spark: SparkSession | None = None) -> None:
    """Do what the spec says unless this attempt has done it; `Fenced` when it isn't the current one.

    `say` is told how far it is. Runs on `spark`, or on a session of its own. An error of the work itself is
    put on record as the attempt's failure before it is raised.
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
    """Batches of a shard that this attempt has claimed; `parts` once every piece of them is merged."""

    task: CompactionTask
    before: StoredSize = _NOTHING
    parts: tuple[Part, ...] | None = None
    is_installed: bool = False


def _compacted(
    client: PersistClient,
    controller: StorageController,
    info: CollectionInfo,
    spec: CompactSpec,
    say: Say,
    spark: SparkSession | None,
) -> dict[str, Any]:
    """Everything but the record: merge what is to be merged and install it; the result."""
    shards = info.holding.shards
    with ExitStack() as stack:
        claims, left = _claimed(client, shards, spec, stack)
        # Whoever ended this attempt before it had claimed anything has ended no claims.
        controller.check_attempt(spec.job_id, spec.attempt)
        _merge(client, claims, spec, f"{info.name}: {len(claims)} of {len(shards)} shards", say, spark)
        # Of a fenced attempt too: the next one has ended its claims, or finds less to do.
        for claim in claims:
            if claim.parts is not None:
                claim.is_installed = client.compactions.install(claim.task, claim.parts)
    return _result(len(shards), claims, left)


def _claimed(
    client: PersistClient, shards: Sequence[str], spec: CompactSpec, stack: ExitStack
) -> tuple[list[_Claim], int]:
    """Claim what there is to gain, until the end of the stack; also how many shards are left to others.

    Raises `AttemptTaken` where another process of this attempt is at a shard.
    """
    mine = hold_purpose(spec.job_id, spec.attempt)
    before = {hold_purpose(spec.job_id, attempt) for attempt in range(1, spec.attempt)}
    claims: list[_Claim] = []
    left = 0
    for shard in shards:
        client.compactions.end(shard, before)
        task = client.compactions.claim(shard, purpose=mine, full=True)
        if task is not None:
            claim = _Claim(task)
            claims.append(claim)
            stack.callback(_give_up, client, claim)
            continue
        others = client.compactions.claimants(shard)
        if mine in others:
            raise AttemptTaken(
                f"attempt {spec.attempt} of job {spec.job_id} was started before: it compacts {shard}",
                hint="start a new attempt, or wait for that one",
            )
        left += bool(others)
    return claims, left


def _give_up(client: PersistClient, claim: _Claim) -> None:
    """Let go of what was not installed; where the store doesn't answer, the lease ends it."""
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
    """Have executors merge what is claimed; a claim whose batches are gone gets no parts."""
    pieces = [_pieces(client, claim, max(1, spec.partitions // len(claims))) for claim in claims]
    flat = [piece for of_claim in pieces for piece in of_claim]
    count = min(spec.partitions, len(flat))
    say(f"{what} in {count} tasks")
    if not flat:
        return
    # The n-th task has the n-th piece and every `count`-th after it.
    tasks = [flat[index::count] for index in range(count)]
    with session(spec, spark) as running:
        answers = run_tasks(
            running.sparkContext,
            tasks,
            functools.partial(merge_pieces, place=spec.place, location_id=client.location_id),
            what=f"compact {what}",
            progress=lambda done: say(f"{done} of {count} tasks are done"),
            meanwhile=_renewing(client, claims),
        )
    merged: list[Merged] = [None] * len(flat)
    for index, answer in enumerate(answers):
        merged[index::count] = answer
    in_order = iter(merged)
    for claim, of_claim in zip(claims, pieces, strict=True):
        runs = [next(in_order) for _ in of_claim]
        if runs and None not in runs:
            claim.parts = tuple(part for run in runs for part in run or ())
    say("all tasks are done, installing what they merged")


def _pieces(client: PersistClient, claim: _Claim, most: int) -> list[CompactionPiece]:
    """The work of a claim, cut where that is worth it; nothing where its batches are gone."""
    try:
        claim.before = client.compactions.size(claim.task)
        return client.compactions.pieces(claim.task, min(most, tasks_worth(*claim.before)))
    except HandleExpired:
        return []


def _renewing(client: PersistClient, claims: Sequence[_Claim]) -> Callable[[], None]:
    """What renews all claims that are due."""
    renewals = [client.compactions.renewal(claim.task) for claim in claims]

    def renew() -> None:
        for each in renewals:
            # The result of one that is lost is refused: the others are worth the work.
            with suppress(HandleExpired):
                each()

    return renew


def _result(shards: int, claims: Sequence[_Claim], left: int) -> dict[str, Any]:
    done = [claim for claim in claims if claim.is_installed]
    parts = [part for claim in done for part in claim.parts or ()]
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
