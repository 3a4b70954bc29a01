"""A store that fails during a read is retried. Only wrong bytes are corrupt."""

import errno
import io
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast.errors import CorruptBlob, Determinate
from holdfast.persist import PersistClient
from holdfast.persist.parts import runs
from holdfast.persist.parts.runs import At, merged
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.rows.part import checksum, encode_parquet
from holdfast.persist.state.state import Part
from holdfast.persist.stores import MemoryBlob
from unit.persist.open_stores import SCHEMA, SHARD, HandClock, Stores, rows

KEYS = 3000
HALF = 4501
ERRORS: dict[str, Callable[[], Exception]] = {
    "unreachable": lambda: Determinate("the store is not there"),
    "disk": lambda: OSError(errno.EIO, "Input/output error"),
}


class Reads:
    """Counts the reads of open objects, and lets some fail."""

    def __init__(self) -> None:
        self.seen = 0
        self.failing: Callable[[int], bool] = lambda _: False
        self.error = ERRORS["unreachable"]

    def read(self) -> None:
        self.seen += 1
        if self.failing(self.seen - 1):
            raise self.error()


class _File(io.BytesIO):
    def __init__(self, data: bytes, reads: Reads) -> None:
        super().__init__(data)
        self._reads = reads

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads.read()
        return super().read(size)


class FlakyBlob(MemoryBlob):
    """A store whose open objects can fail to be read."""

    def __init__(self, clock: HandClock, reads: Reads) -> None:
        super().__init__(clock=clock.wall_ms)
        self.reads = reads

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        data = self.get_start(key, most)
        return None if data is None else pa.PythonFile(_File(data, self.reads), "r")


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest.fixture
def client(stores: Stores, reads: Reads) -> PersistClient:
    stores.blob = FlakyBlob(stores.clock, reads)
    # No faults but those of reads.
    return stores.open()


def a_run(client: PersistClient) -> list[Part]:
    """Two parts of several row groups, with rows that are equal across their ends."""
    given = rows(*(key // 3 for key in range(3 * KEYS)))
    updates = sort_updates(SCHEMA, prepare_updates(SCHEMA, given, default_time=0))
    parts = []
    for start in (0, HALF):
        piece = updates.slice(start, None if start else HALF)
        data = encode_parquet(SCHEMA, 1, piece, row_group_rows=1100)
        client.location.blob.put(f"part{start}", data)
        parts.append(Part(piece.num_rows, 1, 0, 1, len(data), checksum(data), f"part{start}"))
    return parts


def stream(client: PersistClient, run: list[Part]) -> dict[int, int]:
    found: dict[int, int] = {}
    for piece in merged(client.session.machine(SHARD), SCHEMA, [run], At(0)):
        for row in piece.to_pylist():
            assert row["k"] not in found
            found[row["k"]] = row["_diff"]
    return found


EXPECTED = dict.fromkeys(range(KEYS), 3)


@pytest.fixture
def run(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    # The smallest batches, which end within row groups.
    monkeypatch.setattr(runs, "BUFFER_BYTES", 1)
    # The shard must exist for its schema to be known.
    client.writer(SHARD, SCHEMA, purpose="test").seal(1)
    return a_run(client)


@pytest.mark.parametrize("error", ERRORS)
def test_a_read_that_fails_once_is_done_again(
    client: PersistClient, run: list[Part], reads: Reads, error: str
) -> None:
    reads.error = ERRORS[error]
    assert stream(client, run) == EXPECTED
    count = reads.seen
    assert count > 12
    for failing in range(count):
        reads.seen = 0
        reads.failing = failing.__eq__
        assert stream(client, run) == EXPECTED
        assert reads.seen > count


@pytest.mark.parametrize("every", [14, 17, 23])
def test_the_deadline_counts_from_the_last_row(
    client: PersistClient, run: list[Part], reads: Reads, every: int
) -> None:
    reads.failing = lambda seen: seen % every == every - 1
    assert stream(client, run) == EXPECTED


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("after", [0, 5, 12])
def test_a_store_that_stays_away_is_no_corruption(
    client: PersistClient, run: list[Part], reads: Reads, error: str, after: int
) -> None:
    reads.error = ERRORS[error]
    reads.failing = lambda seen: seen >= after
    before = client.clock.monotonic()
    with pytest.raises(Determinate):
        stream(client, run)
    waited = client.clock.monotonic() - before
    assert 0.3 <= waited <= 2 * client.config.retry_deadline_s


def test_a_part_that_is_damaged_meanwhile_is_corrupt(
    client: PersistClient, run: list[Part], reads: Reads
) -> None:
    blob = client.location.blob
    key = str(run[0].blob_key)
    data = bytearray(blob.get(key) or b"")

    def failing(seen: int) -> bool:
        if seen != 8:
            return False
        data[100] ^= 1
        blob.put(key, bytes(data))
        return True

    reads.failing = failing
    with pytest.raises(CorruptBlob, match=key):
        stream(client, run)


@pytest.mark.parametrize("error", ERRORS)
def test_the_pieces_of_a_snapshot_are_planned_and_read_all_the_same(
    stores: Stores, client: PersistClient, reads: Reads, error: str
) -> None:
    reads.error = ERRORS[error]
    client = stores.open(inline_max_bytes=0, part_target_bytes=1000)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(*range(100)), 0, 1)
    reader = client.reader(SHARD, purpose="test")
    reads.failing = lambda seen: seen % 5 == 0
    parts = reader.snapshot_parts(0)
    assert len(parts) > 2
    reads.failing = lambda seen: seen % 11 == 0
    found = [
        row["k"] for part in parts for piece in client.read_snapshot_part(part) for row in piece.to_pylist()
    ]
    assert found == list(range(100))
