"""The rows with which a collection is created: the creation and the first append are one commit.

The rows are checked while they are added, and uploaded before the commit. If anything fails before it, there
is no collection. A kill between the upload and the commit leaves shards that no record names.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from holdfast.collections.bulk import BulkAppend
from holdfast.collections.frontiers import promise_for
from holdfast.collections.metadata import METADATA_SCHEMA, first_rendition
from holdfast.collections.record.column_names import PLAIN_NAMES
from holdfast.collections.record.jobs import Json
from holdfast.collections.record.spec import FIRST_RENDITION, CollectionSpec, RenditionInfo
from holdfast.collections.record.transitions import ShardIds
from holdfast.collections.sharded_append import Position, PreparedAppend, Route
from holdfast.errors import HoldfastError, Indeterminate
from holdfast.persist import PersistClient, Prepared
from holdfast.persist.handles.builder import MEMORY_BYTES


class FirstRows:
    """The rows of a collection that doesn't exist yet. Not thread-safe. Use it in a `with` block."""

    def __init__(self, client: PersistClient, spec: CollectionSpec, *, purpose: str) -> None:
        self._client = client
        new_id = client.new_shard_id
        self.shards = ShardIds(new_id(), tuple(new_id() for _ in range(spec.shards)))
        self.spec = spec
        self.file: tuple[str, str, Json, Json] | None = None
        """Records the file that the rows come from: kind, slot, spec and result of a job that is done."""
        self._purpose = purpose
        writers = tuple(client.writer(each, spec.schema, purpose=purpose) for each in self.shards.data)
        rendition = RenditionInfo(FIRST_RENDITION, self.shards.data, 0, spec.hash_columns)
        self._position = Position(0, Route(rendition, spec.schema, writers, 0))
        self.bulk = BulkAppend(
            spec.schema, PLAIN_NAMES, self._position.route, _alone, memory_bytes=MEMORY_BYTES
        )
        self._time: int | None = None

    def upload(self, time: int) -> None:
        """Upload the rows, which all get this time."""
        self._time = time
        self.bulk.prepare(self._position, time + 1, time=time)

    def steps(self) -> list[Prepared]:
        """The steps that create the metadata shard and the data shards with the rows."""
        assert self._time is not None, "not uploaded"
        upper = self._time + 1
        metadata = self._client.writer(self.shards.metadata, METADATA_SCHEMA, purpose=self._purpose)
        promised = promise_for(upper, 0)
        assert promised is not None
        rows = self.bulk.prepare(self._position, upper, time=self._time)
        return [metadata.prepare_append(first_rendition(FIRST_RENDITION), 0, promised), *rows.steps]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self.bulk.close()
        if error is None or isinstance(error, Indeterminate) or self._time is None:
            return
        # The upload has registered its writers, which creates shards.
        with suppress(HoldfastError):
            for shard in filter(self._client.exists, self.shards.data):
                self._client.finalize(shard)


def _alone(appends: Sequence[Prepared], route: Route, upper: int) -> PreparedAppend:
    return PreparedAppend(tuple(appends), Position(upper, route))
