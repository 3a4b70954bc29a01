"""A folder like the volume of a Secret in a pod, whose files are all replaced at once."""

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DATA: Final = "..data"


def mount(folder: Path, values: Mapping[str, str]) -> None:
    """Make the folder of a volume, or replace what it has, in the steps of a kubelet.

    Each file is a link to one below the link `..data`, which leads to a folder with all values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, version = folder / DATA, folder / f"..{uuid.uuid4().hex}"
    before = data.resolve() if data.is_symlink() else None
    version.mkdir()
    for name, value in values.items():
        (version / name).write_text(value)
    link = folder / f"{DATA}_tmp"
    link.symlink_to(version.name)
    link.replace(data)
    for name in values:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{DATA}/{name}")
    for path in folder.iterdir():
        if path.is_symlink() and path.name not in values and path.name != DATA:
            path.unlink()
    if before is not None:
        shutil.rmtree(before)
