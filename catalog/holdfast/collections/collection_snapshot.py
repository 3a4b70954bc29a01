"""The contents of a collection at one time, read in this process or in pieces by others.

Each row is in one shard only, so the consolidated contents of all shards together are the collection's.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames
from holdfast.collections.record.spec import CollectionState
from holdfast.collections.row_pages import RowPage, RowPlace, ShardRows, page_of, read_first
from holdfast.errors import AsOfTooEarly, CollectionNotFound, ShardFinalized
from holdfast.persist import PersistClient, Schema, Snapshot, SnapshotPart
from holdfast.persist.parts.whole import VerifiedFile
from holdfast.persist.rows.evolution import fitted, newest
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.rows.row_filter import RowFilter
from holdfast.persist.rows.schema import DIFF

_THREADS: Final = 4
_PAGE_BYTES: Final = 32 * 1024 * 1024
_PAGE_BUFFER_BYTES: Final = 1024 * 1024


class CollectionSnapshot:
    """The contents of a collection at `as_of`: each (key, value) once, with its count in `_diff`, never 0.

    Thread-safe: each iteration reads anew. One iterator belongs to one thread.

    Iterate over it for record batches, with bounded memory: one shard after the other, each in the total
    order of its rows. Or read everything with `to_table`, which is faster but unordered. The columns are
    those of the schema and `_diff` (int64). Rows that differ only in hidden columns are not summed. `stored`
    is the schema of the collection's shards. `there` turns errors of the shards into errors of the
    collection.
    """

    def __init__(
        self,
        as_of: int,
        shards: Sequence[Snapshot],
        there: Callable[[], AbstractContextManager[None]],
        names: ColumnNames,
        stored: Schema,
        *,
        threads: bool = True,
        columns: Sequence[str] | None = None,
    ) -> None:
        # If the collection evolves during planning, a shard may have a later schema than the record. And a
        # shard that this process last saw before the collection evolved has an earlier one.
        self._schema = newest([*(shard.schema for shard in shards), stored])
        self.schema = names.shown_schema(self._schema)
        self._names = names
        self.as_of = as_of
        self._shards = tuple(shards)
        self._there = there
        self._threads = threads
        self._columns = columns
        arrow = self._schema.arrow_diff
        self._arrow = (
            arrow
            if columns is None
            else pa.schema([arrow.field(name) for name in [*names.stored_columns(columns), DIFF]])
        )

    def filtered(self, row_filter: RowFilter) -> "CollectionSnapshot":
        """The same snapshot with only the rows that a filter of its schema chooses."""
        row_filter = self._names.stored_filter(row_filter, self._schema)
        shards = [shard.filtered(row_filter) for shard in self._shards]
        return self._of(shards, self._columns)

    def narrowed(self, columns: Sequence[str]) -> "CollectionSnapshot":
        """The same snapshot with only these columns. What is not needed for them may not be read.

        Equal rows are then not summed.
        """
        stored = self._names.stored_columns(columns)
        # A column that a shard doesn't have yet is null in all of its rows.
        known = [[name for name in stored if name in shard.schema.names] for shard in self._shards]
        pairs = zip(self._shards, known, strict=True)
        return self._of([shard.narrowed(names) for shard, names in pairs], columns)

    @contextmanager
    def files(
        self, least_rows: int = 0, *, most: int = sys.maxsize, only_known: bool = False
    ) -> Iterator[list[VerifiedFile] | None]:
        """Parquet files with the rows of all shards, as `Snapshot.files` returns them. Or None.

        Their columns have the stored names. Each shard has at least `least_rows` rows, and all shards
        together have at most `most` parts.
        """
        with self._there(), ExitStack() as stack:
            found: list[VerifiedFile] = []
            for shard in self._shards:
                files = None
                if shard.schema == self._schema:
                    left = most - len(found)
                    files = stack.enter_context(shard.files(least_rows, most=left, only_known=only_known))
                if files is None:
                    yield None
                    return
                found += files
            yield found

    def kept_files(self, least_rows: int, most: int) -> list[VerifiedFile] | None:
        """Like `files`, and open until nothing refers to them. None if there are more than `most`.

        Also None if the store does not keep an open part readable after its deletion.
        """
        with self.files(least_rows, most=most) as found:
            if found is None or not all(each.keep() for each in found):
                return None
            return found

    def stored_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """The stored names of columns, in the same order."""
        return self._names.stored_columns(names)

    def _of(self, shards: Sequence[Snapshot], columns: Sequence[str] | None) -> "CollectionSnapshot":
        return CollectionSnapshot(
            self.as_of,
            shards,
            self._there,
            self._names,
            self._schema,
            threads=self._threads,
            columns=columns,
        )

    def to_table(self) -> pa.Table:
        """All rows, in memory. Raises like the snapshot of a shard."""
        with self._there():
            if len(self._shards) == 1:
                return self._together([self._shards[0].to_table()])
            if not self._threads:
                return self._together(shard.to_table() for shard in self._shards)
            with ThreadPoolExecutor(min(len(self._shards), _THREADS)) as threads:
                return self._together(threads.map(Snapshot.to_table, self._shards))

    def page(
        self, most: int, start: RowPlace | None = None, *, between: Callable[[], None] | None = None
    ) -> RowPage:
        """The first `most` rows, or those from a place on, in the total order of their stored columns.

        Reads little more than these rows, and at most about 32 MiB of them. A page has at least one row if
        there is one. The snapshot must have all of its columns. Places are those of the schema `stored`.
        `between` is called from time to time, and may raise an error to end the read. Raises like the
        snapshot of a shard.
        """
        assert self._columns is None, "a narrowed snapshot has no order"
        start = start or RowPlace()
        wanted = KeyRange(lower=start.key or None)
        rows, most_bytes = start.skip + most + 1, _PAGE_BYTES // len(self._shards)

        def read(shard: Snapshot) -> ShardRows:
            if between is not None:
                between()
            # The place is one of the newest schema. An earlier one may order it differently.
            within = wanted if shard.schema == self._schema else EVERYTHING
            found = shard.within(within, buffer_bytes=_PAGE_BUFFER_BYTES, between=between)
            names = self._schema.names
            batches = (wanted.slice(names, fitted(batch, self._arrow)) for batch in found)
            return read_first(batches, self._arrow, rows, most_bytes, start.skip + 1)

        with self._there():
            if len(self._shards) == 1 or not self._threads:
                shards = [read(each) for each in self._shards]
            else:
                with ThreadPoolExecutor(min(len(self._shards), _THREADS)) as threads:
                    shards = list(threads.map(read, self._shards))
        page = page_of(self._schema, shards, most, start)
        return RowPage(self._names.shown_rows(page.rows), page.places, page.more)

    @property
    def stored(self) -> Schema:
        """The schema in which the rows are stored."""
        return self._schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for shard in self._shards:
            with self._there():
                for batch in shard:
                    yield self._names.shown_rows(fitted(batch, self._arrow))

    def _together(self, tables: Iterable[pa.Table]) -> pa.Table:
        return self._names.shown_rows(pa.concat_tables(fitted(table, self._arrow) for table in tables))


@dataclass(frozen=True, slots=True)
class CollectionPart:
    """A piece of a collection's snapshot.

    Picklable, and readable in any process that can open the location.
    """

    collection_id: str
    as_of: int
    parts: tuple[SnapshotPart, ...]
    names: ColumnNames = PLAIN_NAMES


def group_parts(
    collection_id: str,
    as_of: int,
    parts: Sequence[SnapshotPart],
    max_parts: int | None,
    names: ColumnNames = PLAIN_NAMES,
) -> list[CollectionPart]:
    """Distribute `parts` over at most `max_parts` pieces (None: one piece each) of about equal numbers."""
    pieces = len(parts) if max_parts is None else max(1, min(max_parts, len(parts)))
    return [
        CollectionPart(collection_id, as_of, tuple(parts[piece::pieces]), names) for piece in range(pieces)
    ]


def read_collection_part(
    client: PersistClient, part: CollectionPart, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The record batches of a piece, consolidated: the columns of the schema (or only these) and `_diff`.

    Raises `AsOfTooEarly` if nothing held the collection's since between planning and reading, and
    `CollectionNotFound` if the collection was dropped.
    """
    stored = None if columns is None else part.names.stored_columns(columns)
    for each in part.parts:
        try:
            yield from map(part.names.shown_rows, client.read_snapshot_part(each, stored))
        except (AsOfTooEarly, ShardFinalized) as error:
            _refuse_dropped(client, part.collection_id)
            if isinstance(error, ShardFinalized):
                # Only the rendition that was current at that time is dropped, so the since is past it.
                raise AsOfTooEarly(part.as_of, part.as_of + 1) from None
            raise


def _refuse_dropped(client: PersistClient, collection_id: str) -> None:
    log = ControllerLog(client)
    try:
        known = log.sync().collections.get(collection_id)
    finally:
        log.close()
    if known is None or known.state is CollectionState.DROPPED:
        raise CollectionNotFound(f"collection {collection_id} was dropped") from None
