"""Restoring a collection from a snapshot: fills a rendition from the snapshot's files and hands over to it.

- Nothing changes before all rows of the files are read and checked once. They are checked again when they are
  read to fill the rendition, so what is committed is what the manifest says.
- All rows are at time 0, and one append moves the rendition's upper to 1. From there to the handover it has
  no updates, so at the handover the collection gets the contents of the snapshot. Writes between the snapshot
  and the handover are given up, and readers see the difference at the time of the handover.
  That time is complete after the tail, which reaches past it.
- One snapshot fills a rendition. If several processes fill it, they have the same rows and one append
  succeeds. So any process can continue what another one began.
- A collection that a pipeline feeds also gets the bindings and the errors of the snapshot, in the append of
  the rows. So its pipeline continues exactly from there. A snapshot that has only rows is refused for it:
  nobody could know from where to continue.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import pyarrow as pa

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.frontiers import common_upper
from holdfast.collections.pipeline import PIPELINE_SCHEMAS, written_shards
from holdfast.collections.record import collection_transitions as transitions
from holdfast.collections.record.jobs import Json
from holdfast.collections.record.spec import (
    CollectionInfo,
    PipelineShards,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.record.transitions import Origin
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.collections.renditions import RESTORED_UPPER, Renditions
from holdfast.collections.routing import split_rows
from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.collections.snapshots.manifest import (
    SnapshotFile,
    SnapshotManifest,
    checksum_text,
    read_manifest,
    read_rows,
    verify_snapshot,
)
from holdfast.errors import BadInput, HandleExpired, ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient
from holdfast.persist.rows.evolution import evolution_fault, seen_through
from holdfast.persist.rows.schema import DIFF, TIME, Schema

_BATCH_ROWS: Final = 64 * 1024
_MEMORY_BYTES: Final = 256 << 20

OnRows = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RestoreSource:
    """A snapshot that the snapshot job made: the folder of its files, and its manifest."""

    folder: SnapshotFolder
    manifest: SnapshotManifest

    @classmethod
    def open(cls, location: str | Path, *, credentials: Mapping[str, str] | None = None) -> Self:
        """Open the snapshot in a folder (a path, a `file://` or `s3://` URL).

        `credentials` are for S3, and have the names of AWS's environment variables (default: the
        environment). Raises `BadInput` if there is no snapshot.
        """
        folder = folder_at(location, credentials)
        return cls(folder, read_manifest(folder))

    @property
    def told(self) -> Json:
        """The facts that the history keeps. The rows and checksums distinguish it from other snapshots."""
        pipeline = self.manifest.pipeline
        names = ("remap", "errors") if pipeline else ()
        kept = zip(names, pipeline.files if pipeline else (), strict=True)
        return {
            "snapshot": str(self.folder),
            "as_of": self.manifest.as_of,
            "rows": self.manifest.rows,
            "checksum": checksum_text(self.manifest.checksum),
            **{name: checksum_text(file.checksum) for name, file in kept},
        }

    def check_schema(self, name: str, schema: Schema) -> None:
        """Raise `BadInput` unless its schema is this one or an earlier one."""
        ours = replace(schema, codec=None)
        fault = "" if self.manifest.schema == ours else evolution_fault(self.manifest.schema, ours)
        if fault:
            raise BadInput(
                f"the snapshot in {self.folder} does not fit collection {name}: it has"
                f" {self.manifest.schema}; the collection has {ours} ({fault})",
                hint="restore it into a collection with its columns",
            )

    def check_fits(self, info: CollectionInfo) -> None:
        """Raise `BadInput` unless the collection can get the contents of the snapshot."""
        self.check_schema(info.name, info.schema)
        if info.holding.pipeline is not None and self.manifest.pipeline is None:
            raise BadInput(
                f"a source feeds collection {info.name}, but the snapshot in {self.folder} has only rows: it"
                " doesn't say which messages they were made from, so the source can't continue from there",
                hint="use a snapshot that this version took from a collection that a source feeds; or restore"
                " the rows into another collection, which no source feeds",
            )

    def verify(self) -> None:
        """Read all files. Raises `CorruptBlob`, naming the first file that does not match the manifest."""
        verify_snapshot(self.folder)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return all rows; a row that occurs n times is returned n times.

        Raises `CorruptBlob` at the end of a file that does not match the manifest.
        """
        for file in self.manifest.files:
            yield from self._read(file, self.manifest.schema)

    def kept(self) -> Sequence[Iterator[pa.RecordBatch]]:
        """Return the rows of each shard of a pipeline, in the order of `PipelineShards.all`.

        None for a snapshot that has only rows. Raises like `batches`.
        """
        pipeline = self.manifest.pipeline
        files = zip(pipeline.files, PIPELINE_SCHEMAS, strict=True) if pipeline else ()
        return [self._read(file, schema) for file, schema in files]

    def _read(self, file: SnapshotFile, schema: Schema) -> Iterator[pa.RecordBatch]:
        return read_rows(self.folder, file, schema, batch_rows=_BATCH_ROWS)


