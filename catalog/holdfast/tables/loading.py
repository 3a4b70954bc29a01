"""Loads any number of rows, in any order, in one append, with bounded memory.

- Rows without times get one time once all of them are uploaded: the wall clock, or the collection's upper if
  that is later. Another writer may move the upper past that time during a long upload, and then the upload is
  useless. So the next try chooses a time far enough ahead to last for two such uploads.
- Readers see all rows at once, or none of them.
"""

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.collections import BulkAppend, CollectionWriter
from holdfast.collections.complete_times import ReadSeal, check_write_ahead, too_late
from holdfast.collections.read_seals import last_seal
from holdfast.errors import BadInput, HandleExpired, ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient, Prepared

_EXPIRIES: Final = 3

CommitBatch = Callable[[Callable[[], Sequence[Prepared]]], object]
"""Commits the prepared steps that its argument returns, like `PersistClient.multi_write`."""


def check_times(
    name: str, upper: int, times: tuple[int, int], seal: ReadSeal | None, now_ms: int | None, allow: str
) -> None:
    """Raise `BadInput` if rows can't be added to a collection at the first and the last of these times.

    Its upper is `upper`, and `seal` is its last seal for a read. `now_ms` is the store's clock, or None if
    times may be far ahead of it. `allow` says how to permit that.
    """
    first, last = times
    if first < upper:
        raise too_late(name, first, upper, seal, now_ms)
    if now_ms is not None:
        check_write_ahead(f"collection {name}", last, upper, now_ms, allow)


def load(
    client: PersistClient,
    writer: CollectionWriter,
    bulk: BulkAppend,
    commit: CommitBatch,
    *,
    at: int | None = None,
    new_upper: int | None = None,
    far_ahead: bool = False,
    allow: str = "pass far_ahead=True",
) -> int:
    """Append what was added to `bulk`. Returns the collection's upper after the append.

    Rows without times get the time `at`, or now. The upper becomes `new_upper`, or just after the last row.
    Times far ahead of the store's clock need `far_ahead`; `allow` says how to give it. Raises `BadInput` for
    such times, and if the collection is already complete past one of the times, with nothing changed, and
    `Indeterminate` if it is unknown whether the append happened.
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
        upper = last + 1 if new_upper is None else new_upper
        # A time that was chosen here is the clock's, or the next one of a table that is ahead.
        chosen = at is None and bulk.times is None and new_upper is None
        now_ms = None if far_ahead or chosen else client.store_or_host_ms()
        seal = last_seal(client, position.route.rendition)
        check_times(writer.info.name, position.upper, (first, max(last, upper - 1)), seal, now_ms, allow)
        if upper <= last:
            raise BadInput(
                f"the new upper {upper} is not above the last time of the rows, {last}",
                hint=f"give {last + 1} or more",
            )
        began_s = clock.monotonic()
        try:
            # Upload first: no other command of this process can run during the commit.
            bulk.prepare(position, upper, time=time)
            commit(lambda: bulk.prepare(position, upper, time=time).steps)  # noqa: B023 - called at once
        except (UpperMismatch, ShardFinalized):
            ahead_ms = max(ahead_ms, int(2000 * (clock.monotonic() - began_s)))
        except HandleExpired:
            # An upload can't be committed once its writer has expired.
            bulk.renew()
            expired += 1
            if expired == _EXPIRIES:
                raise
        else:
            return upper
