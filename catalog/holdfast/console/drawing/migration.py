"""The steps of a migration as a bar with one part for each, and how long each took where that is known."""

from typing import Final

from markupsafe import Markup, escape

from holdfast.console.facts.migration import Migration, MigrationStep, StepState

_WIDTH: Final = 960
_HEIGHT: Final = 44
_BAR: Final = 12
_GAP: Final = 4
_KINDS: Final = {
    StepState.DONE: "done-part",
    StepState.SKIPPED: "done-part",
    StepState.NEXT: "next-part",
    StepState.WAITING: "waiting-part",
}


def timeline(found: Migration) -> Markup | None:
    """The bar, or None if there are no steps. All parts have the same width, because most steps are short."""
    if not found.steps:
        return None
    width = (_WIDTH + _GAP) / len(found.steps)
    done, all_ = found.progress
    label = escape(f"{done} of {all_} steps are done")
    parts = "".join(_part(step, round(index * width, 1), width) for index, step in enumerate(found.steps))
    return Markup(  # noqa: S704 - numbers, and texts that are escaped
        f'<svg class="drawing" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{parts}</svg>'
    )


def _part(step: MigrationStep, x: float, width: float) -> str:
    middle = round(x + (width - _GAP) / 2, 1)
    kind = _KINDS[step.state]
    took = "" if step.took_ms is None else f" \N{MIDDLE DOT} {step.took_ms / 1000:.1f} s"
    return (
        f"<g><title>{escape(f'{step.number}. {step.text}: {step.state}')}</title>"
        f'<rect x="{x}" y="0" width="{width - _GAP:.1f}" height="{_BAR}" rx="3" class="{kind}"/>'
        f'<text x="{middle}" y="{_BAR + 20}" text-anchor="middle">{step.number}{took}</text></g>'
    )
