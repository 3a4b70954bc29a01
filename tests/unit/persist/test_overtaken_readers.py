"""Retention, compaction and garbage collection overtake a reader between any two of its calls of a store.

The stores are real files. The reader stands still before one of its calls for longer than its lease: its hold
lapses, `since` moves on, all batches are merged and the parts that it was to read are deleted. It then gives
the right rows, or one clear error. While its lease lasts it always gives the right rows.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import CollectionReader, CollectionSpec, StorageController
from holdfast.errors import AsOfTooEarly, LeaseLost
from holdfast.persist import PersistClient, PersistConfig, ReadHandle, Updates
from holdfast.persist.stores import Location
from testbed.faults import Fault, FaultPlan, FaultyBlob, FaultyConsensus, Operation
from unit.persist.open_stores import SCHEMA, HandClock

LEASE_S = 40.0
WRITES = 6
"""Each at a time of its own, and with a part of its own."""
SPEC = CollectionSpec("c1", "flights", SCHEMA, shards=1)


class Standing(FaultPlan):
    """Does something before the call of this number."""

    def __init__(self) -> None:
        self._left = -1
        self._meanwhile: Callable[[], None] = lambda: None
        self.came = False

    def stand(self, call: int, meanwhile: Callable[[], None]) -> None:
        self._left, self._meanwhile, self.came = call, meanwhile, False

    def decide(self, operation: Operation) -> Fault:
        if self._left == 0:
            self._left, self.came = -1, True
            # As another process would: a commit of the reader's own thread begins a new look.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self._meanwhile).result()
        else:
            self._left -= 1
        return Fault.NONE


class World:
    """A collection of one shard, its reader, which may stand still, and another process."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        self._place = {"blob": f"file://{folder}/blob", "consensus": f"sqlite://{folder}/log.sqlite"}
        self.standing = Standing()
        self.other = self._open(None)
        self._controller = StorageController(self.other)
        self._controller.create_collection(SPEC)
        (self._shard,) = self._controller.describe("flights").holding.shards
        for time in range(WRITES):
            self._write(time)
        self._slow = self._open(self.standing)
        self.reader = StorageController(self._slow).reader("flights", purpose="slow")
        self.handle = self._slow.reader(self._shard, purpose="slow")
        self.events: Iterator[Any] = iter(())

    def _open(self, plan: FaultPlan | None) -> PersistClient:
        place = Location.open(**self._place)
        if plan is not None:
            place = Location(
                FaultyBlob(place.blob, plan), FaultyConsensus(place.consensus, plan), place.location_id
            )
        config = PersistConfig(
            maintenance="off",
            lease_s=LEASE_S,
            gc_grace_s=0.0,
            inline_max_bytes=0,
            rollup_every=1,
            compaction_fanin=2,
            debug_validate=True,
        )
        return PersistClient(place, config=config, clock=self.clock)

    def _write(self, time: int) -> None:
        rows = [{"k": time, "v": "came"}]
        if time:
            rows.append({"k": time - 1, "v": "came", "_diff": -1})
        writer = self._controller.writer("flights", purpose="test")
        writer.append([{"_time": time, **row} for row in rows], time, time + 1)

    def parts(self) -> set[str]:
        return {meta.key for meta in self.other.location.blob.list(self._shard) if "/w" in meta.key}

    def overtake(self, *, expire: bool) -> None:
        """What goes on meanwhile; with `expire` the reader stands still for longer than its lease."""
        before = self.parts()
        if expire:
            for shard in self.other.location.consensus.list_keys():
                if shard.startswith("s"):
                    self.other.maintain(shard)
            self.clock.sleep(LEASE_S + 1)
        for time in range(WRITES, WRITES + 3):
            self._write(time)
        self._controller.set_retention_hold("flights", WRITES + 1)
        for _ in range(3):
            for shard in self.other.location.consensus.list_keys():
                if shard.startswith("s"):
                    self.other.maintain(shard)
            self._controller.advance("flights")
        if expire:
            self._controller.set_retention_hold("flights", WRITES + 1)
            for _ in range(2):
                self.other.maintain(self._shard)
            self.gone = not before & self.parts()

    def close(self) -> None:
        self._slow.close()
        self.other.close()


AS_OF = WRITES - 1
SNAPSHOT = Counter({(AS_OF, "came", AS_OF): 1})
CHANGES = Counter(
    {(time, "came", time): 1 for time in range(2, WRITES)}
    | {(time - 1, "came", time): -1 for time in range(2, WRITES)}
)

SUM = Counter({(AS_OF, "came", 0): 1, (1, "came", 0): -1})


def counted(tables: Any, *, at: int | None = None) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for table in tables:
        for row in table.to_pylist():
            found[row["k"], row["v"], row["_time"] if at is None else at] += row["_diff"]
    return Counter({row: count for row, count in found.items() if count})


def listened(listen: Any) -> Counter[Any]:
    tables = []
    while listen.frontier < WRITES:
        tables += [event.table for event in listen.next(0) if isinstance(event, Updates)]
    found = counted(tables)
    return Counter({row: count for row, count in found.items() if row[2] < WRITES})


def latest(reader: CollectionReader) -> Counter[Any]:
    """`SNAPSHOT` if the latest contents are right, whichever time is the latest one."""
    snapshot = reader.snapshot()
    found = counted([snapshot.to_table()], at=snapshot.as_of)
    return SNAPSHOT if found == {(snapshot.as_of, "came", snapshot.as_of): 1} else found


def read_parts(reader: CollectionReader, handle: ReadHandle) -> list[Any]:
    """The contents, from parts that are planned with the footers of files."""
    parts = reader.snapshot_parts(AS_OF)
    return [handle.snapshot_of(part).to_table() for each in parts for part in each.parts]


WAYS: dict[str, tuple[Callable[[CollectionReader, ReadHandle], Counter[Any]], Counter[Any]]] = {
    "snapshot": (lambda c, h: counted([h.snapshot(AS_OF).to_table()], at=AS_OF), SNAPSHOT),
    "stream": (lambda c, h: counted(h.snapshot(AS_OF), at=AS_OF), SNAPSHOT),
    "snapshot of a collection": (lambda c, h: counted([c.snapshot(AS_OF).to_table()], at=AS_OF), SNAPSHOT),
    "latest of a collection": (lambda c, h: latest(c), SNAPSHOT),
    "parts of a collection": (lambda c, h: counted(read_parts(c, h), at=AS_OF), SNAPSHOT),
    "diff of a collection": (lambda c, h: counted(c.changes(1, AS_OF), at=0), SUM),
    "listen": (lambda c, h: listened(h.listen(1)), CHANGES),
    "listen to a collection": (lambda c, h: listened(c.listen(1)), CHANGES),
}


@pytest.mark.parametrize("expire", [True, False], ids=["lease lapsed", "lease held"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.long
def test_a_reader_that_is_overtaken_has_the_right_rows_or_one_error(
    way: str, expire: bool, tmp_path: Path
) -> None:
    read, expected = WAYS[way]
    refused = overtaken = 0
    for call in range(0, 120, 2 if expire else 6):
        world = World(tmp_path / str(call))
        world.standing.stand(call, lambda world=world: world.overtake(expire=expire))  # type: ignore[misc]
        try:
            assert read(world.reader, world.handle) == expected, f"overtaken before call {call}"
        except (AsOfTooEarly, LeaseLost):
            assert expire, f"a lease that lasts did not hold, before call {call}"
            refused += 1
        if not world.standing.came:
            break
        overtaken += expire and world.gone
        world.close()
    assert call > 3
    assert not expire or (refused and overtaken), (refused, overtaken)
