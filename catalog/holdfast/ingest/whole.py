"""Steps that end between transactions of Debezium.

Before a step reads rows, its messages are read once for what they say about transactions
(`holdfast.ingest.transactions`). The step then reads exactly the ranges that end before the first transaction
that is not complete. Only the bindings are stored. A follower needs no other information.

The topic of transactions is not bound. Its messages are facts that can be found again: a process begins
there at the time of the first message that is not bound, and looks at all of it before it says that
something is gone.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.errors import SourceChanged, SourceStalled
from holdfast.ingest.formats.debezium import PAYLOAD
from holdfast.ingest.formats.decoded import Format
from holdfast.ingest.formats.transactions import TABLE
from holdfast.ingest.plan import plan
from holdfast.ingest.source import Binding, Piece, Range, Source
from holdfast.ingest.spec import IngestSpec
from holdfast.ingest.transactions import EVENTS, cuts, is_passed

PATIENCE_S: Final = 10.0
"""Seconds that a transaction may wait before it counts as damaged, if something shows the damage."""
_EARLIER_MS: Final = 600_000
"""The END of a transaction is looked for from so long before its first event."""
_MOST_ENDS: Final = 1_000_000
_MOST_BOUND: Final = 200_000
_MESSAGE_BYTES: Final = 16
"""What a message takes besides its key and its value."""
_REMOVE: Final = (
    "remove kafka.transactions from the source until the collection is beyond it, which may show a part of"
    " the transaction for a while"
)
_TXID: Final = ("postgresql", "yugabytedb")
"""Connectors whose ids have the position of an operation after a colon, which may differ in a transaction."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """The topic of transactions, and what decodes change events into `MARKS`, and its messages into `BOUNDS`.

    `open` opens it at a time in milliseconds, or at its beginning.
    """

    topic: str
    marks: Format
    bounds: Format
    open: Callable[[int | None], Source]


@dataclass
class _Scan:
    """What was read of a partition: the events in `[begin, reached)`."""

    identity: str
    begin: int
    reached: int
    events: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EVENTS))

    def is_beyond(self, end: int, size: int) -> bool:
        """Whether the next message after this end would be beyond this size."""
        return int(self.events.filter(pl.col("position") <= end)["size"].sum()) > size


class _Ends:
    """What is known of the topic of transactions: how many events of the table each transaction had.

    A transaction that has begun and not ended has None.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._source: Source | None = None
        self._read: dict[str, Binding] = {}
        self.counts: dict[str, int | None] = {}
        self.unread = ""
        """The first message that is not one of Debezium's, and why."""

    @property
    def ended(self) -> dict[str, int]:
        return {id_: count for id_, count in self.counts.items() if count is not None}

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def begin(self, since_ms: int | None) -> None:
        """Read from there on."""
        self.close()
        self._read = {}
        self._source = self._transactions.open(since_ms)

    def find(self, events: pl.DataFrame, table: "_Table", since_ms: int | None) -> None:
        """Read on until the transactions of these events have ended, or to the end of the topic."""
        last = events.filter(pl.col("id").is_not_null()).group_by("id").agg(pl.col("order").max())
        wanted = dict(last.iter_rows())
        if not (wanted := self._missing(wanted)):
            return
        if len(self.counts) > _MOST_ENDS:
            self.counts = {id_: count for id_, count in self.counts.items() if id_ in wanted}
        if self._source is None:
            self.begin(None if since_ms is None else max(0, since_ms - _EARLIER_MS))
        assert self._source is not None
        for each in self._source.probe(self._read):
            at = Binding(each.begin, each.identity)
            if each.begin == each.end:
                self._read.setdefault(each.partition, at)
                continue
            for piece in self._source.read(each):
                self._take(piece, each.partition, table)
                self._read[each.partition] = replace(at, position=piece.reached)
                if not (wanted := self._missing(wanted)):
                    return
            self._read[each.partition] = replace(at, position=each.end)

    def _missing(self, wanted: Mapping[str, int]) -> dict[str, int]:
        counts = self.counts
        return {id_: last for id_, last in wanted.items() if (counts.get(id_) or 0) < last}

    def _take(self, piece: Piece, partition: str, table: "_Table") -> None:
        messages = piece.messages.filter(piece.messages["value"].is_valid())
        decoded = self._transactions.bounds.decode(messages)
        for each in decoded.bad[:1]:
            self.unread = self.unread or f"message {each.position} of partition {partition}: {each.reason}"
        found = pl.from_arrow(decoded.rows)
        assert isinstance(found, pl.DataFrame)
        found = found.with_columns(table.id_of(pl.col("id"))).filter(pl.col("id").is_not_null())
        for id_ in found.filter(pl.col("status") == "BEGIN")["id"]:
            self.counts.setdefault(id_, None)
        ended = found.filter(pl.col("status") == "END").with_row_index()
        of_table = (
            ended.select("index", "counts")
            .explode("counts")
            .unnest("counts")
            .filter(pl.col("data_collection").is_in(table.names))
            .group_by("index")
            .agg(pl.col("event_count").sum(), pl.len().alias("tables"))
        )
        if (of_table["tables"] > 1).any():
            raise SourceStalled(
                f"transactions in topic {self._transactions.topic} have several tables that can be the one of"
                f" these events: {', '.join(table.names)}",
                hint="remove kafka.transactions from the source",
            )
        counted = ended.join(of_table, on="index", how="left", maintain_order="left")
        self.counts |= dict(
            zip(counted["id"].to_list(), counted["event_count"].fill_null(0).to_list(), strict=True)
        )


