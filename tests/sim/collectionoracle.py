"""The expected contents of a collection at every time: the list of all writes, as if to one rendition.

When a rendition takes over that a source or a snapshot filled, a new chapter begins. At that time all rows of
the old chapter go, and the earlier rows of the new rendition come. A listener sees this like any other write.
Within a chapter, copies take over from each other, and a reader can't notice it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from holdfast.collections import Recipe
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import CLOSED
from sim.audit import Violation
from sim.collectionsource import source_updates
from sim.history import MARKER, History, Row, Update, Write, contents_of, judge_listen


@dataclass(slots=True)
class Chapter:
    """The times of some renditions, of which all but the first are copies, and what they had in the end."""

    renditions: list[RenditionInfo]
    end: Counter[Row]

    @property
    def name(self) -> str:
        """The id of the rendition that began it."""
        return self.renditions[0].id

    @property
    def lower(self) -> int:
        """Its first time."""
        return self.renditions[0].held_from

    @property
    def upper(self) -> int:
        """Where the next one begins."""
        return self.renditions[-1].held_to


@dataclass(frozen=True, slots=True)
class Oracle:
    """What decides: the last record, and beside it what the witness and the writers know.

    `ends` are the contents of renditions that others than copies followed, `written` tells up to where
    sources had written those that they fed, `snapshots` what restored renditions were filled from.
    """

    info: CollectionInfo
    ends: Mapping[str, Counter[Row]]
    written: Mapping[str, int]
    snapshots: Mapping[str, Counter[Row]]

    def judge(self, history: History, final: Counter[Row]) -> int:
        """Compare all that was written and read with it; answers how many chapters were listened through.

        Raises `Violation` for the first thing that can't be.
        """
        chapters = self._chapters(final)
        for write in history.writes.values():
            self._place(write, chapters)
        given = {chapter.name: list(self._given(chapter)) for chapter in chapters}
        history.reads = [
            replace(read, shard=_chapter_at(chapters, read.as_of).name) for read in history.reads
        ]
        history.judge({chapter.name: chapter.end for chapter in chapters}, given=given)
        updates: list[Update] = []
        for chapter in chapters:
            gone = contents_of(updates, chapter.lower - 1)
            updates += [(key, value, chapter.lower, -count) for (key, value), count in gone.items()]
            updates += given[chapter.name]
            landed = (write for write in history.writes.values() if chapter.end[MARKER, write.name])
            updates += [update for write in landed for update in write.updates]
        for listen in history.followed:
            judge_listen(listen, updates)
        borders = [chapter.lower for chapter in chapters[1:]]
        return sum(listen.lower <= at < listen.frontier for listen in history.followed for at in borders)

    def _chapters(self, final: Counter[Row]) -> list[Chapter]:
        held = [each for each in self.info.renditions if each.held_from < CLOSED]
        chapters: list[Chapter] = []
        for each in sorted(held, key=lambda each: each.held_from):
            if not chapters or each.recipe is not Recipe.COPY:
                chapters.append(Chapter([], Counter()))
            chapters[-1].renditions.append(each)
        for chapter in chapters[:-1]:
            last = chapter.renditions[-1]
            if last.recipe is Recipe.SOURCE:
                # Nobody else writes it: what it had is what its source has.
                chapter.end = contents_of(self._given(chapter), CLOSED)
            else:
                chapter.end = self.ends[last.id]
        chapters[-1].end = final
        return chapters

    def _given(self, chapter: Chapter) -> Iterator[Update]:
        """The updates of a chapter that no writer made."""
        first = chapter.renditions[0]
        if first.recipe is Recipe.RESTORED:
            for (key, value), count in self.snapshots[first.id].items():
                yield key, value, first.held_from, count
        if first.recipe is Recipe.SOURCE:
            for key, value, time, diff in source_updates(first.id, first.start, self.written[first.id]):
                yield key, value, max(time, first.held_from), diff

    def _place(self, write: Write, chapters: list[Chapter]) -> None:
        """Find the chapter that a write belongs to: that it is in, or was meant for."""
        found = [chapter for chapter in chapters if chapter.end[MARKER, write.name]]
        if len(found) > 1:
            raise Violation(f"{write} is in {[chapter.name for chapter in found]}")
        chapter = found[0] if found else _chapter_at(chapters, write.lower)
        write.shards = (chapter.name,)
        if not found:
            return
        for each in chapter.renditions:
            # What is restored is complete with a tail that takes the time at which it took over.
            first = each.held_from + (each.recipe is Recipe.RESTORED)
            if first <= write.lower and write.upper <= each.held_to and each.recipe is not Recipe.SOURCE:
                return
        raise Violation(f"{write} happened, and no rendition was to be written then: {chapter.renditions}")


def _chapter_at(chapters: list[Chapter], time: int) -> Chapter:
    return next(chapter for chapter in chapters if chapter.lower <= time < chapter.upper)
