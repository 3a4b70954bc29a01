"""The template of a Spark job in a spec. The operator turns it into a SparkApplication or a Job."""

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
        description="Memory of the pod in addition to the heap, e.g. 2g. If neither this field nor sparkConf "
        "sets it: 640 MiB for the Python process, plus a tenth of the heap, at least 384 MiB, for the JVM.",
    )


class SparkExecutors(ApiModel):
    """Resources of the executor pods."""

    instances: int = Field(default=1, ge=1, le=1000, description="Number of executors.")
    cores: int = Field(default=1, ge=1, le=64, description="CPU cores of each executor.")
    memory: str = Field(
        default="1g", pattern=_MEMORY, max_length=12, description="Heap of each executor, e.g. 1g."
    )
    memory_overhead: str | None = Field(
        default=None,
        pattern=_MEMORY,
        max_length=12,
        description="Memory of each pod in addition to the heap, e.g. 2g. If neither this field nor "
        "sparkConf sets it: 640 MiB for the Python process of each core, plus a tenth of the heap, at least "
        "384 MiB, for the JVM.",
    )


class SparkToleration(ApiModel):
    """A node taint that pods tolerate, as in a pod's spec."""

    key: str | None = Field(
        default=None, max_length=316, description="The taint's key. The default matches any key."
    )
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal", description="Equal: the taint's value must be equal. Exists: any value matches."
    )
    value: str | None = Field(default=None, max_length=63, description="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect. The default matches any effect."
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        description="Seconds for which a NoExecute taint is tolerated. The default is for ever.",
    )


class SparkVolume(ApiModel):
    """A volume to mount in every pod of a job."""

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="Name of the volume."
    )
    mount_path: str = Field(pattern=r"^/", max_length=1024, description="Path to mount it at.")
    read_only: bool = Field(default=False, description="Whether to mount it read-only.")
    claim_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="A PersistentVolumeClaim of the namespace. If the job has more than one pod, the access "
        "mode of the claim must allow that. Without this field, each pod gets an empty folder of its own.",
    )
    size_limit: str | None = Field(
        default=None,
        pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
        max_length=20,
        description="Maximum size of the empty folder, e.g. 20Gi.",
    )


class SparkTemplate(ApiModel):
    """Image, resources and settings of a Spark job."""

    image: str = Field(
        default="holdfast-spark:latest",
        # No `$`: the process that submits the job would replace ${env:NAME} with its own environment.
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
        description="Further Spark settings. Only settings that nothing but the job's pods reads are "
        "accepted: spark.sql, spark.executor, spark.driver, spark.memory and others. Don't put secrets here: "
        "everybody who can read the resource sees them. Classes, jars and files to load belong in image.",
        json_schema_extra={"maxProperties": 64} | SPARK_CONF.schema,
    )
    env_secret_ref: LocalReference | None = Field(
        default=None,
        description="A Secret whose keys become environment variables of driver and executors, in addition "
        "to those of the catalog's credentials.",
    )
    node_selector: dict[str, str] = Field(
        default={},
        description="Labels of the nodes that pods may run on.",
        json_schema_extra={"maxProperties": 64},
    )
    tolerations: tuple[SparkToleration, ...] = Field(
        default=(), max_length=32, description="Node taints that pods tolerate."
    )
    volumes: tuple[SparkVolume, ...] = Field(
        default=(),
        max_length=16,
        description="Volumes to mount in every pod.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    start_deadline_seconds: int = Field(
        default=300,
        ge=5,
        le=86400,
        description="Seconds after its launch within which the driver of an attempt must run. Otherwise the "
        "attempt is cancelled and the next one starts.",
    )
    attempt_deadline_seconds: int | None = Field(
        default=None,
        ge=60,
        le=31_536_000,
        description="Seconds after its launch within which an attempt must end. Otherwise it is cancelled "
        "and the next one starts, even if its driver never ran. By default there is no limit.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=20,
        description="Number of attempts that may fail by themselves before the operator gives the job up.",
    )
    ttl_seconds: int = Field(
        default=86400,
        ge=60,
        description="Seconds for which a finished SparkApplication or Job is kept for inspection.",
    )


class SparkJobStatus(ApiModel):
    """The Spark job that works on a JobRecord."""

    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="Number of the current attempt, from 1.")
    state: Literal["Running", "Done", "Failed"] = Field(description="State of the JobRecord.")
    application: str | None = Field(
        default=None, description="Name of the SparkApplication or Job of the current attempt."
    )
    started: datetime | None = Field(
        default=None, description="When the SparkApplication or Job was created."
    )
