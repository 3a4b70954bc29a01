"""The changes of a slot in one stream, which stays open between steps (START_REPLICATION).

A peek at a slot makes the server decode its log again, from the oldest transaction that is still open.
In a stream the server decodes each part of the log once.

- A stream has the messages that a peek returns: the same session settings make the same text.
- The server sends a transaction after its commit, and transactions in the order of their commits. Its
  keepalives say how far it has decoded the log. All transactions before that position were sent before.
- Only `confirm` moves the slot. Otherwise the flush position in a status is 0. The server doesn't wait for
  such a receiver: neither when it shuts down, nor as for a synchronous standby. It treats `pg_basebackup` the
  same way. A position would stay in place until the next status. So one without it follows at once.
- A thread sends a status every few seconds, also while a step commits. The server ends a stream without
  them. So the slot of an instance that vanished is free after `_GONE_S`. The thread stops if nobody has used
  the stream for `_UNUSED_S`: another instance may do better.
- Besides what libpq reads at once, two batches of at most `_BATCH_BYTES` and a message are in memory.
- A stream that was lost is over. Nothing is sent again.
"""

import select
import struct
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Final

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus

from holdfast.ingest.sources.pgoutput import Relation
from holdfast.ingest.sources.postgres_waiting import ANSWER_S, LOOK_S, await_result, silent
from holdfast.ingest.waits import Waits
from holdfast.pg_session import Connection

_GONE_S: Final = 60
_STATUS_S: Final = 2.0
_UNUSED_S: Final = 300.0
_BATCH_BYTES: Final = 1 << 18
_FIRST_S: Final = 0.01
_EPOCH_S: Final = 946_684_800
"""2000-01-01, from which Postgres counts."""
_KEEPALIVE: Final = struct.Struct(">xQQB")
_STATUS: Final = struct.Struct(">cQQQqB")
_HEAD: Final = 25
"""What comes before a message: its kind, two positions and a time."""
_MESSAGE, _ALIVE = b"wk"
_BEGIN, _COMMIT = b"BC"
_AT: Final = struct.Struct(">xQ")
_PAGE: Final = 8192
_PAGE_HEADER: Final = 40


def reaches(position: int, end: int) -> bool:
    """Whether all records before `end` are before a position, too.

    Only the header of a page may come after the last one.
    """
    return position >= end or (end - position <= _PAGE_HEADER and position % _PAGE == 0)


