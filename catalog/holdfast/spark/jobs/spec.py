"""The work order of a Spark job: one JSON object, checked as a whole before anything starts.

A spec gives the job and the attempt, so that a process can be distinguished from an older process of the
same job. A spec contains no secrets: a job has its keys in files (`holdfast.store_keys`), or in its
environment.
"""

import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from holdfast.collections import CollectionInfo, JobRecord
from holdfast.errors import CLOSED, BadInput
from holdfast.ingest.spec import IngestSpec, parse
from holdfast.persist.checks import is_text
from holdfast.spark.options import ReadOptions
from holdfast.spark.place import Place
from holdfast.tables.iceberg.target import IcebergTarget

SPEC_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The fields that the specs of all jobs have.

    The persist location is `url`, or `blob` and `consensus`. `collection` is an id or a name. `job_id` and
    `attempt` are those of the JobRecord. `partitions` is the maximum number of tasks.
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
    """The kind of job that a spec is for."""
    TEXTS: ClassVar[tuple[str, ...]] = ("collection",)
    """Fields that are texts and must not be empty."""

    def __post_init__(self) -> None:
        whole = ("blob", "consensus") if self.url is None and (self.blob or self.consensus) else ("url",)
        for name in (*whole, *self.TEXTS):
            value = getattr(self, name)
            _check_text(name, value)
        if self.url is not None and (self.blob is not None or self.consensus is not None):
            raise BadInput("job spec: 'url' gives both stores: use either 'url', or 'blob' and 'consensus'")
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
        """The slot that a job of this spec must have; None if any slot is allowed."""
        return None

    def check_job(self, job: JobRecord, info: CollectionInfo) -> None:
        """Raise `BadInput` unless the recorded job has this kind and belongs to the collection."""
        slot = self.slot or job.slot
        if (job.object_id, job.kind, job.slot) != (info.collection_id, self.kind, slot):
            raise BadInput(
                f"job spec: job {job.job_id} is {job.kind} {job.slot} of collection {job.object_id},"
                f" not {self.kind} {slot} of {info.name} ({info.collection_id})",
                hint="give the collection, and the kind, that the job was started for",
            )

    def reading(self, collection: str, as_of: int | None) -> ReadOptions:
        """Return the options to read a collection of this location, in at most `partitions` tasks."""
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
        """Parse and check a spec. `BadInput` names the wrong field, or says that the spec is too new."""
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
        """Return the spec as JSON that `from_json` accepts."""
        given = dataclasses.asdict(self)
        return json.dumps({name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class SnapshotSpec(JobSpec):
    """Write a collection as of one time to Parquet, into a folder or as the contents of an Iceberg table.

    Exactly one of `destination` and `iceberg` must be given. `destination` is a folder that the driver and
    the executors share: an absolute path, `file:///...`, or `s3://bucket/prefix?endpoint=...&region=...`,
    which is opened with the job's keys for S3. If `as_of` is None, the job uses the time in its record. If
    the record has none either, it uses the latest complete time when the driver starts. Set `as_of` if two
    attempts must write the same rows. A task writes at most one file.
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
        """Check as for every job, and that `as_of` is the time in the job's record."""
        super().check_job(job, info)
        if None not in (self.as_of, job.as_of) and self.as_of != job.as_of:
            raise BadInput(
                f"job spec: 'as_of' is {self.as_of}, but job {job.job_id} was started as of {job.as_of}",
                hint="leave 'as_of' out, or start another job",
            )


@dataclass(frozen=True, kw_only=True)
class HydrateSpec(JobSpec):
    """Fill a rendition of recipe COPY from its collection. `rendition` is its id, which is the job's slot."""

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


@dataclass(frozen=True, kw_only=True)
class IngestJobSpec(JobSpec):
    """Feed a collection from a source. `source` is the block that `holdfast ingest` takes too.

    With `once` the job ends at the present end of the source. Otherwise it follows the source until it is
    terminated or its attempt is replaced. With `forget` it reads nothing: it deletes what the source keeps
    for the collection. `rendition` and `anew` are as for `holdfast.ingest_source`. `partitions` is the
    maximum number of files that a step reads. It reads all partitions of a topic.
    """

    KIND: ClassVar[str] = "ingest"

    source: Mapping[str, Any]
    once: bool = False
    forget: bool = False
    rendition: str = ""
    anew: bool = False
    kind: str = KIND

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self.source)
        for name in ("once", "forget", "anew"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"job spec: '{name}' must be true or false, not {getattr(self, name)!r}")
        if not isinstance(self.rendition, str):
            raise BadInput(f"job spec: 'rendition' must be text, not {self.rendition!r}")

    @property
    def parsed(self) -> IngestSpec:
        """The source, its format and its limits."""
        return parse(self.source)


Spec = TypeVar("Spec", bound=JobSpec)


def load_spec(argument: str, kind: type[Spec]) -> Spec:
    """Load a spec from a command line argument: the JSON itself, or the path of a file that contains it."""
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


def _check_version(given: Mapping[str, Any]) -> None:
    version = given.get("version", SPEC_VERSION)
    _check_integer("version", version, 1, 2**32 - 1)
    if version > SPEC_VERSION:
        raise BadInput(
            f"job spec: version {version} is newer than {SPEC_VERSION}",
            hint="run the job with a version of Holdfast at least as new as the one that wrote the spec",
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
