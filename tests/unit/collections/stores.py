"""The stores of one location in memory, and processes that open it, each with its own faults."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.collections import CollectionSpec
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.clock import Clock
from holdfast.persist.session import Mode
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from testbed.faults import FaultPlan, FaultyBlob, FaultyConsensus, ScriptedPlan

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})
SPEC = CollectionSpec("c1", "flights", SCHEMA, shards=3)
Row = tuple[int, str | None]


class NoWait(Clock):
    """Real time, but waiting for a store that failed costs none."""

    def sleep(self, seconds: float) -> None:
        pass


class Stores:
    """What outlives every process. `open` is a new process; one that meets a death is simply left behind.

    `clock` is that of the stores and of all processes. Default: real time.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or NoWait()
        self.blob = MemoryBlob(clock=self.clock.wall_ms)
        self.consensus = MemoryConsensus()
        self.open().close()

    def open(self, plan: FaultPlan | None = None, mode: Mode = "write", **settings: Any) -> PersistClient:
        faults = plan or ScriptedPlan({})
        location = Location.of(FaultyBlob(self.blob, faults), FaultyConsensus(self.consensus, faults))
        config = PersistConfig(
            **{
                "debug_validate": True,
                "maintenance": "off",
                "retry_deadline_s": 0.2,
                "gc_grace_s": 0.0,
                **settings,
            }
        )
        return PersistClient(location, mode=mode, config=config, clock=self.clock)


def updates(rows: Sequence[tuple[int, str | None, int, int]]) -> pa.RecordBatch:
    """Updates of (id, name, time, diff)."""
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, SCHEMA.arrow_updates, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow_updates)


def counted(table: pa.Table) -> Counter[Row]:
    """A table with `_diff` as a multiset, by addition."""
    found: Counter[Row] = Counter()
    for row in table.to_pylist():
        found[row["id"], row["name"]] += row["_diff"]
    return Counter({row: count for row, count in found.items() if count})
