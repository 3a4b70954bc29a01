"""Which run of a schedule is due: each time at most once, and only the latest of the missed ones."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import JobRecord, JobState
from holdfast.errors import BadInput
from holdfast_operator.api.cron import CronSchedule, ScheduleStatus
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.jobs.scheduled import (
    Scheduled,
    Timetable,
    Turn,
    long_over,
    missed_notes,
    slot_of,
    time_of,
    turn,
)
from holdfast_operator.jobs.steps import ForgetRuns

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-{text}").replace(tzinfo=UTC)


def times(line: str, zone: str, start: str, count: int) -> list[str]:
    """The next times after a moment, as the zone shows them, with their offset."""
    found = islice(Timetable(line, zone).after(at(start)), count)
    return [f"{time.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for time in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 02:00 to 03:00 is skipped on the 29th.
        ("30 2 * * *", ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]),
        ("0 3 * * *", ["28 03:00 +0100", "29 03:00 +0200", "30 03:00 +0200"]),
        ("15,45 2 29 * *", ["29 03:00 +0200", "29 02:15 +0200"]),
        ("0 2,3 29 * *", ["29 03:00 +0200", "29 02:00 +0200"]),
        ("0 * 29 * *", ["29 00:00 +0100", "29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200"]),
        ("*/30 2 29,30 * *", ["29 03:00 +0200", "30 02:00 +0200", "30 02:30 +0200"]),
        ("15 */2 29 * *", ["29 00:15 +0100", "29 03:00 +0200", "29 04:15 +0200", "29 06:15 +0200"]),
        (
            "*/30 * 29 * *",
            [*(f"29 0{time} +0100" for time in ("0:00", "0:30", "1:00", "1:30")), "29 03:00 +0200"],
        ),
    ],
)
def test_a_time_that_the_clocks_skip_in_berlin_is_just_after_it(line: str, expected: list[str]) -> None:
    assert times(line, "Europe/Berlin", "03-27T12:00", len(expected)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 02:00 to 03:00 comes twice on the 25th.
        ("30 2 * * *", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
        ("30 1,2,3 25 * *", ["25 01:30 +0200", "25 02:30 +0200", "25 03:30 +0100"]),
        (
            "*/30 2 * * *",
            ["24 02:00 +0200", "24 02:30 +0200", "25 02:00 +0200", "25 02:30 +0200", "26 02:00 +0100"],
        ),
        ("15 */2 25 * *", ["25 00:15 +0200", "25 02:15 +0200", "25 04:15 +0100"]),
        ("0 * 25 * *", ["25 00:00 +0200", "25 01:00 +0200", "25 02:00 +0200", "25 02:00 +0100"]),
        ("15 0-23 25 * *", ["25 00:15 +0200", "25 01:15 +0200", "25 02:15 +0200", "25 02:15 +0100"]),
        ("*/30 2-3 25 * *", ["25 02:00 +0200", "25 02:30 +0200", "25 03:00 +0100", "25 03:30 +0100"]),
    ],
)
def test_a_time_that_comes_twice_in_berlin_counts_once_unless_it_is_each_hours(
    line: str, expected: list[str]
) -> None:
    assert times(line, "Europe/Berlin", "10-23T12:00", len(expected)) == expected


def passed(
    matches: Callable[[datetime], bool], each_hour: bool, zone: ZoneInfo, start: datetime
) -> list[datetime]:
    """What a clock on the wall goes by in two days and a half, minute by minute."""
    found, before = [], start.astimezone(zone).replace(tzinfo=None)
    for minutes in range(1, 3600):
        time = start + timedelta(minutes=minutes)
        shown = time.astimezone(zone)
        wall = shown.replace(tzinfo=None, fold=0)
        if each_hour:
            due = matches(wall)
        else:
            skipped = (
                before + timedelta(minutes=n) for n in range(1, (wall - before) // timedelta(minutes=1))
            )
            due = not shown.fold and (matches(wall) or any(map(matches, skipped)))
        found += [time] if due else []
        before = wall
    return found


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Berlin", "2027-03-28"),
        ("Europe/Berlin", "2027-10-31"),
        ("America/St_Johns", "2027-03-14"),
        ("America/St_Johns", "2027-11-07"),
        # By half an hour.
        ("Australia/Lord_Howe", "2027-10-03"),
        ("Australia/Lord_Howe", "2027-04-04"),
        # At midnight, forward and back.
        ("Africa/Cairo", "2027-04-30"),
        ("America/Havana", "2027-11-07"),
        ("UTC", "2027-03-28"),
    ],
)
@pytest.mark.parametrize(
    ("line", "matches", "each_hour"),
    [
        ("*/15 2 * * *", lambda t: t.hour == 2 and t.minute % 15 == 0, False),
        ("* 0-2 * * *", lambda t: t.hour <= 2, False),
        ("20 */2 * * *", lambda t: t.hour % 2 == 0 and t.minute == 20, False),
        ("45 0,1,2,3 * * *", lambda t: t.hour <= 3 and t.minute == 45, False),
        ("0 0 * * *", lambda t: t.hour == t.minute == 0, False),
        ("*/15 * * * *", lambda t: t.minute % 15 == 0, True),
        ("10 * * * *", lambda t: t.minute == 10, True),
        ("40 * * * *", lambda t: t.minute == 40, True),
        ("40 0-23 * * 0,5", lambda t: t.minute == 40 and t.isoweekday() in {5, 7}, True),
    ],
)
def test_times_are_those_of_a_clock_on_the_wall_on_the_day_that_it_is_changed(
    zone: str, change: str, line: str, matches: Callable[[datetime], bool], each_hour: bool
) -> None:
    start = datetime.fromisoformat(change).replace(tzinfo=UTC) - timedelta(hours=30)
    expected = passed(matches, each_hour, ZoneInfo(zone), start)
    assert len(expected) > 0
    assert list(Timetable(line, zone).until(start, start + timedelta(minutes=3599))) == expected


def test_from_within_the_hour_that_comes_twice_the_first_one_does_not_come_again() -> None:
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    assert next(Timetable("30 2 * * *", "Europe/Berlin").after(second)) == at("10-26T01:30")
    each_hour = Timetable("30 * * * *", "Europe/Berlin")
    assert list(islice(each_hour.after(second), 2)) == [at("10-25T01:30"), at("10-25T02:30")]
    # At the end of the first one the second one is still to come, with times from before.
    assert next(each_hour.after(second.replace(minute=50, fold=0))) == at("10-25T01:30")


@pytest.mark.parametrize(
    ("line", "zone", "told"),
    [
        ("0 0 31 2 *", "UTC", "schedule '0 0 31 2 *' is invalid: bad day-of-month"),
        ("61 0 * * *", "UTC", "bad minute"),
        ("0 0 * *", "UTC", "wrong number of fields"),
        ("0 0 * * *", "Mars/Olympus", "timeZone 'Mars/Olympus' is not in the IANA database"),
        ("0 0 * * *", "Europe", "timeZone 'Europe'"),
        ("0 0 * * *", "../etc/passwd", "timeZone '../etc/passwd'"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(line: str, zone: str, told: str) -> None:
    with pytest.raises(BadInput) as error:
        Timetable(line, zone)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_names_of_cron_lines() -> None:
    assert times("@weekly", "UTC", "11-23T12:00", 1) == ["29 00:00 +0000"]
    assert times("@hourly", "UTC", "11-23T12:00", 1) == ["23 13:00 +0000"]


def test_a_slot_names_a_time_and_no_request_is_called_like_it() -> None:
    assert slot_of(at("11-23T02:30")) == "schedule:2026-11-23T02:30:00Z"
    assert time_of("schedule:2026-11-23T02:30:00Z") == at("11-23T02:30")
    assert [time_of(text) for text in ("nightly", "schedule:soon", "2026-11-23T02:30:00Z")] == [None] * 3


LINES = (
    "30 2 * * *",
    "*/15 2 * * *",
    "*/5 * * * *",
    "@hourly",
    "15,45 1-3 * * *",
    "20 */2 * * *",
    "0 2 25,29 3,10 *",
    "0 4 * * 1",
)
MOMENTS = st.integers(0, 250 * 24 * 60).map(lambda minutes: at("03-01T00:00") + timedelta(minutes=minutes))


@given(
    st.sampled_from(LINES),
    st.sampled_from(("UTC", "Europe/Berlin", "America/St_Johns")),
    st.lists(MOMENTS, min_size=3, max_size=3).map(sorted),
)
def test_where_one_begins_to_look_changes_no_times(line: str, zone: str, moments: list[datetime]) -> None:
    table = Timetable(line, zone)
    first, between, last = moments
    last = min(last, between + timedelta(days=3))
    first = max(first, between - timedelta(days=3))
    found = list(table.until(first, last))
    assert found == [*table.until(first, between), *table.until(between, last)]
    assert table.latest(first, last) == (found[-1] if found else None)


def record(time: datetime, state: JobState = JobState.DONE) -> JobRecord:
    return JobRecord(slot_of(time), "c1", "snapshot", slot_of(time), 1, state)


def scheduled(
    begun: tuple[datetime, ...] = (), upcoming: datetime | None = None, missed: int = 0, **spec: Any
) -> Scheduled[CronSchedule]:
    return Scheduled(
        spec=CronSchedule.model_validate({"schedule": "@hourly", **spec}),
        template=SparkTemplate(),
        shown=ScheduleStatus(next_schedule_time=upcoming, missed_runs=missed),
        runs=tuple(map(record, begun)),
    )


def told(found: Turn) -> tuple[datetime | None, datetime | None, int, float]:
    return found.due, found.shown.next_schedule_time, found.missed, found.look_after


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # Nothing is shown yet: it is new, or its status was lost.
        (scheduled(), (None, "13:00", 0, 1800)),
        (scheduled((at("11-01T12:00"),)), (None, "13:00", 0, 1800)),
        # It rests until its time comes.
        (scheduled(upcoming=at("11-23T13:00")), (None, "13:00", 0, 1800)),
        # Its time has come, and is shown until it is on record.
        (scheduled(upcoming=at("11-23T12:00")), ("12:00", "12:00", 0, 1800)),
        (scheduled((at("11-23T12:00"),), at("11-23T12:00")), (None, "13:00", 0, 1800)),
        # Of three that were missed one is made up for, before and after it is on record.
        (scheduled(upcoming=at("11-23T10:00")), ("12:00", "12:00", 2, 1800)),
        (scheduled((at("11-23T12:00"),), at("11-23T10:00")), (None, "13:00", 2, 1800)),
        (scheduled((at("11-23T10:00"),), at("11-23T10:00")), ("12:00", "12:00", 1, 1800)),
        # None later than its deadline.
        (
            scheduled(upcoming=at("11-23T12:00"), startingDeadline="1801s"),
            ("12:00", "12:00", 0, 1.001),
        ),
        (scheduled(upcoming=at("11-23T12:00"), startingDeadline="1799s"), (None, "13:00", 1, 1800)),
        (scheduled(upcoming=at("11-23T10:00"), startingDeadline="1m"), (None, "13:00", 3, 1800)),
        # The clock went back: what is on record doesn't come again.
        (scheduled((at("11-23T13:00"),), at("11-23T14:00")), (None, "14:00", 0, 5400)),
        (scheduled((at("11-23T13:00"),), at("11-23T13:00")), (None, "14:00", 0, 5400)),
        (scheduled((at("11-23T13:00"),)), (None, "14:00", 0, 5400)),
        # Suspended, it leaves what it shows as it is.
        (scheduled(upcoming=at("11-23T10:00"), suspend=True), (None, "10:00", 0, 1800)),
        # A schedule that became another one before its time came.
        (scheduled(upcoming=at("11-24T02:30")), (None, "13:00", 0, 1800)),
    ],
)
def test_which_run_is_due(
    asked: Scheduled[CronSchedule], expected: tuple[str | None, str, int, float]
) -> None:
    due, upcoming, missed, after = expected
    assert told(turn(asked, at("11-23T12:30"))) == (
        None if due is None else at(f"11-23T{due}"),
        at(f"11-23T{upcoming}"),
        missed,
        pytest.approx(after),
    )


def test_missed_runs_add_up_and_are_told_in_the_same_words() -> None:
    found = turn(scheduled(upcoming=at("11-23T10:00"), missed=3), at("11-23T12:30"))
    assert found.shown.missed_runs == 5
    assert [note.message for note in missed_notes(found)] == ["2 scheduled runs were missed"]
    assert missed_notes(turn(scheduled(upcoming=at("11-23T13:00")), at("11-23T12:30"))) == ()


def test_an_outage_of_years_is_looked_through_at_once() -> None:
    asked = scheduled(upcoming=at("11-23T10:00") - timedelta(days=3650), schedule="* * * * *")
    begun = process_time()
    found = turn(asked, at("11-23T12:30"))
    # All times of ten years one by one would take minutes.
    assert process_time() - begun < 10
    assert (found.due, found.missed) == (at("11-23T12:30"), 1000)
    assert "at least 1000" in missed_notes(found)[0].message
    rare = scheduled(upcoming=at("02-28T10:00") - timedelta(days=3650), schedule="0 0 29 2 *")
    assert turn(rare, at("11-23T12:30")).due == datetime(2024, 2, 29, tzinfo=UTC)


def test_only_the_last_runs_stay_on_record() -> None:
    hours = [at("11-23T00:00") + timedelta(hours=hour) for hour in range(21)]
    runs = [record(hour) for hour in hours]
    # By and by and not one by one.
    assert long_over(runs[:20], runs[19]) is None
    assert long_over(runs, runs[20]) == ForgetRuns(tuple(slot_of(hour) for hour in reversed(hours[:11])))
    assert long_over(runs, runs[3]) == ForgetRuns(
        tuple(slot_of(hour) for hour in reversed(hours[:11]) if hour != hours[3])
    )
    assert long_over([*runs[:20], record(hours[20], JobState.RUNNING)], runs[19]) is None
    # Of what was forgotten nothing runs again, nor does it count as missed, however old the status is.
    found = turn(scheduled(tuple(hours[11:]), hours[0]), at("11-23T20:30"))
    assert (found.due, found.missed) == (None, 0)


STEPS = st.lists(
    st.tuples(
        # Mostly a little later; sometimes an outage, or a clock that is put back.
        st.one_of(st.integers(1, 90), st.integers(90, 3000), st.integers(-300, 0)),
        st.booleans(),  # whether a run that is due can begin
        st.booleans(),  # whether the status that is shown then is written
        st.integers(0, 40).map(lambda roll: roll == 0),  # whether the status is lost
    ),
    max_size=60,
)


@given(st.sampled_from(LINES), st.sampled_from((None, 600)), STEPS)
def test_over_outages_and_clocks_no_time_runs_twice_and_of_the_missed_only_the_latest(
    line: str, deadline: int | None, steps: list[tuple[int, bool, bool, bool]]
) -> None:
    table = Timetable(line, "Europe/Berlin")
    now, begun, shown = at("10-24T20:00"), list[datetime](), ScheduleStatus()
    for minutes, able, written, lost in steps:
        now += timedelta(minutes=minutes)
        spec = {
            "schedule": line,
            "timeZone": "Europe/Berlin",
            "startingDeadline": deadline and f"{deadline}s",
        }
        asked = Scheduled(
            spec=CronSchedule.model_validate(spec),
            template=SparkTemplate(),
            shown=ScheduleStatus() if lost else shown,
            runs=tuple(map(record, begun)),
        )
        found = turn(asked, now)
        if found.due is not None and able:
            assert found.due <= now
            assert deadline is None or now - found.due <= timedelta(seconds=deadline)
            # In order, so none twice; and none between it and now was passed over for it.
            assert not begun or found.due > begun[-1]
            assert list(table.until(found.due, now)) == []
            begun.append(found.due)
            again = turn(replace(asked, runs=tuple(map(record, begun))), now)
            assert again.due is None
            found = again
        assert found.look_after > 0 or found.due is not None
        if written:
            shown = found.shown
    assert len(set(begun)) == len(begun)


@given(st.sampled_from(LINES), st.lists(st.integers(1, 5000), max_size=40))
def test_every_time_runs_or_is_counted_as_missed(line: str, steps: list[int]) -> None:
    table, start = Timetable(line, "UTC"), at("03-20T00:00")
    now, begun, shown = start, list[datetime](), ScheduleStatus()
    for minutes in (0, *steps):
        now += timedelta(minutes=minutes)
        for _ in range(2):
            spec = CronSchedule.model_validate({"schedule": line})
            asked = Scheduled(
                spec=spec, template=SparkTemplate(), shown=shown, runs=tuple(map(record, begun))
            )
            found = turn(asked, now)
            shown = found.shown
            begun += [found.due] if found.due is not None else []
    assert shown.next_schedule_time is not None
    passed = [time for time in table.until(start, now) if time < shown.next_schedule_time]
    assert len(begun) + shown.missed_runs == len(passed)
