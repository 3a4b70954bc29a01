"""A source in memory that others write to, delete from and read from, as from a topic with partitions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import SourceChanged, SourceStalled
from holdfast.ingest.source import MESSAGES, Binding, Piece, Range


@dataclass
class Topic:
    """Messages (key, value) by partition. What is acknowledged is deleted at once if `deletes`."""

    deletes: bool = True
    name: str = "topic"
    piece: int = 2
    partitions: dict[str, list[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    low: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    forgotten: bool = False
    begins: dict[str, int] = field(default_factory=dict)
    holes: set[tuple[str, int]] = field(default_factory=set)
    stamps: dict[tuple[str, int], int] = field(default_factory=dict)
    """The timestamps of messages that have one."""

    def send(self, partition: str, *rows: object, key: object = None, at: int | None = None) -> None:
        """Add messages: dicts as JSON, bytes as they are, None as no value. `at` is their timestamp."""
        for row in rows:
            value = row if row is None or isinstance(row, bytes) else json.dumps(row).encode()
            messages = self.partitions.setdefault(partition, [])
            if at is not None:
                self.stamps[partition, len(messages)] = at
            messages.append((None if key is None else json.dumps(key).encode(), value))

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        found = []
        for partition, messages in sorted(self.partitions.items()):
            begin = bound[partition].position if partition in bound else self.begins.get(partition, 0)
            if begin < self.low.get(partition, 0):
                raise SourceStalled(f"{partition} lost {begin} to {self.low[partition]}")
            if begin < len(messages):
                found.append(Range(partition, begin, len(messages)))
        return found

    def read(self, wanted: Range) -> Iterator[Piece]:
        if wanted.begin < self.low.get(wanted.partition, 0):
            raise SourceChanged(f"{wanted.partition} lost {wanted.begin}")
        return self.everything(wanted.partition, wanted.begin, wanted.end)

    def everything(self, partition: str, first: int, last: int) -> Iterator[Piece]:
        """The messages in `[first, last)`, also those that are deleted."""
        messages = self.partitions[partition]
        for begin in range(first, last, self.piece):
            end = min(begin + self.piece, last)
            there = [each for each in range(begin, end) if (partition, each) not in self.holes]
            keys, values = ([messages[each][column] for each in there] for column in (0, 1))
            arrays = [
                pa.array(there, pa.int64()),
                pa.array([self.stamps.get((partition, each)) for each in there], pa.int64()),
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
            ]
            yield Piece(pa.RecordBatch.from_arrays(arrays, schema=MESSAGES), end)

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        for partition, binding in bound.items():
            self.acknowledged[partition] = binding.position
            if self.deletes:
                self.low[partition] = max(binding.position, self.low.get(partition, 0))

    def forget(self) -> None:
        self.forgotten = True

    def close(self) -> None:
        pass
