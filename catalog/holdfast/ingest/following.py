"""Following: a rendition that is being filled reads what the pipeline of another one has bound.

The pipeline of the current rendition decides which messages belong to which time. A follower binds nothing
of its own until it is current and has arrived at its first time. So two decoders get the same messages for
the same times.

- First it reads everything that the current rendition had bound at one time. That takes as many commits as it
  needs. They are at the times 0, 1, 2, ..., at which nobody reads the rendition.
- Then it replays one binding after the other, each at its time. The range must have the number and the
  checksum of messages that the current one found.
- If messages are gone, it says so and stops. A compacted topic never says so itself.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.collections import RenditionInfo
from holdfast.collections.pipeline import BESIDE, FORGOTTEN, LAST
from holdfast.ingest.source import Binding, LastMessage, Range
from holdfast.persist import PersistClient
from holdfast.persist.handles.read import Listen, ReadHandle, Updates
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.text import one_line

NOTHING: Final = Binding(0)
_PURPOSE: Final = "following"


@dataclass(frozen=True, slots=True)
class FollowTarget:
    """What the rendition that is followed had bound at the time `at`.

    If it is `next`, nothing else was bound between the follower's bindings and these, and `bound` has only
    what changed, and `forgets` the files that it forgot then. Otherwise `bound` has all partitions.
    `forgotten` is what it has forgotten in all, or None if that did not change.
    """

    at: int
    bound: Mapping[str, Binding]
    next: bool
    forgets: Collection[str] = ()
    forgotten: Binding | None = None


@dataclass(slots=True)
class _Bound:
    """What changed in the bindings at one time."""

    at: int
    changed: dict[str, Binding] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    forgotten: Binding | None = None

    @property
    def target(self) -> FollowTarget:
        return FollowTarget(self.at, self.changed, True, self.removed - self.changed.keys(), self.forgotten)


class Followed:
    """Reads the bindings of a rendition, up to the time `until` at which the follower takes over."""

    def __init__(self, client: PersistClient, rendition: RenditionInfo) -> None:
        assert rendition.pipeline is not None
        self.rendition = rendition
        self.until = rendition.held_to
        self._reader = client.reader(rendition.pipeline.remap, purpose=_PURPOSE)
        self._listen: Listen | None = None
        self._pending: deque[_Bound] = deque()
        self._sources: set[str] = set()

    def is_fed_from(self, source: str) -> bool:
        """Return whether all that it has bound is from this source, or nothing is bound yet."""
        if not self._sources:
            self._sources = fed_from(newest_rows(self._reader))
        return self._sources <= {source}

    def target(self, upper: int, bound: Mapping[str, Binding]) -> FollowTarget | None:
        """Return what a follower with these bindings reads next. None if it has everything."""
        limit = min(self._reader.upper(), self.until)
        if upper >= limit:
            return None
        if self._listen is None:
            if not self._is_joined(upper, bound):
                rows = rows_at(self._reader, limit - 1)
                return FollowTarget(limit - 1, bindings(rows), next=False, forgotten=forgotten(rows))
            self._listen = self._reader.listen(upper - 1)
        while self._listen.frontier < limit:
            for event in self._listen.next():
                if isinstance(event, Updates):
                    self._take(event.table.to_pylist())
        while self._pending and self._pending[0].at < upper:
            # Another instance has done it.
            self._pending.popleft()
        if not self._pending or self._pending[0].at >= limit:
            return FollowTarget(limit - 1, {}, next=True)
        return self._pending[0].target

    def _is_joined(self, upper: int, bound: Mapping[str, Binding]) -> bool:
        """Whether the follower has exactly what it had before `upper`, so that it can replay."""
        if not upper or upper - 1 < self._reader.since():
            return False
        theirs = bindings(rows_at(self._reader, upper - 1))
        return {name: (each.position, each.identity) for name, each in theirs.items()} == {
            name: (each.position, each.identity) for name, each in bound.items()
        }

    def _take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if row["source"] in BESIDE and row["source"] != FORGOTTEN:
                continue
            if not self._pending or self._pending[-1].at != row[TIME]:
                self._pending.append(_Bound(row[TIME]))
            at = self._pending[-1]
            if row["source"] == FORGOTTEN:
                at.forgotten = binding_of(row) if row[DIFF] > 0 else at.forgotten
            elif row[DIFF] > 0:
                at.changed[row["partition"]] = binding_of(row)
            else:
                at.removed.add(row["partition"])

    def close(self) -> None:
        """Give up the lease."""
        self._reader.close()


def newest_rows(remap: ReadHandle) -> list[dict[str, Any]]:
    """The rows of a remap at the latest time. Empty if there is none yet."""
    upper = remap.upper()
    return rows_at(remap, upper - 1) if upper else []


def rows_at(remap: ReadHandle, at: int) -> list[dict[str, Any]]:
    """The rows of a remap at a time: bindings, and the texts of schemas."""
    rows: list[dict[str, Any]] = remap.snapshot(at).to_table().to_pylist()
    return rows


def fed_from(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    """The names of the sources in rows of a remap."""
    return {
        each["partition"] if each["source"] == FORGOTTEN else each["source"]
        for each in rows
        if each["source"] not in BESIDE or each["source"] == FORGOTTEN
    }


def forgotten(rows: Iterable[Mapping[str, Any]]) -> Binding:
    """What the rows of a remap say is forgotten: the number of files as `position`, and their messages."""
    return next((binding_of(each) for each in rows if each["source"] == FORGOTTEN), NOTHING)


def bindings(rows: Iterable[Mapping[str, Any]]) -> dict[str, Binding]:
    """The bindings in rows of a remap, by partition."""
    return {each["partition"]: binding_of(each) for each in rows if each["source"] not in BESIDE}


def last_messages(rows: Iterable[Mapping[str, Any]]) -> dict[str, LastMessage]:
    """The last messages in rows of a remap, by partition. Older remaps have none."""
    return {
        each["partition"]: LastMessage(each["position"], each["checksum"])
        for each in rows
        if each["source"] == LAST
    }


def binding_of(row: Mapping[str, Any]) -> Binding:
    """The binding in a row of a remap."""
    names = ("position", "identity", "rows", "checksum", "begin", "total")
    return Binding(*(row[each] for each in names))


def is_beyond(target: FollowTarget, bound: Mapping[str, Binding], forgets: Collection[str] = ()) -> bool:
    """Whether the follower has messages that the other one lacks, and that it has not forgotten.

    That is so for a while if another rendition took over, which lags behind the one before.
    """
    for partition, mine in bound.items():
        theirs = target.bound.get(partition)
        if partition in forgets:
            continue
        if theirs is None or (theirs.identity == mine.identity and theirs.position < mine.position):
            return True
    return False


def missing(target: FollowTarget, bound: Mapping[str, Binding], *, whole: bool) -> list[Range]:
    """The ranges between the follower's bindings and the target."""
    ranges = []
    for partition, theirs in target.bound.items():
        mine = bound.get(partition)
        is_same = mine is not None and (mine.position, mine.identity) == (theirs.position, theirs.identity)
        if is_same and not target.next:
            continue
        begin = theirs.begin if mine is None or not continues(theirs, mine) else mine.position
        size = theirs.position - begin if whole else 0
        ranges.append(Range(partition, begin, theirs.position, theirs.identity, whole, size))
    # Files are bound in the order of their names, in case they are lexical.
    return sorted(ranges, key=lambda each: each.partition) if whole else ranges


