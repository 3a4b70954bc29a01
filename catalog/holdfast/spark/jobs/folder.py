"""The folder of one attempt: `<destination>/<job id>/attempt-<n>/`, made by exactly one process.

- Making the folder is the claim: two processes that run the same attempt never mix their files, the
  second one is refused. An attempt whose process died is not taken up again; a new attempt is started.
- The manifest is written last and appears whole: a folder without one is no snapshot.
- The folder of an attempt that can't commit any more may be removed by anybody.
"""

import os
import re
import shutil
from pathlib import Path

from holdfast.errors import BadInput, HoldfastError
from holdfast.spark.parquet import sync_folder
from holdfast.storage.manifest import MANIFEST_NAME, SnapshotManifest, local_folder

_ATTEMPT = re.compile(r"attempt-(\d+)")


class AttemptTaken(HoldfastError):
    """Another process has started this attempt."""


def claim(destination: str, job_id: str, attempt: int) -> Path:
    """Make the folder of this attempt, durably.

    Raises `AttemptTaken` when some process already has, `BadInput` when the destination can't be written to.
    """
    job_folder = local_folder(destination) / job_id
    folder = job_folder / f"attempt-{attempt}"
    try:
        job_folder.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        for parent in (job_folder, job_folder.parent):
            sync_folder(parent)
    except FileExistsError:
        raise AttemptTaken(
            f"attempt {attempt} of job {job_id} was started before: {folder} exists",
            hint="start a new attempt, or wait for that one",
        ) from None
    except OSError as error:
        raise BadInput(f"can't write to the destination {destination!r}: {error}") from None
    return folder


def publish(folder: Path, manifest: SnapshotManifest) -> Path:
    """Write the manifest, durable with everything that it names, and return its path."""
    path = folder / MANIFEST_NAME
    unfinished = folder / f"_{MANIFEST_NAME}"
    named = {file.name for file in manifest.files}
    # A task that failed half-way and ran again has left a file that is not part of the snapshot.
    for stray in folder.iterdir():
        if stray.name not in named:
            stray.unlink()
    with unfinished.open("w", encoding="utf-8") as out:
        out.write(manifest.to_json())
        out.flush()
        os.fsync(out.fileno())
    unfinished.rename(path)
    sync_folder(folder)
    return path


def discard(folder: Path) -> None:
    """Remove the folder of an attempt that did not and can't commit, as far as that goes."""
    shutil.rmtree(folder, ignore_errors=True)


def discard_earlier(folder: Path, attempt: int) -> None:
    """After `attempt` has committed: remove what attempts before it have left."""
    for other in folder.parent.iterdir():
        match = _ATTEMPT.fullmatch(other.name)
        if match and int(match[1]) < attempt:
            discard(other)
