"""What to ingest: the `source` block of a resource, or of a file for `holdfast ingest`.

Everything is checked here, and an error names the field.
"""

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, urlsplit

from holdfast.errors import BadInput
from holdfast.ingest.credentials import SecretPlace, SecretRef
from holdfast.ingest.envelope import Envelope
from holdfast.persist.stores.s3_place import FORM, S3Place
from holdfast.text import SECRET_OPTION

FORMATS: Final[tuple[str, ...]] = ("json", "csv", "avro", "parquet", "raw", "rows")
INCLUDES: Final[tuple[str, ...]] = ("partition", "position", "timestamp", "key", "record")
START: Final = ("Earliest", "Latest")
PARTS: Final = ("value", "key", "partition", "position", "timestamp")
"""The parts of a message that columns of a collection may have."""
SECURITY: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)
"""Properties of librdkafka that a spec may set. None of them is a secret."""
SECRETS: Final = {"password": "sasl.password", "keyPassword": "ssl.key.password"}
"""Secrets by the beginning of their fields: a spec names an environment variable or a file for each."""
SLOT_CHARS: Final = 45
"""The greatest length of `slot`. Postgres allows 63 characters. A collection and an attempt add 9 each."""
FORGET_AFTER_S: Final = 30 * 86400.0
"""So long a file that was read may be missing from a folder before it is forgotten, by default."""
_SLOT: Final = re.compile(rf"[a-z0-9_]{{1,{SLOT_CHARS}}}")
_HOW_TO_NAME: Final = (
    "put it into an environment variable or a file, and name that with passwordEnv or passwordFile"
)
KAFKA_KEYS: Final = {
    "username": "sasl.username",
    "password": "sasl.password",
    "ca.crt": "ssl.ca.location",
    "tls.crt": "ssl.certificate.location",
    "tls.key": "ssl.key.location",
    "keyPassword": "ssl.key.password",
}
"""The keys of a Secret for Kafka, and what of librdkafka they are for."""
SERVER_KEYS: Final = ("username", "password", "ca.crt")
"""The keys of a Secret for Postgres and for a schema registry."""
S3_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""The keys of a Secret for a bucket."""
_SECRET: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PLAINTEXT: Final = "PLAINTEXT"
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_SIZE: Final = re.compile(r"(\d+)(Ki|Mi|Gi|Ti|)")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS_BYTES: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """Files in a folder or S3 bucket whose paths match a pattern. `on_changed` is "error" or "ignore".

    `secret` has the credentials for the bucket. Default: those of the environment. A file that was not listed
    for `forget_after_s` is forgotten (0: never). `lexical` says that later files have later names.
    """

    REPLAYABLE: ClassVar[bool] = True
    COUNTS: ClassVar[bool] = False
    path: Path | S3Place
    pattern: str = "*"
    on_changed: str = "error"
    secret: SecretRef | None = None
    forget_after_s: float = FORGET_AFTER_S
    lexical: bool = False


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    """Generated rows: `rows` in all (0: no end), `rows_per_second` since `since_ms`, ids below `keys`."""

    REPLAYABLE: ClassVar[bool] = True
    COUNTS: ClassVar[bool] = True
    rows: int = 0
    rows_per_second: float = 0
    since_ms: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class KafkaSpec:
    """A topic. `start` is Earliest, Latest, a time in milliseconds since 1970, or offsets by partition.

    `new_epoch` is whether to go on with what is there if messages are gone. `security` has properties of
    librdkafka, and `secrets` says where to find those that are secret. `secret` may have both (`KAFKA_KEYS`);
    `security` goes first. `transactions` is Debezium's topic of transactions, or empty.
    """

    REPLAYABLE: ClassVar[bool] = True
    COUNTS: ClassVar[bool] = True
    bootstrap_servers: str
    topic: str
    start: str | int | Mapping[int, int] = START[0]
    new_epoch: bool = False
    group: str = ""
    security: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretPlace] = field(default_factory=dict)
    transactions: str = ""
    secret: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class PostgresSpec:
    """A table of a publication. `table` has its schema, and `slot` is how the names of its slots begin.

    `new_epoch` is whether to read the whole table again if changes are gone. Each rendition has its own slot
    and begins with its own snapshot.
    """

    REPLAYABLE: ClassVar[bool] = False
    COUNTS: ClassVar[bool] = False
    url: str
    table: str
    publication: str
    slot: str = ""
    new_epoch: bool = False
    password: SecretPlace | None = None
    secret: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class CollectionSourceSpec:
    """Another collection, by its name or id. Without a `url` it is in the location that is fed.

    `consensus` is the URL of the consensus store, if `url` names only a blob store.

    `start` is Earliest or Latest. `columns` names the columns that have the parts of a message. Other parts
    are in the columns with their own names, if the collection has such columns.
    """

    REPLAYABLE: ClassVar[bool] = True
    COUNTS: ClassVar[bool] = False
    collection: str
    url: str = ""
    consensus: str = ""
    start: str = START[0]
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegistrySpec:
    """A schema registry with Confluent's REST API."""

    url: str
    user: str = ""
    password: SecretPlace | None = None
    ca_file: Path | None = None
    secret: SecretRef | None = None


