"""The common part of the adapters: an application is one object, found by its labels and its owner."""

import contextlib
import hashlib
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from holdfast.ingest.credentials import FOLDER
from holdfast.store_keys import VARIABLE
from holdfast_operator.api.base import ApiModel
from holdfast_operator.api.names import (
    ANNOTATION_PASSED_OVER,
    API_VERSION,
    LABEL_ATTEMPT,
    LABEL_COLLECTION,
    LABEL_JOB,
    LABEL_JOB_KIND,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_SNAPSHOT,
    MANAGED_BY,
    Kind,
)
from holdfast_operator.api.spark import OWN_VOLUMES, SparkTemplate
from holdfast_operator.engine.followed import METADATA, Fields
from holdfast_operator.engine.kube import (
    AdmissionDenied,
    Exists,
    Forbidden,
    Invalid,
    Kube,
    KubeError,
    NotServed,
    ObjectKey,
    ResourceType,
)
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.sparkapps.adapter import (
    INGEST,
    AppPhase,
    AppState,
    Launch,
    LaunchDenied,
    LaunchRefused,
    NotInstalled,
    PassedOver,
    SecretFiles,
    SparkAdapter,
    Unfinished,
)
from holdfast_operator.sparkapps.limits import OWN_FOLDER

Json = dict[str, Any]

JOBS_FOLDER: Final = "/opt/holdfast/jobs"
"""The folder in the image with the programs of the jobs."""
POD_SECURITY: Final[Json] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    **POD_SECURITY,
}
"""With these settings, a pod meets the restricted profile of the Pod Security Standards.

The root is read-only, so a job can't change the programs of its image.
"""

SECRETS_FOLDER: Final = f"{OWN_FOLDER}/secrets"
"""The folder with a folder for each Secret of the job's source."""
STORE_KEYS_FOLDER: Final = f"{OWN_FOLDER}/store-keys"
"""The folder with the keys of the catalog's stores."""
_READABLE: Final = 0o444
"""The mode of files with keys. They belong to root, and a template chooses the user and groups of a pod.

Only the one container of the pod mounts them.
"""
MANAGED: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
"""The label selector for the applications of all objects."""
TMP: Final = "/tmp"  # noqa: S108 - the pod's own
"""The folder for data of Spark and Python that doesn't fit into memory, and the working directory."""
TMP_VOLUME: Final = f"{OWN_VOLUMES}tmp"
"""The volume of `TMP`, unless the template has one there."""
_GROUP: Final = 65532
"""The group of the image's user."""
_MAX_LABEL: Final = 63
_MAX_STEM: Final = 24
_MAX_MESSAGE: Final = 500


OWNER_LABELS: Final = (LABEL_COLLECTION, LABEL_SNAPSHOT)
"""The labels of which one names the owner of a job."""


def followed_fields(status: Fields, **others: Fields) -> Fields:
    """Returns all that is read of a followed object of a job: its identity, and these fields."""
    own = (*OWNER_LABELS, LABEL_JOB, LABEL_JOB_KIND, LABEL_ATTEMPT)
    marks = {"labels": dict.fromkeys(own), "annotations": {ANNOTATION_PASSED_OVER: None}}
    metadata = {**METADATA, **marks}
    return {"metadata": metadata, "status": status, **others}


