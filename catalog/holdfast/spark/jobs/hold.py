"""A job's own critical hold: what it reads stays readable until it is done, however long Spark takes.

A critical hold has no lease, so one outlives a process that is killed. Its purpose names job and attempt,
and so does its id: the step of the JobRecord that ends the attempt releases it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.errors import AsOfTooEarly, HoldfastError
from holdfast.persist import PersistClient
from holdfast.storage import CollectionInfo
from holdfast.storage.jobs import hold_purpose


@contextmanager
def hold(
    client: PersistClient, info: CollectionInfo, as_of: int, *, job_id: str, attempt: int
) -> Iterator[None]:
    """Keep the collection readable at `as_of` for the block; `AsOfTooEarly` if `since` has passed it."""
    try:
        for shard in _shards(info):
            held = client.critical_since(shard, purpose=hold_purpose(job_id, attempt))
            if held.since > as_of:
                raise AsOfTooEarly(as_of, held.since)
            held.downgrade(as_of)
        yield
    finally:
        release(client, info, job_id=job_id, attempt=attempt)


def release(client: PersistClient, info: CollectionInfo, *, job_id: str, attempt: int) -> None:
    """Release what one attempt holds, if anything; where the store doesn't answer it stays."""
    wanted = hold_purpose(job_id, attempt)
    for shard in _shards(info):
        with suppress(HoldfastError):
            if any(held.purpose == wanted for held in client.inspect(shard).holds):
                client.critical_since(shard, purpose=wanted).release()


def _shards(info: CollectionInfo) -> tuple[str, ...]:
    return (info.metadata_shard, *info.data_shards)
