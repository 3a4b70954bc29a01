"""Builds images with buildah, and exports them as archives in the OCI layout.

Invariants
- Layers are exported uncompressed, so that a layer has one name and other images can share it.
- Commands run in namespaces of their own. If the test bed is killed, no process and no mount of a build
  stays.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from testbed.errors import Unavailable
from testbed.process import tethered

_AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_AROUND: Final = 2
"""The kind of a record that isn't a file of the layer, but bytes of the archive around files."""


class Buildah:
    """The images and layers in one folder; one process at a time uses it."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root = root
        self._scratch = scratch
        self._policy = scratch / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def has(self, name: str) -> bool:
        return self._run("images", "--quiet", name, check=False) != ""

    def build(
        self,
        name: str,
        dockerfile: str,
        context: Path,
        *,
        target: str | None = None,
        made: Mapping[str, str] | None = None,
        timestamp: int | None = None,
        **arguments: str,
    ) -> None:
        """Build an image from a Dockerfile's text, or of one stage of it; `made` are images of stages.

        With a timestamp, nothing of earlier builds is used, and all files get this time (seconds since 1970).
        """
        file = self._scratch / "Dockerfile"
        file.write_text(dockerfile)
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        if target:
            given.append(f"--target={target}")
        given += [
            f"--build-context={stage}=container-image://{of_it}" for stage, of_it in (made or {}).items()
        ]
        if target:
            # Whom this machine trusts, which may be more than the base does: packages are fetched.
            given.append(f"--volume={_AUTHORITIES}:{_AUTHORITIES}:ro")
        given += ["--layers"] if timestamp is None else ["--no-cache", f"--timestamp={timestamp}"]
        self._run("build", "--quiet", f"--tag={name}", f"--file={file}", *given, context)

    def digest(self, name: str) -> str:
        """The digest of an image's configuration, and so of its layers."""
        return str(json.loads(self._run("inspect", "--type=image", name))["FromImageID"])

    def remove(self, name: str) -> None:
        """Remove one image, but no layer that another image has."""
        self._run("rmi", name)

    def save(self, images: Mapping[str, str], archive: Path, *, known: Path | None = None) -> None:
        """Write images, each with the tag that it has there, to a file, without the layers in `known`."""
        entries: list[dict[str, Any]] = []
        blobs: dict[str, bytes] = {}
        layers: dict[str, None] = {}
        for name, tag in images.items():
            told = json.loads(self._run("inspect", "--type=image", name))
            manifest, config = told["Manifest"].encode(), told["Config"].encode()
            described = json.loads(manifest)
            blobs |= {hashlib.sha256(blob).hexdigest(): blob for blob in (manifest, config)}
            layers |= dict.fromkeys(layer["digest"] for layer in described["layers"])
            entries.append(
                {
                    "mediaType": described["mediaType"],
                    "digest": f"sha256:{hashlib.sha256(manifest).hexdigest()}",
                    "size": len(manifest),
                    "annotations": {"io.containerd.image.name": tag},
                }
            )
        with tarfile.open(archive, "w") as tar:
            _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
            for sum_of_it, blob in blobs.items():
                _add(tar, f"blobs/sha256/{sum_of_it}", blob)
            for digest in layers:
                sum_of_it = digest.removeprefix("sha256:")
                if known is None or not (known / sum_of_it).exists():
                    with tempfile.TemporaryFile(dir=self._scratch) as layer:
                        self._write_layer(digest, layer)
                        layer.seek(0)
                        entry = tarfile.TarInfo(f"blobs/sha256/{sum_of_it}")
                        entry.size = os.fstat(layer.fileno()).st_size
                        tar.addfile(entry, layer)

    def _write_layer(self, digest: str, target: IO[bytes]) -> None:
        """Put a layer together again, byte by byte, from its files and the record of what is around.

        `buildah push` would compress all layers, those too that somebody has, which takes minutes.
        """
        layers = json.loads((self._root / "overlay-layers" / "layers.json").read_text())
        found = next(layer["id"] for layer in layers if layer.get("diff-digest") == digest)
        files = self._root / "overlay" / found / "diff"
        summed = hashlib.sha256()

        def write(part: bytes) -> None:
            summed.update(part)
            target.write(part)

        with gzip.open(self._root / "overlay-layers" / f"{found}.tar-split.gz") as record:
            for line in record:
                entry = json.loads(line)
                if entry["type"] == _AROUND:
                    write(base64.b64decode(entry["payload"]))
                elif entry.get("size"):
                    raw = base64.b64decode(entry["name_raw"]) if "name_raw" in entry else None
                    with (files / (os.fsdecode(raw) if raw else entry["name"])).open("rb") as file:
                        while part := file.read(1 << 20):
                            write(part)
        if f"sha256:{summed.hexdigest()}" != digest:
            raise Unavailable(f"the layer {digest} in {self._root} is not what it was: remove that folder")

    def keep(self, names: Iterable[str]) -> None:
        """Remove all images but these, and all layers that none of them has."""
        wanted = set(names)
        told = json.loads(self._run("images", "--json") or "[]")
        named = {name for image in told for name in image.get("names") or ()}
        # A build that was killed leaves its containers, which keep their images.
        self._run("rm", "--all")
        if named - wanted:
            self._run("rmi", *sorted(named - wanted))
        self._run("rmi", "--prune")

    def _run(self, command: str, *arguments: str | Path, check: bool = True) -> str:
        signatures = [f"--signature-policy={self._policy}"] if command == "build" else []
        spaces = ("--mount", "--propagation=slave", "--pid", "--mount-proc", "--fork", "--kill-child")
        folders = [f"--root={self._root}", f"--runroot={self._scratch / 'buildah'}"]
        prefix = ["unshare", *spaces, "--", "buildah", *folders, "--storage-driver=overlay"]
        full: list[str | Path] = [*prefix, command, *signatures, *arguments]
        return run(full, env={"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self._scratch)}, check=check)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def run(command: Sequence[str | Path], *, env: dict[str, str] | None = None, check: bool = True) -> str:
    """Run a command to its end, and return what it prints; raises `Unavailable` where it fails."""
    done = subprocess.run(
        [os.fspath(part) for part in tethered(command)],
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-10:])
        raise Unavailable(f"{' '.join(map(str, command))} failed:\n{told}")
    return done.stdout
