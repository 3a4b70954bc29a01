"""A witness that sees each step of a collection's controller, and what a handover ends.

It reads the stores themselves at the moment of the commit, so nothing happens in between and nothing fails.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.collections import CollectionReader, Recipe, RenditionState, StorageController
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import CollectionNotFound
from holdfast.persist import Clock, PersistClient, PersistConfig
from holdfast.persist.stores import Location, Put
from sim.audit import Auditor, Violation
from sim.history import Row
from sim.reference import StateDiff

NAME = "collection"


class CollectionAuditor(Auditor):
    """Follows the shards of one location, and the one collection in it."""

    def __init__(self, location: Location, clock: Clock, tell: Callable[[StateDiff], None]) -> None:
        super().__init__(location.blob, 0, tell)
        self._location = location
        self._clock = clock
        self._controller: StorageController | None = None
        self._uppers: dict[str, int] = {}
        self.info: CollectionInfo | None = None
        self.turns = 0
        """How many handovers there were."""
        self.ends: dict[str, Counter[Row]] = {}
        """What a rendition had at last, where what followed has other contents."""
        self.written: dict[str, int] = {}
        """Up to where its source had written a rendition when a handover sealed it."""

    @property
    def record(self) -> CollectionInfo:
        """The collection's record now."""
        assert self.info is not None, "there is no collection yet"
        return self.info

    def committed(self, puts: Sequence[Put], who: str) -> None:
        """Check the versions, and what they say together."""
        super().committed(puts, who)
        controller = self._opened()
        if any(put.key == controller.shard_id for put in puts):
            self._look(controller)
        if self.info is not None and not self.info.dropped:
            fed = [each for each in self.info.live if each.recipe is Recipe.SOURCE]
            self._uppers.update({each.id: self.state(each.shards[0]).upper for each in fed})

    def _look(self, controller: StorageController) -> None:
        try:
            before, self.info = self.info, controller.describe(NAME)
        except CollectionNotFound:
            return  # Not made yet.
        if self.info.dropped:
            return
        self._check(self.info)
        if before is not None and before.holding.id != self.info.holding.id:
            self._turned(controller, self.info.rendition(before.holding.id), self.info.holding)

    def _opened(self) -> StorageController:
        if self._controller is None:
            config = PersistConfig(builder_threads=False, maintenance="off", hostname="witness")
            client = PersistClient(self._location, mode="read", config=config, clock=self._clock)
            self._controller = StorageController(client)
        return self._controller

    def _check(self, info: CollectionInfo) -> None:
        held = sorted(
            (each for each in info.renditions if not each.state.never_held and each.held_from < each.held_to),
            key=lambda each: each.held_from,
        )
        ends = [each.held_to for each in held[:-1]]
        if ends != [each.held_from for each in held[1:]] or held[-1] != info.holding:
            raise Violation(f"the times of the renditions have gaps: {held}")
        named = Counter(f"read: {each.purpose}" for each in info.holders if not each.writes)
        there = self.state(info.metadata_shard).critical_readers.values()
        taken = Counter(each.purpose for each in there if each.purpose.startswith("read: "))
        if named != taken:
            raise Violation(f"on record are the holds {sorted(named)}, taken are {sorted(taken)}")
        filled = {
            f"rendition {each.id}"
            for each in info.live
            if each.state is RenditionState.HYDRATING and each.recipe is not Recipe.SOURCE
        }
        if missing := filled - {each.purpose for each in there}:
            raise Violation(f"nobody holds what is to be filled: {sorted(missing)}")

    def _turned(self, controller: StorageController, old: RenditionInfo, new: RenditionInfo) -> None:
        self.turns += 1
        at = new.held_from
        if old.recipe is Recipe.SOURCE:
            self.written[old.id] = self._uppers[old.id] if old.sealed_by(new) else at
        elif new.recipe is not Recipe.COPY:
            with controller.reader(NAME, purpose="witness") as reader:
                _, self.ends[old.id] = contents(reader, at - 1)


def contents(reader: CollectionReader, as_of: int | None) -> tuple[int, Counter[Row]]:
    """A time, the newest where none is given, and what a reader has then."""
    rows: Counter[Row] = Counter()
    snapshot = reader.snapshot(as_of)
    for batch in snapshot:
        columns = [batch.column(name).to_pylist() for name in ("k", "v", "_diff")]
        for key, value, diff in zip(*columns, strict=True):
            if (key, value) in rows or diff == 0:
                raise Violation(f"a snapshot is not consolidated: {key}, {value}")
            rows[key, value] = diff
    return snapshot.as_of, rows