class ObjectAdapter(SparkAdapter):
    """Runs applications that are objects of one type. A subclass defines their contents."""

    type_: ClassVar[ResourceType]
    fields: ClassVar[Fields]
    """All that `app_state` reads of an object, see `followed_fields`."""
    what: ClassVar[str]
    """The name of the type, with group and version."""
    remedy: ClassVar[str]
    """What to do if the type isn't served."""
    by_spark_operator: ClassVar[bool] = True
    """Whether a Spark operator runs the applications, which may be missing."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    @abstractmethod
    def body(self, launch: Launch) -> Json:
        """Returns the object of an attempt. Pure."""

    @abstractmethod
    def phase_of(self, body: Json) -> tuple[AppPhase, str]:
        """Returns the phase of an object and a message. Pure."""

    async def launch(self, launch: Launch) -> None:
        """Creates the object of an attempt."""
        body = self.body(launch)
        try:
            await self.kube.create(self.type_, launch.owner.namespace, body)
        except Exists as error:
            # Objects of a deleted owner with the same name may exist for a while.
            there = await self.observe(launch.owner, launch.owner_uid, fresh=True)
            if (launch.job_id, launch.attempt) not in {(app.job_id, app.attempt) for app in there}:
                raise LaunchRefused(str(error)) from None
        except NotServed:
            raise NotInstalled(self._not_served()) from None
        except (Forbidden, Invalid) as error:
            refused = LaunchDenied if isinstance(error, AdmissionDenied) and error.for_now else LaunchRefused
            raise refused(str(error)) from None

    async def observe(self, owner: ObjectKey, owner_uid: str, *, fresh: bool = False) -> tuple[AppState, ...]:
        """Returns the applications that an object owns. With `fresh`, they are read from the API server."""
        found = await self._list(owner.namespace, selector(owner, owner_uid), fresh=fresh)
        states = [state for body in found if _owned(body, owner_uid) if (state := self.app_state(body))]
        return tuple(sorted(states, key=lambda state: (state.attempt, state.created)))

    async def unfinished(self, namespaces: Sequence[str]) -> Collection[Unfinished]:
        """Returns the unfinished applications, except those without an owner."""
        found: set[Unfinished] = set()
        for namespace in namespaces or (None,):
            for body in await self._list(namespace, MANAGED):
                is_over = self.phase_of(body)[0].over
                if not is_over and body["metadata"].get("labels", {}).get(LABEL_JOB_KIND) != INGEST:
                    found.update(_by_owner(body))
        return found

    async def works_since(self, namespace: str, time: datetime) -> bool:
        """Returns whether a Spark operator works in a namespace, as far as applications after a time show it.

        They may be anybody's. Somebody must have set the status of one. Without permission, it is False.
        """

        def is_noticed(body: Json) -> bool:
            created = datetime.fromisoformat(body["metadata"]["creationTimestamp"])
            return created > time and bool(body.get("status"))

        with contextlib.suppress(KubeError):
            found, _ = await self.kube.list_each(self.type_, namespace, is_noticed)
            return any(found)
        return False

    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        """Deletes the object, and with it its pods."""
        await self.kube.delete(self.type_, owner.namespace, app.name, uid=app.uid)

    def app_state(self, body: Json) -> AppState | None:
        """Returns the state of an object, or None if it isn't an attempt of the operator."""
        metadata = body["metadata"]
        labels = metadata.get("labels", {})
        try:
            attempt = int(labels[LABEL_ATTEMPT])
            job = labels[LABEL_JOB]
        except (KeyError, ValueError):
            return None
        phase, message = self.phase_of(body)
        return AppState(
            name=metadata["name"],
            uid=metadata["uid"],
            job_id=job,
            attempt=attempt,
            phase=phase,
            message=in_a_line(message),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            kind=labels.get(LABEL_JOB_KIND, ""),
            via=self.name,
            passed_over=_passed_over(metadata.get("annotations", {}).get(ANNOTATION_PASSED_OVER, "")),
            is_noticed=not self.by_spark_operator or bool(body.get("status")),
        )

    async def _list(self, namespace: str | None, labels: str, *, fresh: bool = False) -> Sequence[Json]:
        try:
            return await self.kube.list(self.type_, namespace, labels=labels, fresh=fresh)
        except NotServed:
            raise NotInstalled(self._not_served()) from None
        except Forbidden:
            raise NotInstalled(
                f"this operator has no permission for {self.what}: let its role create, list and delete them "
                f"(spark.enabled and spark.adapter of the chart), or choose another --spark-adapter"
            ) from None

    def _not_served(self) -> str:
        return f"{self.what} are not served: {self.remedy}, or choose another --spark-adapter"


def unfinished_of(launch: Launch) -> Unfinished:
    """Returns the application of an attempt as it is while it is unfinished."""
    name = application_name(launch.owner, launch.job_kind, launch.job_id, launch.attempt)
    return Unfinished(launch.owner, launch.owner_uid, name)


def application_name(owner: ObjectKey, job_kind: str, job_id: str, attempt: int) -> str:
    """Returns the name of an attempt's application. Names that Spark derives from it aren't too long.

    It starts with a letter, like the name of a Service, because the webhook of the Kubeflow Spark operator
    rejects other names.
    """
    stem = re.sub(r"[^a-z0-9-]", "-", owner.name)[:_MAX_STEM].strip("-")
    letter = "" if stem[:1].isalpha() else "c"
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:8]
    return f"{letter}{stem}-{job_kind}-{digest}-{attempt}"


