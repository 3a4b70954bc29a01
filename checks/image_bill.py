"""The bill of materials of an image: `python checks/image_bill.py IMAGE.tar BILL.cdx.json > OUT.cdx.json`.

IMAGE.tar is an image in the OCI layout, as `buildah push IMAGE oci-archive:IMAGE.tar` writes it.
BILL.cdx.json is the bill of the Python packages (CycloneDX), which `make release-check` writes. The result
also has the packages of Debian in the image, as the status file of dpkg lists them, and the system that they
are of. A scanner finds known vulnerabilities by these names.
"""

import json
import sys
import tarfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

STATUS = "var/lib/dpkg/status"
RELEASE = "usr/lib/os-release"
_INSTALLED = "install ok installed"


class NoPackages(Exception):
    """The image lists no packages. The message says which file it lacks."""


def read(image: Path, *paths: str) -> dict[str, str]:
    """Return the texts of files, as the topmost layers have them. Raises `NoPackages` if one is missing."""
    found: dict[str, str] = {}
    with tarfile.open(image) as archive:

        def blob(digest: str) -> Any:
            return archive.extractfile(f"blobs/{digest.replace(':', '/')}")

        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in reversed(manifest["layers"]):
            with tarfile.open(fileobj=blob(layer["digest"]), mode="r|*") as files:
                texts = {
                    name: content.read().decode()
                    for each in files
                    if (name := each.name.removeprefix("./")) in paths and name not in found
                    if (content := files.extractfile(each)) is not None
                }
            found.update(texts)
            if len(found) == len(paths):
                return found
    missing = ", ".join(f"/{path}" for path in paths if path not in found)
    raise NoPackages(f"{image} has no file {missing}: it is not built on Debian")


def system_of(release: str) -> tuple[str, str]:
    """Return the name and the version of a system, such as `("debian", "12")`, from its os-release."""
    fields = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    return fields["ID"].strip('"'), fields.get("VERSION_ID", "").strip('"')


def components(status: str, release: str) -> list[dict[str, str]]:
    """Return the system and its installed packages as components."""
    name, version = system_of(release)
    made = [{"type": "operating-system", "bom-ref": f"{name}@{version}", "name": name, "version": version}]
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status") != _INSTALLED:
            continue
        what = f"{quote(fields['Package'])}@{quote(fields['Version'], safe='')}"
        url = f"pkg:deb/{name}/{what}?arch={fields['Architecture']}&distro={name}-{version}"
        package = {"name": fields["Package"], "version": fields["Version"], "purl": url}
        made.append({"type": "library", "bom-ref": url, **package})
    return made


def bill_of(image: Path, packages: Path) -> dict[str, Any]:
    """Return the bill of an image. Raises `NoPackages` if it has no list of packages."""
    texts = read(image, STATUS, RELEASE)
    bill: dict[str, Any] = json.loads(packages.read_text())
    added = components(texts[STATUS], texts[RELEASE])
    names = "\n".join(each["bom-ref"] for each in added)
    # A name of its own, which is the same for the same contents.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{bill.get('serialNumber')}\n{names}")
    return {**bill, "serialNumber": serial.urn, "components": [*bill["components"], *added]}


def main(arguments: Sequence[str]) -> int:
    """Print the bill of an image; returns the exit code."""
    image, packages = map(Path, arguments)
    try:
        print(json.dumps(bill_of(image, packages), indent=2))
    except NoPackages as error:
        print(f"image_bill: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
