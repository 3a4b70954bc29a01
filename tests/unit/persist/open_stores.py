"""The stores of one location in memory, and processes that open it, each with its own faults."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.persist import Clock, PersistClient, PersistConfig, Schema
from holdfast.persist.session import Mode
from holdfast.persist.state.state import ShardState
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from testbed.faults import FaultPlan, FaultyBlob, FaultyConsensus, ScriptedPlan

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
SHARD = "s00000000-0000-4000-8000-000000000001"
OTHER = "s00000000-0000-4000-8000-000000000002"
Row = tuple[int, str]
Update = tuple[int, str, int, int]
"""Key, value, time, diff."""


class HandClock(Clock):
    """A clock that a test moves; waiting moves it too."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Stores:
    """What outlives every process; `open` is a new process."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.blob = MemoryBlob(clock=self.clock.wall_ms)
        self.consensus = MemoryConsensus()
        self.location_id = Location.of(self.blob, self.consensus).location_id

    def open(self, plan: FaultPlan | None = None, mode: Mode = "write", **settings: Any) -> PersistClient:
        faults = plan or ScriptedPlan({})
        blob, consensus = FaultyBlob(self.blob, faults), FaultyConsensus(self.consensus, faults)
        config = PersistConfig(
            **{
                "debug_validate": True,
                "maintenance": "off",
                "retry_deadline_s": 0.5,
                "gc_grace_s": 0.0,
                "hostname": "ship",
                **settings,
            }
        )
        return PersistClient(
            Location(blob, consensus, self.location_id), mode=mode, config=config, clock=self.clock
        )

    def state(self, shard: str = SHARD) -> ShardState:
        """The newest version of a shard, read by a process of its own."""
        return self.open().session.machine(shard).refresh()

    def stored(self) -> tuple[dict[str, bytes | None], dict[str, list[Any]]]:
        """Every byte of both stores."""
        blobs = {meta.key: self.blob.get(meta.key) for meta in self.blob.list("")}
        return blobs, {key: self.consensus.scan(key, 0, 10**6) for key in self.consensus.list_keys()}

    def blobs(self, shard: str = SHARD) -> set[str]:
        """The keys of all blobs of a shard."""
        return {meta.key for meta in self.blob.list(shard)}

    def parts(self, shard: str = SHARD) -> set[str]:
        """The keys of all its blobs that are parts."""
        return {key for key in self.blobs(shard) if "/w" in key}


def rows(*keys: int, value: str = "x") -> pa.Table:
    """Rows that differ by their key."""
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys), pa.string())})


def updates(given: Sequence[Update]) -> pa.Table:
    """Updates of (k, v, time, diff)."""
    columns = list(zip(*given, strict=True)) or [(), (), (), ()]
    types = [pa.int64(), pa.string(), pa.uint64(), pa.int64()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.table(arrays, names=["k", "v", "_time", "_diff"])


def contents(found: pa.Table) -> Counter[Row]:
    """A snapshot as rows and their counts; a row that is in it twice, or 0 times, is an error."""
    counted: Counter[Row] = Counter()
    for row in found.to_pylist():
        assert row["_diff"] != 0
        assert (row["k"], row["v"]) not in counted
        counted[row["k"], row["v"]] = row["_diff"]
    return counted


def changes(found: pa.Table) -> list[Update]:
    """The updates of a listen, sorted."""
    return sorted((row["k"], row["v"], row["_time"], row["_diff"]) for row in found.to_pylist())
