"""The checksum of a range: equal messages have equal checksums, however they are divided into pieces."""

import numpy as np
import pyarrow as pa
import xxhash

from holdfast.ingest.source import LastMessage


class RangeSum:
    """Counts and sums the messages of a range. The positions, keys and values count, the timestamps don't."""

    def __init__(self) -> None:
        self.rows = 0
        self._positions = xxhash.xxh3_64()
        self._texts = [(xxhash.xxh3_64(), xxhash.xxh3_64()) for _ in ("key", "value")]

    def add(self, messages: pa.RecordBatch) -> None:
        """Add messages. Their positions follow those of the last ones."""
        self.rows += messages.num_rows
        self._positions.update(messages["position"].to_numpy().tobytes())
        for (lengths, contents), name in zip(self._texts, ("key", "value"), strict=True):
            column = messages[name]
            sizes = column.is_valid().to_numpy(zero_copy_only=False).astype("<i8")
            filled = column.fill_null(b"") if column.null_count else column
            offsets = np.frombuffer(filled.buffers()[1], "<i4")[
                filled.offset : filled.offset + len(filled) + 1
            ]
            # A null has length -1.
            lengths.update(np.where(sizes, np.diff(offsets), -1).astype("<i8").tobytes())
            if filled.buffers()[2] is not None and len(offsets):
                contents.update(memoryview(filled.buffers()[2])[offsets[0] : offsets[-1]])

    @property
    def checksum(self) -> int:
        """The XXH3-64 of the digests of positions, lengths and contents."""
        whole = xxhash.xxh3_64(self._positions.digest())
        for lengths, contents in self._texts:
            whole.update(lengths.digest())
            whole.update(contents.digest())
        return whole.intdigest()


def last_of(messages: pa.RecordBatch) -> LastMessage:
    """The last of some messages. Its timestamp counts too."""
    message, total = messages.slice(messages.num_rows - 1), RangeSum()
    total.add(message)
    sent = message["timestamp"].fill_null(-1).to_numpy().astype("<i8")
    whole = xxhash.xxh3_64(total.checksum.to_bytes(8, "big") + sent.tobytes())
    return LastMessage(message["position"][0].as_py(), whole.intdigest())
