"""Loading: one append of any amount of rows, in any order, with bounded memory.

- Rows without times get one when all of them are there: the wall clock's, or the collection's upper where
  that is later. Who writes past it during a long upload would make that one vain: the next try takes a time
  so far ahead that it holds for as long as two such uploads.
- Readers see all rows at once, or none of them.
"""

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.collections import BulkAppend, CollectionWriter
from holdfast.errors import BadInput, HandleExpired, ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient, Prepared

_EXPIRIES: Final = 3

Commit = Callable[[Callable[[], Sequence[Prepared]]], object]
"""Commits what it is given to prepare, as `PersistClient.multi_write` does."""


def check_open(name: str, upper: int, time: int) -> None:
    """Raise `BadInput` where nothing can be added to a collection at a time any more."""
    if time < upper:
        raise BadInput(
            f"collection {name} is complete up to {upper}: nothing can be added at {time}",
            hint=f"write at {upper} or later",
        )


def load(
    client: PersistClient,
    writer: CollectionWriter,
    bulk: BulkAppend,
    commit: Commit,
    *,
    at: int | None = None,
    new_upper: int | None = None,
) -> int:
    """Append what was added to `bulk`; answers the upper that the collection has then.

    Rows that have no times of their own are at `at`, or now. The upper is `new_upper`, or just after the last
    row. Raises `BadInput` where the collection is complete past one of the times: nothing happened;
    `Indeterminate` where it could not be found out whether it happened.
    """
    clock = client.clock
    ahead_ms = expired = 0
    time = at
    while True:
        position = writer.position()
        if at is None and bulk.times is None and (time is None or time < position.upper):
            time = max(client.now_ms() + ahead_ms, position.upper)
        first, last = bulk.times or (time, time)
        assert first is not None
        assert last is not None
        check_open(writer.info.name, position.upper, first)
        upper = last + 1 if new_upper is None else new_upper
        if upper <= last:
            raise BadInput(
                f"the new upper {upper} is not above the last time of the rows, {last}",
                hint=f"give {last + 1} or more",
            )
        began_s = clock.monotonic()
        try:
            # The upload, before a commit in which no other command of this process goes on.
            bulk.prepare(position, upper, time=time)
            commit(lambda: bulk.prepare(position, upper, time=time).steps)  # noqa: B023 - called at once
        except (UpperMismatch, ShardFinalized):
            ahead_ms = max(ahead_ms, int(2000 * (clock.monotonic() - began_s)))
        except HandleExpired:
            # What was uploaded under a writer that is not known any more can't be committed.
            bulk.renew()
            expired += 1
            if expired == _EXPIRIES:
                raise
        else:
            return upper
