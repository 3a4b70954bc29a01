"""The task of the ingestion job: reads one range of a source, and uploads its rows.

This is a separate module because the module of a job is the program, and executors can't import its
functions.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa

from holdfast.collections import RenditionInfo
from holdfast.collections.uploads import upload_rows
from holdfast.errors import HoldfastError, SourceChanged
from holdfast.forks import kept_in_process
from holdfast.ingest.envelope import Envelope
from holdfast.ingest.opened import format_of, source_of
from holdfast.ingest.reading import RangeReader, RangeWork
from holdfast.ingest.schema_texts import MissingTexts, SchemaTexts
from holdfast.ingest.source import Range
from holdfast.ingest.spec import IngestSpec
from holdfast.ingest.waits import Waits
from holdfast.persist import Schema, UploadTicket
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.spark.place import Place

_BATCH_ROWS: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Ingesting:
    """What every task needs in addition to its range. `collection` is the name, for messages.

    `reader` is what the source calls the reader. `at` is the time of the rows. A task reads at most about
    `max_bytes`. `texts` are the schemas that the driver knows.
    """

    place: Place
    location_id: UUID
    collection: str
    reader: str
    spec: IngestSpec
    schema: Schema
    rendition: RenditionInfo
    tickets: tuple[UploadTicket, ...]
    at: int
    max_bytes: int
    texts: SchemaTexts


def read_task(
    task: tuple[Range, bool], *, ingesting: Ingesting
) -> RangeWork | HoldfastError | MissingTexts | None:
    """Read a range. The flag says whether its partition is bound already. Runs in an executor.

    Without an envelope it uploads the rows. For Upsert it returns them, because the rows of a key can be in
    several ranges. Returns None if the partition changed meanwhile, and an error instead of raising it, so
    that the driver has it whole. So it does with schemas that only the driver can find.
    """
    wanted, is_known = task
    client = _kept_open(ingesting.place, ingesting.location_id)
    try:
        spec, waits = ingesting.spec, Waits()
        with closing(source_of(spec, ingesting.reader, ingesting.schema, client.clock, waits)) as source:
            form = format_of(ingesting.spec, ingesting.schema, ingesting.texts)
            reader = RangeReader(
                ingesting.collection, ingesting.spec, ingesting.schema, source, form, ingesting.texts
            )
            work = reader.read(wanted, is_known=is_known, max_bytes=ingesting.max_bytes)
        if ingesting.spec.envelope is Envelope.NONE and work.records:
            updates = _updates(work.records, ingesting)
            work.uploads = upload_rows(client, updates, ingesting.rendition, ingesting.tickets)
            work.records = []
    except SourceChanged:
        return None
    except (HoldfastError, MissingTexts) as error:
        return error
    return work


def _updates(tables: Iterable[pa.Table], ingesting: Ingesting) -> Iterator[pa.RecordBatch]:
    """Rows as updates that add them at the step's time."""
    for table in tables:
        for begin in range(0, table.num_rows, _BATCH_ROWS):
            yield prepare_updates(
                ingesting.schema, table.slice(begin, _BATCH_ROWS), default_time=ingesting.at
            )


# Worker processes stay alive and run many tasks.
_kept_open = kept_in_process(most=8)(Place.open_to_write)
