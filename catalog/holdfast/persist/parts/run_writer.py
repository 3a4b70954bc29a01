"""Writes the parts of one run while its rows come.

Invariants:

- Rows come in the total order of (key, value, `_time`), so the parts of the run are sorted as a whole.
- The rows of one row group (`ROW_GROUP_BYTES`, or one row) are in memory, and the encoded bytes of one part.
  If parts are written ahead, it is the rows of three row groups and the bytes of two parts.
- A run that is not finished leaves nothing behind: its uploads are deleted. An upload of unknown outcome may
  leave a blob, whose key contains the writer's id.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from holdfast.errors import CLOSED
from holdfast.persist.ids import new_id, part_key
from holdfast.persist.parts.part_store import PartWriter, delete_parts, put_part
from holdfast.persist.rows.canonical import time_bounds
from holdfast.persist.rows.limits import Limit, first_value
from holdfast.persist.rows.part import ROW_GROUP_BYTES, PartFile, group_rows, row_group_bytes
from holdfast.persist.rows.schema import Schema
from holdfast.persist.rows.sizes import pieces_of
from holdfast.persist.rows.values import Rows
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part

_T = TypeVar("_T")

_GROUPS_AHEAD: Final = 2


def write_run(
    machine: Machine,
    *,
    writer_id: str,
    schema: Schema,
    schema_id: int,
    pieces: Iterable[Rows],
    before_upload: Callable[[], None] = lambda: None,
    ahead: bool = False,
    inline: bool = True,
) -> tuple[Part, ...]:
    """Make the parts of one run from pieces that are sorted as a whole, as they come.

    With `inline`, a small result becomes one inline part. `before_upload` runs before each part that is
    uploaded. With `ahead`, threads encode and upload rows while the next ones come. Raises the errors of
    `pieces`, and `StorageError` if an upload fails. Then nothing of the run is left.
    """
    target = _Target(PartWriter(machine, writer_id, schema, schema_id), before_upload, inline)
    if not ahead:
        return _write(_RunWriter(target, _now, _now), pieces)
    # One thread each, because row groups must be in order, and so must uploads.
    with ThreadPoolExecutor(1, "holdfast-encode") as encoder, ThreadPoolExecutor(1, "holdfast-upload") as up:
        return _write(_RunWriter(target, encoder.submit, up.submit), pieces)


@dataclass(frozen=True, slots=True)
class _Target:
    parts: PartWriter
    before_upload: Callable[[], None]
    inline: bool


def _write(writer: "_RunWriter", pieces: Iterable[Rows]) -> tuple[Part, ...]:
    try:
        for piece in pieces:
            writer.add(piece)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _Lane(Protocol):
    """Runs calls one after the other, now or soon."""

    def __call__(self, call: Callable[..., _T], /, *args: Any) -> "Future[_T]": ...


def _now(call: Callable[..., _T], /, *args: Any) -> "Future[_T]":
    done: Future[_T] = Future()
    done.set_result(call(*args))
    return done


class _RunWriter:
    def __init__(self, target: _Target, encode: _Lane, upload: _Lane) -> None:
        self._target = target
        self._encode = encode
        self._upload = upload
        self._waiting: list[Rows] = []
        self._waiting_rows = self._waiting_bytes = 0
        # Rows of more than 128 bytes make smaller row groups.
        self._group_bytes = min(ROW_GROUP_BYTES, target.parts.machine.config.part_target_bytes)
        self._open: _OpenPart | None = None
        self._encoding: deque[Future[None]] = deque()
        self._parts: list[Future[Part]] = []

    def add(self, rows: Rows) -> None:
        """Add rows that follow the previous ones in the order."""
        for piece in pieces_of(rows, self._group_bytes):
            self._add(piece)

    def _add(self, rows: Rows) -> None:
        start = 0
        while start < rows.num_rows:
            if self._waiting and self._room(rows) <= 0:
                self._write_group()
            piece = rows.slice(start, max(1, self._room(rows)))
            start += piece.num_rows
            self._waiting.append(piece)
            self._waiting_rows += piece.num_rows
            self._waiting_bytes += int(piece.nbytes)

    def finish(self) -> tuple[Part, ...]:
        """Return the parts. All of them are uploaded."""
        if self._waiting and self._open is None and not self._parts:
            target, updates = self._target, pa.Table.from_batches(_batches(self._waiting))
            return target.parts.write(
                updates, time_bounds(updates), target.before_upload, is_sorted=True, inline=target.inline
            )
        if self._waiting:
            self._write_group()
        if self._open is not None:
            self._close_part()
        return tuple(part.result() for part in self._parts)

    def abandon(self) -> None:
        """Delete the uploads."""
        uploaded = []
        for part in self._parts:
            with suppress(Exception):
                uploaded.append(part.result())
        delete_parts(self._target.parts.machine, uploaded)

    def _room(self, rows: Rows) -> int:
        """Return how many more such rows fit in the row group; 0 or less if it is full."""
        width = max(1, int(rows.nbytes) // int(rows.num_rows))
        most = min(self._group_bytes, row_group_bytes(width, rows.num_columns))
        most_rows = group_rows(self._target.parts.schema)
        return min(most_rows - self._waiting_rows, (most - self._waiting_bytes) // width)

    def _write_group(self) -> None:
        group = pa.Table.from_batches(_batches(self._waiting))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        bounds = time_bounds(group)
        assert bounds is not None
        if self._open is None:
            self._target.before_upload()
            self._open = _OpenPart(PartFile(self._target.parts.schema, self._target.parts.schema_id))
        part = self._open
        part.note(self._target.parts.schema, group, bounds)
        while len(self._encoding) >= _GROUPS_AHEAD:
            self._encoding.popleft().result()
        self._encoding.append(self._encode(part.file.write_group, group))
        # Groups are slightly below the limit, because one more slice would exceed it.
        if part.raw_bytes >= self._target.parts.machine.config.part_target_bytes - self._group_bytes // 2:
            self._close_part()

    def _close_part(self) -> None:
        part, self._open = self._open, None
        assert part is not None
        if self._parts:
            # At most one finished part waits in memory.
            self._parts[-1].result()
        encoded = self._encode(_finish, part.file, tuple(self._encoding))
        self._parts.append(self._upload(self._put, part, encoded))

    def _put(self, part: "_OpenPart", encoded: "Future[memoryview]") -> Part:
        target = self._target
        data = encoded.result()
        return put_part(
            target.parts.machine,
            part_key(target.parts.machine.shard_id, target.parts.writer_id, new_id("p")),
            data,
            rows=part.rows,
            schema_id=target.parts.schema_id,
            times=(part.earliest, part.latest),
            first=part.first,
            last=part.last,
        )


@dataclass(slots=True)
class _OpenPart:
    """A part that is being encoded, and statistics of its rows."""

    file: PartFile
    rows: int = 0
    raw_bytes: int = 0
    earliest: int = CLOSED
    latest: int = 0
    first: Limit | None = None
    last: Limit | None = None

    def note(self, schema: Schema, group: pa.Table, bounds: tuple[int, int]) -> None:
        """Count a row group."""
        if self.rows == 0:
            self.first = first_value(schema, group, 0)
        self.last = first_value(schema, group, group.num_rows - 1)
        self.rows += group.num_rows
        self.raw_bytes += group.nbytes
        self.earliest, self.latest = min(self.earliest, bounds[0]), max(self.latest, bounds[1])


def _finish(file: PartFile, groups: Iterable["Future[None]"]) -> memoryview:
    for group in groups:
        # A row group that failed is not in the file.
        group.result()
    return file.finish()


def _batches(pieces: Iterable[Rows]) -> list[pa.RecordBatch]:
    """Return the pieces as batches of one table."""
    return [
        batch
        for piece in pieces
        for batch in (piece.to_batches() if isinstance(piece, pa.Table) else [piece])
    ]
