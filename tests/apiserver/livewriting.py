"""Writes to a collection during a handover, and checks its contents afterwards."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from holdfast.collections import CollectionWriter
from holdfast.errors import UpperMismatch


def counted(table: pa.Table) -> Counter[tuple[int, str]]:
    counts: Counter[tuple[int, str]] = Counter()
    for row in table.to_pylist():
        counts[row["id"], row["note"]] += row["_diff"]
    return counts


def load(writer: CollectionWriter, rows: int) -> None:
    """`rows` rows at time 0; complete before 10."""
    ids = pa.array(range(rows), pa.int64())
    writer.append(pa.table({"id": ids, "note": pa.array(["before"] * rows)}), 0, 10)


class Writing:
    """A writer that adds a row and takes back an earlier one at a time, until it is stopped."""

    def __init__(self, writer: CollectionWriter, *, pace_s: float) -> None:
        self._writer = writer
        self._pace_s = pace_s
        self._stop = threading.Event()
        self.written: Counter[tuple[int, str]] = Counter()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(self._pace_s):
            rows = [{"id": -1 - number, "note": "live", "_diff": 1}]
            if number % 3 == 2:
                rows.append({"id": -number, "note": "live", "_diff": -1})
            self._append(rows)
            self.written.update({(row["id"], row["note"]): row["_diff"] for row in rows})
            number += 1

    def _append(self, rows: list[dict[str, Any]]) -> None:
        upper = self._writer.upper()
        while True:
            try:
                self._writer.append(rows, upper, upper + 5)
            except UpperMismatch as mismatch:
                # Sealed by a handover: nothing of this one happened.
                upper = mismatch.actual
            else:
                return

    @contextmanager
    def running(self) -> Iterator["Writing"]:
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(self._run)
            try:
                yield self
            finally:
                self._stop.set()
            done.result(60)
