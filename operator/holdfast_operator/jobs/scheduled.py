"""Decides which run of a cron schedule is due: a pure function of the times, the records and the clock.

Invariants
- The slot of a run's JobRecord contains the time of the run. So a run happens once, even if several processes
  start it.
- A run starts only if its time is after the time of the last recorded run. So nothing is repeated if a clock
  goes back.
- Of the missed runs, at most the latest one starts, and the others are counted. Runs are missed if the
  operator was down, an earlier run was not finished, or there was nothing to read yet.
- Only the records of the last runs are kept, so that their number is limited. This is safe because no earlier
  time runs again.
- The status remembers the next time. Without it nothing is due, so a new schedule starts with its next time.
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
from holdfast_operator.api.base import seconds
from holdfast_operator.api.cron import MACROS, CronSchedule, ScheduleStatus
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.jobs.steps import ForgetRuns

S = TypeVar("S", bound=CronSchedule)

_SLOT: Final = "schedule:"
"""Prefix of the slots of a schedule. The id of no request starts with it."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_KEPT: Final = 10
"""The number of records of runs to keep. Older ones are removed together when there are twice as many."""
_COUNTED: Final = 1000
_LONGEST_AGAIN: Final = timedelta(hours=3)
"""More than a clock is ever set back."""
_WINDOWS: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 32, 366))


def slot_of(time: datetime) -> str:
    """Returns the slot of the JobRecord of the run at this time."""
    return _SLOT + timestamp(time)


