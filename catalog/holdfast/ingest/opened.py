"""Opens the source and the format that a spec names, and the collection that they feed."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.collections import CollectionInfo, CollectionSpec, Recipe, StorageController
from holdfast.collections.feeds import FedRendition
from holdfast.collections.periods import NEW_TABLE, period_ms
from holdfast.collections.record.spec import FIRST_RENDITION
from holdfast.errors import BadInput, CollectionNotFound, SourceStalled, UniquenessViolation
from holdfast.extras import needs
from holdfast.ingest.envelope import Envelope
from holdfast.ingest.formats.debezium import DebeziumJson
from holdfast.ingest.formats.decoded import Format
from holdfast.ingest.formats.files import Csv
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.formats.keys import key_format
from holdfast.ingest.formats.parquet import Parquet
from holdfast.ingest.formats.raw import Raw
from holdfast.ingest.formats.rows import RowsByName
from holdfast.ingest.formats.transactions import JsonBounds, JsonMarks
from holdfast.ingest.ingestion import Ingestion, IngestStep
from holdfast.ingest.made_from import made_from
from holdfast.ingest.reading import Runner
from holdfast.ingest.reclocked import ReclockedIngestion
from holdfast.ingest.schema_texts import SchemaTexts
from holdfast.ingest.source import Source, reader_id
from holdfast.ingest.sources.collection import CollectionSource
from holdfast.ingest.sources.folder import Folder
from holdfast.ingest.sources.generator import Generator
from holdfast.ingest.sources.postgres_server import slot_of
from holdfast.ingest.spec import (
    CollectionSourceSpec,
    FilesSpec,
    GeneratorSpec,
    IngestSpec,
    KafkaSpec,
    PostgresSpec,
    parse,
)
from holdfast.ingest.waits import Waits
from holdfast.ingest.whole import Transactions
from holdfast.persist import Schema
from holdfast.persist.clock import Clock
from holdfast.persist.rows.schema import Column
from holdfast.persist.stores.s3_place import S3Place
from holdfast.tables.opening import ArrowSchema, Columns, open_client, schema_of

_INCLUDE_TYPES = {
    "partition": (pa.string(),),
    "position": (pa.int64(),),
    "timestamp": (pa.int64(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    "key": (pa.binary(), pa.string()),
    "record": (pa.string(),),
}


def ingest_source(
    url: str | os.PathLike[str],
    name: str,
    source: Mapping[str, object],
    *,
    columns: Columns | None = None,
    key: Sequence[str] | Mapping[str, Column | str] = (),
    schema: Schema | None = None,
    consensus: str | None = None,
    rendition: str = "",
    anew: bool = False,
    once: bool = False,
    stopped: Callable[[float], bool] | None = None,
    on_step: Callable[[IngestStep], None] = lambda _: None,
) -> None:
    """Feed a collection from a source until the source's current end (`once`), or until `stopped`.

    `url` and `consensus` are as for `holdfast.table`. `source` is the block that docs/how-to/ingest-files.md,
    ingest-kafka.md, ingest-postgres.md and ingest-from-a-collection.md describe.

    With `columns`, a collection that doesn't exist is created. `columns` and `key` are as for
    `holdfast.table`, or as in the file of `holdfast ingest`: there `key` has the types of the key columns,
    and `columns` has the other columns. A `schema` may stand for both. An existing collection must have these
    columns.

    `stopped(seconds)` waits for at most `seconds`, and returns True to end. By default it sleeps. A source in
    Postgres also calls it in the middle of a step, which then ends without a commit.
    `on_step` is called after each step.

    It feeds the current rendition, until another one takes over. With the id of another `rendition` it feeds
    that one, and creates it if there is none. That reads the same messages as the current rendition, for the
    same times, until it takes over (`StorageController.renditions.hand_over`). With `anew`, it reads the
    source by itself: a new one begins as the block says, and another one goes on from what it has.

    Raises `BadInput` if the block or the collection doesn't fit, and `SourceStalled` if the source can't go
    on without losing something.
    """
    spec = parse(source)
    wanted = _wanted(columns, key, schema)
    with (
        open_client(url, "write", create=wanted is not None, consensus=consensus) as client,
        StorageController(client, who="holdfast.ingest") as controller,
        ingestion_of(
            controller, name, spec, wanted, rendition=rendition, anew=anew, continues=not once
        ) as ingestion,
    ):
        ingestion.run(once=once, stopped=stopped, on_step=on_step)


def _wanted(
    columns: Columns | None, key: Sequence[str] | Mapping[str, Column | str], schema: Schema | None
) -> Schema | None:
    """The schema of the collection to create, or None if it must exist."""
    if schema is not None:
        if not isinstance(schema, Schema):
            raise BadInput(
                f"the schema must be a Schema, not {type(schema).__name__}",
                hint="write Schema.of(key={'id': 'int64'}, value={'name': 'string?'}), from holdfast.persist",
            )
        if columns is not None or key:
            raise BadInput("a schema and columns can't be used together", hint="give one of them")
        return schema
    if not isinstance(key, Mapping):
        if columns is None and key:
            raise BadInput("a key without columns", hint="also give columns={...}")
        return None if columns is None else schema_of(columns, key)
    if isinstance(columns, ArrowSchema):
        raise BadInput("key can't have types if columns is an Arrow schema", hint="give a list of names")
    return Schema.of(key=key, value=columns) if key or columns else None


@contextmanager
def ingestion_of(
    controller: StorageController,
    name: str,
    spec: IngestSpec,
    schema: Schema | None = None,
    runner: Runner | None = None,
    *,
    rendition: str = "",
    anew: bool = False,
    continues: bool = False,
    waits: Waits | None = None,
) -> Iterator[Ingestion]:
    """Open the pipeline of a collection. The block closes the source. Raises like `ingest_source`.

    `runner` reads the ranges of each step. Default: this process does. One that `continues` may keep open
    between steps what other instances have to wait for. `waits` shows what it waits for.
    """
    waits = waits or Waits()
    found = _collection(controller, name, spec, schema)
    if isinstance(found, CollectionSpec) and not _is_created(controller, found, spec, waits):
        # Another instance was faster.
        found = _collection(controller, name, spec, None)
    id_ = rendition or (found.holding.id if isinstance(found, CollectionInfo) else FIRST_RENDITION)
    with ExitStack() as sources:
        source = sources.enter_context(
            closing(opened_source(controller, spec, found, id_, waits, anew=anew, continues=continues))
        )
        columns = found.schema

        def source_for(schema: Schema) -> Source:
            """The source, opened again if the columns are others. The block closes it."""
            nonlocal source, columns
            if schema != columns:
                source.close()
                reader = reader_id(found.collection_id, id_)
                source = sources.enter_context(
                    closing(
                        source_of(spec, reader, schema, controller.client.clock, waits, continues=continues)
                    )
                )
                columns = schema
            return source

        if isinstance(found, CollectionInfo) and found.find(id_) is None:
            _create_rendition(controller, found, id_, made_from(spec, follows=not anew))
        form = partial(format_of, spec)
        kind = ReclockedIngestion if isinstance(source, CollectionSource) else Ingestion
        with closing(
            kind(
                controller,
                found.collection_id,
                spec,
                source,
                form,
                runner,
                id_,
                anew=anew,
                transactions=transactions_of(spec, reader_id(found.collection_id, id_), waits),
                waits=waits,
                # Other sources have the same messages for any columns.
                source_for=source_for if isinstance(spec.source, PostgresSpec) else None,
            )
        ) as opened:
            if isinstance(opened, ReclockedIngestion):
                opened.opens = lambda other, made: ingestion_of(
                    controller, found.collection_id, made, rendition=other
                )
            yield opened


def opened_source(
    controller: StorageController,
    spec: IngestSpec,
    fed: CollectionInfo | CollectionSpec,
    rendition_id: str,
    waits: Waits,
    *,
    anew: bool = False,
    continues: bool = False,
) -> Source:
    """Open the source of a rendition. Raises `BadInput` if it can't be used."""
    if not isinstance(spec.source, CollectionSourceSpec):
        reader = reader_id(fed.collection_id, rendition_id)
        return source_of(spec, reader, fed.schema, controller.client.clock, waits, continues=continues)
    feed = FedRendition(controller.client.location_id, fed.collection_id, rendition_id)
    # What comes before a handover is read from the rendition before it.
    latest = rendition_id != FIRST_RENDITION and not anew
    with ExitStack() as stack:
        source = stack.enter_context(
            closing(CollectionSource(controller, spec, feed, fed.name, latest=latest))
        )
        if isinstance(fed, CollectionSpec) or fed.find(rendition_id) is None:
            source.check(format_of(spec, fed.schema))
        stack.pop_all()
    return source


