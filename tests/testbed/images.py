"""The images of the node's pods, made on this machine without any registry of images.

Invariants
- The base comes from Debian's packages (mmdebstrap), our own image from operator/Dockerfile (buildah), each
  made again only when what it is made from has changed: names in the cache are hashes of that.
- What `imported` returns is whole, and no one changes it: runs link to it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed import containerd
from testbed.cache import cache_folder, locked
from testbed.errors import Unavailable

OPERATOR: Final = "localhost/holdfast-operator:test"
"""Our image, of the source as it is here, without Spark. Its Python with all of our code is `PYTHON`."""
PYTHON: Final = "/opt/holdfast/venv/bin/python"
_REPOSITORY: Final = Path(__file__).parents[2]
_DOCKERFILE: Final = _REPOSITORY / "operator" / "Dockerfile"
_PACKAGES: Final = ("busybox-static", "ca-certificates", "python3", "python3-venv", "tini")
_BASE: Final = """FROM scratch
ADD base.tar /
CMD ["python3"]
"""
_PAUSE: Final = """FROM {base} AS base
FROM scratch
COPY --from=base /bin/busybox /busybox
ENTRYPOINT ["/busybox", "sleep", "2147483647"]
"""
_AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_KEPT: Final = 3
"""Sets of imported images that stay: those of branches that somebody goes to and fro between."""


def imported() -> Path:
    """The folder of the imported images for `NodeCluster.start`; makes what is missing.

    That takes minutes once per machine, and then some ten seconds after a change of the operator's code.
    Raises `Unavailable` where it fails.
    """
    with locked("images"):
        base = _key(_PACKAGES, _BASE, *_sources().values())
        ours = _key(base, _DOCKERFILE.read_text(), *_context())
        key = _key(base, _PAUSE, ours)
        target = cache_folder() / "node" / f"images-{key}"
        if not target.exists():
            _say("making the images of the node tier (about 2 minutes, once) ...")
            started = time.monotonic()
            with tempfile.TemporaryDirectory(dir=_made_folder(), prefix=".images-") as scratch:
                _make(Path(scratch), target, base, ours)
            _say(f"made the images in {time.monotonic() - started:.0f} s")
            _forget_old()
        os.utime(target)
        return target


def _make(scratch: Path, target: Path, base: str, ours: str) -> None:
    store = _Store(scratch)
    base_name = f"localhost/holdfast-base:{base}"
    if not store.has(base_name):
        _bootstrap(scratch / "base.tar")
        store.build(base_name, _BASE, scratch)
        (scratch / "base.tar").unlink()
    pause = f"localhost/holdfast-pause:{base}"
    if not store.has(pause):
        store.build(pause, _PAUSE.format(base=base_name), scratch)
    operator = f"localhost/holdfast-operator:{ours}"
    if not store.has(operator):
        _say("  building our own image from operator/Dockerfile ...")
        store.build(operator, _DOCKERFILE.read_text(), _REPOSITORY, BASE=base_name)
    archives = [
        store.save(name, tag, scratch / f"{number}.tar")
        for number, (name, tag) in enumerate(((pause, containerd.PAUSE), (operator, OPERATOR)))
    ]
    folder = scratch / "run"
    folder.mkdir()
    containerd.import_images(folder, archives, target)


class _Store:
    """Where buildah keeps images and layers."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._policy = scratch / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def has(self, name: str) -> bool:
        return self._run("images", "--quiet", name, check=False) != ""

    def build(self, name: str, dockerfile: str, context: Path, **arguments: str) -> None:
        """Build an image from a Dockerfile's text; with arguments it is ours, of which it is one part."""
        file = self._scratch / "Dockerfile"
        file.write_text(dockerfile)
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        if arguments:
            given.append("--target=operator")
            # Whom this machine trusts, which may be more than the base does: packages are fetched.
            given.append(f"--volume={_AUTHORITIES}:{_AUTHORITIES}:ro")
        self._run("build", "--quiet", "--layers", f"--tag={name}", f"--file={file}", *given, context)

    def save(self, name: str, tag: str, archive: Path) -> Path:
        """Write an image to a file, in which it has this tag."""
        self._run("push", "--quiet", name, f"docker-archive:{archive}:{tag}")
        return archive

    def _run(self, command: str, *arguments: str | Path, check: bool = True) -> str:
        signatures = [f"--signature-policy={self._policy}"] if command in {"build", "push"} else []
        # In a mount namespace of its own, so that nothing stays mounted when it is killed.
        apart = ["unshare", "--mount", "--propagation=slave", "--"]
        folders = [f"--root={_made_folder() / 'buildah'}", f"--runroot={self._scratch / 'buildah'}"]
        prefix = [*apart, "buildah", *folders, "--storage-driver=overlay"]
        full: list[str | Path] = [*prefix, command, *signatures, *arguments]
        return _run(full, env={"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self._scratch)}, check=check)


def _context() -> list[tuple[str, str]]:
    """Every file that the image is built from, and the hash of what is in it."""
    lines = (_REPOSITORY / ".dockerignore").read_text().splitlines()
    named = [_REPOSITORY / line.removeprefix("!") for line in lines if line.startswith("!")]
    files = [
        file
        for path in named
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    ]
    return [
        (str(file.relative_to(_REPOSITORY)), hashlib.sha256(file.read_bytes()).hexdigest())
        for file in sorted(files)
    ]


def _bootstrap(tar: Path) -> None:
    """Make the file system of the base from the packages of this machine's own Debian."""
    _say("  collecting Debian's packages for the base image ...")
    lists = [path for path in _sources() if path.stat().st_size]
    leanly = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    _run(
        [
            *("mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(_PACKAGES)}"),
            *leanly,
            _release(),
            tar,
            *lists,
        ],
        env={"TMPDIR": str(tar.parent)},
    )


def _sources() -> dict[Path, str]:
    """The files that tell where this machine has its packages from, and their contents."""
    folder = Path("/etc/apt")
    own = ("sources.list", "sources.list.d/debian.sources", "sources.list.d/ubuntu.sources")
    return {folder / name: (folder / name).read_text() for name in own if (folder / name).exists()}


def _release() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    names = dict(line.split("=", 1) for line in lines if "=" in line)
    return names.get("VERSION_CODENAME", "stable").strip('"')


def _forget_old() -> None:
    made = sorted(_made_folder().glob("images-*"), key=lambda folder: folder.stat().st_mtime)
    for folder in made[:-_KEPT]:
        shutil.rmtree(folder)


def _made_folder() -> Path:
    folder = cache_folder() / "node"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _run(command: Sequence[str | Path], *, env: dict[str, str], check: bool = True) -> str:
    done = subprocess.run(
        [os.fspath(part) for part in command],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-10:])
        raise Unavailable(f"{' '.join(map(str, command))} failed:\n{told}")
    return done.stdout


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
