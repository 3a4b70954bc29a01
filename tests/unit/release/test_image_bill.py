"""`checks/image_bill.py` lists the packages of Debian that an image really has."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
OLD = "Package: tini\nStatus: install ok installed\nArchitecture: amd64\nVersion: 0.1\n"
NEW = """Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1+b3
Description: tiny init
 Status: of children

Package: libstdc++6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 1:12.2.0-14~deb12u1

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
RELEASE = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'


def tar(mode: Any = "w", **files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def image(path: Path, *layers: bytes) -> None:
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return f"sha256:{digest}"

    manifest = blob(json.dumps({"layers": [{"digest": blob(each)} for each in layers]}).encode())
    index = json.dumps({"manifests": [{"digest": manifest}]}).encode()
    path.write_bytes(tar(**blobs, **{"index.json": index}))


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    bill = folder / "python.cdx.json"
    pyarrow = {"type": "library", "bom-ref": "pyarrow", "name": "pyarrow", "version": "20"}
    bill.write_text(json.dumps({"bomFormat": "CycloneDX", "serialNumber": "x", "components": [pyarrow]}))
    return subprocess.run(
        [sys.executable, ROOT / "checks" / "image_bill.py", folder / "image.tar", bill],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_bill_has_the_packages_of_the_topmost_list(tmp_path: Path) -> None:
    system = {"usr/lib/os-release": RELEASE.encode(), "var/lib/dpkg/status": OLD.encode()}
    image(
        tmp_path / "image.tar",
        tar(**system),
        tar("w:gz", **{"./var/lib/dpkg/status": NEW.encode()}),
        tar(**{"opt/holdfast/LICENSE": b"x", "var/lib/dpkg/status-old": OLD.encode()}),
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["serialNumber"].startswith("urn:uuid:")
    assert {
        each["name"]: (each["type"], each["version"], each.get("purl")) for each in found["components"]
    } == {
        "pyarrow": ("library", "20", None),
        "debian": ("operating-system", "12", None),
        "tini": ("library", "0.19.0-1+b3", "pkg:deb/debian/tini@0.19.0-1%2Bb3?arch=amd64&distro=debian-12"),
        "libstdc++6": (
            "library",
            "1:12.2.0-14~deb12u1",
            "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14~deb12u1?arch=amd64&distro=debian-12",
        ),
    }
    assert run(tmp_path).stdout == done.stdout


def test_an_image_without_a_list_of_packages_is_refused(tmp_path: Path) -> None:
    image(tmp_path / "image.tar", tar(**{"usr/lib/os-release": RELEASE.encode()}))
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no file /var/lib/dpkg/status" in done.stderr


@pytest.mark.parametrize("target", ["operator", "spark"])
def test_a_release_attests_the_bill_of_each_image(target: str) -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert f" {target}" in text.split("for target in")[1].split(";")[0]
    assert f"target: {target}" in text
    made = (
        'python3 checks/image_bill.py "image-$target.tar" dist/holdfast-*.cdx.json > "image-$target.cdx.json"'
    )
    assert made in text
    assert '--predicate "image-$TARGET.cdx.json"' in text