def _is_created(
    controller: StorageController, wanted: CollectionSpec, spec: IngestSpec, waits: Waits
) -> bool:
    """Create the collection, unless the source can't be used. False if it is there by now."""
    try:
        with closing(opened_source(controller, spec, wanted, FIRST_RENDITION, waits)) as source:
            # A source that can't be used leaves no collection behind.
            source.probe({})
        controller.create_collection(wanted)
    except (SourceStalled, UniquenessViolation):
        # The source may have told this one what the other instance has bound.
        with suppress(CollectionNotFound):
            controller.describe(wanted.name)
            return False
        raise
    return True


def left_in_source(spec: IngestSpec, collection_id: str) -> str:
    """Return what a source keeps for a collection, and how to delete it there. Empty if it keeps nothing.

    A consumer group that the spec names belongs to the user.
    """
    match spec.source:
        case KafkaSpec() as topic if not topic.group:
            return (
                f"the consumer group holdfast-{collection_id} at {topic.bootstrap_servers}: the brokers"
                " delete it after offsets.retention.minutes, or delete it with kafka-consumer-groups.sh"
            )
        case PostgresSpec() as table:
            parts = urlsplit(table.url)
            host = parts.netloc.rpartition("@")[2]
            return (
                f"replication slots at {host}{parts.path} that begin with"
                f" {slot_of(collection_id, table.slot)}: they keep WAL until you drop them there with"
                " pg_drop_replication_slot"
            )
        case CollectionSourceSpec() as other if other.url:
            return (
                f"the holds on collection {other.collection} at {other.url.partition('?')[0]} for collection"
                f" {collection_id}: 'holdfast collection holds' shows them, and 'holdfast collection"
                " release' ends them"
            )
        case _:
            return ""


