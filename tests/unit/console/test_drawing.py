"""Drawings are SVG that shows what is known, and nothing of a hostile name as markup."""

import re
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.console.drawing.frontiers import frontiers, holds
from holdfast.console.drawing.scale import NARROW, number_ticks, time_scale, time_ticks
from holdfast.console.drawing.timeline import Bar, Lane, timeline
from holdfast.console.facts.frontiers import FrontierHistory, HoldBar, Point
from holdfast.errors import CLOSED

NOW = 1_796_000_000_000
HOSTILE = "</text><script>alert('\"1')</script>"


def elements(svg: str) -> list[str]:
    """The names of the elements. Raises for text that is no XML."""
    return [each.tag for each in ET.fromstring(svg).iter()]


@settings(max_examples=40)
@given(st.integers(0, 1 << 64), st.integers(0, 1 << 64), st.integers(2, 12))
def test_ticks_are_few_in_order_and_within(low: int, high: int, most: int) -> None:
    low, high = sorted((low, high))
    for ticks in (number_ticks(low, high, most), time_ticks(low, high, most)):
        places = [each for each, _ in ticks]
        assert len(places) <= most + 1
        assert places == sorted(set(places))
        assert all(low <= each <= high for each in places)


@settings(max_examples=40)
@given(st.integers(0, 1 << 64), st.integers(0, 1 << 64), st.integers(-(1 << 64), 1 << 65))
def test_a_scale_stays_on_the_drawing(start: int, end: int, value: int) -> None:
    start, end = sorted((start, end))
    assert 8 <= time_scale(start, end)(value) <= 952


def test_a_drawing_for_a_phone_stays_within_its_width() -> None:
    points = tuple(Point(NOW + each, NOW + each) for each in range(0, 60_000, 5_000))
    hold = HoldBar("a purpose that is longer than a phone is wide", "a-host", NOW, True, None, None)
    history = FrontierHistory(NOW - 60_000, NOW + 60_000, points, points, points, (hold,))
    for drawn in (frontiers(history, "x", NARROW), holds(history, history.holds, "x", NARROW)):
        assert f'viewBox="0 0 {NARROW} ' in drawn
        places = re.findall(r' (?:x|x1|x2)="([\d.]+)"', drawn) + re.findall(r"[ML]([\d.]+) ", drawn)
        assert places
        assert all(float(each) <= NARROW for each in places)
    # The label and the note of a hold do not meet.
    label, note = re.findall(r"<text [^>]*>([^<]{10,})</text>", holds(history, history.holds, "x", NARROW))
    assert len(label) + len(note) <= NARROW // 5


def test_a_hold_says_when_it_ends() -> None:
    for purpose, leased, ends in (
        ("retention", False, "with the collection"),
        ("audit", False, "until released"),
        ("a scan", True, "leased"),
    ):
        hold = HoldBar(purpose, "", NOW, leased, NOW, None)
        assert f", {ends}<" in holds(FrontierHistory(NOW, NOW + 1, (), (), (), (hold,)), [hold], "x")


def test_names_are_text() -> None:
    lane = Lane(HOSTILE, (Bar(NOW, None, "busy", HOSTILE, f"#{HOSTILE}"),), HOSTILE)
    drawn = timeline([lane], NOW - 1000, NOW + 1000, HOSTILE)
    assert "script" not in elements(drawn)
    hold = HoldBar(HOSTILE, HOSTILE, 0, leased=True, from_ms=None, to_ms=None)
    history = FrontierHistory(NOW, NOW + 1, (), (), (), (hold,))
    assert "script" not in elements(holds(history, history.holds, HOSTILE))


def test_what_is_not_known_is_hatched() -> None:
    upper = (Point(NOW, NOW), Point(NOW + 10_000, NOW + 10_000))
    known = FrontierHistory(NOW, NOW + 20_000, (Point(NOW, 0),), upper, upper, ())
    later = FrontierHistory(NOW, NOW + 20_000, (Point(NOW + 10_000, 0),), upper, upper, ())
    assert 'class="gap"' not in frontiers(known, "x")
    assert "not known" in frontiers(later, "x")
    assert elements(frontiers(later, "x"))


def test_nothing_is_drawn_before_the_first_write() -> None:
    assert (
        frontiers(
            FrontierHistory(NOW, NOW + 1, (Point(NOW, 0),), (Point(NOW, 0),), (Point(NOW, 1),), ()), "x"
        )
        == ""
    )


def test_counters_and_closed_frontiers_have_a_drawing() -> None:
    upper = (Point(NOW, 3), Point(NOW + 5, 17), Point(NOW + 9, CLOSED))
    promised = (Point(NOW, 10_000),)
    drawn = frontiers(FrontierHistory(NOW, NOW + 10, (Point(NOW, 0),), upper, promised, ()), "x")
    assert elements(drawn)
    assert not re.search(r"nan|inf", drawn)
    # The upper takes the height, however far ahead the metadata is.
    line = re.findall(r'class="line upper" d="M([^"]+)"', drawn)[0]
    heights = [float(each.split()[1]) for each in line.split("L")]
    assert max(heights) - min(heights) > 100
