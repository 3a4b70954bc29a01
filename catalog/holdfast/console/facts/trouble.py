"""Why a collection is not as it should be: one line each, with the command that shows more or helps.

Locally there is no operator that says whether a collection is ready, so this follows from what is stored.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from holdfast.collections import CollectionInfo, CollectionState, JobRecord, JobState
from holdfast.collections.capabilities import shown_purpose
from holdfast.collections.complete_times import BEHIND_MS, LEAST_MS, ahead_by
from holdfast.collections.frontiers import CollectionView
from holdfast.errors import CLOSED
from holdfast.persist.state.state import ShardState
from holdfast.text import age, count, cut, shown_time, without_passwords

LATE_MS: Final = 5 * 60_000
"""How far a source may be behind before its collection is shown as late."""
VERY_LATE_MS: Final = 60 * 60_000
MANY_BATCHES: Final = 100
"""A shard that is kept in order has fewer batches: 10,000 appends make less than 40."""
_HISTORY_SLACK: Final = 1.1
_MOST: Final = 300


class Level(IntEnum):
    """How bad something is. Greater is worse."""

    FINE = 0
    BUSY = 1
    WARNING = 2
    BROKEN = 3

    @property
    def word(self) -> str:
        """The word that pages show for it."""
        return ("Ready", "In progress", "Attention", "Not ready")[self]

    @property
    def kind(self) -> str:
        """The name under which the style sheet knows it."""
        return ("good", "busy", "warn", "bad")[self]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One reason: what is the case, and the command to continue with."""

    level: Level
    what: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class HeldBy:
    """Who keeps a since where it is."""

    purpose: str
    host: str
    since: int
    leased: bool


def held_back_by(info: CollectionInfo, states: Mapping[str, ShardState]) -> HeldBy | None:
    """Who holds the since of a collection back. None if nobody but its own retention does."""
    metadata = states[info.metadata_shard]
    holds = [
        *(
            HeldBy(shown_purpose(each.purpose), each.hostname, each.since, leased=True)
            for each in metadata.leased_readers.values()
        ),
        *(
            HeldBy(shown_purpose(each.purpose), "", each.since, leased=False)
            for each in metadata.critical_readers.values()
            if each.purpose != "retention"
        ),
    ]
    first = min(holds, key=lambda each: each.since, default=None)
    return first if first is not None and first.since <= metadata.since else None


def troubles(
    info: CollectionInfo,
    view: CollectionView | None,
    torn: str,
    states: Mapping[str, ShardState],
    jobs: Sequence[JobRecord],
    *,
    errors: int | None,
    now_ms: int,
    where: str,
) -> list[Trouble]:
    """What is wrong with a collection, worst first. `where` is how a command names the location."""
    found = list[Trouble]()

    def add(level: Level, what: str, verb: str) -> None:
        found.append(Trouble(level, what, f"holdfast collection {verb} {quoted(info.name)} {where}"))

    match info.state:
        case CollectionState.CREATING:
            add(Level.BUSY, "It is being created", "describe")
        case CollectionState.DROPPING:
            add(Level.WARNING, "It is being dropped, and waits until nobody reads it", "holds")
        case _:
            pass
    if torn:
        add(Level.BROKEN, _cut(torn), "describe")
    if info.holding.suspect:
        what = f"The contents of {info.holding.id} can't be trusted: {info.holding.suspect}"
        add(Level.BROKEN, _cut(what), "describe")
    if view is not None:
        found += _times(info, view, states, now_ms, where)
        if (ahead := ahead_by(view.upper, now_ms)) > BEHIND_MS:
            what = f"Its time is {age(ahead / 1000)} ahead of the store's clock, so nobody can write now"
            add(Level.BROKEN, what, "describe")
    if errors:
        add(Level.WARNING, f"{count(errors, 'record')} of the source could not be decoded", "errors")
    for job in failed_last(jobs):
        why = f": {job.error}" if job.error else ""
        add(Level.WARNING, _cut(f"The last {job.kind} ({job.slot}) failed{why}"), "jobs")
    running = sum(job.state is JobState.RUNNING for job in jobs)
    if running:
        add(Level.BUSY, f"{count(running, 'job')} running", "jobs")
    most = max((len(states[shard].batches) for shard in info.data_shards), default=0)
    if most > MANY_BATCHES:
        what = f"A shard has {most:,} batches: compaction is overdue"
        found.append(Trouble(Level.WARNING, what, f"holdfast persist compact {where}"))
    return sorted(found, key=lambda each: -each.level)


