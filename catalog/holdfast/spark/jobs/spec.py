"""The work order of a Spark job: one JSON object, checked whole before anything starts.

A spec says which attempt of which job this is, so that a process can be told from an older one of the
same job. It holds no secrets: credentials reach a job through its environment.
"""

import dataclasses
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import urlsplit

from holdfast.collections import CollectionInfo, JobRecord
from holdfast.errors import CLOSED, BadInput
from holdfast.persist.checks import is_text
from holdfast.spark.options import ReadOptions
from holdfast.spark.place import Place

SPEC_VERSION = 1
_CATALOG: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_SECRET: Final = re.compile(r"secret|token|password|credential|access-key|key-id|oauth2", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What all jobs are told.

    The persist location is `url`, or `blob` and `consensus`; `collection` an id or name; `job_id` and
    `attempt` are those of the JobRecord. `partitions` is the number of tasks at most.
    """

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None
    collection: str
    job_id: str
    attempt: int
    partitions: int = 8
    kind: str
    version: int = SPEC_VERSION

    KIND: ClassVar[str]
    """The job that a spec is for."""
    TEXTS: ClassVar[tuple[str, ...]] = ("collection",)
    """Fields that are texts and must not be empty."""

    def __post_init__(self) -> None:
        whole = ("blob", "consensus") if self.url is None and (self.blob or self.consensus) else ("url",)
        for name in (*whole, *self.TEXTS):
            value = getattr(self, name)
            _check_text(name, value)
        if self.url is not None and (self.blob is not None or self.consensus is not None):
            raise BadInput("job spec: 'url' is the whole location: give it, or 'blob' and 'consensus'")
        if self.kind != self.KIND:
            raise BadInput(f"job spec: kind is {self.kind!r}, this job is {self.KIND!r}")
        if not _is_uuid(self.job_id):
            raise BadInput(f"job spec: 'job_id' must be a lower-case UUID, not {self.job_id!r}")
        _check_integer("attempt", self.attempt, 1, 2**32 - 1)
        _check_integer("partitions", self.partitions, 1, 10_000)

    @property
    def place(self) -> Place:
        """The location."""
        return Place(self.url, self.blob, self.consensus)

    @property
    def slot(self) -> str | None:
        """The slot that a job of this spec has; None where it may have any."""
        return None

    def check_job(self, job: JobRecord, info: CollectionInfo) -> None:
        """Raise `BadInput` unless the job on record is one of this kind, and of the collection."""
        slot = self.slot or job.slot
        if (job.object_id, job.kind, job.slot) != (info.collection_id, self.kind, slot):
            raise BadInput(
                f"job spec: job {job.job_id} is {job.kind} {job.slot} of collection {job.object_id},"
                f" not {self.kind} {slot} of {info.name} ({info.collection_id})",
                hint="give the collection, and the kind, that the job was started for",
            )

    def reading(self, collection: str, as_of: int | None) -> ReadOptions:
        """What to read a collection of that location with, in as many tasks."""
        return ReadOptions(
            url=self.url,
            blob=self.blob,
            consensus=self.consensus,
            collection=collection,
            as_of=as_of,
            partitions=self.partitions,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse and check; `BadInput` names the field, or that the spec is from a newer Holdfast."""
        try:
            given = json.loads(text)
        except ValueError as error:
            raise BadInput(f"job spec is not JSON: {error}") from None
        if not isinstance(given, Mapping):
            raise BadInput(f"job spec must be a JSON object, not {type(given).__name__}")
        _check_version(given)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - set(fields)):
            raise BadInput(f"job spec: unknown field {unknown[0]!r}; there are {', '.join(fields)}")
        required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
        if not given.keys() & {"blob", "consensus"}:
            required.insert(0, "url")
        if missing := [name for name in required if name not in given]:
            raise BadInput(f"job spec: {missing[0]!r} is missing; required are {', '.join(required)}")
        return cls(**given)

    def to_json(self) -> str:
        """The spec as `from_json` takes it."""
        given = dataclasses.asdict(self)
        return json.dumps({name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class IcebergTarget:
    """A table of an Iceberg catalog, whose contents become those of the snapshot.

    `catalog` is its name, `table` is `namespace.table`, `properties` are pyiceberg's: `type`, `uri`,
    `warehouse`, `s3.endpoint`, ... What is missing comes from the environment, from
    `PYICEBERG_CATALOG__<NAME>__<PROPERTY>`, and only there are secrets.
    """

    catalog: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.catalog, str) or not _CATALOG.fullmatch(self.catalog):
            raise BadInput("job spec: 'iceberg.catalog' must be a name of letters, digits and '-'")
        if not isinstance(self.table, str) or not all(self.table.split(".")) or "." not in self.table:
            raise BadInput(f"job spec: 'iceberg.table' must be namespace.table, not {self.table!r}")
        if not isinstance(self.properties, Mapping):
            raise BadInput("job spec: 'iceberg.properties' must be an object of texts")
        for name, value in self.properties.items():
            if not isinstance(value, str):
                raise BadInput(f"job spec: 'iceberg.properties' must be an object of texts, {name!r} is none")
            if _SECRET.search(name) or _with_password(value):
                raise BadInput(
                    f"job spec: iceberg property {name!r} is a secret: specs hold none",
                    hint=f"set {self.variable(name)} in the environment, of the executors too",
                )

    def variable(self, name: str) -> str:
        """The variable of the environment that a property may come from."""
        path = f"{self.catalog}__{name.replace('.', '__')}"
        return f"PYICEBERG_CATALOG__{path.replace('-', '_').upper()}"

    def __str__(self) -> str:
        return f"{self.catalog}.{self.table}"


@dataclass(frozen=True, kw_only=True)
class SnapshotSpec(JobSpec):
    """Write a collection as of one time to Parquet, into a folder or as the contents of an Iceberg table.

    Exactly one of `destination` and `iceberg` is given. `destination` is a folder that driver and executors
    share: an absolute path, `file:///...`, or `s3://bucket/prefix?endpoint=...&region=...` with credentials
    from the environment. `as_of` None is what the record of the job says, else the latest complete time when
    the driver starts: give it where two attempts must write the same. A task writes one file at most.
    """

    KIND: ClassVar[str] = "snapshot"

    destination: str | None = None
    iceberg: IcebergTarget | None = None
    as_of: int | None = None
    kind: str = KIND

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.destination is None) == (self.iceberg is None):
            raise BadInput("job spec: give either 'destination' or 'iceberg'")
        if self.destination is not None:
            _check_text("destination", self.destination)
        if self.iceberg is not None and not isinstance(self.iceberg, IcebergTarget):
            object.__setattr__(self, "iceberg", _iceberg(self.iceberg))
        if self.as_of is not None:
            _check_integer("as_of", self.as_of, 0, CLOSED - 1)

    def check_job(self, job: JobRecord, info: CollectionInfo) -> None:
        """As every job's, and what the record says it reads is what is read."""
        super().check_job(job, info)
        if None not in (self.as_of, job.as_of) and self.as_of != job.as_of:
            raise BadInput(
                f"job spec: 'as_of' is {self.as_of}, and job {job.job_id} was started as of {job.as_of}",
                hint="leave 'as_of' out, or start another job",
            )


