"""A change of the catalog's format without a new version is an error that says what to do."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.durable.version import CATALOG_VERSION, MIN_VERSION

PROTO = Path(__file__).parents[3] / "proto"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proto_generate", PROTO / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    for name in ("objects.proto", "old/objects_v15.proto", "hashes.json"):
        shutil.copy(PROTO / name, tmp_path / name)
    return tmp_path


def problems(generate: ModuleType, root: Path, least: int = 15, current: int = 15) -> list[str]:
    found: list[str] = generate.verify(root, json.loads((root / "hashes.json").read_text()), least, current)
    return found


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_the_committed_files_fit_together(generate: ModuleType) -> None:
    assert generate.versions() == (MIN_VERSION, CATALOG_VERSION)
    assert problems(generate, PROTO, MIN_VERSION, CATALOG_VERSION) == []


def test_a_frozen_file_that_was_changed_must_be_restored(generate: ModuleType, copy: Path) -> None:
    append(copy / "old/objects_v15.proto", "// changed\n")
    assert problems(generate, copy) == [
        "old/objects_v15.proto is frozen and was changed: restore it, and make the change in objects.proto"
    ]


def test_a_frozen_file_that_is_gone_must_be_restored(generate: ModuleType, copy: Path) -> None:
    (copy / "old/objects_v15.proto").unlink()
    found = problems(generate, copy)
    assert found[0] == "old/objects_v15.proto is gone, but released catalogs need it: restore it"


def test_a_changed_format_needs_a_version(generate: ModuleType, copy: Path) -> None:
    append(copy / "objects.proto", "message New {}\n")
    (found,) = problems(generate, copy)
    assert "raise CATALOG_VERSION to 16" in found
    assert "old/objects_v16.proto" in found


def test_a_changed_comment_only_needs_a_new_pin(generate: ModuleType, copy: Path) -> None:
    append(copy / "objects.proto", "// nothing new\n")
    assert problems(generate, copy) == [
        "objects.proto differs from its hash: run 'python proto/generate.py --pin'"
    ]
    generate.pin(copy)
    assert problems(generate, copy) == []


def test_a_new_version_needs_its_snapshot_and_its_pin(generate: ModuleType, copy: Path) -> None:
    append(copy / "objects.proto", "message New {}\n")
    (found,) = problems(generate, copy, current=16)
    assert "version 16 has no snapshot" in found
    text = (
        (copy / "objects.proto")
        .read_text()
        .replace("package holdfast.objects;", "package holdfast.objects_v16;")
    )
    (copy / "old/objects_v16.proto").write_text(text)
    assert any("not pinned" in problem for problem in problems(generate, copy, current=16))
    before = json.loads((copy / "hashes.json").read_text())
    generate.pin(copy)
    after = json.loads((copy / "hashes.json").read_text())
    assert problems(generate, copy, current=16) == []
    assert after["old/objects_v15.proto"] == before["old/objects_v15.proto"]
    assert any("beyond CATALOG_VERSION" in problem for problem in problems(generate, copy))


def test_pinning_never_covers_up_a_changed_frozen_file(generate: ModuleType, copy: Path) -> None:
    append(copy / "old/objects_v15.proto", "// changed\n")
    generate.pin(copy)
    assert any("is frozen" in problem for problem in problems(generate, copy))


def test_a_frozen_version_stands_alone(generate: ModuleType, copy: Path) -> None:
    path = copy / "objects.proto"
    path.write_text(path.read_text().replace("package", 'import "x.proto";\npackage', 1))
    assert any("has an import" in problem for problem in problems(generate, copy))