@dataclass(frozen=True, slots=True)
class AvroSpec:
    """Where the schemas of messages are: in a registry, in a file, or in the header of each file (neither).

    `keys` is the format of the messages' keys, "avro" or "json".
    """

    registry: RegistrySpec | None = None
    schema_file: Path | None = None
    keys: str = "json"


SourceSpec = CollectionSourceSpec | FilesSpec | GeneratorSpec | KafkaSpec | PostgresSpec


@dataclass(frozen=True, slots=True)
class IngestSpec:
    """A source, how its records are decoded, and how often and how much a step commits.

    `include` maps what a record has besides its fields to columns. `error_limit` is the greatest number of
    bad records that the collection keeps. With `keeps_row`, a bad record leaves the row of its key. A source
    is `REPLAYABLE` if each reader can get the same messages for the same positions. It `COUNTS` if the
    positions of a partition count its messages.
    """

    source: SourceSpec
    format: str
    envelope: Envelope = Envelope.NONE
    include: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 5
    progress_interval_s: float = 60
    max_rows: int = 1_000_000
    max_bytes: int = 256 << 20
    error_limit: int = 1000
    keeps_row: bool = False
    avro: AvroSpec = field(default_factory=AvroSpec)
    max_transaction_bytes: int = 1 << 30

    @property
    def has_transactions(self) -> bool:
        """Whether steps end between transactions."""
        return isinstance(self.source, KafkaSpec) and bool(self.source.transactions)

    @property
    def secrets(self) -> tuple[SecretRef, ...]:
        """The Secrets that the spec names."""
        own = None if isinstance(self.source, CollectionSourceSpec | GeneratorSpec) else self.source.secret
        of_registry = None if self.avro.registry is None else self.avro.registry.secret
        return tuple(each for each in (own, of_registry) if each is not None)


def parse(block: object, where: str = "source") -> IngestSpec:
    """Return the spec that a `source` block describes. Raises `BadInput`, which names the field."""
    given = _Block(block, where)
    kinds = [each for each in _SOURCES if each in given.names]
    if len(kinds) != 1:
        found = ", ".join(given.names) or "nothing"
        raise BadInput(f"{where} must have one of {', '.join(_SOURCES)} (it has {found})")
    source = _SOURCES[kinds[0]](given.block(kinds[0]))
    avro = AvroSpec()
    if isinstance(source, PostgresSpec):
        format_, envelope = _changes(given)
    else:
        format_ = _only(given, "format", FORMATS)
        if format_ == "avro":
            avro = _avro(given.block("format").block("avro"), is_whole=isinstance(source, FilesSpec))
        envelope = given.choice("envelope", [each.value for each in Envelope], Envelope.NONE.value)
    include_block = given.block("include")
    include = {each: name for each in INCLUDES if (name := include_block.optional(each))}
    include_block.done()
    run, batch = given.block("run"), given.block("batch")
    collect = given.block("onError").block("collect")
    spec = IngestSpec(
        source,
        format_,
        Envelope(envelope),
        include,
        run.duration("interval", 5),
        run.duration("progressInterval", 60),
        batch.number("maxRows", 1_000_000, least=1),
        batch.size("maxBytes", 256 << 20),
        collect.number("limit", 1000, least=0),
        given.choice("onBadValue", ["Remove", "Keep"], "Remove") == "Keep",
        avro,
        batch.size("maxTransactionBytes", 1 << 30),
    )
    for each in (run, batch, collect, given):
        each.done()
    _check_collection(spec, where)
    _check_transactions(spec, where, is_limited="maxTransactionBytes" in batch.names)
    if spec.keeps_row and not spec.envelope.is_keyed:
        raise BadInput(f"{where}.onBadValue Keep needs envelope Upsert or Debezium, which have keys")
    return spec


