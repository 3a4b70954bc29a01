"""The record of a stash in SQLite: its frontiers and holds, and digests of all its rows.

A flipped bit in a page of SQLite can hide rows, repeat them or change them, and no query fails. So each row
of `data` has a digest, and the record has the sum of the digests of each collection, and of each of the last
commits. A transaction that changes `data` also changes the record. A read adds up the digests of the rows
that it finds, and compares the sum with the record. The record has a checksum of its own.

A digest is at least 2^32. So a sum shows a missing row even if the CRC of the row is 0. A sum has 64 bits,
which is enough for 2^31 rows.
"""

import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from itertools import starmap
from typing import Final

import google_crc32c

from holdfast.stash.stash import Past

RECENT_COMMITS: Final = 128
"""The number of commits with a digest of their own. A subscriber asks for at most 100 versions at once."""

_numbers: Final = struct.Struct("<qqqq").pack
_crc32c: Final[Callable[[bytes], int]] = google_crc32c.value
_ROW_DIGEST: Final = 1 << 32
_checksum: Final = struct.Struct("<I").pack
_HEAD: Final = 32
"""The bytes of the four numbers at the beginning of a record."""
_ENTRY: Final = struct.Struct("<QQ")
"""A collection or a time, and a sum of digests."""
_ENTRY_BYTES: Final = _ENTRY.size
_RECENT_BYTES: Final = RECENT_COMMITS * _ENTRY_BYTES

NONSENSE: Final = (TypeError, struct.error)
"""What functions raise for values of other types, which SQLite allows in any column."""


class StashRecord:
    """The record, which never changes. `contents` is its stored form: see FORMAT.md."""

    __slots__ = ("_holds", "_recent", "contents", "since", "sums", "upper")

    def __init__(self, since: int, upper: int, holds: bytes, sums: Mapping[int, int], recent: bytes) -> None:
        self.since: Final = since
        self.upper: Final = upper
        self.sums: Final = sums
        """The sum of the digests of each collection that has rows."""
        self._holds: Final = holds
        self._recent: Final = recent
        head = _numbers(since, upper, len(sums), len(recent) // _ENTRY_BYTES)
        contents = b"".join((head, _packed(sums.items()), recent, holds))
        self.contents: Final = contents + _checksum(_crc32c(contents))

    @classmethod
    def parse(cls, contents: bytes) -> "StashRecord | None":
        """The record with these contents. None if they are not as their checksum."""
        since, upper, collections, commits = struct.unpack_from("<qqqq", contents)
        at = _HEAD + collections * _ENTRY_BYTES
        until = at + commits * _ENTRY_BYTES
        sums = dict(_ENTRY.iter_unpack(contents[_HEAD:at]))
        record = cls(since, upper, contents[until:-4], sums, contents[at:until])
        return record if record.contents == contents else None

    @property
    def holds(self) -> dict[str, int]:
        """The held times, by the names of the holds."""
        holds: dict[str, int] = json.loads(self._holds)
        return holds

    def past(self, upper: int) -> Past | None:
        """The past up to `upper`. None if its last commit is no longer known."""
        recent = self._recent
        for at in range(len(recent) - _ENTRY_BYTES, -1, -_ENTRY_BYTES):
            time, digest = _ENTRY.unpack_from(recent, at)
            if time < upper and digest:
                return Past(upper, time, str(digest))
        return None

    def recent_since(self, lower: int) -> list[tuple[int, int]] | None:
        """Time and digest of each commit with rows from `lower` on. None if some are no longer known.

        All commits with rows from the first entry's time on have an entry.
        """
        entries = list(_ENTRY.iter_unpack(self._recent))
        if not entries or entries[0][0] > lower:
            return None
        return [entry for entry in entries if entry[0] >= lower]

    def after_commit(self, at: int, upper: int, added: Mapping[int, int]) -> "StashRecord":
        """The record after a commit that adds rows with these digests to collections."""
        recent = self._recent
        if added or not recent:
            recent = (recent + _ENTRY.pack(at, sum(added.values())))[-_RECENT_BYTES:]
        return StashRecord(self.since, upper, self._holds, self._sums_after(added), recent)

    def after_consolidation(self, changed: Mapping[int, int]) -> "StashRecord":
        """The record after rows were replaced, but none after `since`. It changes digests by `changed`.

        The commits up to `since` keep their digests, which are no longer the sums of their rows. No call
        returns the changes of these commits any more, but their digests show which history this is. The
        exception is time 0: its changes are readable while since is 0.
        """
        recent = list(_ENTRY.iter_unpack(self._recent))
        if self.since == 0 and recent and recent[0][0] == 0:
            del recent[0]
            if not recent or recent[0][0] > 1:
                recent.insert(0, (1, 0))
        return StashRecord(self.since, self.upper, self._holds, self._sums_after(changed), _packed(recent))

    def after_upgrade(self, sums: Mapping[int, int], commits: Mapping[int, int]) -> "StashRecord":
        """The record with the digests of collections, and of all commits after `since`."""
        recent = _packed(sorted(commits.items())[-RECENT_COMMITS:])
        return StashRecord(self.since, self.upper, self._holds, sums, recent)

    def with_since(self, since: int) -> "StashRecord":
        """The record with another since."""
        return StashRecord(since, self.upper, self._holds, self.sums, self._recent)

    def with_holds(self, holds: Mapping[str, int]) -> "StashRecord":
        """The record with other holds."""
        return StashRecord(self.since, self.upper, json.dumps(holds).encode(), self.sums, self._recent)

    def _sums_after(self, changed: Mapping[int, int]) -> dict[int, int]:
        sums = dict(self.sums)
        for collection, digest in changed.items():
            total = sums.pop(collection, 0) + digest
            if total:
                sums[collection] = total
        return sums


class CommitDigests:
    """The sum of the digests of each commit at times in `[lower, upper)`. It takes 16 bytes per commit."""

    def __init__(self, lower: int, upper: int, sums: Mapping[int, int]) -> None:
        self.lower: Final = lower
        self.upper: Final = upper
        self._times: Final = array("q", sorted(sums))
        self._sums: Final = array("Q", map(sums.__getitem__, self._times))

    def sum_of(self, lower: int, until: int) -> int:
        """The sum for commits at times in `[lower, until)`."""
        first, end = (bisect_left(self._times, time) for time in (lower, until))
        return sum(self._sums[first:end])


def _packed(entries: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(starmap(_ENTRY.pack, entries))


def digest_of(collection: int, key: bytes, value: bytes, diff: int, time: int) -> int:
    """2^32 + the CRC-32C of four little-endian 8-byte numbers, followed by key and value. See FORMAT.md."""
    return _ROW_DIGEST + _crc32c(_numbers(collection, time, diff, len(key)) + key + value)
