"""Builds everything that a release consists of, into `dist/`, and checks it: `make release-check`.

1. Wheels of both distributions. They and the charts are built twice, which must give the same bytes.
2. A software bill of materials (CycloneDX) of all packages in the lock file that the wheels can use.
3. Packages of both charts.
4. The image. Without a running Docker, the test bed builds it on a base of its own, to show that it builds.
   It builds the layers with our own packages twice, which must be the same. The other layers depend on
   Debian's packages of the day. If the machine can't do that either, the step is skipped with the reason.
5. Each wheel is installed into an empty environment, with what it declares, and its commands are run there.
6. `SHA256SUMS` of all files.

Nothing is published or signed: docs/how-to/release.md says how.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from testbed import build, helm, images, require
from testbed.require import Tier

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
REQUIREMENTS = ROOT / "operator" / "image" / "build-requirements.txt"
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
CHARTS = ("holdfast-crds", "holdfast-operator")
FIRST_TABLE = """
import holdfast

with holdfast.table("memory://release", "orders", columns={"id": "int64"}, key=["id"]) as orders:
    time = orders.append([{"id": 1}])
    assert orders.read(as_of=time).to_pylist() == [{"id": 1}]
print(holdfast.__version__)
"""


class ReleaseError(Exception):
    """A part of the release is missing or does not work; the message says which."""


def run(command: Sequence[str | Path], *, folder: Path = ROOT) -> str:
    """Run a command and return what it prints. Raises `ReleaseError` if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        line = " ".join(str(word) for word in command)
        raise ReleaseError(f"'{line}' failed with exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def version() -> str:
    """Return the version of the project."""
    return str(tomllib.loads((ROOT / "catalog" / "pyproject.toml").read_text())["project"]["version"])


def epoch() -> int:
    """Return the time of the commit in seconds since 1970, which all files of a release get."""
    return int(run(["git", "log", "-1", "--format=%ct"]))


def wheels(folder: Path) -> dict[str, Path]:
    """Build the wheels into a folder; returns them by distribution."""
    for distribution in ("holdfast", "holdfast-operator"):
        what = ("--wheel", "--package", distribution, "--out-dir", folder)
        run([UV, "build", "--quiet", *what, "--build-constraints", REQUIREMENTS, "--require-hashes"])
    found = {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    if set(found) != {"holdfast", "holdfast-operator"}:
        raise ReleaseError(f"expected two wheels in {folder}, found {sorted(found)}")
    return found


def bill_of_materials() -> int:
    """Write the bill of materials; returns the number of its components."""
    path = DIST / f"holdfast-{version()}.cdx.json"
    what = ("--all-packages", "--no-default-groups", "--all-extras")
    text = run([UV, "export", "--quiet", "--locked", "--format", "cyclonedx1.5", *what])
    components = {each["name"]: each for each in json.loads(text)["components"]}
    for name in ("holdfast", "holdfast-operator", "pyarrow", "kopf"):
        if name not in components:
            raise ReleaseError(f"the bill of materials lacks {name}")
    path.write_text(text)
    return len(components)


def charts(folder: Path) -> None:
    """Package the charts with the Helm of the test bed, which is built first if it is missing.

    Helm gives files the time of the moment, so all get the time of the commit afterwards.
    """
    build.ensure((build.HELM,))
    for chart in CHARTS:
        printed = helm.run("package", helm.CHARTS / chart, "--destination", folder)
        set_times(Path(printed.strip().split(": ", 1)[1]), epoch())


def set_times(package: Path, seconds: int) -> None:
    """Write a chart's package again, sorted, with one time, one owner and fixed modes for all files."""
    with tarfile.open(package) as old:
        files = {member.name: old.extractfile(member) for member in old.getmembers() if member.isfile()}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    with (
        package.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for name in sorted(contents):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(contents[name]), seconds, 0o644
            new.addfile(entry, io.BytesIO(contents[name]))


def rebuilt() -> int:
    """Build wheels and charts once more, and return how many there are.

    Raises `ReleaseError` if one differs from the one in `DIST`.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-release-") as home:
        folder = Path(home)
        wheels(folder)
        charts(folder)
        again = sorted(path for path in folder.iterdir() if path.suffix in {".whl", ".tgz"})
        for path in again:
            if path.read_bytes() != (DIST / path.name).read_bytes():
                raise ReleaseError(f"{path.name} differs if it is built twice from the same sources")
        return len(again)


def image() -> str:
    """Build the image; returns what was built, or why it was not."""
    name = f"holdfast-operator:{version()}"
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    ):
        arguments = ["--build-arg", f"VERSION={version()}", "--tag", name]
        run(["docker", "build", "--file", "operator/Dockerfile", *arguments, "."])
        return name
    if lacking := require.missing(Tier.NODE):
        return f"skipped: Docker does not run, and the test bed can't build it: {lacking}"
    with images.held():
        first, second = images.built_again(epoch())
    if first != second:
        raise ReleaseError(f"the layers with our packages differ between two builds: {first}, {second}")
    return (
        "operator/Dockerfile builds on a base of Debian's packages (Docker does not run here); "
        "the layers with our packages are the same in two builds"
    )


def install(found: dict[str, Path]) -> None:
    """Install the library, and then both wheels, into an empty environment, and run their commands there."""
    expected = version()
    library, operator = found["holdfast"], found["holdfast-operator"]
    for given, commands in (
        ((library,), ["holdfast"]),
        ((library, operator), ["holdfast", "kubectl-holdfast"]),
    ):
        with tempfile.TemporaryDirectory(prefix="holdfast-release-") as home:
            folder = Path(home)
            bin_ = folder / "venv" / "bin"
            run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"])
            run([UV, "pip", "install", "--quiet", "--python", bin_ / "python", *given], folder=folder)
            for command in commands:
                printed = run([bin_ / command, "--version"], folder=folder).strip()
                if not printed.endswith(f"version {expected}"):
                    raise ReleaseError(
                        f"{command} --version prints {printed!r} instead of version {expected}"
                    )
            printed = run([bin_ / "python", "-c", FIRST_TABLE], folder=folder).strip()
            if printed != expected:
                raise ReleaseError(f"holdfast.__version__ is {printed!r} instead of {expected!r}")
            if operator in given:
                run([bin_ / "holdfast-operator", "run", "--help"], folder=folder)


def sums() -> list[str]:
    """Write the checksums of all files; returns their names."""
    files = sorted(path for path in DIST.iterdir() if path.suffix in {".whl", ".tgz", ".json"})
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    return [path.name for path in files]


def main() -> int:
    """Build and check the release; returns the exit code."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        os.environ["SOURCE_DATE_EPOCH"] = str(epoch())
        found = wheels(DIST)
        print(f"wheels: {', '.join(path.name for path in found.values())}")
        print(f"bill of materials: {bill_of_materials()} components")
        charts(DIST)
        print(f"charts: {', '.join(path.name for path in sorted(DIST.glob('*.tgz')))}")
        print(f"built twice, the same bytes: {rebuilt()} wheels and charts")
        print(f"image: {image()}")
        install(found)
        print("wheels installed alone: holdfast, holdfast-operator")
        print(f"dist/SHA256SUMS: {len(sums())} files")
    except ReleaseError as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
