"""The files from npm that the repository contains: `python checks/vendored.py [--renew]`.

A `VENDORED.toml` in each folder names the packages, their versions, and the hashes of their files. The
program fails if a folder has another content. `--renew` gets the packages with npm, and writes files and
hashes.
"""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "tests/browser/vendor",)
LIST = "VENDORED.toml"


class Differs(Exception):
    """A folder has another content than its list says, or npm has. The message says what to do."""


def check(folder: Path) -> None:
    """Compare the files of a folder with its list. Raises `Differs` if there is a difference."""
    listed = {file["name"]: file["sha256"] for package in _packages(folder) for file in package["files"]}
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in folder.iterdir()
        if each.name != LIST
    }
    names = sorted(name for name in listed | found if listed.get(name) != found.get(name))
    if names:
        raise Differs(
            f"{folder / LIST} has another content or hash for {', '.join(names)}: "
            "run 'make vendor', or remove the files that are not in the list"
        )


def renew(folder: Path) -> None:
    """Get the packages of a folder with npm, and write their files and the hashes.

    Raises `Differs` if npm cannot get a package, or if its content is not what the list says.
    """
    packages = _packages(folder)
    for package in packages:
        unpack(package, _packed(package["name"], package["version"]), folder)
    before, _, _ = (folder / LIST).read_text().partition("\n[[package]]")
    (folder / LIST).write_text("\n".join([before, *map(_written, packages)]))


def unpack(package: dict[str, Any], packed: bytes, folder: Path) -> None:
    """Write the files of one packed package, and fill in its hashes. Raises `Differs` as `renew` does."""
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    if package.setdefault("integrity", integrity) != integrity:
        raise Differs(
            f"{package['name']} {package['version']} from npm has another content than {folder / LIST} says: "
            "check where npm gets it from; if you changed the version, delete the line 'integrity'"
        )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for file in package["files"]:
            try:
                member = archive.extractfile(f"package/{file['from']}")
            except KeyError:
                member = None
            if member is None:
                raise Differs(f"{package['name']} {package['version']} has no file {file['from']}")
            content = member.read()
            (folder / file["name"]).write_bytes(content)
            file["sha256"] = hashlib.sha256(content).hexdigest()


def _packages(folder: Path) -> list[dict[str, Any]]:
    packages: list[dict[str, Any]] = tomllib.loads((folder / LIST).read_text())["package"]
    return packages


def _packed(name: str, version: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", "--silent", "--pack-destination", scratch, f"{name}@{version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(scratch).glob("*.tgz"))
        if done.returncode != 0 or len(found) != 1:
            raise Differs(f"npm cannot get {name} {version}: {(done.stdout + done.stderr).strip()}")
        return found[0].read_bytes()


def _written(package: dict[str, Any]) -> str:
    lines = ["[[package]]"]
    lines += [f'{key} = "{package[key]}"' for key in ("name", "version", "license", "integrity")]
    files = [
        f'  {{ name = "{file["name"]}", from = "{file["from"]}", sha256 = "{file["sha256"]}" }},'
        for file in package["files"]
    ]
    return "\n".join([*lines, "files = [", *files, "]", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or renew all folders; returns the exit code."""
    renewing = "--renew" in (sys.argv[1:] if arguments is None else arguments)
    try:
        for folder in FOLDERS:
            if renewing:
                renew(folder)
            check(folder)
    except Differs as error:
        print(f"vendored: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
