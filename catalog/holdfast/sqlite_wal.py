"""Finds damage in the WAL of a SQLite database that SQLite mistakes for the end of the WAL.

SQLite checks each frame of a WAL when the first connection opens the database. A frame with a wrong checksum
ends the replay. All commits from that frame on disappear, and the next write overwrites them. SQLite raises
no error, because the last frames are also wrong after a crash in the middle of a commit.

A crash can damage only the last commit, because each commit is flushed before the next one begins. So a wrong
frame is damage if a commit at or after it has a successor. The checksum of a frame continues the checksum in
the frame before it. This shows which frame came after which, even beyond a wrong one. The frames of an
earlier WAL have other salts.

Damage in the last commit looks the same as a crash, so this module does not find it.
"""

from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from holdfast.errors import CorruptBlob

_Weights = tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], tuple[int, int, int, int]]

WAL_HINT: Final = (
    "stop all processes that use it, and copy the three files before anything opens them; restore a backup;"
    " without a backup, move the -wal file away, which loses the commits in it"
)
_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 24
_MAGIC: Final = 0x377F0682
_USUAL_PAGE: Final = 4096
_FRAMES_AT_ONCE: Final = 256
"""With the usual page, a copy of so many frames takes 1 MiB."""
_32_BITS: Final = 0xFFFFFFFF


def check_wal(path: Path) -> None:
    """Raise `CorruptBlob` if the WAL of the database `path` has a wrong frame before its last commit.

    Call it before the first connection is opened. Other processes may write during it. It takes about 3 ms
    per MB of WAL.
    """
    wal = Path(f"{path.resolve()}-wal")
    frame = _wrong_frame(wal)
    if frame is not None and frame == _wrong_frame(wal):
        raise CorruptBlob(
            str(wal), "an intact WAL", f"a damaged frame {frame}, and commits after it", hint=WAL_HINT
        )


def _wrong_frame(wal: Path) -> int | None:
    """Return the first wrong frame that a commit follows, counted from 0; None if there is none."""
    try:
        with wal.open("rb") as opened:
            data = opened.read()
            opened.seek(0)
            if opened.read(_HEADER_BYTES) != data[:_HEADER_BYTES]:
                return None  # a writer restarted the WAL meanwhile, after all of it was in the main file
    except OSError:
        return None  # there is no WAL, or SQLite reports why it can't be read
    if len(data) <= _HEADER_BYTES:
        return None
    header = [int.from_bytes(data[at : at + 4], "big") for at in range(0, _HEADER_BYTES, 4)]
    order = ">u4" if header[0] & 1 else "<u4"
    is_sound = header[0] & ~1 == _MAGIC and _checksum(data[:24], (0, 0), order) == (header[6], header[7])
    if is_sound:
        page, salts = header[2], data[16:24]
        return _first_wrong(data, page, salts, order, (header[6], header[7]))
    salts = data[_HEADER_BYTES + 8 : _HEADER_BYTES + 16]
    for order in ("<u4", ">u4"):
        if _has_successor(data, 0, _USUAL_PAGE, salts, order, None):
            return 0
    return None


def _first_wrong(data: bytes, page: int, salts: bytes, order: str, before: tuple[int, int]) -> int | None:
    size = _FRAME_BYTES + page
    count = (len(data) - _HEADER_BYTES) // size
    for first in range(0, count, _FRAMES_AT_ONCE):
        several = data[_HEADER_BYTES + first * size :][: min(_FRAMES_AT_ONCE, count - first) * size]
        right, stored = _right_frames(several, size, salts, order, before)
        if not right.all():
            wrong = int(right.argmin())
            if wrong:
                before = _pair(stored[wrong - 1])
            # A frame with other salts is usually the first remaining frame of an earlier WAL.
            found = _has_successor(data, first + wrong, page, salts, order, before)
            return first + wrong if found else None
        before = _pair(stored[-1])
    return None