def owner_label(owner: ObjectKey, owner_uid: str) -> tuple[str, str]:
    """Returns the label that names the owner of a job, and its value: the name, or the uid if that is too
    long.
    """
    label = LABEL_SNAPSHOT if owner.kind is Kind.COLLECTION_SNAPSHOT else LABEL_COLLECTION
    return label, owner.name if len(owner.name) <= _MAX_LABEL else owner_uid


def selector(owner: ObjectKey, owner_uid: str) -> str:
    """Returns the label selector for everything that belongs to an object's jobs."""
    label, value = owner_label(owner, owner_uid)
    return f"{MANAGED},{label}={value}"


def labels_of(launch: Launch) -> dict[str, str]:
    """Returns the labels of an attempt's application and of its pods."""
    label, value = owner_label(launch.owner, launch.owner_uid)
    return {
        LABEL_NAME: "holdfast",
        LABEL_MANAGED_BY: MANAGED_BY,
        label: value,
        LABEL_JOB: launch.job_id,
        LABEL_JOB_KIND: launch.job_kind,
        LABEL_ATTEMPT: str(launch.attempt),
    }


def metadata_of(launch: Launch) -> Json:
    """Returns the metadata of an attempt's application."""
    told = ",".join(f"{each.adapter}={timestamp(each.created)}" for each in launch.passed_over)
    passed_over = {ANNOTATION_PASSED_OVER: told} if told else {}
    return {
        "name": application_name(launch.owner, launch.job_kind, launch.job_id, launch.attempt),
        "namespace": launch.owner.namespace,
        "labels": {**launch.template.metadata.labels, **labels_of(launch)},
        **_annotated({**launch.template.metadata.annotations, **passed_over}),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": launch.owner.kind.value,
                "name": launch.owner.name,
                "uid": launch.owner_uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def program(launch: Launch) -> str:
    """Returns the path of the job's program in the image."""
    return f"{JOBS_FOLDER}/{launch.job_kind}.py"


def secret_environment(launch: Launch) -> Json:
    """Returns the container fields for its Secrets. Empty if there are none.

    They name the folders of `secret_volumes`. `envSecretRef` gives all keys as variables.
    """
    env: list[Json] = []
    if launch.files:
        env.append({"name": FOLDER, "value": SECRETS_FOLDER})
    if launch.store_keys is not None:
        env.append({"name": VARIABLE, "value": STORE_KEYS_FOLDER})
    further = launch.template.env_secret_ref
    return {
        **({"env": env} if env else {}),
        **({"envFrom": [{"secretRef": {"name": further.name}}]} if further is not None else {}),
    }


def secret_volumes(launch: Launch, *, is_driver: bool = True) -> tuple[list[Json], list[Json]]:
    """Returns the volumes of a pod for Secrets whose keys are files, and the mounts of its container.

    A pod starts without what its source lacks, and its job says so. Otherwise the pod would wait for ever.
    Without a key of the stores it does not start, because its job could not record what is missing.
    """
    volumes: list[Json] = []
    mounts: list[Json] = []

    def add(name: str, secret: SecretFiles, folder: str, *, is_optional: bool) -> None:
        items = [{"key": key, "path": key} for key in secret.keys]
        source = {"secretName": secret.name, "items": items, "defaultMode": _READABLE}
        volumes.append({"name": name, "secret": {**source, "optional": is_optional}})
        mounts.append({"name": name, "mountPath": folder, "readOnly": True})

    if launch.store_keys is not None:
        add(f"{OWN_VOLUMES}store-keys", launch.store_keys, STORE_KEYS_FOLDER, is_optional=False)
    for index, each in enumerate(launch.files):
        if each.shared or is_driver:
            # The name of a Secret may have dots, which the name of a volume may not.
            add(f"{OWN_VOLUMES}secret-{index}", each, f"{SECRETS_FOLDER}/{each.name}", is_optional=True)
    return volumes, mounts


def pod_metadata(launch: Launch) -> Json:
    """Returns the metadata of pods."""
    pod = launch.template.pod
    return {"labels": {**pod.labels, **labels_of(launch)}, **_annotated(pod.annotations)}


def pod_fields(template: SparkTemplate) -> Json:
    """Returns the fields of a pod's spec that say where it runs, as whom, and how its image is pulled."""
    pod = template.pod
    fields: Json = {"securityContext": _pod_security(template)}
    if pod.tolerations:
        fields["tolerations"] = [_dumped(each) for each in pod.tolerations]
    if pod.affinity is not None and (affinity := pod.affinity.in_pod()):
        fields["affinity"] = affinity
    if pod.scheduler_name is not None:
        fields["schedulerName"] = pod.scheduler_name
    if pod.priority_class_name is not None:
        fields["priorityClassName"] = pod.priority_class_name
    if pod.image_pull_secrets:
        fields["imagePullSecrets"] = [{"name": each.name} for each in pod.image_pull_secrets]
    return fields


def _pod_security(template: SparkTemplate) -> Json:
    """Returns the security context of pods. With a claim, they can write to files of other users there."""
    pod = template.pod
    own = _dumped(pod.security_context)
    if not pod.security_context.supplemental_groups:
        own.pop("supplementalGroups", None)
    group = {"fsGroup": _GROUP} if any(each.claim_name for each in pod.volumes) else {}
    security = {**group, **own, **POD_SECURITY}
    return security | {"fsGroupChangePolicy": "OnRootMismatch"} if "fsGroup" in security else security


def _annotated(annotations: Mapping[str, str]) -> Json:
    return {"annotations": dict(annotations)} if annotations else {}


def _dumped(model: ApiModel) -> Json:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def pod_template(launch: Launch, role: str) -> Json:
    """Returns the pod template of a role, `driver` or `executor`. Spark fills in image and command."""
    template = launch.template
    volumes, mounts = secret_volumes(launch, is_driver=role == "driver")
    if not _mounts_tmp(template, role):
        volumes.append({"name": TMP_VOLUME, "emptyDir": {}})
        mounts.append({"name": TMP_VOLUME, "mountPath": TMP})
    container: Json = {
        "name": f"spark-kubernetes-{role}",
        "securityContext": CONTAINER_SECURITY,
        **({"volumeMounts": mounts} if mounts else {}),
        **secret_environment(launch),
    }
    return {
        "metadata": pod_metadata(launch),
        "spec": {
            **pod_fields(template),
            **({"volumes": volumes} if volumes else {}),
            "containers": [container],
        },
    }


def _mounts_tmp(template: SparkTemplate, role: str) -> bool:
    """Returns whether the template has a volume at `TMP`, as a volume or as settings of Spark."""
    prefix = f"spark.kubernetes.{role}.volumes."
    settings = {**template.spark_conf, **pod_settings(template)}
    return any(
        name.startswith(prefix) and name.endswith(".mount.path") and path.rstrip("/") == TMP
        for name, path in settings.items()
    )


def pod_settings(template: SparkTemplate) -> dict[str, str]:
    """Returns nodes and volumes as Spark settings. A Spark operator needs no webhook for these."""
    settings = {
        f"spark.kubernetes.node.selector.{name}": value for name, value in template.pod.node_selector.items()
    }
    for role in ("driver", "executor"):
        for volume in template.pod.volumes:
            kind = "emptyDir" if volume.claim_name is None else "persistentVolumeClaim"
            stem = f"spark.kubernetes.{role}.volumes.{kind}.{volume.name}"
            settings[f"{stem}.mount.path"] = volume.mount_path
            settings[f"{stem}.mount.readOnly"] = str(volume.read_only).lower()
            if volume.claim_name is not None:
                settings[f"{stem}.options.claimName"] = volume.claim_name
            elif volume.size_limit is not None:
                settings[f"{stem}.options.sizeLimit"] = volume.size_limit
    return settings


def in_a_line(text: object) -> str:
    """Returns a message of an application as one line of limited length."""
    return " ".join(str(text or "").split())[:_MAX_MESSAGE]


def _by_owner(body: Mapping[str, Any]) -> Iterator[Unfinished]:
    metadata = body["metadata"]
    for each in metadata.get("ownerReferences", []):
        if each.get("kind") in set(Kind):
            owner = ObjectKey(Kind(each["kind"]), metadata["namespace"], each["name"])
            yield Unfinished(owner, each["uid"], metadata["name"])


def _passed_over(text: str) -> tuple[PassedOver, ...]:
    """Returns what an annotation says, or nothing if somebody changed it."""
    parts = (each.partition("=") for each in text.split(",") if each)
    with contextlib.suppress(ValueError):
        return tuple(PassedOver(name, datetime.fromisoformat(time)) for name, _, time in parts)
    return ()


def _owned(body: Mapping[str, Any], owner_uid: str) -> bool:
    return any(each.get("uid") == owner_uid for each in body["metadata"].get("ownerReferences", []))
