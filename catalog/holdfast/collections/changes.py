"""The changes of a collection between two times, read in this process or in pieces by others.

Pieces are cut by time, and each is read across shards and handovers as one listen would read it. Together
they are the changes that a listen from the first to the last time returns. All changes at one time are in one
piece.

`net_changes` returns the sum of the changes instead, which is usually smaller.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from holdfast.collections.controller import StorageController
from holdfast.collections.frontiers import check_as_of, check_forward
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.spec import CollectionInfo
from holdfast.collections.rendition_copy import at_time
from holdfast.persist import PersistClient, Schema, Updates
from holdfast.persist.rows.consolidate import consolidate_updates
from holdfast.persist.rows.evolution import seen_through


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """The changes at times after `after` and up to `until`. Picklable, and readable in any process."""

    collection_id: str
    after: int
    until: int


def plan_changes(reader: CollectionReader, after: int, until: int, rows: int) -> list[ChangesPart]:
    """Plan pieces of about `rows` changes or more, in the order of time.

    A hold, of the reader or another one, must stay until the pieces are read. Raises `AsOfTooEarly` if
    `after` is before the since, `AsOfNotYetAvailable` if `until` is not complete, and `BadInput` if `until <
    after`.
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


def read_changes(client: PersistClient, part: ChangesPart, *, stored: bool = False) -> Iterator[pa.Table]:
    """Return the updates of a piece in the order of time: the columns of the schema, `_time` and `_diff`.

    `stored` is as for `CollectionReader`. Raises `AsOfTooEarly` if nothing held the collection's since
    between planning and reading.
    """
    controller = StorageController(client)
    with controller.reader(part.collection_id, purpose="changes", stored=stored) as reader:
        for event in reader.listen(part.after, part.until):
            if isinstance(event, Updates):
                yield event.table


def net_changes(
    reader: CollectionReader, describe: Callable[[], CollectionInfo], after: int, until: int
) -> tuple[Schema, pa.Table]:
    """Return the difference between the contents at `until` and those at `after`, as updates at `until`.

    Also returns the collection's schema as of now. Only the difference is in memory, not the contents. Raises
    like `CollectionReader.changes`.
    """
    found = list(at_time(reader.changes(after, until), until))
    info = describe()
    tables = [pa.Table.from_batches([seen_through(rows, info.schema)]) for rows in found]
    if len(tables) == 1 and info.names.is_plain:
        # Each batch has each row once, except for rows that differ in hidden columns only.
        return info.schema, tables[0].select(info.schema.arrow_updates.names)
    return info.schema, consolidate_updates(info.schema, tables, until)
