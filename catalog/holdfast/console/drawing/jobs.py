"""The jobs of a collection as a timeline, one lane per kind, each bar linked to its record."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from holdfast.collections import JobRecord, JobState
from holdfast.console.drawing.scale import LEFT, WIDTH
from holdfast.console.drawing.timeline import Bar, Kind, Lane, timeline
from holdfast.text import age, count

_KINDS: Final[dict[JobState, Kind]] = {
    JobState.RUNNING: "busy",
    JobState.DONE: "good",
    JobState.FAILED: "bad",
}


def jobs(records: Sequence[JobRecord], now_ms: int, label: str, width: int = WIDTH) -> Markup:
    """Draw jobs. `label` says to a screen reader what the drawing shows."""
    if not records:
        return Markup("")
    by_kind: dict[str, list[JobRecord]] = {}
    for each in records:
        by_kind.setdefault(each.kind, []).append(each)
    lanes = [
        Lane(kind, tuple(_bar(each, now_ms) for each in found), count(len(found), "job"))
        for kind, found in sorted(by_kind.items())
    ]
    start = min(each.started_ms for each in records)
    margin = max((now_ms - start) // 50, 1000)
    return timeline(lanes, start - margin, max(now_ms, start + 1) + margin, label, LEFT, width)


def _bar(job: JobRecord, now_ms: int) -> Bar:
    end = job.finished_ms or None
    took = age(((end or now_ms) - job.started_ms) / 1000)
    return Bar(
        job.started_ms,
        end,
        _KINDS[job.state],
        f"{job.kind} {job.slot}, attempt {job.attempt}: {job.state.name.lower()}, {took}",
        f"#job-{job.job_id}",
    )
