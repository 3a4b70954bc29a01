"""The reconciliation loop that all kinds share: read, observe, plan, apply, show.

Invariants
- A reconciliation applies at most one irreversible step. Then the key comes back at once, behind all others.
- An error of the library becomes a status. An unexpected error becomes a status too, with a trace in the log.
- `Fenced` on an open catalog is raised to the caller, because the process decides what to do.
- An irreversible step follows only from what is current: right before it, everything that decided is
  confirmed. If something has changed, the key comes back at once.
- State in memory belongs to the uid of an object. An object that was deleted and created again under the same
  name is another object, even if nobody noticed the deletion.
- If the API server refuses a request at each attempt, this is logged once, and once more when it is over.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from holdfast.errors import Fenced, HoldfastError
from holdfast_operator.api.names import FINALIZER, Kind, Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.deletion import Deletions
from holdfast_operator.engine.events import EventSink, Note, transitions
from holdfast_operator.engine.failures import RETRIES, settled
from holdfast_operator.engine.health import Phase, health_conditions
from holdfast_operator.engine.known import Reads, are_current, reading
from holdfast_operator.engine.kube import (
    AdmissionDenied,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Kube,
    KubeError,
    NotLeading,
    ObjectKey,
    resource_type,
)
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.queue import Result
from holdfast_operator.engine.resources import has_finalizer, is_deleting, kept_fields
from holdfast_operator.engine.status_writer import StatusWriter, next_status, shown
from holdfast_operator.engine.steps import Decision, Free, Keep, Release, Rest, Rhythm, Settle, Wait, stalled
from holdfast_operator.engine.troubles import Troubles

Json = dict[str, Any]
O = TypeVar("O")  # noqa: E741 - what was observed

log = logging.getLogger(__name__)

_MAX_STEPS: Final = 6


@dataclass(frozen=True)
class Services:
    """The services that every handler uses."""

    kube: Kube
    status: StatusWriter
    events: EventSink
    clock: Clock
    metrics: Metrics
    enqueue: Callable[[ObjectKey, float], None]
    """Reconciles an object after a number of seconds, because something happened to it."""
    look: Callable[[ObjectKey], None]
    """Reconciles one of many objects again. Objects that something happened to go first."""
    seen: Callable[[ObjectKey, Json], None]
    """Called with an object after the operator wrote it, so that the event of this write is no news."""


class Halt(Exception):
    """Ends a reconciliation with this outcome. `observe` and `apply` raise it."""

    def __init__(self, outcome: Settle | Wait) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


class _Refused(Exception):
    """The API server prevented the end of a reconciliation, which is retried."""

    def __init__(self, what: str, error: KubeError) -> None:
        super().__init__(f"{what}: {error}")
        self.level = logging.ERROR if isinstance(error, Invalid) else logging.WARNING


class Handler(ABC, Generic[O]):
    """Reconciles the objects of one kind."""

    kind: ClassVar[Kind]

    def __init__(self, services: Services) -> None:
        self.services = services
        self._troubles: Troubles[ObjectKey] = Troubles(log)
        self._uids: dict[ObjectKey, str] = {}
        self._deletions = Deletions(services.clock)

    @abstractmethod
    async def observe(self, key: ObjectKey, body: Json) -> O:
        """Reads everything that the plan depends on. Changes nothing."""

    @abstractmethod
    def plan(self, observed: O) -> Decision:
        """Returns the next step. Pure."""

    @abstractmethod
    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        """Applies a step that is no `Rest`."""

    @abstractmethod
    async def gone(self, key: ObjectKey) -> None:
        """Releases everything that was kept for an object that no longer exists."""

    def held(self, key: ObjectKey) -> None:
        """Called after the finalizer of an object was set or removed."""

    def shown(self, key: ObjectKey, body: Json, before: Json) -> None:  # noqa: ARG002 - for those who compare
        """Called after the status `before` was replaced by the status in `body`."""
        self.services.seen(key, body)

    async def reconcile(self, key: ObjectKey) -> Result:
        """Reconciles one object. Raises `Fenced`."""
        try:
            result = await self._begin(key)
        except _Refused as refused:
            self._troubles.tell(key, str(refused), level=refused.level)
            return Result(retry=True)
        self._troubles.over(key, "the API server accepts all requests again")
        return result

    async def _begin(self, key: ObjectKey) -> Result:
        try:
            body = await self.services.kube.get(key)
        except Gone:
            await self._forget(key)
            return Result()
        except KubeError as error:
            raise _Refused("can't be read", error) from None
        uid = body["metadata"]["uid"]
        if self._uids.get(key, uid) != uid:
            log.info("the resource was deleted and created again")
            await self._forget(key)
        self._uids[key] = uid
        return await self._go_on(key, body)

    async def _forget(self, key: ObjectKey) -> None:
        self._uids.pop(key, None)
        self._deletions.forget(key)
        await self.gone(key)

    async def _go_on(self, key: ObjectKey, body: Json) -> Result:
        """Reconciles an object that was just read or written."""
        step: Rest
        try:
            step = await self._decide(key, body)
        except Halt as halt:
            step = halt.outcome
        except Fenced:
            raise
        except HoldfastError as error:
            step = settled(error)
        except NotLeading as error:
            log.info("%s", error)
            return Result(retry=True)
        except Forbidden as error:
            step = _forbidden(error)
        except KubeError as error:
            raise _Refused("the API server refuses", error) from None
        except Exception:
            log.exception("the reconciliation failed")
            step = Settle(
                stalled(Reason.INTERNAL_ERROR, "the operator failed; it retries by itself, see its log"),
                retry=True,
            )
        if isinstance(step, Settle):
            step = self._deletions.account(key, body, step)
        return await self._finish(key, body, step)

    async def _decide(self, key: ObjectKey, body: Json) -> Rest:
        acted = False
        for _ in range(_MAX_STEPS):
            with reading() as reads:
                step = self.plan(await self.observe(key, body))
            if isinstance(step, Rest):
                return step
            if step.irreversible and (acted or not await self._is_current(key, body, reads)):
                break
            log.debug("step: %s", step)
            await self.apply(key, body, step)
            acted = acted or step.irreversible
        return Wait(requeue_after=0.0)

    async def _is_current(self, key: ObjectKey, body: Json, reads: Reads) -> bool:
        """Returns whether the object, and everything else that decided, is still as it was read."""
        return await self.services.kube.is_current(key, body) and await are_current(reads)

    async def _finish(self, key: ObjectKey, body: Json, step: Rest) -> Result:
        others = [each for each in body["metadata"].get("finalizers", []) if each != FINALIZER]
        match step:
            case Wait():
                return Result(requeue_after=step.requeue_after)
            case Keep():
                return await self._write_finalizers(key, body, [*others, FINALIZER])
            case Free():
                return await self._write_finalizers(key, body, others)
            case Release():
                for note in step.notes:
                    await self.services.events.post(key, body["metadata"]["uid"], note)
                return await self._write_finalizers(key, body, others)
            case Settle():
                return await self._show(key, body, step)
            case _:
                raise AssertionError(step)

    async def _write_finalizers(self, key: ObjectKey, body: Json, wanted: list[str]) -> Result:
        if body["metadata"].get("finalizers", []) == wanted:
            return Result()
        change = {"resourceVersion": body["metadata"]["resourceVersion"], "finalizers": wanted}
        try:
            written = await self._patch_metadata(key, body, change)
        except (Conflict, Gone):
            return Result(requeue_after=0.0)
        except Forbidden as error:
            return await self._show(key, body, _forbidden(error))
        except KubeError as error:
            raise _Refused("the finalizer can't be written", error) from None
        if is_deleting(body):
            # Read it once more. If the watches are down when it is deleted, no event reports it.
            return Result(requeue_after=0.0)
        self.services.seen(key, written)
        self.held(key)
        # Continue at once with a new object. Otherwise a thousand new objects would all be queued twice.
        as_asked = has_finalizer(written) == (FINALIZER in wanted)
        return await self._go_on(key, written) if as_asked else Result(retry=True)

    async def _patch_metadata(self, key: ObjectKey, body: Json, change: Json) -> Json:  # noqa: ARG002 - see above
        """Writes finalizers. Raises `Conflict` if the object, or the resources that need it, have changed."""
        type_ = resource_type(key.kind)
        return await self.services.kube.patch(type_, key.namespace, key.name, {"metadata": change})

    async def _show(self, key: ObjectKey, body: Json, step: Settle) -> Result:
        old = body.get("status", {})
        fields = kept_fields(old) if step.fields is None else step.fields
        wanted = (*health_conditions(step.health), *step.conditions)
        now = self.services.clock.wall()
        status = next_status(old, fields, wanted, body["metadata"]["generation"], now)
        try:
            written = await self.services.status.write(key, body, status)
        except Conflict:
            return Result(requeue_after=0.0)
        except Gone:
            return Result(requeue_after=0.0)
        except Invalid as error:
            raise _Refused("the status is rejected; does the CRD have another version?", error) from None
        except KubeError as error:
            raise _Refused("the status can't be written", error) from None
        if written is not None:
            self.shown(key, written, old)
            notes = (*step.notes, *transitions(old.get("conditions", []), step.health, step.conditions))
            _log(body, step, notes)
            for note in notes:
                await self.services.events.post(key, body["metadata"]["uid"], note)
            if written.get("spec") != body.get("spec"):
                # A watch that began before the CRD was changed leaves out its new fields.
                return Result(requeue_after=0.0)
        return Result(requeue_after=step.requeue_after, retry=step.retry)


def _forbidden(error: Forbidden) -> Settle:
    todo = RETRIES if isinstance(error, AdmissionDenied) else "allow this in the operator's role"
    return Settle(stalled(Reason.FORBIDDEN, f"{error}; {todo}"), retry=True)


def _log(body: Json, step: Settle, notes: Sequence[Note]) -> None:
    """Logs the Events, and anything else that prevents an object from being ready.

    Logs each message once, and not at each attempt to reach a store that is down for a day.
    """
    for note in notes:
        log.log(logging.WARNING if note.warning else logging.INFO, "%s: %s", note.reason, note.message)
    health, message = step.health, shown(step.health.message)
    before = body.get("status", {}).get("conditions", [])
    said = {*(each["message"] for each in before), *(shown(note.message) for note in notes)}
    if step.retry and health.phase is not Phase.READY and message not in said:
        level = logging.WARNING if health.phase is Phase.STALLED else logging.INFO
        log.log(level, "%s: %s", health.reason, message)


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of the process that the handlers need."""

    holder: str
    data_dir: Path | None
    storage_shared: bool
    rhythm: Rhythm
    allowed_locations: tuple[str, ...] = ()
    """URLs below which catalogs are allowed, in addition to `data_dir`. Empty means anywhere."""
    spark_template: SparkTemplate | None = None
    """What Spark jobs have where neither their Catalog nor a more special template says otherwise."""
    silence: timedelta = timedelta(minutes=2)
    """The time after which a store that doesn't respond to an open counts as unreachable instead of slow."""
