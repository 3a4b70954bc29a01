"""containerd in a sandbox. All runs share images that are imported once.

Invariants
- A run writes to a folder of its own. It has copies of the small databases, and links to the layers, which
  nobody changes. So a run begins with the images, and without the data of another run.
- A folder of imported images gets its final name when it is complete.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from testbed.buildah import run
from testbed.kube import wait_until
from testbed.process import Child
from testbed.sandbox import INSIDE, SHOWN, Sandbox

SOCKET: Final = Path("/run/containerd/containerd.sock")
PAUSE: Final = "localhost/holdfast-pause:test"
"""The image of the container that keeps the namespaces of a pod."""
_ROOT: Final = "containerd"
BLOBS: Final = Path("io.containerd.content.v1.content/blobs/sha256")
_SNAPSHOTS: Final = Path("io.containerd.snapshotter.v1.overlayfs/snapshots")
_LINKED: Final = (BLOBS, _SNAPSHOTS)
"""The folders whose entries are layers, or contents that are named by their hash."""
_PLUGINS: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def plugins() -> Path | None:
    """The folder of the CNI plugins that pods are connected with."""
    wanted = ("bridge", "host-local", "portmap", "loopback")
    return next((folder for folder in _PLUGINS if all((folder / name).exists() for name in wanted)), None)


def start(sandbox: Sandbox, images: Path | None) -> Child:
    """Start it and wait until it responds. With `images` (what the sandbox shows) it has these images."""
    root = sandbox.folder / _ROOT
    root.mkdir()
    if images is not None:
        _link(images, root)
    (sandbox.folder / "containerd.toml").write_text(_config())
    child = sandbox.child("containerd", ["containerd", f"--config={INSIDE / 'containerd.toml'}"])
    try:
        wait_until("containerd answered", lambda: _answers(sandbox), (child,))
    except BaseException:
        child.kill()
        raise
    return child


def import_images(folder: Path, archive: Path, *, onto: Path | None = None) -> Path:
    """Import the images of an archive; returns the folder, in `folder`, that `start` takes.

    `onto` is another such folder, whose images the new one has too: in links to the same files.
    """
    sandbox = Sandbox.start(folder, shown=onto)
    try:
        child = start(sandbox, onto)
        (sandbox.folder / archive.name).hardlink_to(archive)
        sandbox.run("ctr", "--namespace=k8s.io", "images", "import", INSIDE / archive.name)
        child.stop()
    finally:
        sandbox.stop()
    root = folder / _ROOT
    if onto is not None:
        _replace_links(root, onto)
    return root


def _answers(sandbox: Sandbox) -> bool:
    return sandbox.succeeds("ctr", "--connect-timeout=2s", "version")


def _link(images: Path, root: Path) -> None:
    for folder, folders, files in os.walk(images):
        here = Path(folder).relative_to(images)
        (root / here).mkdir(exist_ok=True)
        if here in _LINKED:
            for entry in [*folders, *files]:
                (root / here / entry).symlink_to(SHOWN / here / entry)
            folders.clear()
        else:
            for file in files:
                shutil.copy2(Path(folder) / file, root / here / file)


def _replace_links(root: Path, images: Path) -> None:
    """Put in the place of each link the folder or file that it leads to, whose contents both then share."""
    for kind in (BLOBS, _SNAPSHOTS):
        links = [entry.name for entry in (root / kind).iterdir() if entry.is_symlink()]
        for name in links:
            (root / kind / name).unlink()
        things = [images / kind / name for name in links]
        run(["cp", "--archive", "--link", f"--target-directory={root / kind}", "--", *things])


def _config() -> str:
    return f"""version = 2
root = "{INSIDE / _ROOT}"
state = "/run/containerd"
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
disable_apparmor = true
# Who may not lower the score of a process could not start one of a pod otherwise.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins()}"
conf_dir = "{INSIDE / "cni"}"
"""
