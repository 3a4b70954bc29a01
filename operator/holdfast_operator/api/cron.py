"""Work that repeats on a cron schedule, in the form that a CronJob uses."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from holdfast_operator.api.base import ApiModel, Duration, between, validations

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""The cron lines that the names stand for."""


def _field(value: str) -> str:
    """Returns the pattern of one field of a cron line whose values match `value`."""
    item = rf"(\\*|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


_LINE: Final = " +".join(
    map(
        _field,
        (
            "[0-5]?[0-9]",
            "[01]?[0-9]|2[0-3]",
            "0?[1-9]|[12][0-9]|3[01]",
            "0?[1-9]|1[0-2]|[A-Za-z]{3}",
            "[0-7]|[A-Za-z]{3}",
        ),
    )
)


class CronSchedule(ApiModel):
    """The times at which work repeats."""

    schedule: str = Field(
        min_length=1,
        max_length=100,
        description="The times, in the form of a CronJob: minute, hour, day of the month, month and day of "
        "the week, or @hourly, @daily, @weekly, @monthly, @yearly.",
        json_schema_extra=validations(
            (
                f"self.matches('^({_LINE}|{'|'.join(MACROS)})$')",
                "must be minute, hour, day, month and weekday, like '30 2 * * *', or a name like @daily",
            )
        ),
    )
    time_zone: str = Field(
        default="UTC",
        min_length=1,
        max_length=64,
        description="The time zone of the schedule: a name of the IANA database, e.g. Europe/Berlin. When "
        "clocks change, a schedule for every hour (*) keeps its interval. Any other schedule runs right "
        "after the change if its time is skipped, and only the first time if its time occurs twice.",
        json_schema_extra=validations(
            (
                "self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')",
                "must be the name of a time zone, like Europe/Berlin",
            )
        ),
    )
    starting_deadline: Annotated[Duration, between("10s", "365d")] | None = Field(
        default=None,
        description="Time after its scheduled time within which a run can start, at least 10s. A run that "
        "can't start in time is missed. Without this field, the latest missed run starts as soon as it can, "
        "and earlier ones never do.",
    )
    suspend: bool = Field(
        default=False,
        description="If true, no new run starts until it is false again. A current run continues.",
    )


class ScheduleStatus(ApiModel):
    """The state of a schedule."""

    last_schedule_time: datetime | None = Field(
        default=None,
        description="The scheduled time of the last run that started. The store has its JobRecord.",
    )
    next_schedule_time: datetime | None = Field(
        default=None,
        description="The scheduled time of the next run. If it is in the past, the run is due and waits.",
    )
    missed_runs: int = Field(
        default=0, ge=0, description="Number of runs missed since the schedule was created."
    )
