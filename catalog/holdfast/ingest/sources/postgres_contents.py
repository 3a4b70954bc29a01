"""The initial contents of a table of Postgres: those when a slot was made, from the snapshot that it exports.

`holdfast.ingest.sources.postgres` says how an attempt for them is bound.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from psycopg import errors, sql

from holdfast.errors import SourceChanged, SourceStalled, StoreUnreachable
from holdfast.ingest.source import Binding, LastMessage, Piece, Range
from holdfast.ingest.sources.postgres_asked import AskedTable
from holdfast.ingest.sources.postgres_client import PATIENCE_S, Replication
from holdfast.ingest.sources.postgres_log import position_of
from holdfast.ingest.sources.postgres_rows import PIECE_BYTES, Messages
from holdfast.ingest.sources.postgres_server import Slot, SlotIdentity
from holdfast.ingest.sources.postgres_table import Unfit
from holdfast.ingest.sources.postgres_waiting import LONG_ANSWER_S
from holdfast.pg_session import Connection

_LOOK_S: Final = 2.0
"""Seconds between two looks at what the making of a slot waits for."""
_NO_TRANSACTION: Final = LastMessage(0, 0)
"""The last transaction of a binding that has only the initial contents."""


@dataclass
class _Snapshot:
    """The contents of the table when a slot was made, as long as its connections live."""

    wanted: Range
    replication: Replication
    connection: Connection

    def close(self) -> None:
        for each in (self.connection, self.replication):
            with suppress(psycopg.Error):
                each.close()


class TableContents:
    """Attempts for the contents of a table, one after the other. They may have `most_bytes` of messages."""

    def __init__(self, table: AskedTable, most_bytes: int) -> None:
        self._table = table
        self._most_bytes = most_bytes
        self._attempt = ""
        self._snapshot: _Snapshot | None = None

    def propose(self, position: int, bound: str = "") -> Range:
        """The range that binds the name of an attempt, which is not the name that is bound."""
        if self._attempt in {"", bound}:
            self.end()
            self._attempt = f"{self._table.prefix}{secrets.token_hex(4)}"
            self._table.client.lock(self._attempt)
        return Range(self._table.spec.table, position, position, str(SlotIdentity(self._attempt)))

    def attempted(self, binding: Binding, identity: SlotIdentity, slots: Mapping[str, Slot]) -> Range:
        """The contents of the table, if our name is bound. Otherwise it waits or takes over."""
        if identity.slot != self._attempt:
            if not self._table.client.lock(identity.slot):
                return self._waiting(binding, identity)
            self._table.client.unlock(identity.slot)
            return self.propose(binding.position, identity.slot)
        if self._snapshot is None or not self._is_alive(self._snapshot):
            self.end_snapshot()
            self._table.drop_others(slots, "")
            try:
                self._snapshot = self._begin()
            except SourceChanged:
                return self._waiting(binding, identity)
        return self._snapshot.wanted

    def _waiting(self, binding: Binding, identity: SlotIdentity) -> Range:
        return Range(self._table.spec.table, 0, binding.position, str(identity), whole=True, waits=True)

    def _is_alive(self, snapshot: _Snapshot) -> bool:
        return not snapshot.connection.closed and snapshot.replication.is_alive

    def _begin(self) -> _Snapshot:
        """Make a slot, and open its snapshot. Raises `SourceChanged` if that may work next time."""
        with ExitStack() as stack:
            try:
                replication = stack.enter_context(closing(self._table.client.replication()))
                position, exported = self._made_slot(replication)
                connection = stack.enter_context(closing(self._table.client.new()))
                connection.most_s = LONG_ANSWER_S
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(exported))
                lock = sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE")
                connection.execute(lock.format(self._identifier))
                table = self._table.facts(connection)
                if self._table.client.retried(self._table.facts, long=True) != table:
                    # A table that was truncated or written anew is empty for older snapshots.
                    raise SourceChanged(f"{self._table.where} changed while its snapshot was made")
            except psycopg.Error as error:
                raise self._table.failed(
                    f"read {self._table.where} with slot {self._attempt}", error
                ) from None
            except Unfit as error:
                raise SourceStalled(f"{self._table.where} {error.reason}", hint=error.hint) from None
            identity = SlotIdentity(self._attempt, self._table.look().timeline, table.facts)
            wanted = Range(self._table.spec.table, 0, position, str(identity), whole=True)
            stack.pop_all()
            return _Snapshot(wanted, replication, connection)

    def _made_slot(self, replication: Replication) -> tuple[int, str]:
        """Make a slot. Returns its position, and the name of the snapshot that it exports."""
        command = f"CREATE_REPLICATION_SLOT {self._attempt} LOGICAL pgoutput (SNAPSHOT 'export')"
        replication.send(command)
        waits, began_s, wait = self._table.waits, time.monotonic(), None
        while (row := replication.row(min(_LOOK_S, PATIENCE_S))) is None:
            wait = self._table.slot_wait(replication.process)
            if time.monotonic() >= began_s + PATIENCE_S:
                raise StoreUnreachable(
                    f"can't make a slot for {self._table.where} within {PATIENCE_S:g} s: waiting for"
                    f" {wait.who}: {wait.reason}",
                    hint=wait.hint,
                )
            waits.away(wait.who, f"{wait.reason} ({self._table.where})", began_s)
        if wait is not None:
            waits.back(wait.who)
        _, position, exported, *_ = [(each or b"").decode() for each in row]
        return position_of(position), exported

    @property
    def _identifier(self) -> sql.Identifier:
        return sql.Identifier(*self._table.spec.table.split("."))

    def end_snapshot(self) -> None:
        """Close the snapshot. The attempt may open another one."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def end(self) -> None:
        """End the attempt."""
        self.end_snapshot()
        if self._attempt:
            with suppress(psycopg.Error, StoreUnreachable):
                self._table.client.unlock(self._attempt)
            self._attempt = ""

    def read(self, wanted: Range) -> Iterator[Piece]:
        """The contents in the snapshot. Raises `Stopped`, and like `Source.read`."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.wanted != wanted:
            raise SourceChanged(f"the snapshot of {self._table.where} is not open any more")
        names = sql.SQL(", ").join([sql.Identifier(each) for each in self._table.columns.names])
        query = sql.SQL("COPY (SELECT {} FROM ONLY {}) TO STDOUT (FORMAT csv)").format(
            names, self._identifier
        )
        messages = Messages(self._table.columns, self._table.keys, clears=True)
        rows, size = bytearray(), 0
        try:
            with snapshot.connection.cursor() as cursor, cursor.copy(query) as copy:
                for row in copy:
                    rows += row
                    if len(rows) >= PIECE_BYTES:
                        self._table.waits.pause(0)
                        messages.add_csv(bytes(rows))
                        size += messages.size_bytes
                        if size > self._most_bytes:
                            raise self._too_much()
                        yield messages.piece(wanted.begin)
                        messages, rows = messages.next(), bytearray()
                messages.add_csv(bytes(rows))
                if size + messages.size_bytes > self._most_bytes:
                    raise self._too_much()
        except psycopg.Error as error:
            raise self._table.failed(f"read {self._table.where}", error) from None
        finally:
            # What it read is bound now, or it starts over.
            self.end_snapshot()
        self._table.has_read()
        yield replace(messages.piece(wanted.end), last=_NO_TRANSACTION)

    def _too_much(self) -> SourceStalled:
        # Nobody can bind this slot any more, and it would keep the server's log.
        self.end_snapshot()
        with suppress(errors.ObjectInUse, errors.UndefinedObject):
            self._table.drop(self._attempt)
        return SourceStalled(
            f"{self._table.where}: the initial contents have more than {self._most_bytes:,} bytes, and are"
            " read at one time",
            hint="raise batch.maxTransactionBytes, and give the process about ten times as much memory; or"
            " leave out columns",
        )
