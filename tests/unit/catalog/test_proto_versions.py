"""A change of the format that breaks old catalogs is an error with a hint."""

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.catalog.upgrade import STEPS
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION, RELEASED_VERSION

ROOT = Path(__file__).parents[3]
OLD = f"proto/old/objects_v{CATALOG_VERSION}.proto"
UPGRADE = "catalog/holdfast/catalog/upgrade"
LAST_STEP = f"{UPGRADE}/v{CATALOG_VERSION - 1}_to_v{CATALOG_VERSION}.py"
NEXT = CATALOG_VERSION + 1


@pytest.fixture(scope="module")
def versions() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("proto_versions", ROOT / "proto" / "versions.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def copy(versions: ModuleType, tmp_path: Path) -> Path:
    for name in (*versions.pins(ROOT), "proto/hashes.json", "catalog/holdfast/catalog/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def problems(
    versions: ModuleType, root: Path, least: int = MIN_VERSION, current: int = CATALOG_VERSION
) -> list[str]:
    found: list[str] = versions.verify(root, versions.pinned(root), least, current)
    return found


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_committed_files_fit_together(versions: ModuleType) -> None:
    assert versions.library_versions() == (MIN_VERSION, CATALOG_VERSION)
    assert versions.released_version() == RELEASED_VERSION <= CATALOG_VERSION
    assert problems(versions, ROOT) == []
    assert list(STEPS) == list(range(MIN_VERSION, CATALOG_VERSION))
    assert all(step.target == source + 1 for source, step in STEPS.items())


def test_all_that_belongs_to_a_version_is_pinned(versions: ModuleType) -> None:
    assert set(versions.pinned()) == {
        "proto/objects.proto",
        f"{UPGRADE}/legacy_json_objects.py",
        *(f"proto/old/objects_v{version}.proto" for version in range(15, CATALOG_VERSION + 1)),
        *(f"{UPGRADE}/v{version}_to_v{version + 1}.py" for version in range(14, CATALOG_VERSION)),
    }


def test_a_frozen_file_that_was_changed_must_be_restored(versions: ModuleType, copy: Path) -> None:
    append(copy / "proto/old/objects_v15.proto", "// changed\n")
    (found,) = problems(versions, copy)
    assert found.startswith("proto/old/objects_v15.proto is frozen and was changed: restore it")
    assert found.endswith("make the change in proto/objects.proto")


@pytest.mark.parametrize("name", [LAST_STEP, f"{UPGRADE}/legacy_json_objects.py"])
def test_a_released_module_that_was_changed_must_be_restored(
    versions: ModuleType, copy: Path, name: str
) -> None:
    append(copy / name, "# changed\n")
    (found,) = problems(versions, copy)
    assert found.startswith(f"{name} is ")
    assert "was changed: restore it" in found


@pytest.mark.parametrize("name", ["proto/old/objects_v15.proto", f"{UPGRADE}/legacy_json_objects.py"])
def test_a_frozen_file_that_is_gone_must_be_restored(versions: ModuleType, copy: Path, name: str) -> None:
    (copy / name).unlink()
    found = problems(versions, copy)
    assert found[0] == f"{name} is gone, but released catalogs need it: restore it"
    assert any("has no snapshot" in each for each in found)


def test_every_version_but_the_last_has_a_step(versions: ModuleType, copy: Path) -> None:
    (copy / LAST_STEP).unlink()
    found = problems(versions, copy)
    assert f"version {CATALOG_VERSION - 1} has no step to {CATALOG_VERSION}, {LAST_STEP}" in found[-1]
    assert "make new-catalog-version" in found[-1]


def test_what_is_below_the_oldest_version_may_go(versions: ModuleType, copy: Path) -> None:
    for name in (f"{UPGRADE}/legacy_json_objects.py", f"{UPGRADE}/v14_to_v15.py"):
        (copy / name).unlink()
    assert problems(versions, copy, least=15) == []


def test_a_changed_format_needs_a_version(versions: ModuleType, copy: Path) -> None:
    append(copy / "proto/objects.proto", "message New {}\n")
    (found,) = problems(versions, copy)
    assert f"proto/objects.proto differs from {OLD}: run 'make new-catalog-version'" in found
    assert f"version {NEXT}" in found


def test_a_changed_comment_only_needs_a_new_pin(versions: ModuleType, copy: Path) -> None:
    append(copy / "proto/objects.proto", "// nothing new\n")
    assert problems(versions, copy) == [
        "proto/objects.proto differs from its hash: run 'python proto/generate.py --pin'"
    ]
    versions.pin(copy)
    assert problems(versions, copy) == []


def test_a_new_version_needs_its_snapshot_its_step_and_its_pins(versions: ModuleType, copy: Path) -> None:
    append(copy / "proto/objects.proto", "message New {}\n")
    found = problems(versions, copy, current=NEXT)
    assert [each.split(":")[0] for each in found] == [
        f"version {CATALOG_VERSION} has no step to {NEXT}, {UPGRADE}/v{CATALOG_VERSION}_to_v{NEXT}.py",
        f"version {NEXT} has no snapshot proto/old/objects_v{NEXT}.proto",
    ]
    text = (copy / "proto/objects.proto").read_text()
    snapshot = copy / f"proto/old/objects_v{NEXT}.proto"
    snapshot.write_text(text.replace("package holdfast.objects;", f"package holdfast.objects_v{NEXT};"))
    (copy / f"{UPGRADE}/v{CATALOG_VERSION}_to_v{NEXT}.py").write_text('"""Nothing."""\n')
    assert sum("not pinned" in each for each in problems(versions, copy, current=NEXT)) == 2
    before = versions.pinned(copy)
    versions.pin(copy)
    assert problems(versions, copy, current=NEXT) == []
    after = versions.pinned(copy)
    assert {name: after[name] for name in before} == before | {
        "proto/objects.proto": after["proto/objects.proto"]
    }
    assert sum("beyond CATALOG_VERSION" in each for each in problems(versions, copy)) == 2


def test_pinning_never_covers_up_a_changed_frozen_file(versions: ModuleType, copy: Path) -> None:
    append(copy / "proto/old/objects_v15.proto", "// changed\n")
    append(copy / LAST_STEP, "# changed\n")
    versions.pin(copy)
    assert sum("was changed" in each for each in problems(versions, copy)) == 2


def test_a_frozen_version_stands_alone(versions: ModuleType, copy: Path) -> None:
    replace(copy / "proto/objects.proto", "package", 'import "x.proto";\npackage')
    assert any("has an import" in each for each in problems(versions, copy))


@pytest.mark.parametrize(
    "line",
    [
        "from holdfast._pb import objects_pb2",
        "import holdfast.catalog.objects.codec",
        "from holdfast._pb import objects_v15_pb2",
        "from holdfast.catalog.upgrade import v15_to_v16",
        "from . import step",
    ],
)
def test_a_step_imports_its_two_versions_only(versions: ModuleType, copy: Path, line: str) -> None:
    append(copy / LAST_STEP, f"\ndef late():\n    {line}\n")
    found = problems(versions, copy)
    assert any(each.startswith(f"{LAST_STEP} imports ") for each in found)


def adopt(versions: ModuleType, root: Path) -> None:
    """Make the snapshot equal to the current file, as if the version had never been released."""
    text = (root / "proto/objects.proto").read_text()
    package = f"package holdfast.objects_v{CATALOG_VERSION};"
    (root / OLD).write_text(text.replace("package holdfast.objects;", package))
    versions.pin(root, anew=frozenset({OLD}))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("RoleId grantor = 5;", "RoleId giver = 1;\n  RoleId grantor = 5;", "field 1 of DefaultPrivilegeKey"),
        ("string definition = 4;", "bytes definition = 4;", "field 4 of ItemValue"),
        ("OBJECT_TYPE_VIEW = 17;", "OBJECT_TYPE_LENS = 17;", "17 of ObjectType as OBJECT_TYPE_LENS"),
    ],
)
def test_a_number_means_one_thing_for_ever(
    versions: ModuleType, copy: Path, old: str, new: str, said: str
) -> None:
    replace(copy / "proto/objects.proto", old, new)
    if "giver" in new:
        replace(
            copy / "proto/objects.proto",
            "ObjectId database_id = 1;\n  ObjectId schema_id",
            "ObjectId schema_id",
        )
    adopt(versions, copy)
    (found,) = problems(versions, copy)
    assert said in found
    assert "for ever" in found


@pytest.mark.parametrize("after", ["uint64 epoch = 2;", "string value = 2;\n}\n\nmessage AuditLogValue"])
def test_what_every_version_reads_stays_as_it_is(versions: ModuleType, copy: Path, after: str) -> None:
    new = after.replace("uint64 epoch = 2;", "uint64 epoch = 2;\n  string more = 9;")
    new = new.replace("string value = 2;\n}", "string value = 2;\n  string more = 9;\n}")
    assert new != after
    replace(copy / "proto/objects.proto", after, new)
    adopt(versions, copy)
    (found,) = problems(versions, copy)
    assert "which every version must be able to read: restore it" in found
