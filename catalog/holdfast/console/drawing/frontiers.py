"""The frontiers of a collection over wall time: what can be read lies between since and upper."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from holdfast.collections.complete_times import LEAST_MS
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.console.drawing.scale import (
    GUTTER,
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    most_times,
    number_ticks,
    time_scale,
    time_ticks,
)
from holdfast.console.drawing.timeline import Bar, Lane, timeline
from holdfast.console.facts.frontiers import FrontierHistory, HoldBar, Point
from holdfast.errors import CLOSED
from holdfast.text import age, with_date

_HEIGHT: Final = 232
_TOP: Final = 12
_AXIS: Final = 24
_MOST_POINTS: Final = 400
_FAR: Final = 8
"""A since that is further away than this many times the range of the uppers is drawn at the bottom."""


def frontiers(history: FrontierHistory, label: str, width: int = WIDTH) -> Markup:
    """Draw the frontiers. `label` says to a screen reader what the drawing shows."""
    x = time_scale(history.from_ms, history.to_ms, GUTTER, width)
    upper_points, promised_points = _written(history.upper), _written(history.promised)
    if not upper_points:
        return Markup("")
    # The metadata is sealed some thousand ahead. For times that are counters this says nothing about them.
    is_wall = upper_points[-1].value > LEAST_MS
    scaled = [*upper_points, *promised_points] if is_wall else upper_points
    low, high = _range(scaled, _written(history.since))
    bottom = _HEIGHT - _AXIS
    y = Scale(low, high, bottom - 4, _TOP)
    drawn = [
        Markup('<svg class="drawing frontiers" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            width, _HEIGHT, label
        ),
        Markup(
            '<defs><pattern id="unknown-{}" width="6" height="6" patternUnits="userSpaceOnUse"'
            ' patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern>'
            "</defs>"
        ).format(width),
    ]
    ticks = time_ticks(low, high, 5) if low > LEAST_MS else number_ticks(low, high, 5)
    for value, text in ticks:
        place = y(value)
        drawn.append(
            Markup('<line class="axis" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
                GUTTER, place, width - RIGHT, place
            )
        )
        drawn.append(Markup('<text x="{}" y="{}">{}</text>').format(LEFT, round(place + 4, 1), text))
    for value, text in time_ticks(history.from_ms, history.to_ms, most_times(width)):
        place = x(value)
        if GUTTER <= place <= width - RIGHT - 16:
            drawn.append(
                Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(place, _HEIGHT - 8, text)
            )
    drawn.append(
        Markup('<line class="axis-strong" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            GUTTER, bottom, width - RIGHT, bottom
        )
    )
    drawn.extend(_unknown(history, x, bottom, width))
    upper = _steps(upper_points, history.to_ms, x, y)
    since = _steps(history.since, history.to_ms, x, y)
    if upper and since:
        # What can be read, from the first write on.
        since = [(max(left, upper[0][0]), top) for left, top in since]
        drawn.append(
            Markup('<path class="readable" d="M{}L{}z"/>').format(_joined(upper), _joined(since[::-1]))
        )
    promised = _steps(promised_points, history.to_ms, x, y)
    for cls, points in (("promised", promised), ("since", since), ("upper", upper)):
        if points:
            drawn.append(Markup('<path class="line {}" d="M{}"/>').format(cls, _joined(points)))
    drawn.append(Markup("</svg>"))
    return Markup("").join(drawn)


def holds(history: FrontierHistory, bars: Sequence[HoldBar], label: str, width: int = WIDTH) -> Markup:
    """Draw who held the since, on the same axis as the frontiers."""
    lanes = [
        Lane(
            f"{each.purpose}{f' on {each.host}' if each.host else ''}",
            (
                Bar(
                    each.from_ms,
                    each.to_ms,
                    "idle" if each.to_ms is not None else "busy",
                    f"{each.purpose} keeps times from {with_date(each.since)} on",
                ),
            ),
            _note(each, history.to_ms),
        )
        for each in bars
    ]
    if not lanes:
        return Markup("")
    return timeline(lanes, history.from_ms, history.to_ms, label, GUTTER, width)


def _note(hold: HoldBar, now_ms: int) -> str:
    if hold.to_ms is not None:
        return f"ended {age((now_ms - hold.to_ms) / 1000)} ago"
    held = "since before this log" if hold.from_ms is None else f"for {age((now_ms - hold.from_ms) / 1000)}"
    if hold.leased:
        return f"{held}, leased"
    return f"{held}, {'with the collection' if hold.purpose == RETENTION_PURPOSE else 'until released'}"


def _written(points: Sequence[Point]) -> list[Point]:
    """The points that a scale can show: not before the first write, and not closed."""
    known = [each for each in points if 0 < each.value < CLOSED]
    walls = [each for each in known if each.value > LEAST_MS]
    return walls or known


def _range(uppers: Sequence[Point], sinces: Sequence[Point]) -> tuple[int, int]:
    low, high = min(each.value for each in uppers), max(each.value for each in uppers)
    span = max(high - low, 1)
    low = min([low, *(each.value for each in sinces if low - each.value <= _FAR * span)])
    margin = max((high - low) // 12, 1)
    return max(low - margin, 0), high + margin


def _unknown(history: FrontierHistory, x: Scale, bottom: float, drawing: int) -> list[Markup]:
    """Hatch the time for which the since or the upper is not known."""
    known = [line[0].at_ms if line else history.to_ms for line in (history.since, history.upper)]
    start = max(known)
    width = round(x(start) - GUTTER, 1)
    if width < 4:
        return []
    drawn = [
        Markup(
            '<rect class="gap" fill="url(#unknown-{})" x="{}" y="{}" width="{}" height="{}">'
            "<title>{}</title></rect>"
        ).format(drawing, GUTTER, _TOP, width, bottom - _TOP, "The log of the shard does not go back so far")
    ]
    if width > 80:
        drawn.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">not known</text>').format(
                round(GUTTER + width / 2, 1), _TOP + 16
            )
        )
    return drawn


def _steps(points: Sequence[Point], until_ms: int, x: Scale, y: Scale) -> list[tuple[float, float]]:
    """The corners of a line that keeps each value until the next one."""
    if not points:
        return []
    every = -(-len(points) // _MOST_POINTS)
    chosen = [*points[::every], points[-1]]
    corners: list[tuple[float, float]] = []
    for each in chosen:
        if corners:
            corners.append((x(each.at_ms), corners[-1][1]))
        corners.append((x(each.at_ms), y(each.value)))
    corners.append((x(until_ms), corners[-1][1]))
    return corners


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{left} {top}" for left, top in points)
