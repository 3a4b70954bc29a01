"""`checks/base.py` refuses a base without a digest, and takes the digest from a registry."""

import importlib.util
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


def test_the_released_base_is_the_default_of_the_image(base: ModuleType) -> None:
    (line,) = (line for line in base.FILE.read_text().splitlines() if line.startswith("FROM "))
    name = line.removeprefix("FROM ").split("@")[0]
    assert f"ARG BASE={name}\n" in (ROOT / "operator" / "Dockerfile").read_text()


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
