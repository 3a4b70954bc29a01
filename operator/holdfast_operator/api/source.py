"""The source of a StorageCollection: what feeds it, and how.

The fields are those of the `source` block of `holdfast ingest`, in addition to the Spark job that does the
work. `holdfast.ingest.spec` checks what a schema can't.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema, field_validator

from holdfast.ingest.spec import KAFKA_KEYS, S3_KEYS, SECRETS, SECURITY, SERVER_KEYS
from holdfast_operator.api.base import (
    UNSEEN,
    ApiModel,
    Frontier,
    LocalReference,
    Period,
    Quantity,
    validations,
)
from holdfast_operator.api.cron import CronSchedule, ScheduleStatus
from holdfast_operator.api.spark import SparkJobStatus, SparkOverride
from holdfast_operator.api.urls import no_secrets, without_secrets

_ENV: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
_KINDS: Final = (
    "has(self.kafka), has(self.files), has(self.postgres), has(self.collection), has(self.generator)"
)
_BEFORE: Final = _KINDS.replace("self.", "oldSelf.")
_FIXED: Final = (
    "self == oldSelf",
    "it identifies the source and is immutable: create another StorageCollection",
)
_IS_DEBEZIUM: Final = "(has(self.envelope) && self.envelope == 'Debezium')"
SOURCE_RULES: Final = validations(
    (
        f"[{_KINDS}] == [{_BEFORE}]",
        "the kind of the source is immutable: create another StorageCollection",
    ),
    (f"[{_KINDS}].exists_one(x, x)", "give one of kafka, files, postgres, collection and generator"),
    (
        "has(self.postgres) != has(self.format)",
        "give a format, but not for postgres, whose columns have types",
    ),
    (
        f"!has(self.kafka) || !has(self.kafka.transactions) || {_IS_DEBEZIUM}",
        "kafka.transactions needs envelope Debezium",
    ),
)
_FORMATS: Final = (
    "has(self.json), has(self.csv), has(self.avro), has(self.parquet), has(self.raw), has(self.rows)"
)
_ONE_FORMAT: Final = (
    f"[{_FORMATS}].exists_one(x, x)",
    "give one of json, csv, avro, parquet, raw and rows",
)
_SETTINGS: Final = ", ".join(
    repr(each) for each in (*SECURITY, *(f"{name}{how}" for name in SECRETS for how in ("Env", "File")))
)
_ONLY_THESE: Final = f"may contain {_SETTINGS}; put secrets into a Secret, and name it in secretRef"
_KNOWN_SECURITY: Final = (f"self.all(k, k in [{_SETTINGS}])", _ONLY_THESE)
_NO_SECRETS: Final = no_secrets("put them into a Secret, and name it in secretRef")


_START: Final[dict[str, Any]] = {
    "x-kubernetes-preserve-unknown-fields": True,
    "maxLength": 8,
    "maxProperties": 1,
    "maxItems": 0,
    "anyOf": [
        {"enum": ["Earliest", "Latest"]},
        {"required": ["timestamp"]},
        {"required": ["offsets"]},
    ],
    "properties": {
        "timestamp": {"type": "string", "description": "A time (RFC 3339).", "maxLength": 64},
        "offsets": {
            "type": "object",
            "description": "An offset for each partition.",
            "maxProperties": 4096,
            "additionalProperties": {"type": "integer", "format": "int64", "minimum": 0},
        },
    },
}
"""A text or an object, so Kubernetes allows no type, and no rules. The limits leave only small values."""


def _secret_ref(what: str, keys: tuple[str, ...]) -> Any:
    text = f"A Secret {what}. The job's pods get these keys of it as files: {', '.join(keys)}."
    return Field(default=None, description=text)


class KafkaSource(ApiModel):
    """A topic of Kafka."""

    bootstrap_servers: str = Field(
        min_length=1,
        max_length=2048,
        # A user or a password would be before the @.
        pattern=r"^[^@\s]+$",
        description="Brokers to connect to first, e.g. kafka:9092.",
    )
    topic: str = Field(
        min_length=1,
        max_length=249,
        description="Name of the topic. Immutable.",
        json_schema_extra=validations(_FIXED),
    )
    start: Annotated[Any, WithJsonSchema(_START)] = Field(
        default="Earliest",
        description="Where to begin: Earliest, Latest, {timestamp: 2026-01-31T00:00:00Z} or "
        "{offsets: {0: 17}}. It is decided once, with the first step.",
    )
    on_reset: Literal["Stall", "NewEpoch"] = Field(
        default="Stall",
        description="What to do if messages are gone before they were read. Stall: stop and say so. "
        "NewEpoch: go on with what is there.",
    )
    group: str | None = Field(
        default=None,
        min_length=1,
        max_length=249,
        description="Consumer group that shows in Kafka how far the source is read. The default is derived "
        "from the id of the collection.",
    )
    security: dict[str, Annotated[str, Field(max_length=2048)]] = Field(
        default={},
        description="Properties such as security.protocol, sasl.mechanism and sasl.username. Secrets and "
        "certificates come from secretRef. Without secretRef, passwordEnv and keyPasswordEnv name "
        "environment variables, which spark.envSecretRef sets.",
        json_schema_extra={"maxProperties": 16} | validations(_KNOWN_SECURITY),
    )
    secret_ref: LocalReference | None = _secret_ref(
        "with a user and a password, or certificates", tuple(KAFKA_KEYS)
    )
    transactions: str | None = Field(
        default=None,
        min_length=1,
        max_length=249,
        description="Topic to which Debezium writes where transactions end. Steps then end between "
        "transactions. Only with envelope Debezium.",
    )


class FilesSource(ApiModel):
    """Files of a folder or of a bucket."""

    path: str = Field(
        min_length=1,
        max_length=2048,
        description="A folder that the pods see, such as one of spark.pod.volumes, or "
        "s3://bucket/prefix?endpoint=...&region=... with credentials from secretRef. Immutable.",
        json_schema_extra=validations(*_NO_SECRETS, _FIXED),
    )
    pattern: str = Field(
        default="*", min_length=1, max_length=1024, description="Pattern of the paths to read, e.g. *.jsonl."
    )
    on_changed: Literal["error", "ignore"] = Field(
        default="error",
        description="What to do with a file that changed after it was read: record an error, or ignore it.",
    )
    order: Literal["Modified", "Lexical"] = Field(
        default="Modified",
        description="Lexical: each new file has a later name than all before it, and listing starts after "
        "the last one that was read. Required for more than 10,000 files.",
    )
    forget_after: str = Field(
        default="30d",
        pattern=r"^[0-9]{1,9}(ms|s|m|h|d)$",
        max_length=11,
        description="How long a file that was read may be missing before it is forgotten. A forgotten file "
        "that comes back is read again. 0s: never.",
    )
    secret_ref: LocalReference | None = _secret_ref(
        "with the credentials for a bucket. The default is the credentials of the catalog's storage", S3_KEYS
    )
    _no_secrets = field_validator("path")(without_secrets)


class PostgresSource(ApiModel):
    """A table of a Postgres database, by logical replication."""

    url: str = Field(
        min_length=1,
        max_length=2048,
        description="postgresql://host:port/database. User and password are the keys username and "
        "password of the Secret in secretRef.",
        json_schema_extra=validations(*_NO_SECRETS),
    )
    table: str = Field(
        pattern=r"^[^.]+\.[^.]+$",
        max_length=127,
        description="The table, with its schema: public.orders. Immutable.",
        json_schema_extra=validations(_FIXED),
    )
    publication: str = Field(
        min_length=1,
        max_length=63,
        description="The publication that contains the table. Immutable.",
        json_schema_extra=validations(_FIXED),
    )
    slot: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9_]{1,45}$",
        max_length=45,
        description="Prefix of the names of replication slots. The default is derived from the collection.",
    )
    on_reset: Literal["Stall", "NewEpoch"] = Field(
        default="Stall",
        description="What to do if changes are gone before they were read. Stall: stop and say so. "
        "NewEpoch: read the whole table again.",
    )
    password_env: str | None = Field(
        default=None,
        pattern=_ENV,
        max_length=128,
        description="Environment variable with the password, which spark.envSecretRef sets.",
    )
    password_file: str | None = Field(
        default=None, max_length=1024, description="File with the password that the pods see."
    )
    secret_ref: LocalReference | None = _secret_ref("with user and password", SERVER_KEYS)
    _no_secrets = field_validator("url")(without_secrets)


class SourceCollection(ApiModel):
    """Another collection, whose times stay the same."""

    name: str = Field(
        min_length=1,
        max_length=1024,
        description="Name or id of the collection. Immutable.",
        json_schema_extra=validations(_FIXED),
    )
    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of its location. The default is the location of this collection.",
        json_schema_extra=validations(*_NO_SECRETS),
    )
    consensus: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of its consensus store, if url names only a blob store.",
        json_schema_extra=validations(*_NO_SECRETS),
    )
    start: Literal["Earliest", "Latest"] = Field(
        default="Earliest",
        description="Where the collection begins: with the earliest readable time of the source, or with the "
        "latest. It is decided once.",
    )
    columns: dict[Annotated[str, Field(max_length=16)], Annotated[str, Field(max_length=128)]] = Field(
        default={},
        description="Columns that contain the parts of a message, by part: value, key, partition, position "
        "and timestamp. The default is the column with the name of the part.",
        json_schema_extra={"maxProperties": 8},
    )
    _no_secrets = field_validator("url", "consensus")(without_secrets)


class GeneratorSource(ApiModel):
    """Generated rows, for trials."""

    rows: int = Field(default=0, ge=0, description="Number of rows. 0: unlimited.")
    rows_per_second: int = Field(default=0, ge=0, description="Rows per second since the time `since`.")
    since: int = Field(
        default=0,
        ge=0,
        description="A time in milliseconds since 1970. Immutable.",
        json_schema_extra=validations(_FIXED),
    )
    keys: int = Field(
        default=0,
        ge=0,
        description="Number of different ids. 0: each row has its own. Immutable.",
        json_schema_extra=validations(_FIXED),
    )


class PlainFormat(ApiModel):
    """A format without options."""


class AvroRegistry(ApiModel):
    """A schema registry with Confluent's REST API."""

    url: str = Field(
        pattern=r"^https?://.+",
        max_length=2048,
        description="URL of the registry.",
        json_schema_extra=validations(*_NO_SECRETS),
    )
    user: str | None = Field(default=None, max_length=255, description="User of the registry.")
    password_env: str | None = Field(
        default=None,
        pattern=_ENV,
        max_length=128,
        description="Environment variable with the user's password, which spark.envSecretRef sets.",
    )
    password_file: str | None = Field(
        default=None, max_length=1024, description="File with the password that the pods see."
    )
    ca_file: str | None = Field(
        default=None, max_length=1024, description="File with the certificates to trust, which the pods see."
    )
    secret_ref: LocalReference | None = _secret_ref("with user and password", SERVER_KEYS)
    _no_secrets = field_validator("url")(without_secrets)


