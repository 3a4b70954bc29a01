"""A claimed folder survives a power cut, with every folder that was created for it."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.collections.snapshots.locate import folder_at

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="only Linux tells what a descriptor is of"
)


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> Mapping[Path, set[str]]:
    """What is in each folder that was flushed, as of the last time."""
    kept: dict[Path, set[str]] = {}
    fsync = os.fsync

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        kept[path] = {each.name for each in path.iterdir()}

    monkeypatch.setattr(os, "fsync", flushed)
    return kept


@pytest.mark.parametrize("there", ["", "new", "new/dest", "new/dest/job"])
def test_each_folder_that_a_claim_made_is_flushed(
    tmp_path: Path, durable: Mapping[Path, set[str]], there: str
) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    claimed = tmp_path / "new" / "dest" / "job" / "attempt-1"
    assert folder_at(str(claimed)).claim()
    made = [each for each in (claimed, *claimed.parents) if tmp_path / there in each.parents]
    assert [each.name for each in made if each.name not in durable.get(each.parent, ())] == []
    assert made[0] == claimed


def test_what_an_attempt_that_was_killed_made_is_flushed_by_the_next_one(
    tmp_path: Path, durable: Mapping[Path, set[str]]
) -> None:
    (tmp_path / "job").mkdir()
    assert folder_at(str(tmp_path / "job" / "attempt-2")).claim()
    assert "job" in durable[tmp_path]
    assert "attempt-2" in durable[tmp_path / "job"]
