"""The changes of a collection between two times, in this process or in pieces for others.

Pieces are cut by time, so that each is read across shards and handovers as one listen would: together they
are what a listen from the first to the last time tells. Of one time all changes are in one piece.

Their sum is another thing, and less: `net_changes`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from holdfast.collections.bringing import at_time
from holdfast.collections.controller import StorageController
from holdfast.collections.evolved import seen_through
from holdfast.collections.frontiers import check_as_of, check_forward
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.spec import CollectionInfo
from holdfast.persist import PersistClient, Schema, Updates
from holdfast.persist.rows.consolidate import consolidate_updates


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """The changes at times after `after` and up to `until`, readable in any process. Picklable."""

    collection_id: str
    after: int
    until: int


def plan_changes(reader: CollectionReader, after: int, until: int, rows: int) -> list[ChangesPart]:
    """Pieces of about `rows` changes or more, in the order of time.

    The reader's hold, or another, must stay until they are read. Raises `AsOfTooEarly` where `after` is
    before since, `AsOfNotYetAvailable` where `until` is not complete, `BadInput` where `until < after`.
    """
    check_forward(after, until)
    since, upper = reader.since(), reader.upper()
    for time in (after, until):
        check_as_of(time, since, upper)
    if until == after:
        return []
    cuts, held = [after], 0
    for time, count in reader.change_counts(after):
        held += count
        if held >= rows and time < until:
            cuts.append(time)
            held = 0
    return [ChangesPart(reader.info.collection_id, *each) for each in pairwise([*cuts, until])]


def read_changes(client: PersistClient, part: ChangesPart) -> Iterator[pa.Table]:
    """The updates of a piece: the schema's columns, `_time` and `_diff`, in the order of time.

    Raises `AsOfTooEarly` where nothing held the collection's since between planning and reading.
    """
    with StorageController(client).reader(part.collection_id, purpose="changes") as reader:
        for event in reader.listen(part.after, part.until):
            if isinstance(event, Updates):
                yield event.table


def net_changes(
    reader: CollectionReader, describe: Callable[[], CollectionInfo], after: int, until: int
) -> tuple[Schema, pa.Table]:
    """What the contents at `until` have more than those at `after`, and less, as updates at `until`.

    With the collection's schema now. In memory is what differs, not what it differs from. Raises as
    `CollectionReader.changes`.
    """
    changes = reader.changes(after, until)
    schema = describe().schema
    tables = [pa.Table.from_batches([seen_through(rows, schema)]) for rows in at_time(changes, until)]
    return schema, consolidate_updates(schema, tables, until)
