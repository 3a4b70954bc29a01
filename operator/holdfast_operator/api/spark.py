"""How a Spark job of Holdfast is run: the part of a resource that becomes a SparkApplication or a Job."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from holdfast_operator.api.base import ApiModel, LocalReference
from holdfast_operator.api.settings import SPARK_CONF

_MEMORY = r"^[1-9][0-9]{0,9}[kmgt]?$"


class SparkDriver(ApiModel):
    """Resources of the driver pod."""

    cores: int = Field(default=1, ge=1, le=64, description="CPU cores of the driver.")
    memory: str = Field(
        default="1g", pattern=_MEMORY, max_length=12, description="Heap of the driver, e.g. 1g."
    )
    memory_overhead: str | None = Field(
        default=None,
        pattern=_MEMORY,
        max_length=12,
        description="Memory of the pod beside the heap, e.g. 2g. Where neither this nor sparkConf tells it: "
        "640 MiB for its Python process, and a tenth of the heap, at least 384 MiB, for the JVM.",
    )


class SparkExecutors(ApiModel):
    """Resources of the executor pods."""

    instances: int = Field(default=1, ge=1, le=1000, description="How many executors.")
    cores: int = Field(default=1, ge=1, le=64, description="CPU cores of each executor.")
    memory: str = Field(
        default="1g", pattern=_MEMORY, max_length=12, description="Heap of each executor, e.g. 1g."
    )
    memory_overhead: str | None = Field(
        default=None,
        pattern=_MEMORY,
        max_length=12,
        description="Memory of each pod beside the heap, e.g. 2g. Where neither this nor sparkConf tells it: "
        "640 MiB for the Python process of each core, and a tenth of the heap, at least 384 MiB, for the "
        "JVM.",
    )


class SparkToleration(ApiModel):
    """A taint of nodes that pods tolerate, as in a pod's spec."""

    key: str | None = Field(default=None, max_length=316, description="The taint's key; without it any.")
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal", description="Whether the value has to be equal, or any will do."
    )
    value: str | None = Field(default=None, max_length=63, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect; without it any."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, description="For how long NoExecute is tolerated; without it for ever."
    )


class SparkVolume(ApiModel):
    """A volume that is mounted in every pod of a job."""

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="Name of the volume."
    )
    mount_path: str = Field(pattern=r"^/", max_length=1024, description="Where it is mounted.")
    read_only: bool = Field(default=False, description="Whether it is mounted to be read only.")
    claim_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="A PersistentVolumeClaim of the namespace; for more than one pod one that may be mounted "
        "by many. Without it each pod has an empty folder of its own.",
    )
    size_limit: str | None = Field(
        default=None,
        pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
        max_length=20,
        description="Most that such an empty folder holds, e.g. 20Gi.",
    )


class SparkTemplate(ApiModel):
    """What a Spark job runs with."""

    image: str = Field(
        default="holdfast-spark:latest",
        # Spark would fill in ${env:NAME} where the job is submitted.
        pattern=r"^[\[\]A-Za-z0-9._:/@-]+$",
        max_length=1024,
        description="Image with Spark and Holdfast.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the image is pulled."
    )
    spark_version: str = Field(
        default="4.3.0", pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", description="Version of Spark in the image."
    )
    service_account: str = Field(
        default="holdfast-spark",
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        max_length=253,
        description="ServiceAccount of the driver.",
    )
    driver: SparkDriver = Field(
        default=SparkDriver(),
        description="Resources of the driver.",
        json_schema_extra={"default": {}},
    )
    executor: SparkExecutors = Field(
        default=SparkExecutors(),
        description="Resources of the executors.",
        json_schema_extra={"default": {}},
    )
    spark_conf: Annotated[
        dict[str, Annotated[str, Field(max_length=2048)]], AfterValidator(SPARK_CONF.taken)
    ] = Field(
        default={},
        description="Further Spark settings, of those that only the pods of the job read: spark.sql, "
        "spark.executor, spark.driver, spark.memory and others. No secrets: everybody who can read the "
        "resource sees them. No classes, jars or files to load: they belong in image.",
        json_schema_extra={"maxProperties": 64} | SPARK_CONF.schema,
    )
    env_secret_ref: LocalReference | None = Field(
        default=None,
        description="A Secret whose keys become environment variables of driver and executors, beside "
        "those of the catalog's credentials.",
    )
    node_selector: dict[str, str] = Field(
        default={},
        description="Labels of the nodes that pods may run on.",
        json_schema_extra={"maxProperties": 64},
    )
    tolerations: tuple[SparkToleration, ...] = Field(
        default=(), max_length=32, description="Taints of nodes that pods tolerate."
    )
    volumes: tuple[SparkVolume, ...] = Field(
        default=(),
        max_length=16,
        description="Volumes that are mounted in every pod.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    start_deadline_seconds: int = Field(
        default=300,
        ge=5,
        le=86400,
        description="An attempt whose driver doesn't run by then, counted from its launch, is cancelled and "
        "the next one starts.",
    )
    attempt_deadline_seconds: int | None = Field(
        default=None,
        ge=60,
        le=31_536_000,
        description="An attempt that hasn't ended by then, counted from its launch, is cancelled and the "
        "next one starts, also where its driver never ran. Without it an attempt may take as long as it "
        "likes.",
    )
    max_attempts: int = Field(
        default=3, ge=1, le=20, description="Attempts that fail of themselves before the job is given up."
    )
    ttl_seconds: int = Field(
        default=86400, ge=60, description="How long a finished SparkApplication, or Job, is kept to look at."
    )


class SparkJobStatus(ApiModel):
    """The Spark job of a record."""

    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="The current attempt, from 1.")
    state: Literal["Running", "Done", "Failed"] = Field(description="State of the JobRecord.")
    application: str | None = Field(
        default=None, description="The SparkApplication, or Job, of the current attempt."
    )
    started: datetime | None = Field(default=None, description="When that was created.")
