"""The folder of a snapshot is removed with everything in it, or an error says that it isn't."""

from pathlib import Path

import pytest

from holdfast.collections.snapshots.folder import LocalFolder, SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.errors import StorageError
from testbed.minio import Minio


def remove(folder: SnapshotFolder) -> None:
    for attempt in ("attempt-1", "attempt-2"):
        assert folder.below(attempt).claim()
        assert folder.below(attempt).create("part-0.parquet", b"rows")
    folder.remove()
    assert folder.below("attempt-2").read("part-0.parquet") is None
    # There is nothing any more, and that is no error.
    folder.remove()
    assert folder.below("attempt-1").claim()


def test_a_folder_of_files_is_removed(tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.write_bytes(b"stays")
    remove(LocalFolder(tmp_path / "job"))
    assert beside.read_bytes() == b"stays"
    file = LocalFolder(beside)
    with pytest.raises(OSError, match="Not a directory"):
        file.remove()
    file.discard()


@pytest.mark.s3
def test_a_prefix_of_a_bucket_is_removed(minio: Minio, bucket: str) -> None:
    beside = folder_at(f"s3://{bucket}/snapshots/job-2?endpoint={minio.endpoint}")
    beside.create("_manifest.json", b"stays")
    remove(folder_at(f"s3://{bucket}/snapshots/job?endpoint={minio.endpoint}"))
    assert beside.read("_manifest.json") == b"stays"
    with pytest.raises(StorageError):
        folder_at(f"s3://no-such-{bucket}/job?endpoint={minio.endpoint}").remove()


@pytest.mark.s3
def test_a_folder_of_a_bucket_has_credentials_of_its_own(
    minio: Minio, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{bucket}/snapshots/owned?endpoint={minio.endpoint}"
    own = {name: minio.credentials[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    for name in own:
        monkeypatch.setenv(name, "of-somebody-else")
    folder = folder_at(url, own)
    remove(folder)
    assert folder.below("attempt-1").create("part-1.parquet", b"rows")
    with folder.below("attempt-1").open("part-1.parquet") as found:
        assert found.file.read() == b"rows"
    assert all(value not in repr(folder) for value in own.values())
    with pytest.raises(StorageError):
        folder_at(url).remove()
