"""Folders for snapshots: what a file system and a bucket both promise, and what S3 adds."""

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.errors import BadInput, Determinate, StoreUnreachable
from holdfast.persist.stores.s3 import PART_BYTES
from testbed.droppingproxy import DroppingProxy
from testbed.minio import Minio

pytestmark = pytest.mark.s3


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, minio: Minio, bucket: str, tmp_path: Path) -> str:
    """Where there is nothing yet."""
    if request.param == "file":
        return (tmp_path / "with space").as_uri()
    return f"s3://{bucket}/with%20space?endpoint={minio.endpoint}&region=eu-west-1"


@pytest.fixture
def s3_url(minio: Minio, bucket: str) -> str:
    return f"s3://{bucket}/out?endpoint={minio.endpoint}"


@pytest.fixture
def proxy(minio: Minio) -> Iterator[DroppingProxy]:
    with DroppingProxy(minio.port) as proxy:
        yield proxy


def write(folder: SnapshotFolder, name: str, data: bytes) -> None:
    with folder.writing(name) as out:
        out.write(data)


def names(folder: SnapshotFolder, *asked: str) -> list[str]:
    return [name for name in asked if folder.read(name) is not None]


def test_what_is_written_is_read_and_a_folder_named_again_is_the_same(place: str) -> None:
    folder = pickle.loads(pickle.dumps(folder_at(place).below("job").below("attempt-1")))
    assert folder.claim()
    data = os.urandom(1 << 16)
    write(folder, "part", data)
    write(folder, "nothing", b"")
    again = folder_at(str(folder))
    assert again == folder
    assert (again.read("part"), again.read("nothing"), again.read("other")) == (data, b"", None)
    write(folder, "large", bytes((64 << 20) + 1))
    with pytest.raises(BadInput, match=r"large.* has 67,108,865 bytes, but at most 67,108,864 can be read"):
        again.read("large")
    with again.open("part") as (file, size):
        assert size == len(data)
        file.seek(-10, os.SEEK_END)
        assert file.read(100) == data[-10:]
        assert file.read(1) == b""
        file.seek(7)
        assert (file.read(5), file.tell()) == (data[7:12], 12)
    with pytest.raises(FileNotFoundError), again.open("other"):
        pass


def test_of_all_who_claim_a_folder_at_once_one_gets_it(place: str) -> None:
    folder = folder_at(place).below("job").below("attempt-1")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: folder.claim(), range(16)))
    assert sum(won) == 1
    folder.discard()
    assert folder.claim()


def test_what_fails_half_way_leaves_no_file(place: str) -> None:
    folder = folder_at(place).below("job")
    assert folder.claim()
    with pytest.raises(TypeError, match="bytes"):
        write(folder, "part", "no bytes")  # type: ignore[arg-type]
    assert names(folder, "part", "_part") == []


def test_files_and_folders_are_removed_and_what_lies_beside_stays(place: str) -> None:
    above = folder_at(place)
    first, tenth = above.below("attempt-1"), above.below("attempt-10")
    for folder in (first, tenth):
        assert folder.claim()
        for name in ("a", "b", "_c"):
            write(folder, name, b"x")
    assert sorted(above.folders()) == ["attempt-1", "attempt-10"]
    first.keep_only({"b"})
    assert names(first, "a", "b", "_c") == ["b"]
    assert not first.claim()
    first.discard()
    first.discard()
    assert above.folders() == ["attempt-10"]
    assert names(tenth, "a", "b", "_c") == ["a", "b", "_c"]


def test_a_large_file_goes_up_in_parts_and_only_what_is_asked_for_comes_back(
    minio: Minio, s3_url: str, proxy: DroppingProxy
) -> None:
    folder = folder_at(s3_url)
    table = pa.table({"id": range(1 << 16), "noise": [os.urandom(320) for _ in range(1 << 16)]})
    with folder.writing("part") as out, pq.ParquetWriter(out, table.schema, compression="none") as writer:
        for start in range(0, 1 << 16, 1 << 14):
            writer.write_table(table.slice(start, 1 << 14))
    with folder.open("part") as (file, size), pq.ParquetFile(file) as parquet:
        assert size > 2 * PART_BYTES
        assert parquet.num_row_groups == 4
        # A read whose answer gets lost is asked again.
        through = folder_at(s3_url.replace(minio.endpoint, proxy.endpoint))
        proxy.lose("GET /.*/out/part")
        with through.open("part") as (lossy, _), pq.ParquetFile(lossy) as other:
            assert other.read().equals(table)
        assert proxy.dropped == 1
        assert parquet.read_row_group(2).equals(table.slice(2 << 14, 1 << 14))


def test_a_file_that_is_replaced_while_it_is_read_is_not_mixed_with_the_other(s3_url: str) -> None:
    folder = folder_at(s3_url)
    write(folder, "part", bytes(1000))
    with folder.open("part") as (file, _):
        assert file.read(10) == bytes(10)
        write(folder, "part", b"1" * 1000)
        with pytest.raises(Determinate, match="can't read out/part in S3 bucket"):
            file.read(10)


def test_a_claim_and_a_file_whose_answers_got_lost_are_there(
    minio: Minio, s3_url: str, proxy: DroppingProxy
) -> None:
    through = folder_at(s3_url.replace(minio.endpoint, proxy.endpoint))
    proxy.lose("PUT")
    assert through.claim()
    assert not folder_at(s3_url).claim()
    proxy.lose("PUT")
    write(through, "part", b"x")
    assert proxy.dropped == 2
    assert folder_at(s3_url).read("part") == b"x"


def test_a_bucket_that_is_not_there_is_told_in_a_line(minio: Minio, s3_url: str) -> None:
    folder = folder_at(f"s3://no-such-bucket/out?endpoint={minio.endpoint}")
    with pytest.raises(StoreUnreachable, match="there is no S3 bucket no-such-bucket") as failed:
        folder.claim()
    assert "\n" not in str(failed.value)
    # Nobody can, so nothing is there to be removed.
    folder.discard()