def time_of(slot: str) -> datetime | None:
    """Returns the time of the run that a slot names, or None if the slot isn't from a schedule."""
    if not slot.startswith(_SLOT):
        return None
    try:
        return datetime.strptime(slot.removeprefix(_SLOT), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


class Timetable:
    """The times of a cron line in a time zone.

    A line that names all 24 hours follows elapsed time: its intervals stay the same when clocks change, and
    an hour that occurs twice counts as two hours. Any other line names times of the day, and each occurs
    once. If an hour occurs twice, its first occurrence counts. Times that are skipped all occur right after
    the change.
    """

    def __init__(self, line: str, zone: str) -> None:
        """Parses a line. Raises `BadInput` if the zone is unknown or the line is invalid."""
        self._line = MACROS.get(line, line)
        try:
            self._zone = ZoneInfo(zone)
        except (ValueError, OSError, KeyError):
            raise BadInput(f"timeZone {zone!r} is not in the IANA database of this operator") from None
        try:
            hours = CronSim(self._line, _EPOCH).hours
        except CronSimError as error:
            raise BadInput(f"schedule {line!r} is invalid: {str(error).lower()}") from None
        self._each_hour = hours == set(range(24))

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yields the times after a moment, in order, in UTC."""
        wall = moment.astimezone(self._zone).replace(tzinfo=None)
        last = moment
        for time in self._as_they_pass(wall) if self._each_hour else self._of_the_day(wall):
            if time > last:
                yield time
                last = time

    def _as_they_pass(self, wall: datetime) -> Iterator[datetime]:
        again = deque[datetime]()
        # Start early enough to include the first occurrence of an hour that occurs twice.
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
        """Returns when clocks show `wall` first and last. If they skip it, the last precedes the first."""
        of_zone = wall.replace(tzinfo=self._zone)
        return of_zone.astimezone(UTC), of_zone.replace(fold=1).astimezone(UTC)

    def first(self, moment: datetime) -> datetime:
        """Returns the first time after a moment. Raises `BadInput` if there is none within 50 years."""
        for time in self.after(moment):
            return time
        raise BadInput(f"schedule {self._line!r} has no times in the next 50 years")

    def until(self, moment: datetime, end: datetime) -> Iterator[datetime]:
        """Yields the times after `moment` up to and including `end`."""
        return takewhile(lambda time: time <= end, self.after(moment))

    def latest(self, moment: datetime, end: datetime) -> datetime | None:
        """Returns the last time of `until`. Searches near `end` first, to avoid going through all times."""
        for window in _WINDOWS:
            if moment < end - window and (found := max(self.until(end - window, end), default=None)):
                return found
        return max(self.until(moment, end), default=None)


@dataclass(frozen=True, kw_only=True)
class Scheduled(Generic[S]):
    """A schedule, its status and the records of its runs."""

    spec: S
    template: SparkTemplate
    shown: ScheduleStatus = field(default_factory=ScheduleStatus)
    """The current status."""
    runs: tuple[JobRecord, ...] = ()
    times: frozenset[datetime] = frozenset()
    """The times of runs that have no record, because each is an object."""
    objection: str | None = None
    """Why the Spark adapter can't run its template, and what to do. None if it can."""

    @property
    def begun(self) -> frozenset[datetime]:
        """The times of the known runs."""
        recorded = frozenset(time for run in self.runs if (time := time_of(run.slot)) is not None)
        return self.times | recorded

    @property
    def latest(self) -> JobRecord | None:
        """The run with the latest time."""
        return max(self.runs, key=lambda run: run.slot, default=None)


def long_over(runs: Sequence[JobRecord], last_done: JobRecord | None) -> ForgetRuns | None:
    """Returns a step that removes old records, or None. It keeps the last committed run for the status."""
    newest = sorted(runs, key=lambda run: run.slot, reverse=True)
    if len(newest) <= 2 * _KEPT or any(run.state is JobState.RUNNING for run in newest):
        return None
    return ForgetRuns(tuple(run.job_id for run in newest[_KEPT:] if run != last_done))


@dataclass(frozen=True)
class Turn:
    """The state of a schedule at one moment."""

    due: datetime | None
    """The time of the run that should start now."""
    shown: ScheduleStatus
    missed: int
    """The number of missed runs that the status didn't count before."""
    upcoming: datetime
    """The time of the first run after that."""
    look_after: float
    """Seconds until the next reconciliation."""


def shown_in(status: Mapping[str, Any], name: str) -> ScheduleStatus:
    """Returns the part of a status about a schedule. Empty if it can't be parsed."""
    try:
        return ScheduleStatus.model_validate(status.get(name) or {})
    except ValidationError:
        return ScheduleStatus()


def turn(asked: Scheduled[Any], now: datetime) -> Turn:
    """Returns the state of a schedule now. Raises `BadInput` if it never occurs."""
    spec: CronSchedule = asked.spec
    shown, begun = asked.shown, asked.begun
    times = Timetable(spec.schedule, spec.time_zone)
    last = max(begun, default=None)
    first = shown.next_schedule_time
    over = now if last is None else max(now, last)
    if spec.suspend:
        # Runs that are missed meanwhile are counted when the suspension ends.
        kept = shown.model_copy(update={"last_schedule_time": last})
        return Turn(None, kept, 0, times.first(over), _seconds(times.first(over), now))
    due = None
    if first is not None:
        before = first - timedelta(microseconds=1)
        due = times.latest(before if last is None else max(before, last), now)
    deadline = timedelta.max
    if spec.starting_deadline is not None:
        deadline = timedelta(seconds=seconds(spec.starting_deadline))
    if due is not None and now - due > deadline:
        due = None
    following = times.first(over)
    upcoming = following if due is None else due
    missed = 0
    if first is not None:
        if len(begun) >= _KEPT:
            # It is unknown whether runs before the first recorded one happened.
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
    """Returns an Event for missed runs. Its text doesn't vary, so that Kubernetes counts repetitions."""
    if not found.missed:
        return ()
    number = str(found.missed) if found.missed < _COUNTED else f"at least {found.missed}"
    runs = "1 scheduled run was" if found.missed == 1 else f"{number} scheduled runs were"
    return (Note(Reason.RUNS_MISSED, f"{runs} missed", warning=True),)


def _seconds(moment: datetime, now: datetime) -> float:
    return max((moment - now).total_seconds(), 0.0)