class AvroFormat(ApiModel):
    """Where the schemas of Avro messages are. Empty for files, which contain theirs."""

    registry: AvroRegistry | None = Field(default=None, description="The schema registry of the messages.")
    schema_file: str | None = Field(
        default=None, max_length=1024, description="A file with the schema of all messages."
    )
    keys: Literal["avro", "json"] | None = Field(
        default=None, description="Format of the messages' keys. With a registry, the default is avro."
    )


class SourceFormat(ApiModel):
    """How a message becomes a row. Columns are found by their names."""

    json_: PlainFormat | None = Field(default=None, alias="json", description="A JSON object.")
    csv: PlainFormat | None = Field(default=None, description="CSV files with a header.")
    avro: AvroFormat | None = Field(default=None, description="Avro messages or files.")
    parquet: PlainFormat | None = Field(default=None, description="Parquet files.")
    raw: PlainFormat | None = Field(
        default=None, description="The bytes of a message, as they are, in the one binary column."
    )
    rows: PlainFormat | None = Field(
        default=None, description="The columns of a collection, as they are. Only for a collection."
    )


class SourceInclude(ApiModel):
    """What a message has besides its fields, and the columns that get it."""

    partition: str | None = Field(default=None, max_length=128, description="Column for the partition.")
    position: str | None = Field(default=None, max_length=128, description="Column for the position.")
    timestamp: str | None = Field(default=None, max_length=128, description="Column for the timestamp.")
    key: str | None = Field(default=None, max_length=128, description="Column for the key.")
    record: str | None = Field(default=None, max_length=128, description="Column for the whole JSON object.")


