"""A disk that is full or can't be written is told in one line, loses nothing, and is forgiven.

The disks are real: small file systems in a mount namespace of a child process.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("bad_disk.py")
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def run(folder: Path, scenario: str, *more: Path) -> Any:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        pytest.skip("this machine lets a test have no mount namespace")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, str(CHILD), str(folder), scenario, *map(str, more)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: Any, folder: Path, says: str) -> None:
    """The error is clear and certain; what was acknowledged was there meanwhile, and is there now, once."""
    error = found["error"]
    assert error["class"] == "Determinate"
    assert says in error["message"]
    assert str(folder) in error["message"]
    assert "\n" not in error["message"]
    assert found["meanwhile"] == list(range(found["acknowledged"]))
    assert found["upper"] == found["acknowledged"]
    assert found["rows"] == list(range(found["upper"] + 1))


def test_a_disk_that_is_full_for_blobs(tmp_path: Path) -> None:
    found = run(tmp_path, "full blob")

    check(found, tmp_path, "No space left on device")
    assert found["error"]["hint"] == "free some space"


def test_a_disk_that_is_full_for_the_log(tmp_path: Path) -> None:
    found = run(tmp_path, "full log")

    check(found, tmp_path, "full")
    assert found["error"]["hint"] == "free some space"


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    found = run(tmp_path, "full from the start")

    assert found["error"]["class"] == "StoreUnreachable"
    assert "full" in found["error"]["message"] or "No space left" in found["error"]["message"]
    assert found["error"]["hint"]
    assert found["left"] == ["ballast"]


def test_a_disk_that_can_not_be_written_any_more(tmp_path: Path) -> None:
    """That of the blobs: the file of the log is open for writing, which no disk changes under."""
    folder = tmp_path / "disk"
    folder.mkdir()
    found = run(folder, "read-only", tmp_path / "log.sqlite")

    check(found, folder, "Read-only file system")
    assert found["acknowledged"] == 3


def test_a_disk_that_can_not_be_written_when_it_is_opened_again(tmp_path: Path) -> None:
    found = run(tmp_path, "read-only when it is opened again")

    assert found["error"]["class"] == "UnusablePath"
    assert "is not writable for this process" in found["error"]["message"]
    assert found["error"]["hint"]
    assert found["meanwhile"] == [0]
    assert found["rows"] == [0, 1]


def test_a_folder_that_can_not_be_written_from_the_start(tmp_path: Path) -> None:
    found = run(tmp_path, "read-only from the start")

    assert found["error"]["class"] == "UnusablePath"
    assert f"{tmp_path}/data is not writable" in found["error"]["message"]
    assert found["error"]["hint"]
    assert found["left"] == []


def test_a_cache_on_a_full_disk_keeps_nothing_and_harms_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, "full cache")

    assert found["right"] is True
    assert found["left"] == []
    assert found["failures"] >= 5
    assert found["hits"] == 5, "once there is space, the second read of each is a hit"
