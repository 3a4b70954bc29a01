"""The files of each version of the catalog's format, their hashes, and the checks of both.

`objects.proto` is the current version. `old/objects_vN.proto` are frozen copies, one for each version, with
which upgrade steps read and write rows. Version 14 was JSON; its objects are in a module of the library. A
step leads from each version to the next. `hashes.json` pins all of these files, by their path in the
repository. Released files never change, because existing catalogs were written by them.
"""

import ast
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent

CURRENT = "proto/objects.proto"
HASHES = "proto/hashes.json"
VERSIONS = "catalog/holdfast/catalog/version.py"
UPGRADE = "catalog/holdfast/catalog/upgrade"
LEGACY = f"{UPGRADE}/legacy_json_objects.py"
JSON_VERSION = 14
NEW = "run 'make new-catalog-version'"
AGAIN = "run 'make new-catalog-version AGAIN=1'"

# The docstring of a step that nobody has written yet.
UNWRITTEN = """What changes in the format, and why; then what happens to the stored rows, case by case.

This is the only place that records it.
"""

# Messages that every version reads before it knows the version of the rest. They are never migrated.
FIXED = tuple(
    f"{name}{part}" for name in ("FenceToken", "Config", "Setting", "AuditLog") for part in ("Key", "Value")
)

_FROZEN = re.compile(r"proto/old/objects_v(\d+)\.proto")
_STEP = re.compile(rf"{UPGRADE}/v(\d+)_to_v(\d+)\.py")


def snapshot_path(version: int) -> str:
    """Return the path of the frozen objects of a version."""
    return LEGACY if version == JSON_VERSION else f"proto/old/objects_v{version}.proto"


def step_path(source: int) -> str:
    """Return the path of the step from a version to the next."""
    return f"{UPGRADE}/v{source}_to_v{source + 1}.py"


def definitions(text: str) -> str:
    """Return the definitions of a .proto file, without comments, blank lines and the package name."""
    lines = (re.sub(r"//.*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("package "))


def pins(root: Path = ROOT) -> dict[str, str]:
    """Return the sha256 of each file of the format as it is now, by its path below `root`."""
    steps = sorted((root / UPGRADE).glob("v*_to_v*.py"))
    legacy = [root / LEGACY] if (root / LEGACY).exists() else []
    paths = [root / CURRENT, *sorted((root / "proto").glob("old/*.proto")), *legacy, *steps]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }


def pinned(root: Path = ROOT) -> dict[str, str]:
    """Return the recorded hashes."""
    path = root / HASHES
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def pin(root: Path = ROOT, *, anew: frozenset[str] = frozenset()) -> None:
    """Record the hashes of the current file, of files without a hash, and of those in `anew`. Keep others."""
    kept = {name: digest for name, digest in pinned(root).items() if name not in {CURRENT, *anew}}
    (root / HASHES).write_text(json.dumps(dict(sorted({**pins(root), **kept}.items())), indent=2) + "\n")


def library_versions(root: Path = ROOT) -> tuple[int, int]:
    """Return (MIN_VERSION, CATALOG_VERSION), read from the source: it can't be imported before generation."""
    found = _numbers(root)
    return found["MIN_VERSION"], found["CATALOG_VERSION"]


def released_version(root: Path = ROOT) -> int:
    """Return the newest version that was released."""
    return _numbers(root)["RELEASED_VERSION"]


def _numbers(root: Path) -> dict[str, int]:
    lines = re.findall(r"^([A-Z]+_VERSION) = (\d+)$", (root / VERSIONS).read_text(), re.MULTILINE)
    return {name: int(number) for name, number in lines}


def verify(root: Path, hashes: dict[str, str], least: int, current: int) -> list[str]:
    """Return the problems of the versions `least` to `current` of the format, each with what to do."""
    actual = pins(root)
    problems = [
        *_changed(actual, hashes, least),
        *_misplaced(root, actual, hashes, current),
        *_missing(actual, least, current),
    ]
    newest = snapshot_path(current)
    if newest in actual and newest != LEGACY:
        if definitions((root / CURRENT).read_text()) != definitions((root / newest).read_text()):
            problems.append(
                f"{CURRENT} differs from {newest}: {NEW}, which makes version {current + 1} of it; or, as"
                f" long as version {current} was never released, {AGAIN}"
            )
        elif CURRENT in hashes and actual[CURRENT] != hashes[CURRENT]:
            problems.append(f"{CURRENT} differs from its hash: run 'python proto/generate.py --pin'")
    for name in actual:
        if match := _STEP.fullmatch(name):
            problems += _imports(root / name, name, int(match[1]))
    # Only consistent files can be compared field by field.
    return problems or list(_incompatible(root, least, current))


def unwritten(root: Path) -> list[str]:
    """Return a problem for each step that is still the template."""
    steps = sorted((root / UPGRADE).glob("v*_to_v*.py"))
    return [
        f"{step.relative_to(root).as_posix()} is still the template: write it, and in its docstring why the"
        f" format changes and what becomes of what is stored; then {AGAIN}"
        for step in steps
        if ast.get_docstring(ast.parse(step.read_text()), clean=False) == UNWRITTEN
    ]


def _changed(actual: dict[str, str], hashes: dict[str, str], least: int) -> Iterator[str]:
    for name, digest in hashes.items():
        if name not in actual:
            if _version(name) >= least:
                yield f"{name} is gone, but released catalogs need it: restore it"
        elif name != CURRENT and actual[name] != digest:
            if _FROZEN.fullmatch(name):
                yield f"{name} is frozen and was changed: restore it, and make the change in {CURRENT}"
            elif name == LEGACY:
                yield f"{name} is frozen and was changed: restore it"
            else:
                yield (
                    f"{name} is released and was changed: restore it, and do in the next step what it left"
                    f" undone; or, as long as its version was never released, {AGAIN}"
                )


def _version(name: str) -> int:
    """Return the version of a frozen file, or the version that a step starts from."""
    match = _FROZEN.fullmatch(name) or _STEP.fullmatch(name)
    return int(match[1]) if match else JSON_VERSION


def _misplaced(root: Path, actual: dict[str, str], hashes: dict[str, str], current: int) -> Iterator[str]:
    for name in actual:
        frozen, step = _FROZEN.fullmatch(name), _STEP.fullmatch(name)
        if name.startswith("proto/old/") and not frozen:
            yield f"{name} has no version in its name: call it proto/old/objects_vN.proto"
        elif step and int(step[2]) != int(step[1]) + 1:
            yield f"{name} skips versions: a step leads from one version to the next"
        elif name.endswith(".proto") and "import " in definitions((root / name).read_text()):
            yield f"{name} has an import: a frozen version must stand alone, so write the messages out"
        elif name not in hashes:
            yield f"{name} is not pinned: run 'python proto/generate.py --pin'"
        if (frozen and int(frozen[1]) > current) or (step and int(step[2]) > current):
            yield f"{name} is beyond CATALOG_VERSION {current}: set it in {VERSIONS}"


def _missing(actual: dict[str, str], least: int, current: int) -> Iterator[str]:
    for version in range(least, current + 1):
        if snapshot_path(version) not in actual:
            yield f"version {version} has no snapshot {snapshot_path(version)}: restore it, or {NEW}"
        if version < current and step_path(version) not in actual:
            yield f"version {version} has no step to {version + 1}, {step_path(version)}: write it, or {NEW}"


def _imports(path: Path, name: str, source: int) -> Iterator[str]:
    """Yield imports of a step beyond its two versions: the step would change with the imported code."""
    before = "holdfast.catalog.upgrade.legacy_json_objects"
    if source != JSON_VERSION:
        before = f"holdfast._pb.objects_v{source}_pb2"
    allowed = {before, f"holdfast._pb.objects_v{source + 1}_pb2"}
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names):
                found = {alias.name for alias in names}
            case ast.ImportFrom(module="holdfast.catalog.upgrade.step"):
                continue
            case ast.ImportFrom(module, names, level):
                found = {f"{'.' * level}{module or ''}.{alias.name}" for alias in names}
            case _:
                continue
        for other in sorted(found - allowed):
            if other.startswith((".", "holdfast")):
                yield (
                    f"{name} imports {other}: a step has its own two versions and upgrade.step, so that it"
                    " never changes; write out what it needs"
                )