class SourceRun(ApiModel):
    """When the source is read."""

    mode: Literal["Continuous", "Scheduled"] = Field(
        default="Continuous",
        description="Continuous: a job follows the source all the time. Scheduled: at each time of cron, a "
        "job reads up to the end that the source has then.",
    )
    cron: CronSchedule | None = Field(default=None, description="The times for mode Scheduled.")
    interval: Period = Field(default="5s", description="Time from the beginning of one step to the next.")
    progress_interval: str = Field(
        default="60s",
        pattern=r"^[0-9]{1,9}(ms|s|m|h|d)$",
        max_length=11,
        description="How often a step without new messages moves upper, so that readers know that there is "
        "nothing new. 0s: never.",
    )
    suspend: bool = Field(
        default=False,
        description="If true, no job reads the source until it is false again. A running one is ended.",
    )

    @property
    def is_continuous(self) -> bool:
        """Whether one job follows the source all the time."""
        return self.mode == "Continuous"


class SourceBatch(ApiModel):
    """The size of a step."""

    max_rows: int = Field(default=1_000_000, ge=1, description="Maximum number of messages in a step.")
    max_bytes: Quantity = Field(
        default="256Mi",
        description="Maximum size of a step. With the envelopes Upsert and Debezium, also the maximum size "
        "of the copy of the collection in memory. A larger collection has no copy, and each step looks up "
        "its keys.",
    )
    max_transaction_bytes: Quantity = Field(
        default="1Gi",
        description="With kafka.transactions and with postgres: maximum size of a transaction. A step with "
        "such a transaction may exceed maxRows and maxBytes. With postgres, also the maximum size of the "
        "initial contents.",
    )


