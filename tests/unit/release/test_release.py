"""`checks/release.py` builds wheels and charts that are the same bytes each time."""

import importlib.util
import os
import shutil
import time
from pathlib import Path
from types import ModuleType

import pytest

from testbed import helm

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`checks/release.py`, which is in no package, with a `dist/` of its own."""
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "checks" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "dist").mkdir()
    monkeypatch.setattr(module, "DIST", tmp_path / "dist")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(module, "epoch", lambda: 1_700_000_000)
    return module


@pytest.mark.helm
@pytest.mark.long
def test_wheels_and_charts_are_the_same_if_they_are_built_twice(release: ModuleType) -> None:
    release.wheels(release.DIST)
    release.charts(release.DIST)
    time.sleep(1.1)
    assert release.rebuilt() == 4
    for package in release.DIST.glob("*.tgz"):
        assert "kind: " in helm.run("template", "x", package, "--kube-version", helm.KUBE_VERSION)
    wheel = next(release.DIST.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b" ")
    with pytest.raises(release.ReleaseError, match=f"{wheel.name} differs"):
        release.rebuilt()


@pytest.mark.helm
def test_a_package_does_not_depend_on_times_and_modes_of_its_files(
    release: ModuleType, tmp_path: Path
) -> None:
    packages = []
    for folder, when, mode in (("a", 1_000_000_000, 0o600), ("b", 1_600_000_000, 0o664)):
        chart = tmp_path / folder / "holdfast-crds"
        shutil.copytree(helm.CHARTS / "holdfast-crds", chart)
        for file in chart.rglob("*"):
            if file.is_file():
                file.chmod(mode)
                os.utime(file, (when, when))
        helm.run("package", chart, "--destination", tmp_path / folder)
        (package,) = (tmp_path / folder).glob("*.tgz")
        release.set_times(package, 1_700_000_000)
        packages.append(package.read_bytes())
        time.sleep(1.1)
    assert packages[0] == packages[1]