@dataclass(frozen=True, slots=True)
class _Table:
    """What the `source` block of events says about their table."""

    connector: str = ""
    db: str = ""
    schema: str = ""
    table: str = ""

    @property
    def names(self) -> list[str]:
        """What END may call the table."""
        if self.schema:
            return [f"{self.schema}.{self.table}", f"{self.db}.{self.schema}.{self.table}"]
        return [f"{self.db}.{self.table}"]

    def id_of(self, column: pl.Expr) -> pl.Expr:
        """What is the same in all ids of a transaction."""
        return column.str.replace(r"^(\d+):\d+$", "$1") if self.connector in _TXID else column


class WholeTransactions:
    """Chooses the ranges of steps, so that they end between transactions.

    After `plan`, `waits` says what waits, in words, and `more` that the limits left something to read.
    `gives_up` says that what waits has waited for long, and may wait longer.
    """

    patience_s = PATIENCE_S

    def __init__(self, spec: IngestSpec, source: Source, transactions: Transactions) -> None:
        self._spec = spec
        self._source = source
        self._transactions = transactions
        self._ends = _Ends(transactions)
        self._scans: dict[str, _Scan] = {}
        self._table: _Table | None = None
        self._since: dict[str, float] = {}
        self._looked: set[str] = set()
        self._planned: dict[str, int | None] = {}
        self._bound: dict[str, None] = {}
        """Transactions of which this process knows that they are bound. Their events may come again."""
        self.waits = ""
        self.more = self.gives_up = False

    def close(self) -> None:
        """Close the topic of transactions."""
        self._ends.close()

    def plan(self, found: Sequence[Range], bound: Mapping[str, Binding]) -> list[Range]:
        """Return ranges within the limits of the step. All or none of them must be bound.

        If a transaction is greater than the limits, they grow with it. Raises `SourceStalled` if it is
        greater than `maxTransactionBytes`, or can't become complete any more.
        """
        self.waits, self.more, self.gives_up = "", False, False
        ready = [each for each in found if not each.waits]
        if empty := [each for each in ready if each.begin == each.end]:
            self._planned = {each.partition: 0 for each in empty}
            return empty
        if not ready:
            return []
        self._keep(ready)
        begins = {name: each.position for name, each in bound.items()}
        begins |= {each.partition: each.begin for each in ready}
        gapless = {
            name
            for name, each in bound.items()
            if begins[name] == each.position and each.total == each.position - each.begin
        }
        rows, size = self._spec.max_rows, self._spec.max_bytes
        try:
            while True:
                ends = self._scanned(plan(ready, rows, size), size)
                events = self._events(ends)
                if self._table is not None:
                    self._ends.find(events, self._table, _first_ms(events))
                until, incomplete = cuts(
                    events, self._ends.ended, begins, ends, gapless=gapless, bound=self._bound
                )
                self.more = any(ends.get(each.partition, each.begin) < each.end for each in ready)
                chosen = [
                    replace(each, end=until[each.partition])
                    for each in ready
                    if until.get(each.partition, each.begin) > each.begin
                ]
                if chosen:
                    self._planned = {each.partition: self._rows(each) for each in chosen}
                    return chosen
                if not self.more:
                    is_added = any(each.waits for each in found)
                    self._wait(incomplete, events, list(begins), is_added=is_added)
                    return []
                most = self._spec.max_transaction_bytes
                if int(events["size"].sum()) >= most or any(
                    self._scans[name].is_beyond(end, most) for name, end in ends.items()
                ):
                    raise self._too_large(incomplete[0])
                rows, size = rows * 2, size * 2
        except SourceChanged:
            # The next step finds the topics as they are then.
            self._forget()
            return []

    def is_read(self, bound: Mapping[str, Binding]) -> bool:
        """Whether the planned ranges were read with as many messages as there were before.

        A message may be gone since then, and its transaction with it.
        """
        is_same = self._planned.keys() == bound.keys() and all(
            rows is None or rows == bound[name].rows for name, rows in self._planned.items()
        )
        if not is_same:
            self._forget()
        return is_same

    def as_planned(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Take these as the planned ranges, whatever is in them."""
        self._planned = {each.partition: None for each in ranges}
        return ranges

    def _forget(self) -> None:
        self._scans = {}
        self._ends.close()

    def _keep(self, ready: Iterable[Range]) -> None:
        """Forget what is bound by now, and what can't be the same any more."""
        before, self._scans = self._scans, {}
        for each in ready:
            scan = before.get(each.partition)
            if scan is None or scan.identity != each.identity or not scan.begin <= each.begin <= scan.reached:
                scan = _Scan(each.identity, each.begin, each.begin)
            is_bound = pl.col("position") < each.begin
            # Another process may have bound them. What is bound always ends between transactions.
            self._bound |= dict.fromkeys(scan.events.filter(is_bound)["id"].drop_nulls().to_list())
            scan.begin, scan.events = each.begin, scan.events.filter(~is_bound)
            self._scans[each.partition] = scan
        if len(self._bound) > _MOST_BOUND:
            self._bound = dict.fromkeys(list(self._bound)[-_MOST_BOUND // 2 :])
        if not any(len(each.events) for each in self._scans.values()):
            self._table = None

    def _scanned(self, wanted: Sequence[Range], size: int) -> dict[str, int]:
        """Read the ranges, which share this many bytes. Returns how far they were read."""
        share = min(max(1, size // max(1, len(wanted))), self._spec.max_transaction_bytes)
        return {each.partition: self._scan(each, share) for each in wanted}

    def _scan(self, wanted: Range, share: int) -> int:
        scan = self._scans[wanted.partition]
        left = share - int(scan.events["size"].sum())
        if scan.reached < wanted.end and left > 0:
            for piece in self._source.read(replace(wanted, begin=scan.reached, after=None)):
                events = self._events_of(piece, wanted.partition)
                scan.events = pl.concat([scan.events, events])
                scan.reached = piece.reached
                left -= int(events["size"].sum())
                if left <= 0:
                    break
            else:
                scan.reached = wanted.end
        end = min(scan.reached, wanted.end)
        # Not more than the share, but at least one message.
        kept = max(1, int((scan.events["size"].cum_sum() <= share).sum()))
        return min(end, int(scan.events["position"][kept])) if kept < len(scan.events) else end

    def _rows(self, wanted: Range) -> int:
        return len(self._events({wanted.partition: wanted.end}))

    def _events(self, ends: Mapping[str, int]) -> pl.DataFrame:
        """The events below these positions."""
        found = [
            self._scans[partition].events.filter(pl.col("position") < end) for partition, end in ends.items()
        ]
        return pl.concat([pl.DataFrame(schema=EVENTS), *found])

    def _events_of(self, piece: Piece, partition: str) -> pl.DataFrame:
        messages = piece.messages
        sizes = [pl.Series(messages[each]).bin.size().fill_null(0) for each in ("key", "value")]
        events = pl.DataFrame(
            {
                "position": pl.Series(messages["position"]),
                "size": (sizes[0] + sizes[1]).cast(pl.Int64) + _MESSAGE_BYTES,
                "timestamp": pl.Series(messages["timestamp"]),
            }
        ).with_row_index("at")
        return (
            events.join(self._marks_of(messages, partition), on="at", how="left", maintain_order="left")
            .with_columns(partition=pl.lit(partition))
            .select(*EVENTS)
            .cast(pl.Schema(EVENTS))
        )

    def _marks_of(self, messages: pa.RecordBatch, partition: str) -> pl.DataFrame:
        """The transactions of messages, by their number in the piece. Raises `SourceStalled`."""
        numbers = np.flatnonzero(np.asarray(messages["value"].is_valid()))
        values = messages.take(pa.array(numbers))
        decoded = self._transactions.marks.decode(values)
        for each in decoded.bad:
            if _is_in_transaction(values["value"][each.index].as_py()):
                raise self._unmarked(partition, each.position, each.reason)
        rows = pl.from_arrow(decoded.rows)
        assert isinstance(rows, pl.DataFrame)
        rows = rows.with_columns(at=pl.Series(numbers[decoded.index]).cast(pl.UInt32))
        rows = rows.filter(pl.col("in_transaction"))
        for table in rows.select(TABLE).unique(maintain_order=True).fill_null("").iter_rows():
            self._check_table(_Table(*table))
        if len(without := rows.filter(pl.col("id").is_null() | pl.col("order").is_null())):
            position = messages["position"][without["at"][0]].as_py()
            raise self._unmarked(partition, position, "it has no id or no data_collection_order")
        return rows.select("at", (self._table or _Table()).id_of(pl.col("id")).alias("id"), "order")

    def _check_table(self, table: "_Table") -> None:
        if self._table is None:
            self._table = table
        if table != self._table:
            raise SourceStalled(
                f"the topic has change events of several tables: {self._table.names[0]} and {table.names[0]}."
                " Nothing says when it has all events of a transaction",
                hint="let Debezium write a topic for each table, or remove kafka.transactions",
            )

    def _unmarked(self, partition: str, position: int, why: str) -> SourceStalled:
        return SourceStalled(
            f"message {position} of partition {partition} has a transaction that can't be used: {why}",
            hint=_REMOVE,
        )

    def _too_large(self, id_: str) -> SourceStalled:
        most = self._spec.max_transaction_bytes
        return SourceStalled(
            f"transaction {id_}, or what begins before its end, has more than {most:,} bytes",
            hint="raise batch.maxTransactionBytes, and give the process as much memory",
        )

    def _wait(
        self, incomplete: Sequence[str], events: pl.DataFrame, partitions: Sequence[str], *, is_added: bool
    ) -> None:
        """Say what waits. Raises `SourceStalled` after a while, if something shows that it can't end."""
        now, id_ = time.monotonic(), incomplete[0]
        self._since = {each: self._since.get(each, now) for each in incomplete}
        self._looked &= set(incomplete)
        table = (self._table or _Table()).names[0]
        mine = events.filter(pl.col("id") == id_)
        seen, last = (
            int(each)
            for each in mine.select(pl.col("order").n_unique(), pl.max("order").alias("last")).row(0)
        )
        count, first = self._ends.counts.get(id_), f"{mine['partition'][0]}:{mine['position'][0]}"
        self.waits = f"transaction {id_} ({table}, from message {first} on) waits for "
        if count is None:
            self.waits += f"its END in topic {self._transactions.topic}"
        else:
            self.waits += f"{max(0, count - seen):,} of its {count:,} events"
        if now - self._since[id_] < self.patience_s:
            return
        ended = self._ends.ended
        if count is None:
            if id_ not in self._looked:
                self._looked.add(id_)
                self._ends.begin(None)
                return
            if id_ not in self._ends.counts or is_passed(events, id_, ended, partitions, all_=False):
                raise self._gone(id_, first)
        elif last > count:
            raise SourceStalled(
                f"transaction {id_} has at least {last:,} events of table {table}, from message"
                f" {first} on, but its END in topic {self._transactions.topic} says {count:,}",
                hint=f"check that kafka.transactions is the topic of the same connector, or {_REMOVE}",
            )
        elif is_added or is_passed(events, id_, ended, partitions, all_=True):
            why = "are in partitions that were added" if is_added else "are gone, as after compaction"
            raise SourceStalled(
                f"transaction {id_} has {count:,} events of table {table}, and {seen:,} can"
                f" be read, from message {first} on: the others {why}, or were filtered out",
                hint=_REMOVE,
            )
        self.gives_up = True

    def _gone(self, id_: str, first: str) -> SourceStalled:
        bad = f" ({self._ends.unread})" if self._ends.unread else ""
        return SourceStalled(
            f"the END of transaction {id_}, whose events begin with message {first}, is not in topic"
            f" {self._transactions.topic}{bad}: the topic has deleted it, or belongs to another connector",
            hint=f"correct kafka.transactions, give that topic a longer retention; then {_REMOVE}",
        )


def _first_ms(events: pl.DataFrame) -> int | None:
    """The time of the first event. None if some have no time."""
    times = events["timestamp"]
    found = None if times.null_count() else times.min()
    return found if isinstance(found, int) else None


def _is_in_transaction(value: bytes) -> bool:
    """Whether a message that can't be read as an event is an object that has a transaction."""
    try:
        found: Any = json.loads(value)
    except (ValueError, RecursionError):
        return False
    if isinstance(found, dict) and isinstance(found.get(PAYLOAD), dict):
        found = found[PAYLOAD]
    return isinstance(found, dict) and found.get("transaction") is not None