def _files(given: "_Block") -> FilesSpec:
    spec = FilesSpec(
        _place(given.text("path"), f"{given.where}.path"),
        given.text("pattern", "*"),
        given.choice("onChanged", ["error", "ignore"], "error"),
        _secret_ref(given, S3_KEYS, S3_KEYS[:2], shared=True),
        given.duration("forgetAfter", FORGET_AFTER_S),
        given.choice("order", ["Modified", "Lexical"], "Modified") == "Lexical",
    )
    given.done()
    if spec.secret is not None and isinstance(spec.path, Path):
        raise BadInput(f"{spec.secret.where} is for a path s3://..., and {given.where}.path is a folder")
    return spec


def _place(text: str, where: str) -> Path | S3Place:
    """The folder of a path, or the place of an s3:// URL."""
    if "://" not in text:
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme != "s3":
        raise BadInput(f"{where} must be the path of a folder, or {FORM}")
    return S3Place.of(parts)


def _generator(given: "_Block") -> GeneratorSpec:
    spec = GeneratorSpec(
        given.number("rows", 0, least=0),
        given.number("rowsPerSecond", 0, least=0),
        given.number("since", 0, least=0),
        given.number("keys", 0, least=0),
    )
    given.done()
    if not spec.rows and not spec.rows_per_second:
        raise BadInput(f"{given.where} needs rows, rowsPerSecond or both")
    return spec


def _kafka(given: "_Block") -> KafkaSpec:
    security = given.block("security")
    properties = {each: text for each in SECURITY if (text := security.optional(each))}
    secrets = {SECRETS[each]: place for each in SECRETS if (place := _secret(security, each))}
    spec = KafkaSpec(
        given.text("bootstrapServers"),
        given.text("topic"),
        _start(given),
        given.choice("onReset", ["Stall", "NewEpoch"], "Stall") == "NewEpoch",
        given.optional("group"),
        properties,
        secrets,
        given.optional("transactions"),
        _secret_ref(given, tuple(KAFKA_KEYS), _needed_by_kafka(properties), shared=True),
    )
    for each in SECRETS.values():
        if each in security.names:
            raise BadInput(
                f"{security.where}.{each} is a secret, which a spec may not have",
                hint="put it into an environment variable or a file, and name that with passwordEnv,"
                " passwordFile, keyPasswordEnv or keyPasswordFile",
            )
    security.done()
    given.done()
    if spec.secret is not None and spec.secrets:
        raise _in_two_places(spec.secret, security)
    if spec.secret is not None and properties.get(SECURITY[0], _PLAINTEXT).upper() == _PLAINTEXT:
        raise BadInput(
            f"{spec.secret.where} needs {security.where}.{SECURITY[0]}, because Kafka asks for no credentials"
            f" without it",
            hint=f"set {SECURITY[0]} to SASL_SSL, SASL_PLAINTEXT or SSL",
        )
    return spec


