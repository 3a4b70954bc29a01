"""Which run of a cron schedule is due: a pure function of the times, the records and the clock.

Invariants
- A run is named by its time, in the slot of its JobRecord: whoever starts it, and however often, it is one.
- No run begins whose time isn't after that of the last one on record: a clock that goes back repeats nothing.
- Of the runs that were missed (nobody was there, one before still ran, there was nothing to read yet) at most
  one begins, the latest; the others are counted.
- Only the records of the last runs are kept, so that they don't become more for ever: no earlier time comes
  again.
- What was next is remembered by the status. Without it nothing is due: what is new begins with the next time.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final, Generic, TypeVar
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import ValidationError

from holdfast.collections import JobRecord, JobState
from holdfast.errors import BadInput
from holdfast_operator.api.cron import MACROS, CronSchedule, ScheduleStatus
from holdfast_operator.api.names import Reason
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.status import timestamp
from holdfast_operator.jobs.steps import ForgetRuns

S = TypeVar("S", bound=CronSchedule)

_SLOT: Final = "schedule:"
"""What no `requestId` can begin with."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_KEPT: Final = 10
"""So many runs stay on record beside the latest one; as many more until they are forgotten at once."""
_COUNTED: Final = 1000
_LONGEST_AGAIN: Final = timedelta(hours=3)
"""More than clocks are ever put back."""
_WINDOWS: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 366))


def slot_of(time: datetime) -> str:
    """The slot of the JobRecord of the run of this time."""
    return _SLOT + timestamp(time)


