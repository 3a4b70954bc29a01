"""Reads the rows that the output of a pipeline has before a step: all of them, or those of some keys.

- Looking up keys reads only the row groups that may have one of them, and takes no lease, so it writes
  nothing. The step commits only if nobody has committed since the time that it reads. So if that time can't
  be read any more, another instance was faster.
- Memory is bounded: that of a snapshot's iterator, and the rows that are returned.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.collections import RenditionInfo
from holdfast.collections.routing import split_rows
from holdfast.persist import PersistClient, Schema, SnapshotPart
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.key_filter import KeyFilter

_PURPOSE = "ingestion"


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The contents of a rendition before the time `upper`, as rows of `schema` with their counts.

    The rendition's shards had this schema when this process opened its writers. Reading raises like a
    `Snapshot`.
    """

    client: PersistClient
    rendition: RenditionInfo
    schema: Schema
    upper: int

    def all(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        for shard in self.rendition.shards if self.upper else ():
            with self.client.reader(shard, purpose=_PURPOSE) as reader:
                yield from reader.snapshot_of(self._part(shard))

    def of(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, in no order."""
        found = [self.schema.arrow_diff.empty_table()]
        if self.upper and keys.num_rows:
            # As they are stored: a float has one zero, which decides its shard.
            stored = prepare_updates(Schema(self.schema.key), keys, default_time=0)
            stored = stored.select(self.schema.key_names)
            for shard, wanted in zip(self.rendition.shards, self._split(stored), strict=True):
                if wanted.num_rows:
                    found.append(self._looked_up(shard, pa.Table.from_batches([wanted])))
        return pa.concat_tables(found)

    def _split(self, keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        """The keys that each shard may have."""
        if set(self.rendition.hash_columns) <= set(self.schema.key_names):
            return split_rows(self.rendition, keys)
        return [keys] * len(self.rendition.shards)

    def _looked_up(self, shard: str, keys: pa.Table) -> pa.Table:
        newest = self.client.session.machine(shard).state.schema
        return self.client.read_snapshot_part(self._part(shard)).filtered(KeyFilter(newest, keys)).to_table()

    def _part(self, shard: str) -> SnapshotPart:
        schema_id = self.client.session.machine(shard).state.schema_id(self.schema)
        return SnapshotPart(shard, self.upper - 1, schema_id=schema_id)