def _create_rendition(
    controller: StorageController, info: CollectionInfo, rendition_id: str, made: str
) -> None:
    controller.renditions.create(
        info.collection_id,
        shards=len(info.holding.shards),
        hash_columns=info.holding.hash_columns,
        recipe=Recipe.SOURCE,
        pipeline=True,
        made_from=made,
        rendition_id=rendition_id,
    )


def _collection(
    controller: StorageController, name: str, spec: IngestSpec, schema: Schema | None
) -> CollectionInfo | CollectionSpec:
    """The collection, or what to create if there is none. Raises `BadInput` if the columns don't fit."""
    try:
        info = controller.describe(name)
    except CollectionNotFound:
        if schema is None:
            raise
        format_of(spec, schema)
        id_ = str(uuid.uuid4())
        retain_ms = period_ms(NEW_TABLE)
        return CollectionSpec(
            id_, name, schema, source_fed=True, made_from=made_from(spec), retain_ms=retain_ms
        )
    if schema is not None and info.schema != schema:
        raise BadInput(
            f"collection {name} has other columns than the spec: {info.schema} instead of {schema}",
            hint="leave out the columns, or evolve the collection",
        )
    format_of(spec, info.schema)
    return info


def source_of(
    spec: IngestSpec,
    reader: str,
    schema: Schema,
    clock: Clock,
    waits: Waits,
    *,
    continues: bool = False,
) -> Source:
    """Open the source that a spec names, for a `reader_id`. Raises `BadInput` if it can't be used."""
    match spec.source:
        case FilesSpec() as files:
            whole, raw = spec.format in {"avro", "csv", "parquet"}, spec.format == "raw"
            if isinstance(files.path, Path):
                return Folder(
                    files.path,
                    files.pattern,
                    waits,
                    whole=whole,
                    on_changed=files.on_changed,
                    raw=raw,
                    lexical=files.lexical,
                )
            return _bucket(files.path, files, waits, whole=whole, raw=raw)
        case GeneratorSpec() as made:
            return Generator(made.rows, made.rows_per_second, made.since_ms, made.keys, clock.wall_ms)
        case KafkaSpec() as topic:
            return _kafka(topic, reader, waits)
        case PostgresSpec() as table:
            return _postgres(table, spec, reader, schema, waits, streams=continues)
        case CollectionSourceSpec():
            raise AssertionError("a collection is opened with a controller")


def _kafka(topic: KafkaSpec, reader: str, waits: Waits) -> Source:
    with needs("ingest", "source.kafka"):
        from holdfast.ingest.sources.kafka import Kafka
    return Kafka(topic, topic.group or f"holdfast-{reader}", waits)


def transactions_of(
    spec: IngestSpec, reader: str, waits: Waits
) -> Callable[[SchemaTexts], Transactions] | None:
    """How to read the topic of transactions that a spec names. None if it names none."""
    topic = spec.source
    if not isinstance(topic, KafkaSpec) or not topic.transactions:
        return None
    name = topic.transactions

    def opened(since_ms: int | None) -> Source:
        # Messages that are gone are no loss if nobody looks for them.
        start = "Earliest" if since_ms is None else since_ms
        try:
            return _kafka(
                replace(topic, topic=name, start=start, new_epoch=True, transactions=""), reader, waits
            )
        except BadInput as error:
            raise BadInput(
                f"can't read the topic of transactions {name}: {error}",
                hint="correct source.kafka.transactions; Debezium needs provide.transaction.metadata=true",
            ) from None

    def of(texts: SchemaTexts) -> Transactions:
        if spec.format == "json":
            return Transactions(name, JsonMarks(), JsonBounds(), opened)
        from holdfast.ingest.formats.transactions_avro import AvroBounds, AvroMarks

        return Transactions(name, AvroMarks(texts), AvroBounds(texts), opened)

    return of