class CollectErrors(ApiModel):
    """Bad records are kept in a collection of errors."""

    limit: int = Field(
        default=1000,
        ge=0,
        description="Maximum number of bad records. With more, the source stops before it commits.",
    )


class SourceErrors(ApiModel):
    """What happens to bad records."""

    collect: CollectErrors = Field(
        default=CollectErrors(),
        description="Keep them, and go on.",
        json_schema_extra={"default": {}},
    )


class CollectionSource(ApiModel):
    """What feeds the collection. Nobody else can write to it."""

    kafka: KafkaSource | None = Field(default=None, description="A topic of Kafka.")
    files: FilesSource | None = Field(default=None, description="Files of a folder or of a bucket.")
    postgres: PostgresSource | None = Field(default=None, description="A table of a Postgres database.")
    collection: SourceCollection | None = Field(default=None, description="Another collection.")
    generator: GeneratorSource | None = Field(default=None, description="Generated rows, for trials.")
    format: SourceFormat | None = Field(
        default=None,
        description="How a message becomes a row. A change fills a new rendition from the source, which then "
        "takes over. The same holds for envelope, include and onBadValue.",
        json_schema_extra=validations(_ONE_FORMAT),
    )
    envelope: Literal["None", "Upsert", "Debezium"] | None = Field(
        default=None,
        description="None: each message is a row. Upsert: a message replaces the row with its key, and one "
        "without a value deletes it. Debezium: a message is a change with before and after. The default is "
        "None, and Upsert for postgres.",
    )
    include: SourceInclude = Field(
        default=SourceInclude(),
        description="Columns for what a message has besides its fields.",
        json_schema_extra={"default": {}},
    )
    run: SourceRun = Field(
        default=SourceRun(),
        description="When the source is read.",
        json_schema_extra={"default": {}}
        | validations(
            (
                "has(self.cron) == (has(self.mode) && self.mode == 'Scheduled')",
                "cron belongs to mode Scheduled",
            )
        ),
    )
    batch: SourceBatch = Field(
        default=SourceBatch(), description="The size of a step.", json_schema_extra={"default": {}}
    )
    on_bad_value: Literal["Remove", "Keep"] = Field(
        default="Remove",
        description="What happens to the row of a key whose newest message is a bad record, with envelope "
        "Upsert or Debezium. Remove: it is gone until a good message comes. Keep: it stays.",
    )
    on_error: SourceErrors = Field(
        default=SourceErrors(), description="What happens to bad records.", json_schema_extra={"default": {}}
    )
    spark: SparkOverride = Field(
        default=SparkOverride(),
        description="How this Spark job differs from spec.spark. maxAttempts counts only in mode Scheduled: "
        "a job that follows the source is started again and again, after 5 seconds to 5 minutes.",
        json_schema_extra=UNSEEN,
    )

    @property
    def block(self) -> Mapping[str, Any]:
        """The block that `holdfast.ingest` takes. It has no secrets, and no fields with their defaults."""
        return self.model_dump(
            mode="json",
            by_alias=True,
            exclude_none=True,
            exclude_defaults=True,
            exclude={"spark": True, "run": {"mode", "cron", "suspend"}},
        )


class SourcePartition(ApiModel):
    """How far one partition of the source is read."""

    partition: str = Field(description="Name of the partition: a number in Kafka, a path for files.")
    position: int = Field(description="The next position to read.")
    behind: int | None = Field(
        default=None, description="Messages in Kafka that were not yet read at the last step."
    )


class SourceScheduleStatus(ScheduleStatus):
    """The state of the schedule of mode Scheduled."""

    job: SparkJobStatus | None = Field(default=None, description="The job of the last run that started.")


class SourceStatus(ApiModel):
    """How far the collection is fed, as the store has it."""

    job: SparkJobStatus | None = Field(default=None, description="The job that follows the source.")
    complete_before: Frontier | None = Field(
        default=None, description="The contents of the collection before this time are final."
    )
    messages: int | None = Field(default=None, description="Number of messages that were read.")
    behind: int | None = Field(
        default=None, description="Messages in Kafka that were not yet read at the last step. 0 if none."
    )
    errors: int | None = Field(default=None, description="Number of bad records that nothing has corrected.")
    partitions: tuple[SourcePartition, ...] | None = Field(
        default=None,
        description="The partitions, at most 20, in the order of their names.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
    )
    partitions_total: int | None = Field(
        default=None, description="Number of partitions, if not all of them are shown."
    )
