"""A generator: rows that anybody can make again, for trials and demonstrations.

Message `n` of the source is always the same JSON object. `rows_per_second` rows exist for each second since
`since_ms`, or all `rows` at once without it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import xxhash

from holdfast.ingest.source import MESSAGES, Binding, Piece, Range

_ROWS_PER_PIECE: Final = 10_000
_PARTITION: Final = "0"


class Generator:
    """The source. `now_ms` is the wall clock."""

    def __init__(
        self, rows: int, rows_per_second: float, since_ms: int, keys: int, now_ms: Callable[[], int]
    ) -> None:
        self._rows = rows
        self._rows_per_second = rows_per_second
        self._since_ms = since_ms
        self._keys = keys
        self._now_ms = now_ms

    @property
    def name(self) -> str:
        """The name has all that decides what the messages are."""
        return f"generator/{self._keys}/{self._since_ms}"

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return the rows that exist by now."""
        end = self._rows
        if self._rows_per_second:
            passed = (self._now_ms() - self._since_ms) / 1000 * self._rows_per_second
            end = min(end or int(passed), int(passed))
        begin = bound[_PARTITION].position if _PARTITION in bound else 0
        return [Range(_PARTITION, begin, end)] if end > begin else []

    def read(self, wanted: Range) -> Iterator[Piece]:
        """Make the messages of a range."""
        for begin in range(wanted.begin, wanted.end, _ROWS_PER_PIECE):
            end = min(begin + _ROWS_PER_PIECE, wanted.end)
            made = [self._message(number) for number in range(begin, end)]
            columns = [
                pa.array(range(begin, end), pa.int64()),
                pa.nulls(end - begin, pa.int64()),
                pa.array([key for key, _ in made], pa.binary()),
                pa.array([value for _, value in made], pa.binary()),
            ]
            yield Piece(pa.RecordBatch.from_arrays(columns, schema=MESSAGES), end)

    def _message(self, number: int) -> tuple[bytes, bytes]:
        digest = xxhash.xxh3_64_intdigest(number.to_bytes(8, "little"))
        id_ = digest % self._keys if self._keys else number
        row = {
            "id": id_,
            "sequence": number,
            "name": f"name-{digest >> 32 & 0xFFFF}",
            "amount": (digest & 0xFFFF) / 100,
        }
        return json.dumps({"id": id_}).encode(), json.dumps(row).encode()

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        """Nothing to tell."""

    def forget(self) -> None:
        """Nothing to remove."""

    def close(self) -> None:
        """Nothing to release."""
