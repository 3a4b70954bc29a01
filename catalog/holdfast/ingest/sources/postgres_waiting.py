"""Waits for a Postgres server that end: if nothing comes for too long, and if the pipeline is to end.

A process of the server may be frozen, as by SIGSTOP or by storage that hangs. The kernel of its host still
confirms what we send, so that TCP notices nothing. Then the connection is closed, as if it was lost.
"""

import select
import time
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.abc import PQGen, PQGenConn
from psycopg.pq.abc import PGconn
from psycopg.rows import TupleRow
from psycopg.waiting import Wait

from holdfast.ingest.waits import Waits

ANSWER_S: Final = 60.0
"""Seconds without an answer after which a connection is lost."""
LONG_ANSWER_S: Final = 3600.0
"""The same for a statement that reads the log or a table, or waits for a lock: it sends nothing meanwhile."""
SOON_S: Final = 5.0
"""The same for a statement that only says more about another wait."""
LOOK_S: Final = 0.2
"""Seconds between two looks whether the pipeline is to end."""

_T = TypeVar("_T")


class WatchedConnection(psycopg.Connection[TupleRow]):
    """A connection that closes itself after `most_s` without an answer, and if the pipeline is to end.

    Its calls then raise `psycopg.OperationalError` or `Stopped`. All its waits go through `wait`, except that
    for the server to let it in, which goes through `_connect_gen` and has the time limit of libpq.
    """

    waits = Waits()
    most_s = ANSWER_S

    @classmethod
    def of(cls, waits: Waits) -> "type[WatchedConnection]":
        """The kind of connection that looks at these waits, from its first contact on."""
        return type(cls.__name__, (cls,), {"waits": waits})

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> PQGenConn[Self]:
        """Connect as psycopg does. It resumes this each 0.1 s if nothing came."""
        gen = super()._connect_gen(conninfo)
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready:
                    cls.waits.pause(0)
                wanted = gen.send(ready)
        except StopIteration as ended:
            opened: Self = ended.value
            return opened

    def wait(self, gen: PQGen[_T], *args: Any, **kwargs: Any) -> _T:
        """Wait for an operation as psycopg does. It resumes the operation each 0.1 s if nothing came."""
        try:
            wanted = next(gen)
        except StopIteration as ended:
            # What it needs is here, as nearly always while rows come.
            result: _T = ended.value
            return result
        return super().wait(self._watched(gen, wanted), *args, **kwargs)

    def _watched(self, gen: PQGen[_T], wanted: Wait) -> PQGen[_T]:
        began_s = time.monotonic()
        try:
            while True:
                ready = yield wanted
                if ready:
                    began_s = time.monotonic()
                else:
                    self._check(began_s)
                wanted = gen.send(ready)
        except StopIteration as ended:
            result: _T = ended.value
            return result

    def _check(self, began_s: float) -> None:
        try:
            self.waits.pause(0)
            if time.monotonic() > began_s + self.most_s:
                raise silent(self.most_s)
        except BaseException:
            # Nobody knows what the server does with the statement.
            self.close()
            raise


def silent(seconds: float) -> psycopg.OperationalError:
    """The error for a server that has sent nothing for so long."""
    return psycopg.OperationalError(f"the server has sent nothing for {seconds:g} s")


def await_result(pgconn: PGconn, waits: Waits, most_s: float) -> bool:
    """Wait for the result of a command that was sent. False if it takes longer than `most_s`.

    Raises `psycopg.Error` and `Stopped`.
    """
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    deadline = time.monotonic() + most_s
    while pgconn.is_busy():
        if poll.poll(min(LOOK_S, most_s) * 1000):
            pgconn.consume_input()
        elif time.monotonic() > deadline:
            return False
        else:
            waits.pause(0)
    return True