def _right_frames(
    data: bytes, size: int, salts: bytes, order: str, before: tuple[int, int]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint32]]:
    """Return which frames are right if those before them are, and the stored checksums: shape (frames, 2)."""
    heads = np.frombuffer(data, ">u4").reshape(-1, size // 4)[:, : _FRAME_BYTES // 4]
    stored = heads[:, 4:6].astype(np.uint32)
    words = np.frombuffer(data, order).reshape(-1, size // 4).astype(np.uint32, copy=False)
    previous = np.vstack([np.array([before], np.uint32), stored[:-1]])
    # The sums are modulo 2 to the power of 32, as those of SQLite are.
    first, second, matrix = _weights((size - _FRAME_BYTES) // 4 + 2)
    weights = np.stack([first, second], axis=1)
    expected = words[:, :2] @ weights[:2] + words[:, _FRAME_BYTES // 4 :] @ weights[2:]
    expected += previous @ np.array(matrix, np.uint32).reshape(2, 2).T
    same_salts = (heads[:, 2:4] == np.frombuffer(salts, ">u4")).all(axis=1)
    return same_salts & (expected == stored).all(axis=1), stored


def _pair(checksum: npt.NDArray[np.uint32]) -> tuple[int, int]:
    return int(checksum[0]), int(checksum[1])


def _has_successor(
    data: bytes, first: int, page: int, salts: bytes, order: str, before: tuple[int, int] | None
) -> bool:
    """Whether a commit in frame `first` or later is followed by another frame of the same WAL.

    `before` is the checksum that frame `first` should continue, or None if that is unknown.
    """
    size = _FRAME_BYTES + page
    for number in range(first, (len(data) - _HEADER_BYTES) // size - 1):
        at = _HEADER_BYTES + number * size
        frame, following = data[at : at + size], data[at + size : at + 2 * size]
        expected = before if number == first else None
        is_commit = frame[4:8] != bytes(4) or (expected is not None and _was_commit(frame, expected, order))
        if not is_commit or following[8:16] != salts:
            continue
        if _continues(following, _stored(frame), order):
            return True
        # The damage may be in the stored checksum itself.
        if expected is not None and _continues(following, _computed(frame, expected, order), order):
            return True
    return False


def _was_commit(frame: bytes, before: tuple[int, int], order: str) -> bool:
    """Whether a wrong frame without a size of the database would be right with a size of one bit.

    Only the last frame of a commit has a size.
    """
    sizes = ((1 << bit).to_bytes(4, "big") for bit in range(32))
    return any(_continues(frame[:4] + size + frame[8:], before, order) for size in sizes)


def _stored(frame: bytes) -> tuple[int, int]:
    return int.from_bytes(frame[16:20], "big"), int.from_bytes(frame[20:24], "big")


def _continues(frame: bytes, before: tuple[int, int], order: str) -> bool:
    """Whether the checksum of a frame continues the checksum of the frame before it."""
    return _computed(frame, before, order) == _stored(frame)


def _computed(frame: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    return _checksum(frame[:8] + frame[_FRAME_BYTES:], before, order)


def _checksum(data: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    """Return SQLite's checksum of a WAL: for each pair of words, a += x + b; b += y + a.

    It is linear. So each word has a fixed weight in the result, and two products give the result.
    """
    words = np.frombuffer(data, dtype=order).astype(np.uint32, copy=False)
    first, second, (aa, ab, ba, bb) = _weights(len(words))
    a = int((words * first).sum(dtype=np.uint32)) + aa * before[0] + ab * before[1]
    b = int((words * second).sum(dtype=np.uint32)) + ba * before[0] + bb * before[1]
    return a & _32_BITS, b & _32_BITS


@lru_cache(maxsize=4)
def _weights(words: int) -> _Weights:
    first, second = [0] * words, [0] * words
    # How a and b at this point contribute to a and b at the end.
    aa, ab, ba, bb = 1, 0, 0, 1
    for at in range(words - 2, -1, -2):
        # y adds only to b. x adds to a, and through a to b.
        first[at + 1], second[at + 1] = ab, bb
        first[at], second[at] = (aa + ab) & _32_BITS, (ba + bb) & _32_BITS
        aa, ab = (aa + ab) & _32_BITS, (aa + 2 * ab) & _32_BITS
        ba, bb = (ba + bb) & _32_BITS, (ba + 2 * bb) & _32_BITS
    return np.array(first, np.uint32), np.array(second, np.uint32), (aa, ab, ba, bb)
