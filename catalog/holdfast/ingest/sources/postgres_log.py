"""The part of a server's log that a range names: its positions, and the events of one table in it. Pure."""

from collections.abc import Iterable, Iterator

import xxhash

from holdfast.ingest.source import LastMessage, Range
from holdfast.ingest.sources.pgoutput import (
    Event,
    Relation,
    RowChange,
    TransactionBegin,
    TransactionEnd,
    Truncation,
    decode,
)


class OtherLog(Exception):
    """The log before a range is not the one that is bound. Has its last transaction, if there is one."""

    def __init__(self, before: TransactionBegin | None) -> None:
        super().__init__()
        self.before = before


class LogPart:
    """The events of a table in a part of the log.

    The slot may have transactions before the part. They are dropped, but the last of them must be the one
    that is bound. A stream that `continues` has none. `count` is the number of messages of the part.
    """

    def __init__(self, wanted: Range, table: int, confirmed: int, *, continues: bool) -> None:
        self._wanted = wanted
        self._continues = continues
        self._table = table
        self._confirmed = confirmed
        self.transaction = TransactionBegin(0)
        self.last = wanted.after
        self.relation: Relation | None = None
        self.count = 0
        self.is_over = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed the table so far."""
        return self.last is self._wanted.after

    def events(self, messages: Iterable[bytes]) -> Iterator[tuple[Event, int]]:
        """The events, and how many bytes each one has. Raises `OtherLog`."""
        tables, skips, before = frozenset({self._table}), not self._continues, None
        is_noted = False
        for message in messages:
            event = decode(message, tables)
            if isinstance(event, TransactionBegin):
                if skips and event.at >= self._wanted.begin:
                    skips = False
                    self._compare(before)
                # The server stops only after a record that ends there or later.
                if event.at >= self._wanted.end:
                    self.is_over = True
                    return
                self.transaction, is_noted = event, False
            self.count += not skips
            changes = _changed_table(event, self._table)
            if changes and skips:
                before = self.transaction
            elif changes and not is_noted:
                self.last, is_noted = last_of(self.transaction), True
            if isinstance(event, Relation):
                if event.table == self._table:
                    self.relation = event
                    yield event, len(message)
            elif not skips and (changes or isinstance(event, TransactionBegin | TransactionEnd)):
                assert event is not None
                yield event, len(message)
        if skips:
            self._compare(before)

    def _compare(self, before: TransactionBegin | None) -> None:
        """Compare the last transaction before the part, or None if the slot is confirmed beyond it."""
        bound = self._wanted.after
        if bound is None:
            # A binding of an earlier build.
            return
        if bound.position >= self._confirmed if before is None else last_of(before) != bound:
            raise OtherLog(before)


def _changed_table(event: Event | None, table: int) -> bool:
    """Whether an event changes rows of a table."""
    return isinstance(event, RowChange) or (isinstance(event, Truncation) and table in event.tables)


def last_of(transaction: TransactionBegin) -> LastMessage:
    """What a binding has of the last transaction that changed the table."""
    return LastMessage(transaction.at, xxhash.xxh3_64_intdigest(transaction.facts))


def lsn(position: int) -> str:
    """A position as Postgres shows it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def position_of(shown: str) -> int:
    """The position that Postgres shows so."""
    high, low = shown.split("/")
    return int(high, 16) << 32 | int(low, 16)
