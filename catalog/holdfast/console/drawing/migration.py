"""The course of a migration as a bar: one part for each step whose time is known."""

from markupsafe import Markup, escape

from holdfast.console.facts.migration import Migration, StepState

_WIDTH = 1000
_HEIGHT = 56
_BAR = 16


def timeline(found: Migration, now_ms: int) -> Markup | None:
    """A bar from the start of a migration to its end, or to now. None if too little is known.

    Each mark is a step that was done, with its number. The time after the last one is hatched while it runs.
    """
    done = [each for each in found.steps if each.state is StepState.DONE and each.at_ms is not None]
    begin = found.started_ms
    if begin is None or not done:
        return None
    last = max(each.at_ms for each in done if each.at_ms is not None)
    end = max(last, found.completed_ms or 0) if found.is_over else max(last, now_ms)
    span = max(1, end - begin)

    def x(at_ms: int) -> float:
        return round(12 + (_WIDTH - 24) * min(1.0, max(0.0, (at_ms - begin) / span)), 1)

    marks, right = [], -1000.0
    for each in done:
        assert each.at_ms is not None
        at = x(each.at_ms)
        marks.append(f'<line x1="{at}" x2="{at}" y1="8" y2="{8 + _BAR}" class="axis-strong"/>')
        # Marks at the same place share the number of the first one.
        if at - right >= 20:
            marks.append(f'<text x="{at}" y="{8 + _BAR + 18}" text-anchor="middle">{each.number}</text>')
            right = at
    running = "" if found.is_over else (_bar(x(last), max(0.0, x(end) - x(last)), "busy-bar"))
    label = escape(
        f"{len(done)} of {len(found.steps)} steps have a known time, over {span / 1000:.1f} seconds"
    )
    return Markup(  # noqa: S704 - numbers, and a label that is escaped
        f'<svg class="drawing" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{_bar(x(begin), max(2.0, x(last) - x(begin)), 'done-bar')}"
        f"{running}{''.join(marks)}</svg>"
    )


def _bar(x: float, width: float, kind: str) -> str:
    return f'<rect x="{x}" y="8" width="{width:.1f}" height="{_BAR}" rx="4" class="{kind}"/>'
