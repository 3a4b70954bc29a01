"""A process that counts in a table. It is a module, so that spawned processes can import it."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import holdfast

KEYS: Final = 3


def incremented(there: pa.Table) -> pa.Table:
    return there.set_column(1, "n", pc.add(there["n"], 1))


def count(url: str, increments: int, started: Any) -> None:
    with holdfast.table(url, "counters") as table:
        started.release()
        for number in range(increments):
            table.update([number % KEYS], incremented)
