"""Generates `holdfast/_pb` from the .proto files of this folder; `--check` only compares."""

import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "catalog" / "holdfast" / "_pb"


def generate(target: Path) -> None:
    """Write the modules and their stubs for every .proto file into `target`."""
    sources = sorted(str(path) for path in [*ROOT.glob("*.proto"), *ROOT.glob("old/*.proto")])
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text('"""Generated from proto/ by `make proto`; do not edit."""\n')
    includes = [f"-I{ROOT}", f"-I{ROOT / 'old'}", f"-I{files('grpc_tools') / '_proto'}"]
    code = protoc.main(["protoc", *includes, f"--python_out={target}", f"--pyi_out={target}", *sources])
    if code != 0:
        sys.exit(f"proto: protoc failed with exit code {code}")


def main() -> None:
    """Generate, or with `--check` fail when what is committed differs."""
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
