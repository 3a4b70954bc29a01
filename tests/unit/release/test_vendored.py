"""`checks/vendored.py` finds each file from npm that is not what its list says."""

import importlib.util
import io
import shutil
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def vendored() -> ModuleType:
    """`checks/vendored.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("vendored_check", ROOT / "checks" / "vendored.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(vendored: ModuleType, tmp_path: Path) -> Path:
    """A copy of the first folder, to spoil."""
    return Path(shutil.copytree(vendored.FOLDERS[0], tmp_path / "vendor"))


def packed(**files: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def package(**more: str) -> dict[str, Any]:
    return {"name": "a", "version": "1", "license": "MIT", "files": [{"name": "b", "from": "b"}], **more}


def test_the_files_of_the_repository_are_what_their_lists_say(vendored: ModuleType) -> None:
    for each in vendored.FOLDERS:
        vendored.check(each)


def test_every_package_comes_with_its_licence(vendored: ModuleType) -> None:
    for each in vendored.FOLDERS:
        for listed in vendored._packages(each):
            assert any("LICENSE" in file["name"] for file in listed["files"]), listed["name"]


def test_a_changed_file_is_found(vendored: ModuleType, folder: Path) -> None:
    with (folder / "axe.min.js").open("a") as script:
        script.write(" ")
    with pytest.raises(vendored.Differs, match=r"axe\.min\.js: run 'make vendor'"):
        vendored.check(folder)


def test_a_missing_file_is_found(vendored: ModuleType, folder: Path) -> None:
    (folder / "axe.LICENSE").unlink()
    with pytest.raises(vendored.Differs, match=r"axe\.LICENSE"):
        vendored.check(folder)


def test_a_file_of_nobody_is_found(vendored: ModuleType, folder: Path) -> None:
    (folder / "other.js").write_text("")
    with pytest.raises(vendored.Differs, match=r"other\.js"):
        vendored.check(folder)


def test_another_content_for_the_same_version_is_refused(vendored: ModuleType, tmp_path: Path) -> None:
    listed = package()
    vendored.unpack(listed, packed(b=b"first"), tmp_path)
    assert (tmp_path / "b").read_bytes() == b"first"
    with pytest.raises(vendored.Differs, match="a 1 from npm has another content"):
        vendored.unpack(listed, packed(b=b"second"), tmp_path)
    assert (tmp_path / "b").read_bytes() == b"first"


def test_a_package_without_the_file_is_refused(vendored: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(vendored.Differs, match="a 1 has no file b"):
        vendored.unpack(package(), packed(c=b""), tmp_path)


def test_a_list_that_is_written_anew_is_the_same(vendored: ModuleType) -> None:
    for each in vendored.FOLDERS:
        text = (each / vendored.LIST).read_text()
        before, _, _ = text.partition("\n[[package]]")
        assert "\n".join([before, *map(vendored._written, vendored._packages(each))]) == text
