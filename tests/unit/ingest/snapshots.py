"""Snapshots of collections that pipelines feed, as the snapshot job writes them, without Spark."""

from collections.abc import Callable
from pathlib import Path

from holdfast.collections import RestoreSource, StorageController
from holdfast.collections.snapshots.locate import folder_at
from holdfast.collections.snapshots.manifest import SnapshotManifest
from holdfast.collections.snapshots.parquet import write_empty, write_rows
from holdfast.persist import PersistClient
from holdfast.spark.batches import rows_of
from holdfast.spark.jobs import folder as folders
from holdfast.spark.pipeline_files import write_pipeline


def taken(
    client: PersistClient,
    folder: Path | str,
    as_of: int | None = None,
    *,
    name: str = "orders",
    meanwhile: Callable[[], object] = lambda: None,
) -> RestoreSource:
    """Take a snapshot. `meanwhile` is called after its time is fixed, and before anything else is read."""
    controller = StorageController(client)
    place = folder_at(folder)
    assert place.claim()
    with controller.reader(name, purpose="snapshot") as reader:
        at = reader.readable(as_of)
        rows = (each for batch in reader.snapshot(at) for each in rows_of(batch, where=name))
        meanwhile()
        info = controller.describe(name)
        file = write_rows(rows, info.schema, place, 0) or write_empty(info.schema, place)
        manifest = SnapshotManifest(
            location_id=str(client.location_id),
            collection_id=info.collection_id,
            collection=name,
            as_of=at,
            job_id="j",
            attempt=1,
            schema=info.schema,
            files=(file,),
            created_ms=1,
            pipeline=write_pipeline(client, info, at, place),
        )
    folders.publish(place, manifest)
    return RestoreSource.open(folder)
