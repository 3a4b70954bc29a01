"""Hints of commits between the clients of one Postgres schema, by LISTEN and NOTIFY on a separate session.

The commit of a NOTIFY takes a lock of the whole cluster, so an append does not include it. Instead, a thread
of the client sends it afterwards, on its own session. It sends at most one per `DEBOUNCE_S`, for all keys of
that time. It does not wait for a flush, because a hint is not data.

Invariants:

- No commit waits for a hint, and losing a hint is not an error. Without a session (the server is down, it is
  a standby, or a pooler in between has no session to give) nothing is sent, and listeners poll at their slow
  pace. After each connection, all watches get a hint.
- The first commit or watch opens the session. It is not used on both sides of a fork.
"""

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import sql

from holdfast.persist.stores.watch import Watches
from holdfast.pg_session import Connection, PostgresAddress, connect

DEBOUNCE_S: Final = 0.005
"""Seconds between two notifications of one client. Hints may be this late; this limits their cost."""

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 10.0
_JOIN_S: Final = 2.0
_NOTIFY: Final = b"SELECT pg_notify(%s::text, key) FROM unnest(%s::text[]) AS changed(key)"


class CommitHints:
    """Sends hints of this client's appends to other clients, and rings `watches` for theirs."""

    def __init__(self, address: PostgresAddress, watches: Watches) -> None:
        self._address: Final = address
        self._watches: Final = watches
        # The name of a channel has at most 63 bytes, like the name of a schema.
        self._channel: Final = f"hf_{address.schema}"[:63]
        self._closed = False
        self._listens = False
        self._connection: Connection | None = None
        self.renew()
        _live.add(self)

    def appended(self, keys: Iterable[str]) -> None:
        """Soon notify other clients of committed appends."""
        with self._lock:
            self._pending.update(keys)
            self._start()
        self._wake()

    def listen(self) -> None:
        """Ring the watches for the appends of other clients from now on."""
        with self._lock:
            if self._listens:
                return
            self._listens = True
            self._start()
        self._wake()

    def close(self) -> None:
        """End the session. Hints that were not sent yet are dropped."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake()
        if thread is not None:
            # It takes longer only if the server does not answer. The thread does not keep the process alive.
            thread.join(_JOIN_S)
        self._watches.ring_all()

    def renew(self) -> None:
        """Start without a session, also in a forked child, which leaves the parent's session alone."""
        if self._connection is not None:
            _abandoned.append(self._connection)
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._thread: threading.Thread | None = None
        self._connection = None
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="holdfast-hints", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        # A full pipe wakes the thread anyway; a closed one has no thread to wake.
        with suppress(OSError):
            self._waker.send(b"!")

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed:
            started = time.monotonic()
            try:
                self._connection = connect(self._address)
                self._serve(self._connection)
            except (psycopg.Error, OSError):
                self._watches.ring_all()
            finally:
                self._hang_up()
            if time.monotonic() - started > _LAST_RETRY_S:
                retry_s = _FIRST_RETRY_S
            ends = time.monotonic() + retry_s
            while not self._closed and (left := ends - time.monotonic()) > 0:
                self._sleep([self._woken], left)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)
        self._waker.close()
        self._woken.close()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _serve(self, connection: Connection) -> None:
        """Send and receive hints until the store is closed. Raises `psycopg.Error` if the session is lost."""
        connection.execute("SET synchronous_commit = off")
        connection.add_notify_handler(lambda told: self._heard(told.payload, told.pid, connection))
        listens = False
        next_notify = 0.0
        while not self._closed:
            if self._listens and not listens:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                listens = True
                self._watches.ring_all()
            timeout = None
            if self._pending:
                timeout = next_notify - time.monotonic()
                if timeout <= 0:
                    self._notify(connection)
                    next_notify = time.monotonic() + DEBOUNCE_S
                    continue
            self._sleep([self._woken, connection], timeout)
            connection.pgconn.consume_input()
            while told := connection.pgconn.notifies():
                self._heard(told.extra.decode(errors="replace"), told.be_pid, connection)

    def _notify(self, connection: Connection) -> None:
        with self._lock:
            keys, self._pending = self._pending, set()
        connection.execute(_NOTIFY, (self._channel, sorted(keys)))

    def _heard(self, key: str, pid: int, connection: Connection) -> None:
        # This client has given hints of its own appends already.
        if pid != connection.info.backend_pid:
            self._watches.ring((key,))

    def _sleep(self, until: list[Any], timeout_s: float | None) -> None:
        """Wait until one of these has something to read, and empty the wake-up pipe."""
        poll = select.poll()
        for each in until:
            poll.register(each, select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass


# Objects that a forked child inherits are kept for ever: finalizing one would end the parent's session.
_live: Final[weakref.WeakSet[CommitHints]] = weakref.WeakSet()
_abandoned: Final[list[Connection]] = []


def _after_fork_in_child() -> None:
    for hints in list(_live):
        hints.renew()


os.register_at_fork(after_in_child=_after_fork_in_child)
