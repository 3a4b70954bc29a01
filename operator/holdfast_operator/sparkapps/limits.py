"""What the administrator lets the templates of Spark jobs contain.

Everybody who may write a StorageCollection writes templates. The CRDs refuse what nobody may set. This module
refuses what depends on the cluster: priorities, which can evict others' pods, and labels and annotations,
which can mean anything to other controllers. It also refuses volumes that would hide the keys that the
operator mounts.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from holdfast_operator.api.spark import SparkTemplate

QUEUES: Final = (
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    "yunikorn.apache.org/app-id",
    "yunikorn.apache.org/queue",
)
"""Labels and annotations that put a job into a queue of Kueue, Volcano or YuniKorn."""
OWN_FOLDER: Final = "/etc/holdfast"
"""The folder in a pod below which the operator mounts keys of Secrets."""
_MOUNTS: Final = re.compile(
    r"spark[.]kubernetes[.](driver|executor)[.](secrets[.].+|volumes[.].+[.]mount[.]path)"
)
"""The settings of Spark whose values are paths in a pod where something is mounted."""
_ANY: Final = "*"
_ASK: Final = "remove it, or ask the administrator to allow it ({} of the operator, {} of the chart)"


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """The values that templates may have. By default, queues and no priority classes."""

    priority_classes: tuple[str, ...] = ()
    metadata: tuple[str, ...] = QUEUES
    """Names of labels and annotations. One that ends with `*` stands for all names with that beginning."""

    def objection(self, template: SparkTemplate) -> str | None:
        """Returns what a template must not contain, and what to do, or None if it is allowed."""
        pod = template.pod
        priority = pod.priority_class_name
        if priority is not None and priority not in self.priority_classes:
            ask = _ASK.format("--spark-allow-priority-class", "spark.allowedPriorityClasses")
            return f"spark.pod.priorityClassName is {priority}, which is not allowed: {ask}"
        places: Mapping[str, Mapping[str, str]] = {
            "spark.pod.labels": pod.labels,
            "spark.pod.annotations": pod.annotations,
            "spark.metadata.labels": template.metadata.labels,
            "spark.metadata.annotations": template.metadata.annotations,
        }
        for place, names in places.items():
            for name in names:
                if not any(_matches(name, each) for each in self.metadata):
                    ask = _ASK.format("--spark-allow-metadata", "spark.allowedMetadata")
                    return f"{place} has {name}, which is not allowed: {ask}"
        for place, path in _mounts(template):
            if PurePosixPath(posixpath.normpath("/" + path.lstrip("/"))).is_relative_to(OWN_FOLDER):
                use = f"mount it elsewhere, because the operator mounts keys below {OWN_FOLDER}"
                return f"{place} mounts {path}, which is not allowed: {use}"
        return None


def _mounts(template: SparkTemplate) -> Iterator[tuple[str, str]]:
    """Yields where a template mounts volumes and Secrets: the field or setting, and the path."""
    yield from (("spark.pod.volumes", each.mount_path) for each in template.pod.volumes)
    yield from ((name, path) for name, path in template.spark_conf.items() if _MOUNTS.fullmatch(name))


def _matches(name: str, allowed: str) -> bool:
    return name.startswith(allowed.removesuffix(_ANY)) if allowed.endswith(_ANY) else name == allowed
