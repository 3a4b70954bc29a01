"""What only objects in files meet: crashes, temporary files, errors of the file system."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import BadInput, Determinate, NotWritable, StoreUnreachable, UnusablePath
from holdfast.folders import open_error
from holdfast.persist.stores import FileBlob

HERE = Path(__file__).parent
DAY_S = 24 * 3600


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_key_is_a_path_below_the_folder(tmp_path: Path) -> None:
    FileBlob(tmp_path / "blob").put("s1/w1/p1", b"x")

    assert (tmp_path / "blob" / "s1" / "w1" / "p1").read_bytes() == b"x"


def test_what_a_crash_left_behind_is_not_shown(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    blob.put("s1/whole", b"x")
    (tmp_path / ".tmp" / "0123").write_bytes(b"half of an obj")

    again = FileBlob(tmp_path)

    assert [meta.key for meta in again.list("")] == ["s1/whole"]
    with pytest.raises(BadInput):
        again.get(".tmp/0123")


def test_leftovers_are_dropped_when_no_put_can_still_write_them(tmp_path: Path) -> None:
    FileBlob(tmp_path)
    old, young = tmp_path / ".tmp" / "old", tmp_path / ".tmp" / "young"
    for path in (old, young):
        path.write_bytes(b"half")
    now = young.stat().st_mtime
    os.utime(old, (now - 2 * DAY_S, now - 2 * DAY_S))

    FileBlob(tmp_path)

    assert not old.exists()
    assert young.exists()


def test_a_killed_process_leaves_whole_objects_only(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "blob_putter.py"), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(25)]
    process.kill()
    told += [line.strip() for line in process.stdout if line.endswith("\n")]
    process.wait()

    blob = FileBlob(tmp_path)
    found = {meta.key: blob.get(meta.key) for meta in blob.list("")}
    whole = {key: int(key.rpartition("/")[2]).to_bytes(8, "little") * (32 * 1024) for key in found}

    assert found == whole
    assert set(told) <= set(found)
    assert len(found) <= len(told) + 1


def test_a_put_that_does_not_fit_certainly_did_not_happen(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    blob.put("s1/key", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(Determinate, match="s1/key: File too large"):
            blob.put("s1/key", b"x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert blob.get("s1/key") == b"old"
    assert _tree(tmp_path) == {".tmp": None, "s1": None, "s1/key": b"old"}


@pytest.mark.parametrize(("first", "second"), [("a/b", "a"), ("a", "a/b"), ("a", "a/b/c")])
def test_a_key_that_is_a_folder_of_another_is_refused(tmp_path: Path, first: str, second: str) -> None:
    blob = FileBlob(tmp_path)
    blob.put(first, b"x")

    with pytest.raises(BadInput, match="folder of another key"):
        blob.put(second, b"y")

    assert [meta.key for meta in blob.list("")] == [first]
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_two_stores_on_one_folder_see_each_other(tmp_path: Path) -> None:
    one, other = FileBlob(tmp_path), FileBlob(tmp_path)

    one.put("s1/a", b"x")
    other.put("s1/b", b"y")

    assert other.get("s1/a") == b"x"
    assert [meta.key for meta in one.list("s1/")] == ["s1/a", "s1/b"]


def test_a_store_for_reading_writes_nothing(tmp_path: Path) -> None:
    FileBlob(tmp_path).put("s1/a", b"x")
    (tmp_path / ".tmp").rmdir()
    before = _tree(tmp_path)

    blob = FileBlob(tmp_path, read_only=True)
    assert blob.get("s1/a") == b"x"
    with pytest.raises(NotWritable):
        blob.put("s1/b", b"y")
    with pytest.raises(NotWritable):
        blob.delete("s1/a")

    assert _tree(tmp_path) == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_missing_folder_is_told_and_not_made(tmp_path: Path, read_only: bool) -> None:
    folder = tmp_path / "missing"

    with pytest.raises(StoreUnreachable, match=str(folder)):
        FileBlob(folder, create=False, read_only=read_only)

    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    with pytest.raises(UnusablePath, match=r"can't make folder .*file/blob: .*file is not a folder"):
        FileBlob(tmp_path / "file" / "blob")


def test_a_folder_below_a_name_that_is_too_long_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UnusablePath, match="too long"):
        FileBlob(tmp_path / "made" / ("x" * 256) / "blob")

    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_is_not_the_users_mistake(tmp_path: Path) -> None:
    full = open_error("can't write", OSError(errno.ENOSPC, ""), missing_is_bad=True)
    refused = open_error("can't write", OSError(errno.EACCES, ""), missing_is_bad=True)

    assert (type(full), full.exit_code) == (StoreUnreachable, 3)
    assert (type(refused), refused.exit_code) == (UnusablePath, 2)


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    with pytest.raises(UnusablePath, match="is not a folder"):
        FileBlob(tmp_path / "file")
    with pytest.raises(UnusablePath, match="blob folder"):
        FileBlob(tmp_path / "file", read_only=True)


def test_a_folder_that_vanished_is_told(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path / "blob")
    (tmp_path / "blob" / ".tmp").rmdir()
    (tmp_path / "blob").rmdir()

    with pytest.raises(Determinate, match="s1/a"):
        blob.put("s1/a", b"x")
    assert blob.get("s1/a") is None
