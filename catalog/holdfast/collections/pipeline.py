"""What the pipeline of a rendition keeps in the same commits as its contents: bindings and bad records.

- The remap shard contains, for each partition of the source, how far the contents at that time go. A change
  of it binds a range of the source to a time: `rows` and `checksum` are those of the range that ended at
  `position`.
- The remap shard also has the texts of the schemas that messages were decoded with. Each is a row with
  `SCHEMAS` as its `source`, the id of the schema as its `partition`, and the text as its `identity`.
- It also says how far the source went beyond the contents when a step was read. Each such row has `ENDS` as
  its `source`, and the end of the partition as its `position`. Nothing is computed from it.
- It also says which message of a Kafka partition the contents have last. Each such row has `LAST` as its
  `source`, the offset of the message as its `position`, and the checksum of the message as its `checksum`.
  For Postgres, it is the last transaction.
- It also says since when a file is no longer listed that the contents have. Each such row has `UNLISTED` as
  its `source`, and milliseconds since 1970 as its `position`.
- It also counts the files that are forgotten, which have no binding any more. That row has `FORGOTTEN` as its
  `source`, the name of the source as its `partition`, the number of files as its `position`, the number of
  their messages as its `total`, and the sum of their checksums as its `checksum`. Its `identity` is the
  greatest name that was forgotten because later files were read, or empty.
- The errors shard contains the records that could not be decoded, with their addresses in the source.
"""

from collections.abc import Sequence
from typing import Final

from holdfast.collections.record.spec import PipelineShards, RenditionInfo
from holdfast.persist import PersistClient, Prepared
from holdfast.persist.rows.schema import Column, Schema

REMAP_SCHEMA: Final = Schema(
    key=(Column("source", "string", nullable=False), Column("partition", "string", nullable=False)),
    value=(
        Column("position", "int64", nullable=False),
        Column("identity", "string", nullable=False),
        Column("rows", "int64", nullable=False),
        Column("checksum", "uint64", nullable=False),
        Column("begin", "int64", nullable=False),
        Column("total", "int64", nullable=False),
    ),
)
"""`position` is the next address to read. `identity` is empty, or says which contents the partition had.
The last range had `rows` messages, and all ranges `total`. From `begin` on there is no gap between them."""

SCHEMAS: Final = "schema"
"""The `source` of rows that are no bindings, but texts of schemas."""

ENDS: Final = "end"
"""The `source` of rows that are no bindings, but ends of partitions that have more than is bound."""

LAST: Final = "last"
"""The `source` of rows that are no bindings, but the last messages of partitions."""

UNLISTED: Final = "unlisted"
"""The `source` of rows that are no bindings, but files that are no longer listed."""

FORGOTTEN: Final = "forgotten"
"""The `source` of the row that is no binding, but counts the files that are forgotten."""

BESIDE: Final = frozenset({SCHEMAS, ENDS, LAST, UNLISTED, FORGOTTEN})
"""Each `source` of rows that are no bindings."""

ERRORS_SCHEMA: Final = Schema(
    key=(Column("partition", "string", nullable=False), Column("position", "int64", nullable=False)),
    value=(
        Column("kind", "string", nullable=False),
        Column("reason", "string", nullable=False),
        Column("key", "binary", nullable=True),
        Column("value", "binary", nullable=True),
    ),
)
"""`key` and `value` are the raw bytes of the record, cut at a size."""

PIPELINE_SCHEMAS: Final = (REMAP_SCHEMA, ERRORS_SCHEMA)
"""The schemas of the shards, in the order of `PipelineShards.all`."""


def written_shards(rendition: RenditionInfo, schema: Schema) -> list[tuple[str, Schema]]:
    """The shards of a rendition that move together, each with its schema. `schema` is the collection's."""
    kept = rendition.pipeline.all if rendition.pipeline else ()
    return [
        *((shard, schema) for shard in rendition.shards),
        *zip(kept, PIPELINE_SCHEMAS, strict=bool(kept)),
    ]


def prepare_pipeline(
    client: PersistClient, pipeline: PipelineShards | None, *, purpose: str
) -> Sequence[Prepared]:
    """The steps that create the shards of a pipeline. None for a rendition without one."""
    if pipeline is None:
        return ()
    shards = zip(pipeline.all, PIPELINE_SCHEMAS, strict=True)
    return [client.prepare_create(shard, schema, purpose=purpose) for shard, schema in shards]