def _cut(text: str) -> str:
    # In this order: what is left of a URL that was cut looks no longer like one with a password.
    return cut(without_passwords(text), _MOST)


def _times(
    info: CollectionInfo,
    view: CollectionView,
    states: Mapping[str, ShardState],
    now_ms: int,
    where: str,
) -> Iterator[Trouble]:
    late = lag_ms(info, view, now_ms)
    if late is not None and late > LATE_MS:
        level = Level.BROKEN if late > VERY_LATE_MS else Level.WARNING
        if (step_ms := no_step_since(info, view, states, now_ms)) is not None:
            stopped = clock(step_ms, now_ms)
            what = (
                f"Nothing was stored from its source since {stopped}. What came to it since then is not known"
            )
            yield Trouble(level, what, f"holdfast ingest SPEC {where}")
        else:
            what = f"It is complete only up to {age(late / 1000)} ago: its source is read too slowly"
            yield Trouble(level, what, f"holdfast collection offsets {quoted(info.name)} {where}")
    since = states[info.metadata_shard].since
    if info.retain_ms is None or not LEAST_MS < view.upper < CLOSED:
        return
    excess = view.upper - info.retain_ms * _HISTORY_SLACK - since
    held = held_back_by(info, states)
    if excess > LATE_MS and held is not None and since > 0:
        by = f"'{held.purpose}'" + (f" on {held.host}" if held.host else "")
        what = f"{by} keeps {age(excess / 1000)} of history more than is wanted"
        yield Trouble(Level.WARNING, what, f"holdfast collection holds {quoted(info.name)} {where}")


def lag_ms(info: CollectionInfo, view: CollectionView, now_ms: int) -> int | None:
    """How far a collection that a source feeds is behind the store's clock. None for other collections."""
    if not info.holding.is_fed or not LEAST_MS < view.upper < CLOSED:
        return None
    return max(0, now_ms - (view.upper - 1))


def no_step_since(
    info: CollectionInfo, view: CollectionView, states: Mapping[str, ShardState], now_ms: int
) -> int | None:
    """The time of a pipeline's last step if that was more than `LATE_MS` ago, and None otherwise.

    Each step moves the upper of every shard of the pipeline, so one that did not change shows that there was
    none. Compaction changes them too, but hardly all of them.
    """
    late = lag_ms(info, view, now_ms)
    stepped_ms = min(states[shard].wall_ms for shard in info.holding.written_shards)
    if late is None or late <= LATE_MS or now_ms - stepped_ms <= LATE_MS:
        return None
    return view.upper - 1


def clock(ms: int, now_ms: int) -> str:
    """A time of the clock in UTC, to the minute. With its date unless it is today's."""
    shown, today = (shown_time(each)[:16].replace("T", " ") for each in (ms, now_ms))
    return f"{shown[11:] if shown[:10] == today[:10] else shown} UTC"


def failed_last(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """The jobs that failed and that no later job of their kind made up for. `jobs` are oldest first."""
    last: dict[str, JobRecord] = {}
    for each in jobs:
        if each.state is not JobState.RUNNING:
            last[each.kind] = each
    return [each for each in last.values() if each.state is JobState.FAILED]


def quoted(name: str) -> str:
    """A name as one word of a shell."""
    return shlex.quote(name)
