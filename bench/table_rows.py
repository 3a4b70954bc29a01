"""The rows of the benchmarks that compare tables of several libraries."""

import numpy as np
import pyarrow as pa

COLUMNS = {"id": "int64", "name": "string", "value": "float64", "count": "int32"}


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Return rows with these keys, and other columns that follow from the seed."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "id": ids.astype("int64"),
            "name": [f"name {number % 5000}" for number in ids.tolist()],
            "value": rng.random(len(ids)),
            "count": rng.integers(0, 100, len(ids)).astype("int32"),
        }
    )