class Restores:
    """Restores collections, for `StorageController`. Thread-safe."""

    def __init__(
        self,
        client: PersistClient,
        log: ControllerLog,
        origin: Callable[[str | None], Origin],
        describe: Callable[[str], CollectionInfo],
        renditions: Renditions,
    ) -> None:
        self._client = client
        self._log = log
        self._origin = origin
        self._describe = describe
        self._renditions = renditions

    def restore(
        self,
        collection: str,
        source: RestoreSource,
        *,
        rendition_id: str = "",
        command_id: str | None = None,
        progress: OnRows | None = None,
    ) -> RenditionInfo:
        """See `StorageController.restore_collection`."""
        info = self._describe(collection)
        made = self._begin(info, source, rendition_id, self._origin(command_id))
        if made.state is RenditionState.HYDRATING:
            self._fill(info.collection_id, made, source, progress or (lambda _: None))
        if made.state not in {RenditionState.HYDRATING, RenditionState.HOLDING}:
            return made
        try:
            # If it took over before, this copies the tail.
            return self._renditions.hand_over(info.collection_id, made.id)
        except BadInput:
            known = self._describe(info.collection_id).rendition(made.id)
            if known.state not in {RenditionState.RETIRED, RenditionState.DROPPED}:
                raise
            # Another command for the same snapshot handed over to it, and later another rendition took over.
            return known

    def _begin(
        self, info: CollectionInfo, source: RestoreSource, rendition_id: str, origin: Origin
    ) -> RenditionInfo:
        source.check_fits(info)
        source.verify()
        holding, new_id = info.holding, self._client.new_shard_id
        fed_on = source.manifest.pipeline if info.source_fed or holding.pipeline is not None else None
        made = RenditionInfo(
            rendition_id,
            tuple(new_id() for _ in holding.shards),
            0,
            holding.hash_columns,
            recipe=Recipe.RESTORED,
            pipeline=None if fed_on is None else PipelineShards(new_id(), new_id()),
            made_from="" if fed_on is None else fed_on.made_from,
        )
        named = bool(rendition_id)
        return self._log.commit(
            lambda state: transitions.begin_restore(
                state, info.collection_id, made, source.told, origin, named=named
            ),
            lambda state: self._renditions.prepare(state.collections[info.collection_id], made),
        )

    def _fill(
        self, collection_id: str, rendition: RenditionInfo, source: RestoreSource, progress: OnRows
    ) -> None:
        client, purpose = self._client, rendition_hold(rendition.id)
        info = self._describe(collection_id)
        if common_upper(info, rendition, client.recent_uppers) > 0:
            return
        try:
            # The schema may be newer than the checked one. The rows fit it all the same.
            self._upload(rendition, source, info, purpose, progress)
        except (UpperMismatch, HandleExpired, ShardFinalized):
            # Another process has filled or aborted it since its uppers were read.
            if common_upper(info, rendition, client.recent_uppers) == 0:
                raise

    def _upload(
        self,
        rendition: RenditionInfo,
        source: RestoreSource,
        info: CollectionInfo,
        purpose: str,
        progress: OnRows,
    ) -> None:
        client, schema = self._client, info.stored_schema
        with ExitStack() as stack:
            writers = [
                client.writer(shard, each, purpose=purpose)
                for shard, each in written_shards(rendition, schema)
            ]
            memory = _MEMORY_BYTES // len(writers)
            builders = [stack.enter_context(writer.batch_builder(memory_bytes=memory)) for writer in writers]
            of_rows = builders[: len(rendition.shards)]
            of_pipeline = builders[len(rendition.shards) :]
            for builder, batches in zip(of_pipeline, source.kept() if of_pipeline else (), strict=True):
                for batch in batches:
                    builder.add(_at_zero(batch))
            done = 0
            for batch in source.batches():
                rows = seen_through(info.names.stored_rows(_at_zero(batch)), schema)
                for builder, part in zip(of_rows, split_rows(rendition, rows), strict=True):
                    if part.num_rows:
                        builder.add(part)
                done += batch.num_rows
                progress(done)
            client.multi_write([builder.prepare_append(0, RESTORED_UPPER) for builder in builders])


def _at_zero(batch: pa.RecordBatch) -> pa.RecordBatch:
    count = batch.num_rows
    times = pa.repeat(pa.scalar(0, pa.uint64()), count)
    return batch.append_column(TIME, times).append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), count))
