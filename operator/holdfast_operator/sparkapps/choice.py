"""Chooses the adapter that launches Spark jobs: the configured one, or the first one that the cluster serves.

The CRDs of a Spark operator may be left over, or it may work in other namespaces only. Then nobody notices
the applications of a namespace. That is no reason to cancel one, but the next attempt uses another adapter.

Invariants
- The adapter that launched an attempt also watches it, even if another adapter is chosen now. This holds only
  for adapters that the setting allows, because the operator can't see the applications of others.
- An attempt has one driver. If the outcome of its first request is unknown, because there was no response, it
  is sent again with the same adapter, so that the name of the application prevents a second one. Another
  process may not know of that request. If two applications of an attempt appear, the attempt ends, see
  `jobs.course`. Until then two drivers do no harm: the commit of the first one ends the attempt, which
  fences the other one.
- If an adapter was served before and isn't now, nothing is decided, because its applications may still run.
- An adapter whose last application in a namespace nobody noticed is passed over there, if another one takes
  the template. That ends only when somebody notices a later application, of whomever, and never just after
  some time: a CRD whose Spark operator is gone may be left for years.
- The applications of other adapters say which one they were launched instead of. So a restarted operator
  knows it again while it sees one of them. Otherwise it finds out with one attempt.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.followed import FollowedObjects
from holdfast_operator.engine.kube import Kube, ObjectKey, ResourceType
from holdfast_operator.sparkapps.adapter import (
    AppState,
    Launch,
    LaunchRefused,
    NotInstalled,
    PassedOver,
    SparkAdapter,
    Unfinished,
)
from holdfast_operator.sparkapps.apache import ApacheAdapter
from holdfast_operator.sparkapps.job import NOT_OF_SPARK, POD_FIELDS, PODS, JobAdapter
from holdfast_operator.sparkapps.kubeflow import KubeflowAdapter
from holdfast_operator.sparkapps.limits import TemplateLimits
from holdfast_operator.sparkapps.objects import MANAGED, OWNER_LABELS, ObjectAdapter


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
_NOTICED_WITHIN: Final = timedelta(seconds=60)
"""More than a Spark operator takes to set the first status of an application."""
_ANSWERED_WITHIN: Final = timedelta(hours=1)
"""Much more than the API server works on a request."""
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_UNNOTICED: Final = (
    "no Spark operator has noticed it; check that the Spark operator runs, and works in this namespace"
)
_SWITCHED_OFF: Final = (
    "Spark jobs are disabled (--spark-adapter=none): choose another adapter, or enable spark in the chart"
)


class AdapterChoice(SparkAdapter):
    """Combines several adapters. The first one that the cluster serves launches."""

    def __init__(
        self, adapters: Sequence[ObjectAdapter], limits: TemplateLimits, now: Callable[[], datetime]
    ) -> None:
        """Combines adapters with different names, in order of preference.

        `now` returns the time of the clock that the creation times of applications are from.
        """
        self._limits = limits
        self._now = now
        self._unnoticed: dict[tuple[str, str], datetime] = {}
        """When the latest application was created that nobody noticed, by adapter and namespace."""
        self._noticed: dict[tuple[str, str], datetime] = {}
        """The same of the latest that somebody noticed. It may be the same application."""
        self._unanswered: dict[tuple[str, int], tuple[str, datetime]] = {}
        """The adapter of the last request of unknown outcome, and its time, by id and attempt of its job."""
        self._adapters = {each.name: each for each in adapters}
        self._served: set[str] = set()

    def objection(self, template: SparkTemplate) -> str | None:
        """Returns why it is not allowed, or else the objection of the first adapter if no other takes it.

        While no adapter is known to be served, there is no objection.
        """
        if (refused := self._limits.objection(template)) is not None:
            return refused
        objections = [each.objection(template) for each in self._served_adapters()]
        return objections[0] if objections and None not in objections else None

    async def launch(self, launch: Launch) -> None:
        """Launches with the first adapter that `observe` found to be served and whose applications run."""
        if not self._served:
            raise NotInstalled(
                _SWITCHED_OFF
                if not self._adapters
                else f"the cluster serves none of {', '.join(self._adapters)} yet; the operator retries"
            )
        now, attempt = self._now(), (launch.job_id, launch.attempt)
        recent = {each: sent for each, sent in self._unanswered.items() if now - sent[1] < _ANSWERED_WITHIN}
        self._unanswered = recent
        if attempt in recent:
            name, _ = recent[attempt]
        else:
            name, passed_over = await self._first_fit(launch)
            launch = replace(launch, passed_over=passed_over)
        self._unanswered[attempt] = name, now
        try:
            await self._adapters[name].launch(launch)
        except (LaunchRefused, NotInstalled):
            del self._unanswered[attempt]
            raise
        del self._unanswered[attempt]

    async def observe(self, owner: ObjectKey, owner_uid: str) -> tuple[AppState, ...]:
        """Returns the applications of all adapters."""
        if not self._adapters:
            raise NotInstalled(_SWITCHED_OFF)
        found: list[AppState] = []
        missing: list[str] = []
        for name, adapter in self._adapters.items():
            try:
                seen = await adapter.observe(owner, owner_uid)
            except NotInstalled as error:
                if name in self._served:
                    raise
                missing.append(str(error))
            else:
                self._served.add(name)
                found += [self._explained(app, owner.namespace) for app in seen]
        if len(missing) == len(self._adapters):
            raise NotInstalled("; ".join(missing))
        return tuple(sorted(found, key=lambda app: (app.attempt, app.created)))

    async def unfinished(self, namespaces: Sequence[str]) -> Collection[Unfinished]:
        """Returns those of all adapters that are served. Of two with the same name, one may be forged."""
        found: set[Unfinished] = set()
        for name, each in self._adapters.items():
            if name in self._served:
                found.update(await each.unfinished(namespaces))
        return found

    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        """Cancels with the adapter that the application belongs to."""
        await self._adapters[app.via].cancel(owner, app)

    async def _first_fit(self, launch: Launch) -> tuple[str, tuple[PassedOver, ...]]:
        """Returns the adapter to launch with, and those that are passed over for it."""
        served = self._served_adapters()
        fits = [each for each in served if each.objection(launch.template) is None] or served
        passed_over: list[PassedOver] = []
        for each in fits:
            if (since := await self._unnoticed_since(each, launch.owner.namespace)) is None:
                return each.name, tuple(passed_over)
            passed_over.append(PassedOver(each.name, since))
        return fits[0].name, ()

    def _served_adapters(self) -> list[ObjectAdapter]:
        return [each for name, each in self._adapters.items() if name in self._served]

    async def _unnoticed_since(self, adapter: ObjectAdapter, namespace: str) -> datetime | None:
        """Returns when the last application of an adapter was created, if nobody noticed it, or None."""
        place = adapter.name, namespace
        since = self._unnoticed.get(place, _NEVER)
        if since > self._noticed.get(place, _NEVER) and await adapter.works_since(namespace, since):
            _raise(self._noticed, place, since)
        return since if since > self._noticed.get(place, _NEVER) else None

    def _explained(self, app: AppState, namespace: str) -> AppState:
        """Remembers whether an application is noticed. If nobody does for long, its message says so."""
        place, now = (app.via, namespace), self._now()
        for each in app.passed_over:
            # This process may have been started since.
            _raise(self._unnoticed, (each.adapter, namespace), each.created)
        if app.is_noticed:
            _raise(self._noticed, place, app.created)
            return app
        if now - app.created < _NOTICED_WITHIN:
            return app
        _raise(self._unnoticed, place, app.created)
        return replace(app, message=app.message or _UNNOTICED)


def _raise(times: dict[tuple[str, str], datetime], place: tuple[str, str], time: datetime) -> None:
    times[place] = max(time, times.get(place, _NEVER))


def adapter(kube: Kube, name: AdapterName, limits: TemplateLimits) -> SparkAdapter:
    """Returns the adapter of a setting."""
    return AdapterChoice([kind(kube) for kind in _KINDS[name]], limits, kube.server_time)


def followed(name: AdapterName) -> Mapping[ResourceType, FollowedObjects]:
    """Returns the types of objects to follow, each with a store of what is read of them. It is empty."""
    types: dict[ResourceType, FollowedObjects] = {}
    for kind in _KINDS[name]:
        types[kind.type_] = FollowedObjects(MANAGED, kind.fields, OWNER_LABELS)
        if kind is JobAdapter:
            types[PODS] = FollowedObjects(f"{MANAGED},{NOT_OF_SPARK}", POD_FIELDS, OWNER_LABELS)
    return types
