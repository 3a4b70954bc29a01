"""The ticks of a time slider as SVG: what was written when, and the times that are chosen.

The picture is as wide as its box. Lines keep their width when it is stretched, so the ticks stay sharp.
"""

from collections.abc import Sequence
from math import log1p
from typing import Final

from holdfast.console.facts.rows import SliderTicks, Tick

WIDTH: Final = 1000
_MIDDLE: Final = 26
_HEIGHT: Final = 52
_LEAST: Final = 3.0
_MOST: Final = 22.0


def slider_svg(ticks: SliderTicks, chosen: Sequence[int], label: str) -> str:
    """The ticks, each with a line up for rows added and down for rows removed, and the chosen times.

    What is only known as stored rows has a line in both directions. `label` is for screen readers. It must
    be escaped already.
    """
    most = max((max(each.added, each.removed, each.rows) for each in ticks.ticks), default=1)
    lines = [line for each in ticks.ticks for line in _lines(each, ticks, most)]
    marks = [
        f'<line class="chosen chosen-{number}" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="{_HEIGHT}"/>'
        for number, time in enumerate(chosen)
        if ticks.first <= time <= ticks.last
        for x in [position(time, ticks)]
    ]
    return (
        f'<svg class="ticks" viewBox="0 0 {WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{label}">'
        f'<line class="axis" x1="0" x2="{WIDTH}" y1="{_MIDDLE}" y2="{_MIDDLE}"/>'
        f"{''.join(lines)}{''.join(marks)}</svg>"
    )


def position(time: int, ticks: SliderTicks) -> float:
    """Where a time is, from 0 to `WIDTH`."""
    span = ticks.last - ticks.first
    return (time - ticks.first) * WIDTH / span if span else WIDTH


def _lines(tick: Tick, ticks: SliderTicks, most: int) -> list[str]:
    x = position(tick.time, ticks)
    if not tick.is_exact:
        length = _length(tick.rows, most)
        return [_line("stored", x, _MIDDLE - length, _MIDDLE + length)]
    found = []
    if tick.added:
        found.append(_line("added", x, _MIDDLE, _MIDDLE - _length(tick.added, most)))
    if tick.removed:
        found.append(_line("removed", x, _MIDDLE, _MIDDLE + _length(tick.removed, most)))
    return found


def _length(rows: int, most: int) -> float:
    """The length of a line. It grows with the logarithm: one row must be seen next to a million."""
    return _LEAST + (_MOST - _LEAST) * log1p(rows) / log1p(max(most, 1)) if rows else 0.0


def _line(kind: str, x: float, start: float, end: float) -> str:
    return f'<line class="tick {kind}" x1="{x:.2f}" x2="{x:.2f}" y1="{start:.1f}" y2="{end:.1f}"/>'