def _needed_by_kafka(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The keys that a Secret for Kafka must have. What TLS needs depends on the brokers."""
    if not properties.get("security.protocol", "").upper().startswith("SASL"):
        return ()
    if not properties.get("sasl.mechanism", "").upper().startswith(("PLAIN", "SCRAM")):
        return ()
    return ("password",) if "sasl.username" in properties else ("username", "password")


def _postgres(given: "_Block") -> PostgresSpec:
    spec = PostgresSpec(
        given.text("url"),
        given.text("table"),
        given.text("publication"),
        given.optional("slot"),
        given.choice("onReset", ["Stall", "NewEpoch"], "Stall") == "NewEpoch",
        _secret(given, "password"),
        _secret_ref(given, SERVER_KEYS, ("password",)),
    )
    given.done()
    _check_no_secret(f"{given.where}.url", spec.url, _HOW_TO_NAME)
    if spec.secret is not None and spec.password is not None:
        raise _in_two_places(spec.secret, given)
    parts = urlsplit(spec.url)
    if parts.scheme not in {"postgresql", "postgres"} or not parts.path.strip("/"):
        raise BadInput(f"{given.where}.url must be postgresql://user@host:port/database")
    if len(spec.table.split(".")) != 2 or not all(spec.table.split(".")):
        raise BadInput(f"{given.where}.table is {spec.table!r}, expected a schema and a table: public.orders")
    if spec.slot and not _SLOT.fullmatch(spec.slot):
        raise BadInput(
            f"{given.where}.slot is {spec.slot!r}, expected at most {SLOT_CHARS} lower-case letters, digits"
            " and underscores"
        )
    return spec


def _collection(given: "_Block") -> CollectionSourceSpec:
    columns = given.block("columns")
    spec = CollectionSourceSpec(
        given.text("name"),
        given.optional("url"),
        given.optional("consensus"),
        given.choice("start", list(START), START[0]),
        {each: name for each in PARTS if (name := columns.optional(each))},
    )
    columns.done()
    given.done()
    if spec.consensus and not spec.url:
        raise BadInput(f"{given.where}.consensus needs {given.where}.url, the URL of the blob store")
    for what, url in (("url", spec.url), ("consensus", spec.consensus)):
        _check_no_secret(f"{given.where}.{what}", url, "put it into $PGPASSWORD or libpq's password file")
    return spec


def _check_no_secret(where: str, url: str, hint: str) -> None:
    """Raise `BadInput` if a URL has a secret, or can't be parsed. The error quotes nothing of the URL."""
    try:
        parts = urlsplit(url)
        options = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    except ValueError:
        raise BadInput(f"{where} can't be parsed", hint="percent-encode special characters") from None
    if parts.password is not None or "password" in options:
        raise BadInput(f"{where} has a password, which is a secret that a spec may not have", hint=hint)
    if found := [each for each in options if SECRET_OPTION.fullmatch(each)]:
        raise BadInput(
            f"{where} has {found[0]}, which is a secret that a spec may not have",
            hint="put it into a service file of libpq, and name that with ?service= and $PGSERVICEFILE",
        )


def _check_collection(spec: IngestSpec, where: str) -> None:
    """Raise `BadInput` for what is not possible with a collection as source, or only with one."""
    if not isinstance(spec.source, CollectionSourceSpec):
        if spec.format == "rows":
            raise BadInput(f"{where}.format rows is only for a collection")
        return
    if spec.envelope is not Envelope.NONE:
        raise BadInput(
            f"{where}.envelope is {spec.envelope.value!r}, but a collection as source needs None: its rows at"
            " one time have no order, so no message is the last one of its key",
            hint="feed a collection with this envelope from the source of the raw collection",
        )
    if spec.format == "rows" and (spec.source.columns or spec.include):
        name = "collection.columns" if spec.source.columns else "include"
        raise BadInput(f"{where}.{name} is not for format rows, whose columns have the same names")


def _check_transactions(spec: IngestSpec, where: str, *, is_limited: bool) -> None:
    """Raise `BadInput` for what does not fit `kafka.transactions`."""
    if not spec.has_transactions:
        if is_limited and not isinstance(spec.source, PostgresSpec):
            raise BadInput(f"{where}.batch.maxTransactionBytes needs {where}.kafka.transactions or postgres")
        return
    if spec.envelope is not Envelope.DEBEZIUM:
        raise BadInput(f"{where}.kafka.transactions needs envelope Debezium")
    if spec.format == "avro" and spec.avro.registry is None:
        raise BadInput(
            f"{where}.kafka.transactions needs {where}.format.avro.registry, because the messages of the two"
            " topics have different schemas"
        )


def _changes(given: "_Block") -> tuple[str, str]:
    """The format and the envelope of a source that has changes of rows. It has no choice."""
    if "format" in given.names:
        raise BadInput(f"{given.where}.format is not for postgres, whose columns have types: leave it out")
    envelope = given.choice("envelope", [each.value for each in Envelope], Envelope.UPSERT.value)
    if envelope != Envelope.UPSERT.value:
        raise BadInput(f"{given.where}.envelope is {envelope!r}, but changes of a table need Upsert")
    for each in ("timestamp", "record"):
        if each in given.block("include").names:
            raise BadInput(f"{given.where}.include.{each} is not for postgres")
    return "json", envelope


def _secret(given: "_Block", name: str) -> SecretPlace | None:
    variable, file = given.optional(f"{name}Env"), given.optional(f"{name}File")
    if variable and file:
        raise BadInput(f"{given.where} must have one of {name}Env and {name}File, not both")
    if file:
        return SecretPlace(file=Path(file))
    return SecretPlace(variable=variable) if variable else None


def _secret_ref(
    given: "_Block", keys: tuple[str, ...], required: tuple[str, ...], *, shared: bool = False
) -> SecretRef | None:
    if not given.has("secretRef"):
        return None
    block = given.block("secretRef")
    name = block.text("name")
    block.done()
    if not _SECRET.fullmatch(name):
        raise BadInput(f"{block.where}.name is {name!r}, expected the name of a Secret")
    return SecretRef(name, block.where, keys, required, shared)


def _in_two_places(secret: SecretRef, given: "_Block") -> BadInput:
    return BadInput(f"{secret.where} has the secrets, so {given.where} can't name a variable or a file too")


def _start(given: "_Block") -> str | int | Mapping[int, int]:
    if not given.is_block("start"):
        return given.choice("start", list(START), START[0], ", {timestamp: ...}, {offsets: ...}")
    block = given.block("start")
    if block.names == ["timestamp"]:
        return block.time_ms("timestamp")
    if block.names == ["offsets"]:
        offsets = block.block("offsets")
        return {offsets.index(each): offsets.number(each, 0, least=0) for each in offsets.keys}
    raise BadInput(f"{block.where} must be {', '.join(START)}, {{timestamp: ...}} or {{offsets: ...}}")


_SOURCES: Final[Mapping[str, Callable[["_Block"], SourceSpec]]] = {
    "files": _files,
    "kafka": _kafka,
    "postgres": _postgres,
    "collection": _collection,
    "generator": _generator,
}


def _only(given: "_Block", name: str, known: tuple[str, ...]) -> str:
    """The one name in a block such as `format: {json: {}}`."""
    block = given.block(name)
    found = [each for each in block.names if each in known]
    if len(found) != 1 or len(block.names) != 1:
        raise BadInput(f"{block.where} must be one of {', '.join(known)}, such as {{{known[0]}: {{}}}}")
    if found[0] != "avro":
        block.block(found[0]).done()
    return found[0]


def _avro(given: "_Block", *, is_whole: bool) -> AvroSpec:
    if is_whole:
        if given.names:
            raise BadInput(
                f"{given.where}.{given.names[0]} is not for files: an object container file has its schema"
            )
        return AvroSpec()
    found = [each for each in ("registry", "schemaFile") if each in given.names]
    if len(found) != 1:
        raise BadInput(f"{given.where} must have one of registry and schemaFile")
    if found == ["schemaFile"]:
        spec = AvroSpec(schema_file=Path(given.text("schemaFile")))
    else:
        registry = _registry(given.block("registry"))
        spec = AvroSpec(registry, keys=given.choice("keys", ["avro", "json"], "avro"))
    given.done()
    return spec


def _registry(given: "_Block") -> RegistrySpec:
    user = given.optional("user")
    spec = RegistrySpec(
        given.text("url"),
        user,
        _secret(given, "password"),
        Path(file) if (file := given.optional("caFile")) else None,
        _secret_ref(given, SERVER_KEYS, ("password",) if user else ("username", "password")),
    )
    if spec.secret is not None and spec.password is not None:
        raise _in_two_places(spec.secret, given)
    if "password" in given.names:
        raise BadInput(f"{given.where}.password is a secret, which a spec may not have", hint=_HOW_TO_NAME)
    given.done()
    try:
        parts = urlsplit(spec.url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise BadInput(f"{given.where}.url must be http://host:port or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise BadInput(
            f"{given.where}.url has a user or a password, which is a secret that a spec may not have",
            hint=f"put the user into {given.where}.user; {_HOW_TO_NAME}",
        )
    if spec.password is not None and not user:
        raise BadInput(f"{given.where} has a password but no user")
    return spec


def _kind(value: object) -> str:
    """What a value in the wrong place is. Text may be a URL with a secret, also in a list or a block."""
    kinds = {str: "text", Mapping: "a block", list: "a list"} if value else {}
    return next((kind for type_, kind in kinds.items() if isinstance(value, type_)), repr(value))


class _Block:
    """Fields of a block, which are taken one after the other. What is left at the end is unknown."""

    def __init__(self, given: object, where: str) -> None:
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise BadInput(f"{where} must be a block of fields, not {_kind(given)}")
        self.where = where
        self._fields = given
        self._known: set[object] = set()

    @property
    def names(self) -> list[str]:
        return [str(each) for each in self._fields]

    @property
    def keys(self) -> list[Any]:
        """The names as they were given, such as numbers."""
        return list(self._fields)

    def done(self) -> None:
        if unknown := [each for each in self._fields if each not in self._known]:
            known = ", ".join(sorted(str(each) for each in self._known)) or "nothing"
            raise BadInput(f"{self.where} has an unknown field '{unknown[0]}'", hint=f"it may have {known}")

    def _take(self, name: Any, default: Any) -> Any:
        self._known.add(name)
        return self._fields.get(name, default)

    def has(self, name: str) -> bool:
        self._known.add(name)
        return name in self._fields

    def is_block(self, name: str) -> bool:
        return isinstance(self._fields.get(name), Mapping)

    def block(self, name: str) -> "_Block":
        return _Block(self._take(name, None), f"{self.where}.{name}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name, default)
        if value is None:
            near = get_close_matches(name, self.names, 1)
            raise BadInput(
                f"{self.where}.{name} is missing",
                hint=f"'{near[0]}' may be meant" if near else f"give {self.where} the field {name}",
            )
        if not isinstance(value, str) or not value:
            raise BadInput(
                f"{self.where}.{name} must be text" + ("" if value is None else f", not {_kind(value)}")
            )
        if _NO_TEXT.search(value):
            raise BadInput(f"{self.where}.{name} has a NUL, or a character that UTF-8 does not have")
        return value

    def optional(self, name: str) -> str:
        """The text of a field. Empty if it is not given."""
        self._known.add(name)
        return self.text(name) if name in self._fields else ""

    def choice(self, name: str, choices: list[str], default: str, others: str = "") -> str:
        """One of these texts. `others` says what else the field may have, which the caller takes."""
        value = self._take(name, default)
        if value not in choices:
            raise BadInput(f"{self.where}.{name} is {value!r}, expected one of {', '.join(choices)}{others}")
        return str(value)

    def index(self, name: object) -> int:
        """The number of a partition, which is a name in the block."""
        try:
            index = int(str(name))
        except ValueError:
            index = -1
        if index < 0:
            raise BadInput(f"{self.where} has {name!r} in the place of the number of a partition")
        return index

    def time_ms(self, name: str) -> int:
        value = self._take(name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        try:
            # YAML reads a text such as 2026-01-31T00:00:00Z as a time.
            found = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
        except ValueError:
            found = None
        if found is None or (found.tzinfo is None and not isinstance(value, dt.datetime)):
            raise BadInput(
                f"{self.where}.{name} is {value!r}, expected a time such as 2026-01-31T00:00:00Z, or"
                " milliseconds since 1970"
            )
        return int((found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp() * 1000)

    def number(self, name: Any, default: int, *, least: int) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(f"{self.where}.{name} is {value!r}, expected a number from {least}")
        return value

    def duration(self, name: str, default: float) -> float:
        value = self._take(name, None)
        if value is None:
            return default
        match = _DURATION.fullmatch(str(value))
        if match is None:
            raise BadInput(f"{self.where}.{name} is {value!r}, expected a duration such as 5s, 500ms or 2m")
        return float(match[1]) * _UNITS_S[match[2]]

    def size(self, name: str, default: int) -> int:
        value = self._take(name, None)
        if value is None:
            return default
        match = _SIZE.fullmatch(str(value))
        if match is None or not int(match[1]):
            raise BadInput(f"{self.where}.{name} is {value!r}, expected a size such as 256Mi")
        return int(match[1]) * _UNITS_BYTES[match[2]]