def continues(theirs: Binding, mine: Binding) -> bool:
    """Whether their messages follow on mine. They don't after a gap, and in a topic that was made again."""
    if theirs.begin != mine.begin or theirs.position < mine.position:
        return False
    return theirs.identity == mine.identity or theirs.position == mine.position


def differing(target: FollowTarget, bound: Mapping[str, Binding]) -> str:
    """What the follower's bindings lack, in words, if it read other messages than the other one. Or empty."""
    for partition, theirs in target.bound.items():
        mine = bound.get(partition)
        if mine is None or mine.position != theirs.position:
            return f"partition {one_line(partition)} can't be read up to {theirs.position}"
        if mine.total != theirs.total:
            return (
                f"partition {one_line(partition)} has {mine.total:,} messages up to {theirs.position - 1},"
                f" and had {theirs.total:,}"
            )
        if target.next and (mine.rows, mine.checksum) != (theirs.rows, theirs.checksum):
            return (
                f"partition {one_line(partition)} has other messages before {theirs.position} than when they"
                f" were bound: {mine.rows:,} with checksum {mine.checksum}, instead of {theirs.rows:,} with"
                f" checksum {theirs.checksum}"
            )
    return ""


class InitialFill:
    """Decides when a rendition that reads its source by itself has what was there when it began.

    Until then its commits are at the times 0, 1, 2, ..., so that nothing can hand over to it.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] | None = None

    def is_done(self, found: Iterable[Range]) -> bool:
        """Return whether nothing is left, given what a probe found now."""
        found = list(found)
        filled = [each for each in found if each.end > each.begin]
        if self._ends is None:
            if filled:
                self._ends = {each.partition: each.end for each in filled}
            return not found
        ends = self._ends
        return not any(each.partition in ends and each.begin < ends[each.partition] for each in filled)