@dataclass(frozen=True, kw_only=True)
class HydrateSpec(JobSpec):
    """Fill a rendition of recipe COPY from its collection. `rendition` is its id, and the job's slot."""

    KIND: ClassVar[str] = "hydrate"
    TEXTS: ClassVar[tuple[str, ...]] = ("collection", "rendition")

    rendition: str
    kind: str = KIND

    @property
    def slot(self) -> str | None:
        """The rendition."""
        return self.rendition


@dataclass(frozen=True, kw_only=True)
class CompactSpec(JobSpec):
    """Merge the batches of each shard of a collection's active rendition into one."""

    KIND: ClassVar[str] = "compact"

    kind: str = KIND


Spec = TypeVar("Spec", bound=JobSpec)


def load_spec(argument: str, kind: type[Spec]) -> Spec:
    """A spec from a command line argument: the JSON itself, or the path of a file that holds it."""
    if argument.lstrip().startswith("{"):
        return kind.from_json(argument)
    try:
        return kind.from_json(Path(argument).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"can't read the job spec {argument!r}: {error}") from None


def _iceberg(given: object) -> IcebergTarget:
    if not isinstance(given, Mapping):
        raise BadInput(
            f"job spec: 'iceberg' must be an object of catalog, table and properties, not {given!r}"
        )
    names = {field.name for field in dataclasses.fields(IcebergTarget)}
    if unknown := sorted(set(given) - names):
        raise BadInput(
            f"job spec: unknown field 'iceberg.{unknown[0]}'; there are {', '.join(sorted(names))}"
        )
    if missing := sorted({"catalog", "table"} - set(given)):
        raise BadInput(f"job spec: 'iceberg.{missing[0]}' is missing")
    return IcebergTarget(**given)


def _with_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return True


def _check_version(given: Mapping[str, Any]) -> None:
    version = given.get("version", SPEC_VERSION)
    _check_integer("version", version, 1, 2**32 - 1)
    if version > SPEC_VERSION:
        raise BadInput(
            f"job spec: version {version} is newer than {SPEC_VERSION}",
            hint="run the job with a Holdfast at least as new as the one that wrote the spec",
        )


def _check_text(name: str, value: Any) -> None:
    if not is_text(value) or not value:
        raise BadInput(f"job spec: {name!r} must be a text that isn't empty, not {value!r}")
    if "\0" in value:
        raise BadInput(f"job spec: {name!r} has a null character: {value!r}")


def _check_integer(name: str, value: object, least: int, greatest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= greatest:
        raise BadInput(f"job spec: {name!r} must be an integer from {least} to {greatest}, not {value!r}")


def _is_uuid(value: object) -> bool:
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False