class ChangeStream:
    """The changes of a slot, from its confirmed position. One thread reads them.

    `process` is the server's process that sends them. `relation` is the last one that the reader found. It
    comes only once.
    """

    def __init__(self, connection: Connection, slot: str, publication: str, waits: Waits) -> None:
        """Begin a stream on a connection for commands of replication, and close that at the end.

        `publication` is a quoted list. Raises `psycopg.Error`.
        """
        self.slot = slot
        self.relation: Relation | None = None
        self._connection = connection
        self._waits = waits
        self._pgconn = connection.pgconn
        self.process = self._pgconn.backend_pid
        self._lock = threading.Lock()
        self._received = 0
        self._arrived: list[bytes | int] = []
        self._size = 0
        self._batch: deque[bytes | int] = deque()
        self._passed = 0
        self._read: tuple[int, int] | None = None
        self._failure: psycopg.Error | None = None
        self._ended = threading.Event()
        self._used_s = time.monotonic()
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._thread = threading.Thread(target=self._report_often, name=f"status of {slot}", daemon=True)
        try:
            connection.execute(f"SET wal_sender_timeout = '{_GONE_S}s'")
            self._start(f"proto_version '1', publication_names '{publication.replace(chr(39), chr(39) * 2)}'")
        except BaseException:
            connection.close()
            raise
        self._thread.start()

    def _start(self, options: str) -> None:
        self._pgconn.send_query(f"START_REPLICATION SLOT {self.slot} LOGICAL 0/0 ({options})".encode())
        if not await_result(self._pgconn, self._waits, ANSWER_S):
            raise silent(ANSWER_S)
        result = self._pgconn.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            raise errors.OperationalError("no stream") if result is None else errors.error_from_result(result)

    # What was read

    def continues(self, begin: int) -> bool:
        """Whether the next message is the first one that a reader from a position needs."""
        return self._read is not None and self._read[0] <= begin <= self._read[1]

    def settle(self, begin: int, end: int, relation: Relation | None) -> None:
        """Remember that what comes next follows `end`, and that nothing was found since `begin`.

        `relation` is the one of the table, if it came.
        """
        self._read = (begin, end)
        self.relation = relation or self.relation

    @property
    def is_settled(self) -> bool:
        """Whether somebody can continue. From the next message on nobody can, until `settle`."""
        return self._read is not None

    # Reading

    def messages(self, begin: int, end: int, most: int) -> Generator[bytes]:
        """The messages of the transactions before `end`, which is between two records.

        It ends after a whole transaction if there are `most` messages since `begin`. Raises `psycopg.Error`
        and `Stopped`.
        """
        count, is_inside, counts = 0, False, False
        while is_inside or not reaches(self._passed, end):
            self._read = None
            message = self._next()
            if isinstance(message, int):
                self._passed = message
                continue
            kind = message[0]
            if kind == _BEGIN:
                at = _AT.unpack_from(message)[0]
                if at >= end:
                    self._batch.appendleft(message)
                    return
                counts = at >= begin
            is_inside = kind != _COMMIT
            count += counts
            yield message
            if count >= most and not is_inside:
                return

    def _next(self) -> bytes | int:
        """The next message, or the position that a keepalive has. Waits for it.

        The server sends a keepalive when it has reached the end of its log, and when it is asked for one,
        also while it decodes a large transaction. If nothing comes for `ANSWER_S`, the stream is lost.
        """
        pause_s, heard_s = _FIRST_S, time.monotonic()
        while not self._batch:
            self._waits.pause(0)
            self._used_s = time.monotonic()
            with self._lock:
                self._take_in()
                self._batch.extend(self._arrived)
                self._arrived, self._size = [], 0
                if self._batch:
                    break
                if pause_s > _FIRST_S:
                    self._report(asks=True)
            if self._poll.poll(pause_s * 1000):
                pause_s, heard_s = _FIRST_S, time.monotonic()
                continue
            if time.monotonic() > heard_s + ANSWER_S:
                raise silent(ANSWER_S)
            pause_s = min(2 * pause_s, LOOK_S)
        return self._batch.popleft()

    def _take_in(self) -> None:
        """Take in what has arrived. The caller has the lock. Raises `psycopg.Error`."""
        if self._failure is not None:
            raise self._failure
        is_fresh = False
        while self._size < _BATCH_BYTES:
            size, data = self._pgconn.get_copy_data(1)
            if size == 0 and is_fresh:
                return
            if size == 0:
                self._pgconn.consume_input()
                is_fresh = True
                continue
            if size < 0:
                result = self._pgconn.get_result()
                if result is not None and result.status == ExecStatus.FATAL_ERROR:
                    raise errors.error_from_result(result)
                raise errors.OperationalError("the server has ended the stream")
            if data[0] == _MESSAGE:
                self._arrived.append(bytes(data[_HEAD:]))
                self._size += size
            elif data[0] == _ALIVE:
                position, _, asks = _KEEPALIVE.unpack(data)
                self._received = max(self._received, position)
                if self._arrived and isinstance(self._arrived[-1], int):
                    self._arrived.pop()
                self._arrived.append(self._received)
                if asks:
                    self._report()

    # Status

    def confirm(self, position: int) -> None:
        """Move the slot up to a position. Raises `psycopg.Error`."""
        self._used_s = time.monotonic()
        with self._lock:
            self._report(position)
            self._report()

    def _report(self, flushed: int = 0, *, asks: bool = False) -> None:
        now = int((time.time() - _EPOCH_S) * 1_000_000)
        self._pgconn.put_copy_data(_STATUS.pack(b"r", self._received, flushed, 0, now, asks))
        self._pgconn.flush()

    def _report_often(self) -> None:
        while not self._ended.wait(_STATUS_S) and time.monotonic() - self._used_s < _UNUSED_S:
            with self._lock:
                try:
                    self._take_in()
                    self._report()
                except psycopg.Error as error:
                    # The next reader gets it.
                    self._failure = error
                    return

    def close(self) -> None:
        """End the stream. The server notices that a moment later."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(psycopg.Error):
            self._connection.close()
