"""The folder of one attempt: `<destination>/<job id>/attempt-<n>/`, made by exactly one process.

- Making the folder is the claim: two processes that run the same attempt never mix their files, the
  second one is refused. An attempt whose process died is not taken up again; a new attempt is started.
- The manifest is written last and appears whole: a folder without one is no snapshot.
- The folder of an attempt that can't commit any more may be removed by anybody. A task of it that still runs
  may put a file into what was a prefix of a bucket: nothing names it.
"""

import re

from holdfast.collections.snapshots.folder import SnapshotFolder
from holdfast.collections.snapshots.locate import folder_at
from holdfast.collections.snapshots.manifest import MANIFEST_NAME, SnapshotManifest
from holdfast.errors import BadInput, HoldfastError

_ATTEMPT = re.compile(r"attempt-(\d+)")


class AttemptTaken(HoldfastError):
    """Another process has started this attempt."""


def claim(destination: str, job_id: str, attempt: int) -> SnapshotFolder:
    """Make the folder of this attempt, durably.

    Raises `AttemptTaken` when some process already has, `BadInput` when the destination can't be written to,
    `StorageError` when its store fails.
    """
    folder = folder_of(destination, job_id, attempt)
    try:
        claimed = folder.claim()
    except OSError as error:
        raise BadInput(f"can't write to the destination {destination!r}: {error}") from None
    if not claimed:
        raise AttemptTaken(
            f"attempt {attempt} of job {job_id} was started before: {folder} exists",
            hint="start a new attempt, or wait for that one",
        )
    return folder


def publish(folder: SnapshotFolder, manifest: SnapshotManifest) -> None:
    """Write the manifest, durable with everything that it names."""
    # A task that failed half-way and ran again has left a file that is not part of the snapshot.
    folder.keep_only({file.name for file in manifest.files})
    with folder.writing(MANIFEST_NAME) as out:
        out.write(manifest.to_json().encode())


def discard_earlier(destination: str, job_id: str, attempt: int) -> None:
    """After `attempt` has committed: remove what attempts before it have left."""
    above = folder_at(destination).below(job_id)
    for name in above.folders():
        match = _ATTEMPT.fullmatch(name)
        if match and int(match[1]) < attempt:
            above.below(name).discard()


def folder_of(destination: str, job_id: str, attempt: int) -> SnapshotFolder:
    """The folder of an attempt, whether it is there or not; `BadInput` for a bad destination."""
    return folder_at(destination).below(job_id).below(f"attempt-{attempt}")
