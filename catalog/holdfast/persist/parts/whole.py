"""Parts that are the contents of a shard as they are, for engines that decode Parquet themselves.

- The rows of a part need no change if each of them was added once, at a wanted time, under the schema of the
  contents. The footer says so, which was verified.
- An engine may only trust the bounds of values in a footer if no value is NaN. Parquet's statistics skip NaN,
  and engines differ in what they conclude from that. So a part with NaN is not read in this way.
- DuckDB 2.0 finds null in rows with a value if a column of bytes without a dictionary has nulls and one value
  in a row group. A part with such a group is not read in this way.
- Engines find columns by their names, and may ignore case. So no two stored names may differ only in case.
- The engine reads through a `VerifiedFile`. It gets no byte that was not verified
  (`holdfast.persist.parts.verified`).
"""

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CorruptBlob
from holdfast.persist.parts.row_groups import times_and_diff
from holdfast.persist.parts.runs import Run
from holdfast.persist.parts.verified import (
    KnownPart,
    forget,
    is_known,
    known_part,
    open_part_file,
    verified_bytes,
)
from holdfast.persist.rows.groups import groups_with_nan
from holdfast.persist.rows.part import UNREADABLE, read_error
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.machine import Machine, retry

_PLAIN: Final = "engines conclude the same from its statistics"
_BYTES: Final = frozenset({"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"})


class VerifiedFile:
    """The bytes of a part, as a file for several threads. Close it when no thread reads any more."""

    def __init__(self, machine: Machine, known: KnownPart, between: Callable[[], None]) -> None:
        self.size: Final = known.part.size_bytes
        self.footer_bytes: Final = known.footer_bytes
        """About what its footer takes in memory."""
        location_id, part = machine.location.location_id, known.part
        self.identity: Final = f"{location_id} {part.blob_key} {part.crc32c} {part.size_bytes}"
        """Equal for files with equal bytes."""
        self.derived: Final = known.bounds.derived
        """What others concluded from its footer."""
        self._machine = machine
        self._known = known
        self._between = between
        first = open_part_file(machine, known.part)
        # All threads can use one file of a local disk, and it stays readable if the part is deleted. Of other
        # stores, each thread that reads takes a file of its own.
        self._is_local: Final = isinstance(first, pa.OSFile)
        self._is_kept = False
        self._idle: list[pa.NativeFile] = [first]

    def keep(self) -> bool:
        """Stay open after `close`, until nothing refers to this. Returns False if a deleted part is gone."""
        self._is_kept = self._is_local
        return self._is_kept

    def read_at(self, start: int, size: int) -> bytes:
        """Read at most `size` bytes. Retries like all reads of a part.

        Raises:
            PartGone: the blob was deleted.
            CorruptBlob: the bytes are damaged.
        """
        self._between()
        end = min(self.size, start + size)
        if end <= start:
            return b""
        part = self._known.part
        try:
            return self._read(start, end)
        except CorruptBlob:
            # A cached copy may be damaged since it was verified. The second error is the store's.
            if not forget(self._machine, part):
                raise
        if self._is_local:
            # Other threads may be reading it.
            self._idle.clear()
        else:
            self.close()
        self._known = known_part(self._machine, part)
        return self._read(start, end)

    def _read(self, start: int, end: int) -> bytes:
        return retry(lambda: self._attempt(start, end), self._machine.config, self._machine.clock)

    def _attempt(self, start: int, end: int) -> bytes:
        part = self._known.part
        try:
            file = self._idle[0] if self._is_local else self._idle.pop()
        except IndexError:
            file = open_part_file(self._machine, part)
            if self._is_local:
                self._idle.append(file)
        try:
            found = verified_bytes(file, part, self._known.blocks, start, end)
        except BaseException as error:
            if not self._is_local:
                file.close()
            if isinstance(error, UNREADABLE):
                raise read_error(error, str(part.blob_key)) from error
            raise
        if not self._is_local:
            self._idle.append(file)
        return found

    def close(self) -> None:
        """Close what is open, unless it is kept. A later read opens the part again."""
        while self._idle and not self._is_kept:
            self._idle.pop().close()


def whole_parts(
    machine: Machine,
    schema: Schema,
    runs: Sequence[Run],
    as_of: int,
    least_rows: int,
    *,
    most: int,
    only_known: bool = False,
) -> list[KnownPart] | None:
    """Return the parts whose rows, together, are the contents at a time; None if some rows need a change.

    Also None if there are fewer than `least_rows` rows or more than `most` parts, or with `only_known` if a
    part is to be verified first. Raises `PartGone` and `CorruptBlob`.
    """
    parts = [part for run in runs for part in run if part.lower <= as_of]
    if len({column.name.casefold() for column in schema.columns}) < len(schema.columns):
        return None
    if len(parts) > most or machine.config.audit_pushdown or sum(part.rows for part in parts) < least_rows:
        return None
    if any(part.inline is not None or machine.schema_of(part) != schema for part in parts):
        return None
    if only_known and not all(is_known(machine, part) for part in parts):
        return None
    found = [known_part(machine, part) for part in parts]
    return found if found and all(_is_whole(known, schema, as_of) for known in found) else None


def _is_whole(known: KnownPart, schema: Schema, as_of: int) -> bool:
    groups = range(known.metadata.num_row_groups)
    if not groups:
        return False
    part = known.part
    times, diff = times_and_diff(known, groups)
    if diff != 1 or times is None or times[0] < part.lower or times[1] > min(part.upper - 1, as_of):
        return False
    if _PLAIN not in known.bounds.derived:
        nan = [groups_with_nan(column, known.metadata) for column in schema.columns]
        has_no_nan = all(each is not None and not each for each in nan)
        known.bounds.derived[_PLAIN] = has_no_nan and not _has_null_beside_one_value(known.metadata)
    return bool(known.bounds.derived[_PLAIN])


def _has_null_beside_one_value(metadata: pq.FileMetaData) -> bool:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            found = chunk.statistics
            if chunk.physical_type not in _BYTES or chunk.has_dictionary_page:
                continue
            if found is None or not found.has_null_count:
                return True
            if found.null_count and (not found.has_min_max or found.min_raw == found.max_raw):
                return True
    return False