def _postgres(
    table: PostgresSpec, spec: IngestSpec, reader: str, schema: Schema, waits: Waits, *, streams: bool
) -> Source:
    with needs("postgres", "source.postgres"):
        from holdfast.ingest.sources.postgres import Postgres
    included = set(spec.include.values())
    columns = pa.schema([each for each in schema.arrow if each.name not in included])
    limits = (spec.max_rows, spec.max_transaction_bytes)
    slot = slot_of(reader, table.slot)
    return Postgres(table, slot, columns, schema.key_names, *limits, waits, streams=streams)


def _bucket(place: S3Place, files: FilesSpec, waits: Waits, *, whole: bool, raw: bool) -> Source:
    with needs("s3", "an s3:// path"):
        from holdfast.ingest.sources.bucket import Bucket
    return Bucket(
        place,
        files.pattern,
        waits,
        whole=whole,
        on_changed=files.on_changed,
        secret=files.secret,
        raw=raw,
        lexical=files.lexical,
    )


def _json(spec: IngestSpec, columns: pa.Schema, schema: Schema, texts: SchemaTexts) -> Format:
    if spec.envelope is Envelope.DEBEZIUM:
        keys = key_format(spec, schema, texts)
        return DebeziumJson(columns, schema.key_names, keys=keys, most_bad=spec.error_limit)
    return Json(columns, spec.include.get("record", ""), most_bad=spec.error_limit)


def _avro(spec: IngestSpec, columns: pa.Schema, schema: Schema, texts: SchemaTexts) -> Format:
    with needs("ingest", "format avro"):
        from holdfast.ingest.formats.avro import Avro, AvroFiles
        from holdfast.ingest.formats.debezium_avro import DebeziumAvro
    if isinstance(spec.source, FilesSpec):
        return AvroFiles(columns, most_bad=spec.error_limit)
    head = spec.avro.registry is not None
    if spec.envelope is Envelope.DEBEZIUM:
        keys, most = key_format(spec, schema, texts), spec.error_limit
        return DebeziumAvro(columns, schema.key_names, texts, keys=keys, head=head, most_bad=most)
    return Avro(columns, texts, head=head, most_bad=spec.error_limit)


def _lacking(spec: IngestSpec) -> Sequence[str]:
    """What no record of the source has besides its fields."""
    match spec.source:
        case FilesSpec():
            return ("timestamp", "key")
        case GeneratorSpec():
            return ("timestamp",)
        case _:
            return ()


def format_of(spec: IngestSpec, schema: Schema, texts: SchemaTexts | None = None) -> Format:
    """The format, for the columns that it fills. Raises `BadInput` if it can't fill them.

    `texts` are the schemas that it may use. Default: those that the spec names.
    """
    for what, name in spec.include.items():
        found = [each.type for each in schema.arrow if each.name == name]
        if not found or found[0] not in _INCLUDE_TYPES[what]:
            types = " or ".join(str(each) for each in _INCLUDE_TYPES[what])
            has = f"type {found[0]}" if found else "no such column"
            raise BadInput(f"source.include.{what} needs a column '{name}' of type {types}, found {has}")
        if what in _lacking(spec) and not schema.arrow.field(name).nullable:
            raise BadInput(
                f"column '{name}' allows no nulls, and records of this source have no {what}",
                hint=f"leave source.include.{what} out, or declare the column with a question mark:"
                f" {name}: '<type>?'",
            )
    if spec.envelope.is_keyed and not schema.key_names:
        raise BadInput(f"envelope {spec.envelope.value} needs a collection with a key")
    taken = {name for what, name in spec.include.items() if what != "record"}
    columns = pa.schema([each for each in schema.arrow if each.name not in taken])
    most, texts = spec.error_limit, texts or SchemaTexts.of(spec.avro)
    formats: Mapping[str, Callable[[], Format]] = {
        "json": lambda: _json(spec, columns, schema, texts),
        "csv": lambda: Csv(columns, most_bad=most),
        "avro": lambda: _avro(spec, columns, schema, texts),
        "parquet": lambda: Parquet(columns, most_bad=most),
        "raw": lambda: Raw(columns, most_bad=most),
        "rows": lambda: RowsByName(columns),
    }
    form = formats[spec.format]()
    if form.whole and not isinstance(spec.source, FilesSpec):
        raise BadInput(
            f"source.format is {spec.format}, which is for files only",
            hint="messages have the format json, avro or raw",
        )
    if spec.envelope is Envelope.DEBEZIUM and (form.whole or spec.format == "raw"):
        raise BadInput(f"envelope Debezium is for messages of format json or avro, not for {spec.format}")
    if "record" in spec.include and (spec.format != "json" or spec.envelope is Envelope.DEBEZIUM):
        raise BadInput("source.include.record is for format json without envelope Debezium")
    form.check()
    return form
