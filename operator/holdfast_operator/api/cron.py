"""What is done again and again at the times of a cron line, as a CronJob has it."""

from datetime import datetime
from typing import Final

from pydantic import Field

from holdfast_operator.api.base import ApiModel, validations

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names of cron lines."""


def _field(value: str) -> str:
    """The pattern of one field of a cron line whose values are like `value`."""
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
    """When something is done again and again."""

    schedule: str = Field(
        min_length=1,
        max_length=100,
        description="The times, as a CronJob has them: minute, hour, day of the month, month and day of the "
        "week, or @hourly, @daily, @weekly, @monthly, @yearly.",
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
        description="The time zone that the times are of, by its name in the IANA database, e.g. "
        "Europe/Berlin. Where clocks change, a line of every hour (*) goes on as time passes. Of any other, "
        "a time that is skipped is just after that, and one that comes twice is the first of the two.",
        json_schema_extra=validations(
            (
                "self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')",
                "must be the name of a time zone, like Europe/Berlin",
            )
        ),
    )
    starting_deadline_seconds: int | None = Field(
        default=None,
        ge=10,
        le=31_536_000,
        description="A run that couldn't begin so many seconds after its time is missed. Without it, the "
        "latest one that was missed begins as soon as it can; those before it never do.",
    )
    suspend: bool = Field(
        default=False,
        description="True begins no further run until it is false again; one that runs goes on.",
    )


class ScheduleStatus(ApiModel):
    """Where a schedule is."""

    last_schedule_time: datetime | None = Field(
        default=None, description="The time of the last run that began; the store has its JobRecord."
    )
    next_schedule_time: datetime | None = Field(
        default=None, description="The time of the next run; in the past, one that is due and waits."
    )
    missed_runs: int = Field(
        default=0, ge=0, description="How many runs were missed since the schedule is there."
    )
