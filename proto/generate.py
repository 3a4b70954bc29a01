"""Generates `holdfast/_pb` from the .proto files of this folder; `--check` only compares.

The catalog's objects are versioned: `objects.proto` is the current version, `old/objects_vN.proto` are
frozen copies that upgrade steps read old rows with, `hashes.json` pins all of them. `verify` refuses to
generate from files that break this; `--pin` writes the hashes of a new version, never those of a frozen one.
"""

import filecmp
import hashlib
import json
import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "catalog" / "holdfast" / "_pb"
VERSIONS = ROOT.parent / "catalog" / "holdfast" / "durable" / "version.py"

CURRENT = "objects.proto"
_FROZEN = re.compile(r"old/objects_v(\d+)\.proto")


def generate(target: Path) -> None:
    """Write the modules and their stubs for every .proto file into `target`."""
    sources = sorted(str(path) for path in [*ROOT.glob("*.proto"), *ROOT.glob("old/*.proto")])
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text('"""Generated from proto/ by `make proto`; do not edit."""\n')
    # protoc names a file by the first folder that it lies in: old/ goes first, so that _pb stays flat.
    includes = [f"-I{ROOT / 'old'}", f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    code = protoc.main(["protoc", *includes, f"--python_out={target}", f"--pyi_out={target}", *sources])
    if code != 0:
        sys.exit(f"proto: protoc failed with exit code {code}")


def definitions(text: str) -> str:
    """What a .proto file defines: without comments, blank lines and the name of its package."""
    lines = (re.sub(r"//.*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("package "))


def pins(root: Path = ROOT) -> dict[str, str]:
    """The sha256 of the current file and of each frozen one, as they are now, by path below proto/."""
    paths = [root / CURRENT, *sorted(root.glob("old/*.proto"))]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }


def versions(path: Path = VERSIONS) -> tuple[int, int]:
    """(MIN_VERSION, CATALOG_VERSION) of the library, as text: it can't be imported before it is generated."""
    found = dict(re.findall(r"^(MIN_VERSION|CATALOG_VERSION) = (\d+)$", path.read_text(), re.MULTILINE))
    return int(found["MIN_VERSION"]), int(found["CATALOG_VERSION"])


def verify(root: Path, pinned: dict[str, str], least: int, current: int) -> list[str]:
    """What is wrong with the versions of the catalog's objects, each with what to do."""
    actual = pins(root)
    problems = []
    for name in pinned:
        if name not in actual:
            problems.append(f"{name} is gone, but released catalogs need it: restore it")
        elif name != CURRENT and actual[name] != pinned[name]:
            problems.append(f"{name} is frozen and was changed: restore it, and make the change in {CURRENT}")
    frozen = {int(match[1]): name for name in actual if (match := _FROZEN.fullmatch(name))}
    for name in actual:
        if name != CURRENT and not _FROZEN.fullmatch(name):
            problems.append(f"{name} has no version in its name: call it old/objects_vN.proto")
        elif "import " in definitions((root / name).read_text()):
            problems.append(
                f"{name} has an import: a frozen version must stand alone, so write the messages out"
            )
        elif name not in pinned:
            problems.append(f"{name} is not pinned: run 'python proto/generate.py --pin'")
    problems += [
        f"version {version} has no snapshot: copy {CURRENT} to old/objects_v{version}.proto with the package "
        f"holdfast.objects_v{version}"
        for version in range(least, current + 1)
        if version not in frozen
    ]
    problems += [
        f"{frozen[version]} is beyond CATALOG_VERSION {current}: set it in holdfast/durable/version.py"
        for version in frozen
        if version > current
    ]
    if current in frozen:
        if definitions((root / CURRENT).read_text()) != definitions((root / frozen[current]).read_text()):
            problems.append(
                f"{CURRENT} differs from {frozen[current]}: raise CATALOG_VERSION to {current + 1}, copy "
                f"{CURRENT} to old/objects_v{current + 1}.proto, write the upgrade step, and run "
                "'python proto/generate.py --pin'"
            )
        elif CURRENT in pinned and actual[CURRENT] != pinned[CURRENT]:
            problems.append(f"{CURRENT} differs from its hash: run 'python proto/generate.py --pin'")
    return problems


def pin(root: Path = ROOT) -> None:
    """Write the hashes of the current file and of new frozen ones; those that are pinned stay."""
    path = root / "hashes.json"
    pinned = json.loads(path.read_text()) if path.exists() else {}
    kept = {name: digest for name, digest in pinned.items() if name != CURRENT}
    path.write_text(json.dumps(dict(sorted({**pins(root), **kept}.items())), indent=2) + "\n")


def main() -> None:
    """Generate, or with `--check` fail when what is committed differs."""
    if "--pin" in sys.argv[1:]:
        pin()
    problems = verify(ROOT, json.loads((ROOT / "hashes.json").read_text()), *versions())
    if problems:
        sys.exit("\n".join(f"proto: {problem}" for problem in problems))
    if "--check" not in sys.argv[1:]:
        generate(TARGET)
        return
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        names = {path.name for path in fresh.iterdir()} | {path.name for path in TARGET.glob("*.py*")}
        _, differing, missing = filecmp.cmpfiles(fresh, TARGET, names, shallow=False)
        if differing or missing:
            sys.exit(f"proto: {', '.join(sorted(differing + missing))} not up to date; run 'make proto'")


if __name__ == "__main__":
    main()