def _incompatible(root: Path, least: int, current: int) -> Iterator[str]:
    """Yield field numbers with another meaning than in the previous version, and changed fixed messages."""
    files = _descriptors(root, range(max(least, JSON_VERSION + 1), current + 1))
    used: dict[tuple[str, int], tuple[str, int, int, str]] = {}
    first: dict[str, str] = {}
    for version, file in files.items():
        name = snapshot_path(version)
        messages = {message.name: message for message in file.message_type}
        for message in messages.values():
            for field in message.field:
                is_now = (field.name, field.type, field.label, field.type_name.rpartition(".")[2])
                was = used.setdefault((message.name, field.number), is_now)
                if was != is_now:
                    yield (
                        f"{name} has field {field.number} of {message.name} as {field.name}, it was {was[0]}:"
                        " a number means one thing for ever, so take the next one"
                    )
        for enum in file.enum_type:
            for value in enum.value:
                was = used.setdefault((enum.name, value.number), (value.name, 0, 0, ""))
                if was[0] != value.name:
                    yield (
                        f"{name} has {value.number} of {enum.name} as {value.name}, it was {was[0]}: a number"
                        " means one thing for ever, so take the next one"
                    )
        for fixed in FIXED:
            text = "".join(str(messages[each]) for each in sorted(_reachable(messages, fixed)))
            text = text.replace(file.package, "")
            if first.setdefault(fixed, text) != text:
                yield f"{name} changes {fixed}, which every version must be able to read: restore it"


def _reachable(messages: dict[str, DescriptorProto], name: str) -> set[str]:
    found = {name}
    for field in messages[name].field:
        inner = field.type_name.rpartition(".")[2]
        if inner in messages and inner not in found:
            found |= _reachable(messages, inner)
    return found


def _descriptors(root: Path, wanted: range) -> dict[int, FileDescriptorProto]:
    folder = root / "proto" / "old"
    sources = {version: str(root / snapshot_path(version)) for version in wanted}
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary) / "set"
        command = ["protoc", f"-I{folder}", f"--descriptor_set_out={target}", *sources.values()]
        if protoc.main(command) != 0:
            return {}
        found = {file.name: file for file in FileDescriptorSet.FromString(target.read_bytes()).file}
    return {version: found[Path(path).name] for version, path in sources.items()}
