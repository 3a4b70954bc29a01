"""Makes a new version of the catalog's format: `make new-catalog-version`.

It freezes `objects.proto` as the snapshot of the new version, raises CATALOG_VERSION, writes the module of
the step from a template, pins both, generates the code, and makes the golden rows. With `--again` it repeats
this for the newest version, but keeps the step as it was written. A released version is refused.
"""

import os
import subprocess
import sys
from pathlib import Path

import generate
import versions

_STEP = '''"""{unwritten}"""

from collections.abc import Iterator

from holdfast._pb import objects_v{old}_pb2 as v{old}
from holdfast._pb import objects_v{new}_pb2 as v{new}
from holdfast.catalog.upgrade.step import Kind, OldRows, Step, Update, carried, encode, read, replaced


def _updates(old: OldRows) -> Iterator[Update]:
    for row, key, value in read(old, Kind.ITEM, v{old}.ItemKey, v{old}.ItemValue):
        new = carried(value, v{new}.ItemValue)
        yield from replaced(row, encode(Kind.ITEM, carried(key, v{new}.ItemKey), new))


STEP = Step({old}, {new}, _updates)
'''

_HEAD = """\
// The objects of the durable catalog at version {version}, frozen: never change this file.
// What the messages mean: objects.proto at the time of this version.
"""


def snapshot(current: str, version: int) -> str:
    """Return the frozen copy of the current file for a version."""
    body = current[current.index("syntax =") :]
    return _HEAD.format(version=version) + body.replace(
        "package holdfast.objects;", f"package holdfast.objects_v{version};"
    )


def main() -> None:
    """Make the version, or exit with the reason. If it is refused, nothing changes."""
    root = versions.ROOT
    least, current = versions.library_versions()
    again = "--again" in sys.argv[1:]
    version = current if again else current + 1
    if version <= versions.released_version():
        sys.exit(f"new-catalog-version: version {version} was released and never changes: {versions.NEW}")
    files = {versions.snapshot_path(version), versions.step_path(version - 1)}
    about = files | {versions.CURRENT}
    found = [*versions.verify(root, versions.pinned(), least, current), *versions.unwritten(root)]
    problems = [problem for problem in found if not problem.startswith(tuple(about))]
    if problems:
        sys.exit("\n".join(f"new-catalog-version: {problem}" for problem in problems))

    step, library = root / versions.step_path(version - 1), root / versions.VERSIONS
    path = root / versions.snapshot_path(version)
    kept = {file: _text(file) for file in (path, step, library, root / versions.HASHES)}
    path.write_text(snapshot((root / versions.CURRENT).read_text(), version))
    if not step.exists():
        step.write_text(_STEP.format(unwritten=versions.UNWRITTEN, old=version - 1, new=version))
    text = library.read_text()
    library.write_text(text.replace(f"CATALOG_VERSION = {current}", f"CATALOG_VERSION = {version}"))
    versions.pin(anew=frozenset(files))
    problems = versions.verify(root, versions.pinned(), least, version)
    if problems:
        for file, before in kept.items():
            file.unlink() if before is None else file.write_text(before)
        sys.exit("\n".join(f"new-catalog-version: {problem}" for problem in problems))
    generate.generate(generate.TARGET)
    _make_golden_rows(root, version)
    done = "made again" if again else "made"
    print(
        f"{done} version {version}: write {versions.step_path(version - 1)}, its golden catalog and its"
        f" line in docs/reference/FORMAT.md; until it is released, {versions.AGAIN} after each change"
    )


def _text(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def _make_golden_rows(root: Path, version: int) -> None:
    """Make the golden rows in a new process, which imports the generated code."""
    paths = os.pathsep.join([str(root / "catalog"), str(root / "tests")])
    command = [sys.executable, str(root / "tests/fixtures/make_golden.py"), "--again", str(version)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})  # noqa: S603 - our own script


if __name__ == "__main__":
    main()
