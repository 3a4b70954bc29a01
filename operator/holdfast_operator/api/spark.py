"""The template of Spark jobs. The operator turns it into a SparkApplication or a Job.

Three specs have a part of the template: a Catalog, a StorageCollection, and each job of a StorageCollection.
`effective` merges them. All fields are optional, and the CRDs contain no defaults: the defaults in this
module apply after the parts are merged.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator

from holdfast_operator.api.affinity import Affinity
from holdfast_operator.api.base import (
    UNSEEN,
    ApiModel,
    Duration,
    LocalReference,
    between,
    check,
    matches,
    seconds,
    validations,
)
from holdfast_operator.api.settings import SPARK_CONF, SettingName

_MEMORY: Final = r"^[1-9][0-9]{0,6}(Mi|Gi|Ti)$"
_MIB: Final = {"Mi": 1, "Gi": 1 << 10, "Ti": 1 << 20}
_DNS: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LABEL_VALUE: Final = "^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$"
_LABEL_NAME: Final = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
_RESERVED: Final = (
    "^((([a-z0-9.-]*[.])?(holdfast[.]dev|kubernetes[.]io|sparkoperator[.]k8s[.]io|spark[.]apache[.]org))/"
    "|spark-|(controller-uid|job-name|version|submission-id)$)"
)
"""Labels and annotations that the operator, Kubernetes, Spark or a Spark operator sets or acts on."""
_BAD_NAME: Final = "must have keys like example.com/name"
_RESERVED_NAME: Final = "must not contain names that Kubernetes, Spark or Holdfast use themselves"
_BAD_VALUE: Final = "must have values of at most 63 letters, digits, dashes, underscores and dots"
_MOST_SETTINGS: Final = 64
_MOST_OF_A_JOB: Final = 16
"""There are many jobs in a spec, and the API server limits what checking it may cost."""
_MAX_NAME: Final = 317
_MAX_LABEL: Final = 63


def mib(memory: str) -> int:
    """Returns an amount of memory in MiB."""
    return int(memory[:-2]) * _MIB[memory[-2:]]


def _memory(default: str | None, description: str) -> Any:
    return Field(
        default=default, pattern=_MEMORY, max_length=9, description=description, json_schema_extra=UNSEEN
    )


def _checked_keys(names: dict[str, str]) -> dict[str, str]:
    for name in names:
        if len(name) > _MAX_NAME or not re.fullmatch(_LABEL_NAME, name):
            raise ValueError(_BAD_NAME)
    return names


def _checked_names(names: dict[str, str]) -> dict[str, str]:
    for name in _checked_keys(names):
        if re.search(_RESERVED, name):
            raise ValueError(f"{_RESERVED_NAME}: {name}")
    return names


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    for value in labels.values():
        if len(value) > _MAX_LABEL or not re.fullmatch(_LABEL_VALUE, value):
            raise ValueError(_BAD_VALUE)
    return labels


def _rules(*, labels: bool = True, reserved: bool = True) -> dict[str, Any]:
    """Returns the schema of a map of labels or annotations."""
    rules = [(f"self.all(k, size(k) <= {_MAX_NAME} && k.matches('{_LABEL_NAME}'))", _BAD_NAME)]
    if reserved:
        rules.append((f"self.all(k, !k.matches('{_RESERVED}'))", _RESERVED_NAME))
    if labels:
        rules.append(
            (f"self.all(k, size(self[k]) <= {_MAX_LABEL} && self[k].matches('{_LABEL_VALUE}'))", _BAD_VALUE)
        )
    return {"maxProperties": 32} | UNSEEN | validations(*rules)


NodeSelector = Annotated[
    dict[str, Annotated[str, Field(max_length=_MAX_LABEL)]],
    AfterValidator(_checked_keys),
    AfterValidator(_checked_labels),
]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=1024)]], AfterValidator(_checked_names)]
Labels = Annotated[
    dict[str, Annotated[str, Field(max_length=_MAX_LABEL)]],
    AfterValidator(_checked_names),
    AfterValidator(_checked_labels),
]


class SparkDriver(ApiModel):
    """Resources of the driver pod."""

    cores: int = Field(
        default=1,
        ge=1,
        le=64,
        description="CPU cores of the driver. The default is 1.",
        json_schema_extra=UNSEEN,
    )
    memory: str = _memory("1Gi", "Heap of the driver, e.g. 4Gi. The default is 1Gi.")
    memory_overhead: str | None = _memory(
        None,
        "Memory of the pod in addition to the heap, e.g. 2Gi. If neither this field nor sparkConf sets it: "
        "640Mi for the Python process, plus a tenth of the heap, at least 384Mi, for the JVM.",
    )


class SparkExecutors(ApiModel):
    """Resources of the executor pods."""

    instances: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Number of executors. The default is 1.",
        json_schema_extra=UNSEEN,
    )
    cores: int = Field(
        default=1,
        ge=1,
        le=64,
        description="CPU cores of each executor. The default is 1.",
        json_schema_extra=UNSEEN,
    )
    memory: str = _memory("1Gi", "Heap of each executor, e.g. 4Gi. The default is 1Gi.")
    memory_overhead: str | None = _memory(
        None,
        "Memory of each pod in addition to the heap, e.g. 2Gi. If neither this field nor sparkConf sets it: "
        "640Mi for the Python process of each core, plus a tenth of the heap, at least 384Mi, for the JVM.",
    )


_NEEDS_KEY: Final = "operator Equal needs a key; use Exists to tolerate any taint"
_TAKES_NO_VALUE: Final = "operator Exists takes no value"
_NEEDS_EFFECT: Final = "tolerationSeconds needs the effect NoExecute"
_TAINT: Final = f"^$|{_LABEL_NAME}", "must be the key of a taint, like example.com/name"
_TAINT_VALUE: Final = (
    _LABEL_VALUE,
    "must be the value of a taint: letters, digits, dashes, underscores and dots",
)


class SparkToleration(ApiModel):
    """A node taint that pods tolerate, as in a pod's spec."""

    model_config = ConfigDict(
        json_schema_extra=validations(
            ("self.operator != 'Equal' || (has(self.key) && self.key != '')", _NEEDS_KEY),
            ("self.operator != 'Exists' || !has(self.value) || self.value == ''", _TAKES_NO_VALUE),
            (
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                _NEEDS_EFFECT,
            ),
        )
    )

    key: Annotated[str, check(*_TAINT)] | None = Field(
        default=None,
        max_length=_MAX_NAME,
        description="The taint's key. The default matches any key.",
        json_schema_extra=validations(matches(*_TAINT)),
    )
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal", description="Equal: the taint's value must be equal. Exists: any value matches."
    )
    value: Annotated[str, check(*_TAINT_VALUE)] | None = Field(
        default=None,
        max_length=_MAX_LABEL,
        description="The taint's value.",
        json_schema_extra=validations(matches(*_TAINT_VALUE)),
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect. The default matches any effect."
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        description="Seconds for which a NoExecute taint is tolerated, as in a pod's spec. The default is "
        "for ever.",
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        """Refuses what no pod may have, in objects from before the API server had these rules."""
        if self.operator == "Equal" and not self.key:
            raise ValueError(_NEEDS_KEY)
        if self.operator == "Exists" and self.value:
            raise ValueError(_TAKES_NO_VALUE)
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError(_NEEDS_EFFECT)
        return self


OWN_VOLUMES: Final = "holdfast-"
"""How the names of the operator's own volumes begin."""
_FREE_NAME: Final = f"volume names that begin with {OWN_VOLUMES} are reserved"


def _free(name: str) -> str:
    if name.startswith(OWN_VOLUMES):
        raise ValueError(_FREE_NAME)
    return name


class SparkVolume(ApiModel):
    """A volume to mount in every pod of a job."""

    name: Annotated[str, AfterValidator(_free)] = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=63,
        description="Name of the volume. Names that begin with holdfast- are reserved.",
        json_schema_extra=validations((f"!self.startsWith('{OWN_VOLUMES}')", _FREE_NAME)),
    )
    # No `$`: see SparkTemplate.image.
    mount_path: str = Field(pattern=r"^/[^$]*$", max_length=1024, description="Path to mount it at.")
    read_only: bool = Field(default=False, description="Whether to mount it read-only.")
    claim_name: str | None = Field(
        default=None,
        pattern=_DNS,
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


class SparkPodSecurity(ApiModel):
    """Users and groups of the processes in a pod. Pods always meet the restricted Pod Security Standard."""

    run_as_user: int | None = Field(
        default=None,
        ge=1,
        le=(1 << 31) - 1,
        description="Id of the user, which can't be root. The default is the user of the image.",
    )
    run_as_group: int | None = Field(
        default=None,
        ge=0,
        le=(1 << 31) - 1,
        description="Id of the main group. The default is the group of the image's user.",
    )
    fs_group: int | None = Field(
        default=None,
        ge=0,
        le=(1 << 31) - 1,
        description="Id of the group that may write to volumes. The default is 65532 if there is a claim.",
    )
    supplemental_groups: tuple[Annotated[int, Field(ge=0, le=(1 << 31) - 1)], ...] = Field(
        default=(),
        max_length=16,
        description="Ids of further groups.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class SparkPod(ApiModel):
    """The driver pod and the executor pods."""

    labels: Labels = Field(
        default={},
        description="Labels of pods. The administrator decides which ones are allowed: by default, those of "
        "queues.",
        json_schema_extra=_rules(),
    )
    annotations: Annotations = Field(
        default={},
        description="Annotations of pods. The administrator decides which ones are allowed: by default, "
        "those of queues.",
        json_schema_extra=_rules(labels=False),
    )
    node_selector: NodeSelector = Field(
        default={},
        description="Labels of the nodes that pods may run on.",
        json_schema_extra=_rules(reserved=False),
    )
    tolerations: tuple[SparkToleration, ...] = Field(
        default=(),
        max_length=32,
        description="Node taints that pods tolerate.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    affinity: Affinity | None = Field(
        default=None,
        description="Rules for the nodes that pods run on: nodeAffinity, podAffinity and podAntiAffinity as "
        "in a pod's spec, but without namespaces and namespaceSelector. At most 16 KiB as JSON, 8 terms in a "
        "list, 4 requirements in a term and 16 values in a requirement.",
    )
    scheduler_name: str | None = Field(
        default=None,
        pattern=_DNS,
        max_length=253,
        description="Scheduler of pods, e.g. volcano or yunikorn. The default is the cluster's default.",
    )
    priority_class_name: str | None = Field(
        default=None,
        pattern=_DNS,
        max_length=253,
        description="PriorityClass of pods. The administrator decides which ones are allowed: by default, "
        "none.",
    )
    image_pull_secrets: tuple[LocalReference, ...] = Field(
        default=(),
        max_length=16,
        description="Secrets with which the image is pulled.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    security_context: SparkPodSecurity = Field(
        default=SparkPodSecurity(),
        description="Users and groups of the processes in a pod. Pods always meet the restricted Pod "
        "Security Standard.",
        json_schema_extra=UNSEEN,
    )
    volumes: tuple[SparkVolume, ...] = Field(
        default=(),
        max_length=16,
        description="Volumes to mount in every pod.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class SparkMetadata(ApiModel):
    """Labels and annotations of the SparkApplication or Job."""

    labels: Labels = Field(
        default={},
        description="Labels of the SparkApplication or Job. The administrator decides which ones are "
        "allowed: by default, those of queues, such as kueue.x-k8s.io/queue-name.",
        json_schema_extra=_rules(),
    )
    annotations: Annotations = Field(
        default={},
        description="Annotations of the SparkApplication or Job. The administrator decides which ones are "
        "allowed: by default, those of queues.",
        json_schema_extra=_rules(labels=False),
    )


SparkConf = Annotated[
    dict[SettingName, Annotated[str, Field(max_length=2048)]], AfterValidator(SPARK_CONF.taken)
]


def _spark_conf(most: int) -> Any:
    return Field(
        default={},
        description="Further Spark settings. Only settings that nothing but the job's pods reads are "
        "accepted: spark.sql, spark.executor, spark.driver, spark.memory and others. Don't put secrets here: "
        "everybody who can read the resource sees them. Classes, jars and files to load belong in image.",
        json_schema_extra={"maxProperties": most} | UNSEEN | SPARK_CONF.schema,
    )


class SparkOverride(ApiModel):
    """The part of the template in which a job can differ from other jobs of its collection."""

    driver: SparkDriver = Field(
        default=SparkDriver(), description="Resources of the driver.", json_schema_extra=UNSEEN
    )
    executor: SparkExecutors = Field(
        default=SparkExecutors(), description="Resources of the executors.", json_schema_extra=UNSEEN
    )
    spark_conf: SparkConf = _spark_conf(_MOST_OF_A_JOB)
    env_secret_ref: LocalReference | None = Field(
        default=None,
        description="A Secret whose keys become environment variables of driver and executors. The keys of "
        "the catalog's stores are files in their pods, and need no mention here.",
    )
    start_deadline: Annotated[Duration, between("5s", "1d")] = Field(
        default="5m",
        description="Time after its launch within which the driver of an attempt must run, from 5s to 1d. "
        "Otherwise the attempt is cancelled and the next one starts. The default is 5m.",
        json_schema_extra=UNSEEN,
    )
    attempt_deadline: Annotated[Duration, between("60s", "365d")] | None = Field(
        default=None,
        description="Time after its launch within which an attempt must end, at least 60s. Otherwise it is "
        "cancelled and the next one starts, even if its driver never ran. By default there is no limit.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=20,
        description="Number of attempts that may fail by themselves before the operator gives up the job. "
        "The default is 3.",
        json_schema_extra=UNSEEN,
    )

    @property
    def start_deadline_seconds(self) -> int:
        """The start deadline in seconds."""
        return seconds(self.start_deadline)

    @property
    def attempt_deadline_seconds(self) -> int | None:
        """The deadline of an attempt in seconds, or None."""
        return None if self.attempt_deadline is None else seconds(self.attempt_deadline)


class SparkTemplate(SparkOverride):
    """Image, resources, pods and settings of Spark jobs."""

    spark_conf: SparkConf = _spark_conf(_MOST_SETTINGS)
    image: str = Field(
        default="holdfast-spark:latest",
        # No `$`: the process that submits the job would replace ${env:NAME} with its own environment.
        pattern=r"^[\[\]A-Za-z0-9._:/@-]+$",
        max_length=1024,
        description="Image with Spark and Holdfast. It must have the version of the operator. The default is "
        "the operator's --spark-image.",
        json_schema_extra=UNSEEN,
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent",
        description="When the image is pulled. The default is IfNotPresent.",
        json_schema_extra=UNSEEN,
    )
    spark_version: str = Field(
        default="4.3.0",
        pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$",
        max_length=32,
        description="Version of Spark in the image. The default is 4.3.0.",
        json_schema_extra=UNSEEN,
    )
    service_account: str = Field(
        default="holdfast-spark",
        pattern=_DNS,
        max_length=253,
        description="ServiceAccount of the driver. The default is holdfast-spark.",
        json_schema_extra=UNSEEN,
    )
    pod: SparkPod = Field(
        default=SparkPod(),
        description="The driver pod and the executor pods.",
        json_schema_extra=UNSEEN,
    )
    metadata: SparkMetadata = Field(
        default=SparkMetadata(),
        description="Labels and annotations of the SparkApplication or Job.",
        json_schema_extra=UNSEEN,
    )
    ttl: Annotated[Duration, between("60s", "3650d")] = Field(
        default="1d",
        description="Time for which a finished SparkApplication or Job is kept for inspection, at least 60s. "
        "The default is 1d.",
        json_schema_extra=UNSEEN,
    )

    @property
    def ttl_seconds(self) -> int:
        """The time to keep a finished SparkApplication or Job, in seconds."""
        return seconds(self.ttl)


def effective(*parts: SparkOverride | None) -> SparkTemplate:
    """Returns the template that parts of it make together. Later parts take precedence. Pure.

    Only the fields that a part sets count. Objects are merged field by field, and maps key by key. A list, a
    text or a number replaces the one of earlier parts: so an empty list removes their entries.
    """
    said = [part for part in parts if part is not None and part.model_fields_set]
    if len(said) == 1 and type(said[0]) is SparkTemplate:
        return said[0]
    merged: dict[str, Any] = {}
    for part in said:
        _merge(merged, part.model_dump(exclude_unset=True))
    return _TEMPLATE.validate_python(merged)


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, Mapping):
            below = into.get(name)
            into[name] = dict(below) if isinstance(below, Mapping) else {}
            _merge(into[name], value)
        else:
            into[name] = value


_TEMPLATE: Final = TypeAdapter(SparkTemplate)


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
