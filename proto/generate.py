"""Generates `holdfast/_pb` from the .proto files of this folder. `--check` only compares.

The catalog's objects are versioned (`versions.py`). If the files of the versions are inconsistent, nothing is
generated. `--pin` records the hashes of new files and of `objects.proto`, and never changes other hashes.
"""

import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import versions
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "catalog" / "holdfast" / "_pb"


def generate(target: Path) -> None:
    """Write the modules and their stubs for every .proto file into `target`."""
    sources = sorted(str(path) for path in [*ROOT.glob("*.proto"), *ROOT.glob("old/*.proto")])
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text('"""Generated from proto/ by `make proto`; do not edit."""\n')
    # protoc names a file relative to the first include that contains it. old/ goes first to keep _pb flat.
    includes = [f"-I{ROOT / 'old'}", f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    code = protoc.main(["protoc", *includes, f"--python_out={target}", f"--pyi_out={target}", *sources])
    if code != 0:
        sys.exit(f"proto: protoc failed with exit code {code}")


def main() -> None:
    """Generate the modules, or with `--check` fail if the committed ones differ."""
    if "--pin" in sys.argv[1:]:
        versions.pin()
    problems = versions.verify(versions.ROOT, versions.pinned(), *versions.library_versions())
    problems += versions.unwritten(versions.ROOT)
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
