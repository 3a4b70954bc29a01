"""What the cache of images removes, and what it keeps."""

import os
from pathlib import Path

import pytest

from testbed import images


def made(folder: Path, name: str, age: int) -> Path:
    path = folder / "testbed" / "node" / name
    path.mkdir(parents=True)
    os.utime(path, (age, age))
    return path


def test_the_oldest_go_unless_a_run_holds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    ours = [made(tmp_path, f"images-{number}", number) for number in range(1, 7)]
    others = [made(tmp_path, f"runtime-{number}", number) for number in range(1, 5)]
    with images.hold(ours[0]):
        images.remove_unused()
        assert [folder.name for folder in ours if folder.exists()] == [
            "images-1",
            *(f"images-{n}" for n in (4, 5, 6)),
        ]
        assert [folder.name for folder in others if folder.exists()] == ["runtime-3", "runtime-4"]
    images.remove_unused()
    assert not ours[0].exists()
