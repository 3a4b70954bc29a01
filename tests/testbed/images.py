"""The images of the node's pods. The machine builds them without a registry.

Invariants
- mmdebstrap makes the base from Debian packages, and buildah makes our own image from operator/Dockerfile.
  Each is built again only if its inputs changed, because its name in the cache is a hash of them.
- A change of our code rebuilds only the last stages of our image. The code of others is an image of its own,
  which is imported once.
- What `held` returns is complete, and nobody changes it, so runs link to it. Images that nobody used recently
  are removed, but never an image that a run holds.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from testbed import containerd
from testbed.buildah import Buildah, run
from testbed.cache import cache_folder, locked

OPERATOR: Final = "localhost/holdfast-operator:test"
"""Our image, of the source as it is here, without Spark. Its Python with all of our code is `PYTHON`."""
PYTHON: Final = "/opt/holdfast/venv/bin/python"
SPARK: Final = "localhost/holdfast-spark:test"
"""The same with Spark: the image of its drivers and executors."""
_STAGES: Final = ("packages", "runtime", "runtime-spark")
"""The stages of the Dockerfile that are kept."""
_TARGETS: Final = {"operator": OPERATOR, "spark": SPARK}
"""Its stages that are images of ours."""
_REPOSITORY: Final = Path(__file__).parents[2]
_DOCKERFILE: Final = _REPOSITORY / "operator" / "Dockerfile"
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}")
_DEPENDENCIES: Final = (
    *("pyproject.toml", "uv.lock", "LICENSE"),
    *("catalog/pyproject.toml", "catalog/README.md", "operator/pyproject.toml", "operator/README.md"),
    *("operator/image/build-requirements.txt", "operator/image/install-package"),
)
"""What the stages of the Dockerfile before those of our code are made of."""
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
_NAMES: Final = "names"
"""The file in a folder of images that names the image of buildah that it was made from."""
_KEPT: Final = {"images": 3, "runtime": 2}
"""Folders that stay: those of branches that somebody goes to and fro between."""


@contextlib.contextmanager
def held() -> Iterator[Path]:
    """The folder of the imported images for `NodeCluster.start`, which nobody removes meanwhile.

    Makes what is missing: minutes once per machine, and then some seconds after a change of the operator's
    code. Raises `Unavailable` where it fails.
    """
    with contextlib.ExitStack() as holding:
        with locked("images"):
            folder = _imported()
            holding.enter_context(hold(folder))
        yield folder


def _imported() -> Path:
    base = _key(_PACKAGES, _BASE, *_sources().values())
    packages = _packages_key()
    ours = _key(packages, *_context())
    runtime, target = _folder() / f"runtime-{packages}", _folder() / f"images-{ours}"
    if not target.exists():
        started = time.monotonic()
        for leftover in _folder().glob(".images-*"):
            shutil.rmtree(leftover)  # of one that was killed: nobody else is in here
        with tempfile.TemporaryDirectory(dir=_folder(), prefix=".images-") as scratch:
            if not runtime.exists():
                _say("making the images of the node tier (about 5 minutes, once) ...")
                _make_runtime(Path(scratch), runtime, base, packages)
            _say("making our own image from operator/Dockerfile ...")
            _make_ours(Path(scratch), target, runtime, packages)
            os.utime(runtime)
            remove_unused()
            names = [
                name for file in _folder().glob(f"runtime-*/{_NAMES}") for name in file.read_text().split()
            ]
            Buildah(_folder() / "buildah", Path(scratch)).keep(names)
        _say(f"made the images in {time.monotonic() - started:.0f} s")
    for used in filter(Path.exists, (runtime, target)):
        os.utime(used)
    return target


def _make_runtime(scratch: Path, target: Path, base: str, packages: str) -> None:
    """Make and import all that doesn't change with our code."""
    store = Buildah(_folder() / "buildah", scratch)
    base_name, pause = f"localhost/holdfast-base:{base}", f"localhost/holdfast-pause:{base}"
    if not store.has(base_name):
        _bootstrap(scratch / "base.tar")
        store.build(base_name, _BASE, scratch)
        (scratch / "base.tar").unlink()
    if not store.has(pause):
        store.build(pause, _PAUSE.format(base=base_name), scratch)
    stages = _stages(packages)
    for stage, name in stages.items():
        _say(f"  building the stage {stage} of operator/Dockerfile ...")
        store.build(name, _DOCKERFILE.read_text(), _REPOSITORY, target=stage, BASE=base_name)
    archive = scratch / "runtime.tar"
    tags = {stages[stage]: f"localhost/holdfast-{stage}:test" for stage in ("runtime", "runtime-spark")}
    store.save({pause: containerd.PAUSE, **tags}, archive)
    _say("  importing them ...")
    (scratch / "runtime").mkdir()
    imported = containerd.import_images(scratch / "runtime", archive)
    (imported / _NAMES).write_text("\n".join((base_name, pause, *stages.values())))
    imported.rename(target)


