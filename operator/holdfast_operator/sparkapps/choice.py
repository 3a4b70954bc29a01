"""Chooses the adapter that launches Spark jobs: the configured one, or the first one that the cluster serves.

Invariants
- The adapter that launched an attempt also watches it, even if another adapter is chosen now. This holds only
  for adapters that the setting allows, because the operator can't see the applications of others.
- If an adapter was served before and isn't now, nothing is decided, because its applications may still run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.kube import Kube, ObjectKey, ResourceType
from holdfast_operator.sparkapps.adapter import AppState, Launch, NotInstalled, SparkAdapter
from holdfast_operator.sparkapps.apache import ApacheAdapter
from holdfast_operator.sparkapps.job import NOT_OF_SPARK, PODS, JobAdapter
from holdfast_operator.sparkapps.kubeflow import KubeflowAdapter
from holdfast_operator.sparkapps.limits import TemplateLimits
from holdfast_operator.sparkapps.objects import MANAGED, ObjectAdapter


class AdapterName(StrEnum):
    """The values of `--spark-adapter`."""

    AUTO = "auto"
    KUBEFLOW = "kubeflow"
    APACHE = "apache"
    JOB = "job"
    NONE = "none"


_KINDS: Final[Mapping[AdapterName, tuple[type[ObjectAdapter], ...]]] = {
    AdapterName.AUTO: (KubeflowAdapter, ApacheAdapter, JobAdapter),
    AdapterName.KUBEFLOW: (KubeflowAdapter,),
    AdapterName.APACHE: (ApacheAdapter,),
    AdapterName.JOB: (JobAdapter,),
    AdapterName.NONE: (),
}
"""The adapters of a setting, in order of preference."""
_SWITCHED_OFF: Final = (
    "Spark jobs are disabled (--spark-adapter=none): choose another adapter, or enable spark in the chart"
)


class AdapterChoice(SparkAdapter):
    """Combines several adapters. The first one that the cluster serves launches."""

    def __init__(self, adapters: Sequence[SparkAdapter], limits: TemplateLimits) -> None:
        """Combines adapters with different names, in order of preference."""
        self._limits = limits
        self._adapters = {each.name: each for each in adapters}
        self._served: set[str] = set()

    def objection(self, template: SparkTemplate) -> str | None:
        """Returns why it is not allowed, or else the objection of the adapter that would launch it.

        While that adapter is unknown, it has no objection.
        """
        if (refused := self._limits.objection(template)) is not None:
            return refused
        return None if (chosen := self._chosen()) is None else chosen.objection(template)

    async def launch(self, launch: Launch) -> None:
        """Launches with the first adapter that the latest `observe` found to be served."""
        chosen = self._chosen()
        if chosen is None:
            raise NotInstalled(
                _SWITCHED_OFF
                if not self._adapters
                else f"the cluster serves none of {', '.join(self._adapters)} yet; the operator retries"
            )
        await chosen.launch(launch)

    async def observe(self, owner: ObjectKey, owner_uid: str) -> tuple[AppState, ...]:
        """Returns the applications of all adapters."""
        if not self._adapters:
            raise NotInstalled(_SWITCHED_OFF)
        found: list[AppState] = []
        missing: list[str] = []
        for name, adapter in self._adapters.items():
            try:
                found += await adapter.observe(owner, owner_uid)
            except NotInstalled as error:
                if name in self._served:
                    raise
                missing.append(str(error))
            else:
                self._served.add(name)
        if len(missing) == len(self._adapters):
            raise NotInstalled("; ".join(missing))
        return tuple(sorted(found, key=lambda app: (app.attempt, app.created)))

    async def running(self, namespaces: Sequence[str]) -> Mapping[ObjectKey, int]:
        """Returns the numbers of all adapters that are served together."""
        counted: Counter[ObjectKey] = Counter()
        for name, each in self._adapters.items():
            if name in self._served:
                counted.update(await each.running(namespaces))
        return counted

    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        """Cancels with the adapter that the application belongs to."""
        await self._adapters[app.via].cancel(owner, app)

    def _chosen(self) -> SparkAdapter | None:
        served = (each for name, each in self._adapters.items() if name in self._served)
        return next(served, None)


def adapter(kube: Kube, name: AdapterName, limits: TemplateLimits) -> SparkAdapter:
    """Returns the adapter of a setting."""
    return AdapterChoice([kind(kube) for kind in _KINDS[name]], limits)


def watched(name: AdapterName) -> Mapping[ResourceType, str]:
    """Returns the types of objects to follow, with the label selector of each."""
    types: dict[ResourceType, str] = {}
    for kind in _KINDS[name]:
        types[kind.type_] = MANAGED
        if kind is JobAdapter:
            types[PODS] = f"{MANAGED},{NOT_OF_SPARK}"
    return types
