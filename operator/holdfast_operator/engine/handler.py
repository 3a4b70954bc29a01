"""One reconcile: read fresh, observe, plan, act, show; the same loop for every kind.

Invariants
- At most one irreversible step per reconcile; then the key comes back at once, behind all others.
- An error of the library becomes a status; an error of ours becomes one too, and a trace in the log.
- `Fenced` on a catalog that we hold is handed up: what then happens is the process's business.
- What is kept in memory for an object is kept for its uid. One that was deleted and created again under the
  same name, perhaps before anybody looked, is another object.
- What the API server refuses at each try is logged once, and once more when it doesn't any more.
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
from holdfast_operator.engine.clock import Clock
from holdfast_operator.engine.deletion import Deletions
from holdfast_operator.engine.events import EventSink, Note, transitions
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.kube import (
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
from holdfast_operator.engine.status import Phase, StatusWriter, health_conditions, next_status, shown
from holdfast_operator.engine.steps import Decision, Free, Keep, Release, Rest, Rhythm, Settle, Wait, stalled
from holdfast_operator.engine.troubles import Troubles

Json = dict[str, Any]
O = TypeVar("O")  # noqa: E741 - what was observed

log = logging.getLogger(__name__)

_MAX_STEPS: Final = 6


@dataclass(frozen=True)
class Services:
    """What every handler works with."""

    kube: Kube
    status: StatusWriter
    events: EventSink
    clock: Clock
    metrics: Metrics
    enqueue: Callable[[ObjectKey, float], None]
    """Have an object reconciled after so many seconds: something happened to it."""
    look: Callable[[ObjectKey], None]
    """Have one of many looked at again; it lets those go first that something happened to."""
    seen: Callable[[ObjectKey, Json], None]
    """Told how an object is after it was written here, so that hearing of that is nothing new."""


class Halt(Exception):
    """Ends a reconcile with this outcome; raised from within `observe` or `apply`."""

    def __init__(self, outcome: Settle) -> None:
        super().__init__(outcome.health.message)
        self.outcome = outcome


class _Refused(Exception):
    """The API server let a reconcile not come to its end: it is tried again."""

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
        """Look at everything that the plan depends on; changes nothing."""

    @abstractmethod
    def plan(self, observed: O) -> Decision:
        """Decide; pure."""

    @abstractmethod
    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        """Take a step that is no `Rest`."""

    @abstractmethod
    async def gone(self, key: ObjectKey) -> None:
        """The object is no more: let go of what was kept for it."""

    def held(self, key: ObjectKey) -> None:
        """The finalizer of an object was put on or taken off."""

    def shown(self, key: ObjectKey, body: Json, before: Json) -> None:  # noqa: ARG002 - for those who compare
        """Take note that the status `before` was replaced by that of `body`."""
        self.services.seen(key, body)

    async def reconcile(self, key: ObjectKey) -> Result:
        """Bring one object a step further. Raises `Fenced`."""
        try:
            result = await self._begin(key)
        except _Refused as refused:
            self._troubles.tell(key, str(refused), level=refused.level)
            return Result(retry=True)
        self._troubles.over(key, "the API server refuses nothing any more")
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
            log.info("it was deleted and created again")
            await self._forget(key)
        self._uids[key] = uid
        return await self._go_on(key, body)

    async def _forget(self, key: ObjectKey) -> None:
        self._uids.pop(key, None)
        self._deletions.forget(key)
        await self.gone(key)

    async def _go_on(self, key: ObjectKey, body: Json) -> Result:
        """The same with an object that was read, or written, just now."""
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
            log.exception("the reconcile failed")
            step = Settle(
                stalled(Reason.INTERNAL_ERROR, "the operator failed; it tries again by itself, see its log"),
                retry=True,
            )
        if isinstance(step, Settle):
            step = self._deletions.account(key, body, step)
        return await self._finish(key, body, step)

    async def _decide(self, key: ObjectKey, body: Json) -> Rest:
        acted = False
        for _ in range(_MAX_STEPS):
            step = self.plan(await self.observe(key, body))
            if isinstance(step, Rest):
                return step
            if step.irreversible and acted:
                break
            log.debug("step: %s", step)
            await self.apply(key, body, step)
            acted = acted or step.irreversible
        return Wait(requeue_after=0.0)

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
            # It is read once more: if the watches are down when it goes, no event says so.
            return Result(requeue_after=0.0)
        self.services.seen(key, written)
        self.held(key)
        # What is new goes on at once: a thousand of them would all come by a second time.
        as_asked = has_finalizer(written) == (FINALIZER in wanted)
        return await self._go_on(key, written) if as_asked else Result(retry=True)

    async def _patch_metadata(self, key: ObjectKey, body: Json, change: Json) -> Json:  # noqa: ARG002 - see above
        """Write finalizers. Raises `Conflict` where the object changed, or what needs it."""
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
            raise _Refused("the status is refused; is the CRD of another version?", error) from None
        except KubeError as error:
            raise _Refused("the status can't be written", error) from None
        if written is not None:
            self.shown(key, written, old)
            notes = (*step.notes, *transitions(old.get("conditions", []), step.health, step.conditions))
            _log(body, step, notes)
            for note in notes:
                await self.services.events.post(key, body["metadata"]["uid"], note)
        return Result(requeue_after=step.requeue_after, retry=step.retry)


def _forbidden(error: Forbidden) -> Settle:
    return Settle(stalled(Reason.FORBIDDEN, f"{error}; let the operator's role do it"), retry=True)


def _log(body: Json, step: Settle, notes: Sequence[Note]) -> None:
    """Log what the Events say, and what else keeps an object from being ready.

    Once, and not at each of the tries of a store that is away for a day.
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
    """What reconcilers need to know of the process that they are in."""

    holder: str
    data_dir: Path | None
    storage_shared: bool
    rhythm: Rhythm
    allowed_locations: tuple[str, ...] = ()
    """URLs below which catalogs may be, beside `data_dir`; empty: anywhere."""
    silence: timedelta = timedelta(minutes=2)
    """After this time a store that doesn't answer an open isn't only slow."""
