"""What a step reads, and the sum of what it read."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ingest.checksum import RangeSum
from holdfast.ingest.plan import plan
from holdfast.ingest.source import MESSAGES, Range

VALUES = st.none() | st.binary(max_size=3)


def test_partitions_share_the_rows_of_a_step() -> None:
    found = [Range("a", 0, 100), Range("b", 5, 7), Range("c", 0, 100)]
    assert plan(found, 22, 1) == [Range("a", 0, 10), Range("b", 5, 7), Range("c", 0, 10)]
    assert plan(found, 1000, 1) == found


def test_files_are_whole_and_oldest_first() -> None:
    found = [Range(name, 0, 10, name, whole=True, size_bytes=10) for name in "abc"]
    assert plan(found, 1, 20) == found[:2]
    assert plan(found, 1, 1) == found[:1]


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(1, 60))
def test_a_step_takes_as_much_as_it_may(lengths: list[int], most: int) -> None:
    found = [Range(str(number), 3, 3 + length) for number, length in enumerate(lengths)]
    chosen = plan(found, most, 1)
    taken = sum(each.end - each.begin for each in chosen)
    assert min(most, sum(lengths)) - len(lengths) <= taken <= most
    assert bool(taken) == bool(sum(lengths))
    assert all(each.begin == 3 and each.end <= 3 + lengths[int(each.partition)] for each in chosen)


def batch(rows: list[tuple[bytes | None, bytes | None]], first: int) -> pa.RecordBatch:
    columns = [
        pa.array(range(first, first + len(rows)), pa.int64()),
        pa.nulls(len(rows), pa.int64()),
        pa.array([key for key, _ in rows], pa.binary()),
        pa.array([value for _, value in rows], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=8), st.integers(0, 8))
def test_the_checksum_does_not_depend_on_the_pieces(
    rows: list[tuple[bytes | None, bytes | None]], cut: int
) -> None:
    whole, pieces = RangeSum(), RangeSum()
    whole.add(batch(rows, 0))
    # Slices have an offset in their buffers.
    pieces.add(batch(rows, 0).slice(0, min(cut, len(rows))))
    pieces.add(batch(rows, 0).slice(min(cut, len(rows))))
    assert (whole.rows, whole.checksum) == (pieces.rows, pieces.checksum)


@pytest.mark.parametrize(
    "other",
    [
        [(b"a", b"bc"), (None, b"")],
        [(b"ab", b"c"), (None, None)],
        [(b"ab", b"c"), (b"", b"")],
        [(None, b""), (b"ab", b"c")],
        [(b"ab", b"c")],
    ],
)
def test_other_messages_have_another_checksum(other: list[tuple[bytes | None, bytes | None]]) -> None:
    sums = []
    for rows, first in (([(b"ab", b"c"), (None, b"")], 0), (other, 0), ([(b"ab", b"c"), (None, b"")], 1)):
        total = RangeSum()
        total.add(batch(list(rows), first))
        sums.append(total.checksum)
    assert len(set(sums)) == 3