def _make_ours(scratch: Path, target: Path, runtime: Path, packages: str) -> None:
    """Make our images on those stages, and import them beside what was imported of them."""
    store = Buildah(_folder() / "buildah", scratch)
    stages = _stages(packages)
    made = {}
    for stage, tag in _TARGETS.items():
        name = f"localhost/holdfast-{stage}:{target.name}"
        store.build(name, _DOCKERFILE.read_text(), _REPOSITORY, target=stage, made=stages)
        made[name] = tag
    archive = scratch / "ours.tar"
    store.save(made, archive, known=runtime / containerd.BLOBS)
    (scratch / "ours").mkdir()
    containerd.import_images(scratch / "ours", archive, onto=runtime).rename(target)


def built_again(timestamp: int) -> list[str]:
    """The digests of two builds of our images' last stages from nothing, on the stages that are kept.

    `held` has made those stages. All files get the time `timestamp` (seconds since 1970).
    """
    with locked("images"), tempfile.TemporaryDirectory(dir=_folder(), prefix=".images-") as scratch:
        store = Buildah(_folder() / "buildah", Path(scratch))
        stages = _stages(_packages_key())
        digests = []
        for _ in range(2):
            name = "localhost/holdfast-again:test"
            store.build(
                name,
                _DOCKERFILE.read_text(),
                _REPOSITORY,
                target="operator",
                made=stages,
                timestamp=timestamp,
            )
            digests.append(store.digest(name))
            store.remove(name)
        return digests


def _packages_key() -> str:
    return _key(
        # The images here have a base of their own, so a new digest of the default base changes nothing.
        *(_key(_PACKAGES, _BASE, *_sources().values()), _PAUSE, _DIGEST.sub("", _DOCKERFILE.read_text())),
        *_hashes(_REPOSITORY / name for name in _DEPENDENCIES),
    )


def _stages(packages: str) -> dict[str, str]:
    """The stages of the Dockerfile that are kept, and their images."""
    return {stage: f"localhost/holdfast-{stage}:{packages}" for stage in _STAGES}


def _context() -> list[tuple[str, str]]:
    """Every file that the image is built from, and the hash of what is in it."""
    lines = (_REPOSITORY / ".dockerignore").read_text().splitlines()
    named = [_REPOSITORY / line.removeprefix("!") for line in lines if line.startswith("!")]
    return _hashes(
        file
        for path in named
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
    )


def _hashes(files: Iterable[Path]) -> list[tuple[str, str]]:
    return [
        (str(file.relative_to(_REPOSITORY)), hashlib.sha256(file.read_bytes()).hexdigest())
        for file in sorted(files)
    ]


def _bootstrap(tar: Path) -> None:
    """Make the file system of the base from the packages of this machine's own Debian."""
    _say("  collecting Debian's packages for the base image ...")
    lists = [path for path in _sources() if path.stat().st_size]
    leanly = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    # Nothing is kept of it where the machine stops meanwhile.
    leanly.append("--dpkgopt=force-unsafe-io")
    run(
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


def remove_unused() -> None:
    """Remove the folders of images that were not used of late and that nobody holds."""
    for kind, kept in _KEPT.items():
        made = sorted(_folder().glob(f"{kind}-*"), key=lambda folder: folder.stat().st_mtime)
        for folder in made[:-kept]:
            with contextlib.suppress(BlockingIOError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(folder)


def hold(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Keep a folder from being removed."""
    return _locked(folder, fcntl.LOCK_SH)


@contextlib.contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, operation)
        yield
    finally:
        os.close(handle)


def _folder() -> Path:
    folder = cache_folder() / "node"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
