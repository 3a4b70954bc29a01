"""Bars in lanes over an axis of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from markupsafe import Markup, escape

from holdfast.console.drawing.scale import LEFT, RIGHT, WIDTH, most_times, time_scale, time_ticks

Kind = Literal["good", "busy", "warn", "bad", "idle"]

_LANE: Final = 34
_BAR: Final = 10
_AXIS: Final = 24
_LEAST: Final = 3.0


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasted from one time to another. None: it began before, or is not over yet."""

    from_ms: int | None
    to_ms: int | None
    kind: Kind
    title: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """A label, a note at the right, and bars."""

    label: str
    bars: tuple[Bar, ...]
    note: str = ""


def timeline(
    lanes: Sequence[Lane],
    from_ms: int,
    to_ms: int,
    label: str,
    left: float = LEFT,
    width: int = WIDTH,
) -> Markup:
    """Draw lanes, one below the other. `label` says to a screen reader what the drawing shows."""
    place = time_scale(from_ms, to_ms, left, width)
    height = len(lanes) * _LANE + _AXIS
    bottom = height - _AXIS
    drawn = [
        Markup('<svg class="drawing timeline" viewBox="0 0 {} {}" role="group" aria-label="{}">').format(
            width, height, label
        )
    ]
    for time, text in time_ticks(from_ms, to_ms, most_times(width)):
        x = place(time)
        drawn.append(Markup('<line class="axis" x1="{0}" y1="0" x2="{0}" y2="{1}"/>').format(x, bottom))
        if max(left, LEFT + 16) <= x <= width - RIGHT - 16:
            drawn.append(
                Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(x, height - 8, text)
            )
    drawn.append(
        Markup('<line class="axis-strong" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            left, bottom, width - RIGHT, bottom
        )
    )
    for index, lane in enumerate(lanes):
        top = index * _LANE
        drawn.append(
            Markup('<text class="strong" x="{}" y="{}">{}</text>').format(
                LEFT, top + 13, _cut(lane.label, width // 10)
            )
        )
        if lane.note:
            drawn.append(
                Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
                    width - RIGHT, top + 13, _cut(lane.note, width // 12)
                )
            )
        drawn.extend(
            _bar(
                bar,
                place(bar.from_ms if bar.from_ms is not None else from_ms),
                place(bar.to_ms if bar.to_ms is not None else to_ms),
                top + 18,
                width - RIGHT,
            )
            for bar in lane.bars
        )
    drawn.append(Markup("</svg>"))
    return Markup("").join(drawn)


def _bar(bar: Bar, left: float, right: float, top: float, end: float) -> Markup:
    width = max(round(right - left, 1), _LEAST)
    left = min(left, end - width)
    open_left, open_right = bar.from_ms is None, bar.to_ms is None
    rect = Markup(
        '<rect class="bar {kind}{open}" x="{x}" y="{y}" width="{w}" height="{h}" rx="3">'
        "<title>{title}</title></rect>"
    ).format(
        kind=bar.kind,
        open=" open" if open_left or open_right else "",
        x=left,
        y=top,
        w=width,
        h=_BAR,
        title=bar.title,
    )
    if open_left:
        # It began before the drawing.
        rect += Markup('<path class="bar-edge {}" d="M{} {}l-5 {}l5 {}z"/>').format(
            bar.kind, left, top, _BAR / 2, _BAR / 2
        )
    return Markup('<a href="{}">{}</a>').format(bar.href, rect) if bar.href else rect


def _cut(text: str, most: int) -> Markup:
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")
