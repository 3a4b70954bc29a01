"""The folder of one attempt: `<destination>/<job id>/attempt-<n>/`, created by exactly one process.

- Creating the folder is the claim. Two processes that run the same attempt never mix their files, because the
  second one is refused. If the process of an attempt dies, start a new attempt.
- The manifest is written last, and in one step. A folder without a manifest is not a snapshot.
- Any process may remove the folder of an attempt that can't commit any more. In a bucket, a task of the
  attempt may still be running, and may write a file below the prefix afterwards. No manifest names that file.
"""

import re

from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.collections.snapshots.manifest import MANIFEST_NAME, SnapshotManifest
from holdfast.errors import BadInput, HoldfastError
from holdfast.store_keys import OF_S3, StoreKeys

_ATTEMPT = re.compile(r"attempt-(\d+)")


class AttemptTaken(HoldfastError):
    """Another process has started this attempt."""


def claim(destination: str, job_id: str, attempt: int) -> SnapshotFolder:
    """Create the folder of this attempt, durably.

    Raises `AttemptTaken` if another process already did, `BadInput` if the destination can't be written to,
    and `StorageError` if its store fails.
    """
    folder = folder_of(destination, job_id, attempt)
    try:
        claimed = folder.claim()
    except OSError as error:
        raise BadInput(f"can't write to the destination {destination!r}: {error}") from None
    if not claimed:
        raise AttemptTaken(
            f"attempt {attempt} of job {job_id} was already started: {folder} exists",
            hint="start a new attempt, or wait for that one",
        )
    return folder


def publish(folder: SnapshotFolder, manifest: SnapshotManifest) -> None:
    """Write the manifest, durable with everything that it names."""
    # A task that failed and ran again may have left a file that is not part of the snapshot.
    folder.keep_only({file.name for file in manifest.all_files})
    with folder.writing(MANIFEST_NAME) as out:
        out.write(manifest.to_json().encode())


def discard_earlier(destination: str, job_id: str, attempt: int) -> None:
    """After `attempt` has committed, remove what earlier attempts left."""
    above = _destination(destination).below(job_id)
    for name in above.folders():
        match = _ATTEMPT.fullmatch(name)
        if match and int(match[1]) < attempt:
            above.below(name).discard()


def folder_of(destination: str, job_id: str, attempt: int) -> SnapshotFolder:
    """The folder of an attempt, whether it exists or not. Raises `BadInput` for an invalid destination."""
    return _destination(destination).below(job_id).below(f"attempt-{attempt}")


def _destination(url: str) -> SnapshotFolder:
    # In tasks too, each process reads the keys itself.
    return folder_at(url, StoreKeys.of_process(OF_S3))
