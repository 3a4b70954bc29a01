"""`checks/base.py` refuses a base without a digest, and takes the digest from a registry."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from testbed import build, registry

ROOT = Path(__file__).resolve().parents[3]
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def base() -> ModuleType:
    """`checks/base.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("base_check", ROOT / "checks" / "base.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    ["", "FROM python:3.11\n", "FROM python:3.11@sha256:1\n", "FROM python:3.11@\n", f"# FROM x@{DIGEST}\n"],
)
def test_a_base_without_a_digest_is_refused(base: ModuleType, text: str) -> None:
    with pytest.raises(base.NotPinned, match="run 'make pin-base' and commit the file"):
        base.pinned(text)


def test_a_base_with_a_digest_is_passed_on(base: ModuleType) -> None:
    assert base.pinned(f"# About it.\nFROM python:3.11@{DIGEST}\n") == f"python:3.11@{DIGEST}"


def test_the_base_of_a_release_and_the_default_of_the_image_have_digests(base: ModuleType) -> None:
    """Dependabot renews only the first of the two, and `make pin-base` both."""
    released = base.pinned(base.FILE.read_text())
    (default,) = re.findall(r"^ARG BASE=(.*)$", base.IMAGE.read_text(), re.MULTILINE)
    assert base.pinned(f"FROM {default}\n").split("@")[0] == released.split("@")[0]


@pytest.mark.helm
def test_the_digest_is_that_of_the_registry(base: ModuleType, tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(bytes(10240))
    with registry.serve() as address:
        name = f"{address}/base:1"
        with pytest.raises(base.NotPinned, match="doesn't give the digest of"):
            base.pin(f"FROM {name}\n", build.CRANE.path)
        registry.crane("append", "--new_layer", layer, "--new_tag", name)
        text = base.pin(f"# Kept.\nFROM {name}@{DIGEST}\n# Kept too.\n", build.CRANE.path)
        assert base.pinned(text) == f"{name}@{registry.crane('digest', name).strip()}"
        assert text.startswith("# Kept.\nFROM ")
        assert text.endswith("\n# Kept too.\n")


@pytest.mark.helm
def test_both_files_get_the_digest_and_without_a_registry_they_stay(
    base: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "layer.tar").write_bytes(bytes(10240))
    files = [tmp_path / "base", tmp_path / "image"]
    monkeypatch.setattr(base, "FILE", files[0])
    monkeypatch.setattr(base, "IMAGE", files[1])
    with registry.serve() as address:
        name = f"{address}/base:1"
        files[0].write_text(f"FROM {name}@{DIGEST}\n")
        files[1].write_text(f"ARG BASE={name}@{DIGEST}\nFROM ${{BASE}} AS first\n")
        before = [each.read_text() for each in files]
        assert base.main(["--pin"]) == 1
        assert [each.read_text() for each in files] == before
        assert "doesn't give the digest of" in capsys.readouterr().err
        registry.crane("append", "--new_layer", tmp_path / "layer.tar", "--new_tag", name)
        assert base.main(["--pin"]) == 0
        there = f"{name}@{registry.crane('digest', name).strip()}"
        assert capsys.readouterr().out == f"{there}\n"
    assert files[0].read_text() == f"FROM {there}\n"
    assert files[1].read_text() == f"ARG BASE={there}\nFROM ${{BASE}} AS first\n"