def time_of(slot: str) -> datetime | None:
    """The time of the run that a slot names; None where it is none of a schedule."""
    if not slot.startswith(_SLOT):
        return None
    try:
        return datetime.strptime(slot.removeprefix(_SLOT), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


class Timetable:
    """The times of a cron line in a time zone.

    A line whose hours are all 24 goes by time as it passes: where clocks change its intervals stay, and an
    hour that comes twice is two hours. Any other names times of the day. Each comes once: that of an hour
    that comes twice in the first one, and all that are skipped together when the skipping is over.
    """

    def __init__(self, line: str, zone: str) -> None:
        """Raises `BadInput` where there is no such zone, or the line makes no sense."""
        self._line = MACROS.get(line, line)
        try:
            self._zone = ZoneInfo(zone)
        except (ValueError, OSError, KeyError):
            raise BadInput(f"timeZone {zone!r} is not in the IANA database of this operator") from None
        try:
            hours = CronSim(self._line, _EPOCH).hours
        except CronSimError as error:
            raise BadInput(f"schedule {line!r} has no times: {str(error).lower()}") from None
        self._each_hour = hours == set(range(24))

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The times after a moment, in order, UTC."""
        wall = moment.astimezone(self._zone).replace(tzinfo=None)
        last = moment
        for time in self._as_they_pass(wall) if self._each_hour else self._of_the_day(wall):
            if time > last:
                yield time
                last = time

    def _as_they_pass(self, wall: datetime) -> Iterator[datetime]:
        again = deque[datetime]()
        # Where an hour comes again, all of its times were there before.
        for time in CronSim(self._line, wall - _LONGEST_AGAIN):
            first, last = self._shown(time)
            while again and again[0] < first:
                yield again.popleft()
            if first <= last:
                yield first
            if first < last:
                again.append(last)

    def _of_the_day(self, wall: datetime) -> Iterator[datetime]:
        for time in CronSim(self._line, wall):
            shown, (first, last) = time, self._shown(time)
            while last < first:
                shown += timedelta(minutes=1)
                first, last = self._shown(shown)
            yield first

    def _shown(self, wall: datetime) -> tuple[datetime, datetime]:
        """When clocks show this for the first and for the last time; where they skip it, that is before."""
        of_zone = wall.replace(tzinfo=self._zone)
        return of_zone.astimezone(UTC), of_zone.replace(fold=1).astimezone(UTC)

    def first(self, moment: datetime) -> datetime:
        """The first one after a moment. Raises `BadInput` where none comes for 50 years."""
        for time in self.after(moment):
            return time
        raise BadInput(f"schedule {self._line!r} has no times in the next 50 years")

    def until(self, moment: datetime, end: datetime) -> Iterator[datetime]:
        """The times after `moment` that are not after `end`."""
        return takewhile(lambda time: time <= end, self.after(moment))

    def latest(self, moment: datetime, end: datetime) -> datetime | None:
        """The last one of `until`; only what is near to `end` is gone through."""
        for window in _WINDOWS:
            if moment < end - window and (found := max(self.until(end - window, end), default=None)):
                return found
        return max(self.until(moment, end), default=None)


@dataclass(frozen=True, kw_only=True)
class Scheduled(Generic[S]):
    """What is asked for by a schedule, and what is on record of it."""

    spec: S
    shown: ScheduleStatus = field(default_factory=ScheduleStatus)
    """What its status shows."""
    runs: tuple[JobRecord, ...] = ()
    objection: str | None = None
    """Why what runs Spark jobs can't take its template, and what to do."""

    @property
    def begun(self) -> frozenset[datetime]:
        """The times of the runs that are on record."""
        return frozenset(time for run in self.runs if (time := time_of(run.slot)) is not None)

    @property
    def latest(self) -> JobRecord | None:
        """The run of the latest time."""
        return max(self.runs, key=lambda run: run.slot, default=None)


def long_over(runs: Sequence[JobRecord], last_done: JobRecord | None) -> ForgetRuns | None:
    """What is done about runs that nobody needs on record; the last one that was committed is shown."""
    newest = sorted(runs, key=lambda run: run.slot, reverse=True)
    if len(newest) <= 2 * _KEPT or any(run.state is JobState.RUNNING for run in newest):
        return None
    return ForgetRuns(tuple(run.job_id for run in newest[_KEPT:] if run != last_done))


@dataclass(frozen=True)
class Turn:
    """Where a schedule is."""

    due: datetime | None
    """The time of the run that is to begin."""
    shown: ScheduleStatus
    missed: int
    """How many were missed that weren't shown as missed before."""
    upcoming: datetime
    """The time of the first run after that."""
    look_after: float
    """Seconds until there is something new."""


def shown_in(status: Mapping[str, Any], name: str) -> ScheduleStatus:
    """What a status shows of a schedule; nothing where it can't be read."""
    try:
        return ScheduleStatus.model_validate(status.get(name) or {})
    except ValidationError:
        return ScheduleStatus()


def turn(asked: Scheduled[Any], now: datetime) -> Turn:
    """Where a schedule is. Raises `BadInput` where it has no times."""
    spec: CronSchedule = asked.spec
    shown, begun = asked.shown, asked.begun
    times = Timetable(spec.schedule, spec.time_zone)
    last = max(begun, default=None)
    first = shown.next_schedule_time
    over = now if last is None else max(now, last)
    if spec.suspend:
        # What is missed meanwhile is told when it goes on.
        kept = shown.model_copy(update={"last_schedule_time": last})
        return Turn(None, kept, 0, times.first(over), _seconds(times.first(over), now))
    due = None
    if first is not None:
        before = first - timedelta(microseconds=1)
        due = times.latest(before if last is None else max(before, last), now)
    deadline = timedelta.max
    if spec.starting_deadline_seconds is not None:
        deadline = timedelta(seconds=spec.starting_deadline_seconds)
    if due is not None and now - due > deadline:
        due = None
    following = times.first(over)
    upcoming = following if due is None else due
    missed = 0
    if first is not None:
        if len(begun) >= _KEPT:
            # Of earlier ones than the first on record nobody knows whether they ran.
            first = max(first, min(begun))
        passed = times.until(first - timedelta(microseconds=1), upcoming - timedelta(microseconds=1))
        missed = sum(1 for _ in islice((time for time in passed if time not in begun), _COUNTED))
    wake = following
    if due is not None and deadline < timedelta.max:
        wake = min(following, due + deadline + timedelta(milliseconds=1))
    told = ScheduleStatus(
        last_schedule_time=last, next_schedule_time=upcoming, missed_runs=shown.missed_runs + missed
    )
    return Turn(due, told, missed, following, _seconds(wake, now))


def missed_notes(found: Turn) -> tuple[Note, ...]:
    """What is told of runs that were missed; the same words each time, so that it is counted up."""
    if not found.missed:
        return ()
    number = str(found.missed) if found.missed < _COUNTED else f"at least {found.missed}"
    runs = "1 scheduled run was" if found.missed == 1 else f"{number} scheduled runs were"
    return (Note(Reason.RUNS_MISSED, f"{runs} missed", warning=True),)


def _seconds(moment: datetime, now: datetime) -> float:
    return max((moment - now).total_seconds(), 0.0)
