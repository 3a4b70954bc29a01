"""A table of Postgres: its contents when a slot was made, then its changes from the slot (pgoutput).

The table is one partition. A position is a place in the server's log (LSN): a collection that is bound up to
a position has exactly the transactions whose commit ends there or before.

- The name of the source has the server's system identifier, the database, the publication and the table. The
  identity of the binding has the slot, the timeline, and what the changes rely on (`FittingTable.facts`).
- An attempt for the initial contents begins by binding the name of its slot, without rows. Only the instance
  whose name is bound can commit the contents, because each commit expects the upper that it began with. So a
  slot of these names that is not bound belongs to nobody, and is dropped. An instance holds an advisory lock
  of its name, so that others wait as long as it is connected. They are safe without it.
- The slot exports a snapshot when it is made. The contents in that snapshot and the position of the slot are
  bound together, at one time. If a connection is lost before, the attempt starts over with another slot of
  its name.
- A step reads whole transactions, and moves nothing. After our commit the slot is moved up to what is bound.
  So a crash between the two repeats nothing and loses nothing.
- A reader that `streams` keeps one stream open (`ChangeStream`). Each step goes on where the binding ends. If
  the stream is somewhere else, as after a lost race, it is opened again. It is only used while the server
  shows that its process has the slot. Other instances wait until then.
- Other readers peek (`pg_logical_slot_peek_binary_changes`). So does one that can get no stream. Each peek
  makes the server decode its log again, from the oldest transaction that is open. Both read the same.
- A range ends where the server's log ended between two records, when that was flushed. A place inside a
  record would let the slot pass over the record.
- A binding has the last transaction that changed the table. If the slot lags behind the binding, as after a
  crash, the transactions between the two are read again, and the last of them must be this one. Otherwise the
  server has another log than before: an older copy of its data directory, whose log has grown again. The slot
  moves only after that.
- If the binding names the slot of another reader, the collection is a copy of one that is fed elsewhere. The
  server then copies that slot, unless it is beyond the binding, and the next step binds the name of the copy.
  So both go on, each with its own slot, and neither moves the slot of the other.
- A server that sends nothing for too long is gone. If the pipeline is to end, reading ends at once
  (`Stopped`), and what was read is not bound.
- If the slot is gone, lost or confirmed beyond the binding, or a fact is another one, the source is stalled.
  With `new_epoch` a new attempt begins. Its contents replace those of the collection at one time.
"""

import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

import psycopg
import pyarrow as pa
import xxhash
from psycopg import errors

from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest.source import Binding, Piece, Range
from holdfast.ingest.sources.pgoutput import Relation, RowChange, TransactionBegin, Truncation
from holdfast.ingest.sources.postgres_asked import AskedTable
from holdfast.ingest.sources.postgres_client import PATIENCE_S, PostgresClient, is_lost, quoted
from holdfast.ingest.sources.postgres_contents import TableContents
from holdfast.ingest.sources.postgres_log import LogPart, OtherLog, lsn, position_of
from holdfast.ingest.sources.postgres_rows import ChangesAsMessages, Messages
from holdfast.ingest.sources.postgres_server import ServerState, Slot, SlotIdentity
from holdfast.ingest.sources.postgres_stream import ChangeStream, reaches
from holdfast.ingest.sources.postgres_table import Unfit
from holdfast.ingest.spec import PostgresSpec
from holdfast.ingest.waits import Stopped, Waits

_OLDEST_VERSION: Final = 150_000
_MOST_BYTES: Final = (1 << 31) - 1
"""What an array of Arrow can have."""
_STREAM_AGAIN_S: Final = 60.0
"""So long a reader does without a stream if it could not have one."""
_FLUSH_S: Final = 2.0
"""Seconds that a probe waits until the end of the log is flushed."""
_CHECK_EVERY: Final = 1000
"""Messages of a peek between two looks whether the pipeline is to end."""

_ADVANCE: Final = "SELECT pg_replication_slot_advance(%(slot)s, %(upto)s::pg_lsn)"
_PEEK: Final = """
SELECT data FROM pg_logical_slot_peek_binary_changes(%(slot)s, %(upto)s::pg_lsn, %(most)s,
  'proto_version', '1', 'publication_names', %(publication)s)
"""


class Postgres:
    """The source. `slot` is how the names of its slots begin. `columns` are those that the table fills.

    A step has about `max_rows` rows, but whole transactions, each of at most `max_transaction_bytes` bytes of
    messages. So is the step with the initial contents. They are in memory. One that `streams` keeps a stream
    open between steps.
    """

    def __init__(
        self,
        spec: PostgresSpec,
        slot: str,
        columns: pa.Schema,
        keys: Sequence[str],
        max_rows: int,
        max_transaction_bytes: int,
        waits: Waits,
        *,
        streams: bool = False,
    ) -> None:
        self._spec = spec
        self._waits = waits
        self._streams = streams
        self._stream: ChangeStream | None = None
        self._stream_opened = 0
        self._no_stream_until = 0.0
        self._columns = columns
        self._keys = keys
        self._max_rows = max_rows
        self._max_transaction_bytes = min(max_transaction_bytes, _MOST_BYTES)
        self._durable: Binding | None = None
        self._places: Mapping[str, int] = {}
        self._is_compared = False
        self._boundary = 0
        self._confirmed = 0
        self._looked = 0
        self._agreed = 0
        """How far the log is known to be the one that the bindings are made from."""
        self._unusable: dict[str, SourceStalled] = {}
        self._client = PostgresClient(spec, waits)
        self._table = AskedTable(self._client, spec, f"{slot}_", columns, keys, waits)
        self._contents = TableContents(self._table, max_transaction_bytes)
        try:
            server = self._table.look()
            self._system = server.system
            self._check_server(server)
            self._database = str(
                self._table.ask("find the database", "SELECT current_database()::text")[0][0]
            )
            self._table.fitting(BadInput)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The server's system identifier, the database, the publication and the table."""
        spec = self._spec
        return f"postgres://{self._system}/{self._database}/{spec.publication}/{spec.table}"

    def _check_server(self, server: ServerState) -> None:
        if server.version < _OLDEST_VERSION:
            raise BadInput(
                f"Postgres at {self._client.where} has version {server.version // 10_000}, older than"
                f" {_OLDEST_VERSION // 10_000}",
                hint="upgrade the server",
            )
        if server.wal_level != "logical":
            raise BadInput(
                f"Postgres at {self._client.where} has wal_level = {server.wal_level}, which keeps no changes"
                " for others",
                hint="ALTER SYSTEM SET wal_level = logical, and restart the server",
            )

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return the contents of the table, or the part of the log that is not bound.

        An attempt for the contents begins with an empty range, which binds its name. The part of the log
        ends between two records, and all before is flushed.
        """
        self._looked, self._agreed = self._client.opened, 0
        server = self._flushed()
        slots = self._table.slots()
        self._check_stream(server, slots)
        binding = bound.get(self._spec.table)
        if binding is None:
            return [self._contents.propose(0)]
        identity = SlotIdentity.of(binding.identity)
        if identity.facts is None:
            return [self._contents.attempted(binding, identity, slots)]
        identity, slots = self._own(identity, slots, binding.position)
        try:
            facts = self._compare(server, slots, binding, identity)
        except SourceStalled:
            self._end_stream()
            if not self._spec.new_epoch:
                raise
            return [self._contents.propose(binding.position, identity.slot)]
        self._contents.end()
        self._table.drop_others(slots, identity.slot)
        self._is_compared = True
        slot = slots[identity.slot]
        self._confirmed, self._table.used_by = slot.confirmed, slot.process
        now = str(SlotIdentity(identity.slot, server.timeline, facts))
        begin, end = binding.position, max(binding.position, self._boundary)
        wanted = Range(self._spec.table, begin, end, now, sparse=True, after=binding.last)
        continues = self._stream is not None and self._stream.continues(begin)
        if binding.last is None or self._confirmed == begin or continues:
            # Bindings of earlier builds have no last transaction.
            self._agreed = begin
            self._acknowledge()
        elif begin == end:
            # Nobody reads on from here, which would compare them.
            with suppress(SourceChanged):
                deque(self._changes(wanted), maxlen=0)
        return [wanted] if begin < end else []

    def _flushed(self) -> ServerState:
        """A look at the server. Finds a position between two records, where all before is flushed."""
        server = self._table.look()
        if server.system != self._system:
            raise SourceStalled(
                f"Postgres at {self._client.where} is another server: its system identifier is"
                f" {server.system}, and was {self._system}",
                hint="feed the collection from the same server, or another collection from this one",
            )
        end, latest = server.end, server
        deadline = time.monotonic() + _FLUSH_S
        self._boundary = 0
        while not reaches(latest.flushed, end):
            if time.monotonic() > deadline:
                return server
            self._waits.pause(0.01)
            latest = self._table.look()
            if (latest.system, latest.timeline) != (server.system, server.timeline):
                return server
        self._boundary = end
        return server

    # The comparison of the binding with what the server has

    def _own(
        self, identity: SlotIdentity, slots: dict[str, Slot], position: int
    ) -> tuple[SlotIdentity, dict[str, Slot]]:
        """The identity with a slot of this reader, and the slots of this reader.

        A slot of another reader is copied, if it has all changes after a position. Otherwise it stays.
        """
        if identity.slot.startswith(self._table.prefix):
            return identity, slots
        # Each instance finds the same name.
        own = f"{self._table.prefix}{xxhash.xxh32_hexdigest(identity.slot.encode())}"
        # Others were copied for earlier bindings, and nobody has bound them.
        self._table.drop_others(slots, own)
        if own not in slots:
            if not self._table.copy_slot(identity.slot, own, position):
                return identity, slots
            slots = self._table.slots()
            if own in slots and slots[own].confirmed > position:
                # It was moved just now.
                with suppress(errors.ObjectInUse, errors.UndefinedObject):
                    self._table.drop(own)
                return identity, slots
        return replace(identity, slot=own), slots

    def _compare(
        self, server: ServerState, slots: Mapping[str, Slot], binding: Binding, identity: SlotIdentity
    ) -> Mapping[str, Any]:
        """Return the facts of the table. Raises `SourceStalled` if changes since the binding are missing."""
        position = binding.position
        if server.timeline != identity.timeline:
            self._check_history(server.timeline, identity.timeline, position)
        if server.end < position:
            raise self._table.gone(
                f"the server's log ends at {lsn(server.end)}, but the collection has its changes up to"
                f" {lsn(position)}: the server has lost changes",
            )
        slot = slots.get(identity.slot)
        until = f"changes from {lsn(position)} to {lsn(server.end)} may be lost"
        if slot is None:
            ours = identity.slot.startswith(self._table.prefix)
            what = "doesn't exist any more" if ours else "belongs to another rendition or collection"
            raise self._table.gone(f"slot {identity.slot} {what}: {until}")
        if slot.plugin != "pgoutput" or slot.database != self._database:
            raise self._table.gone(f"slot {slot.name} was made by somebody else: {until}")
        if slot.wal_status == "lost":
            raise self._table.gone(
                f"slot {slot.name} is lost, because the server has deleted the log that it needs: {until}",
                "; and raise max_slot_wal_keep_size",
            )
        if slot.confirmed > position:
            raise self._table.gone(
                f"slot {slot.name} is confirmed up to {lsn(slot.confirmed)}, but the collection has the"
                f" changes only up to {lsn(position)}: the location was restored to an earlier state, or the"
                f" slot was made again or is used by something else. Changes from {lsn(position)} to"
                f" {lsn(slot.confirmed)} may be lost",
                "; or restore a newer state of the location",
            )
        assert identity.facts is not None
        table = self._table.fitting(SourceStalled)
        if identity.slot in self._unusable:
            raise self._unusable[identity.slot]
        if changed := table.difference(identity.facts):
            raise self._table.gone(
                f"{changed}. Changes after {lsn(position)} may have come without a message",
                table.advice_on(changed),
            )
        self._places = table.places
        return table.facts_after(identity.facts, position)

    def _check_history(self, timeline: int, bound: int, position: int) -> None:
        """Raise `SourceStalled` if the server has left the binding's timeline before the binding."""
        row = None
        if timeline > 1:
            try:
                with closing(self._client.replication()) as replication:
                    row = replication.ask(f"TIMELINE_HISTORY {timeline}", PATIENCE_S)
            except psycopg.Error as error:
                raise self._client.failure("read the server's history", error) from None
        text = (row[1] or b"").decode() if row else ""
        lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        left = {int(each[0]): position_of(each[1]) for each in lines}
        if left.get(bound, -1) < position:
            raise self._table.gone(
                f"the server is on timeline {timeline} after a failover, and has left timeline {bound} at"
                f" {lsn(max(left.get(bound, 0), 0))}, but the collection has its changes up to"
                f" {lsn(position)}: the server has lost changes"
            )

    # Reading

    def read(self, wanted: Range) -> Iterator[Piece]:
        """Read the contents, or the transactions of a part of the log. A transaction is never divided."""
        if wanted.whole:
            return self._contents.read(wanted)
        if wanted.begin == wanted.end:
            return iter(())
        return self._changes(wanted)

    def _changes(self, wanted: Range) -> Iterator[Piece]:
        """The transactions of a part of the log. Those before it are compared with what is bound."""
        identity = SlotIdentity.of(wanted.identity)
        assert identity.facts is not None
        changes = ChangesAsMessages(self._columns, self._keys, identity.facts, self._places)
        messages, reached = Messages(self._columns, self._keys, wanted.begin), wanted.begin
        # The bytes of the transaction: those of the pieces before, and of the messages after `begun`.
        begun, before = 0, 0
        try:
            stream = self._stream_at(identity.slot, wanted.begin)
            continues = stream is not None and stream.is_settled
            if stream is not None and stream.relation is not None:
                # A stream has it only once.
                changes.relate(stream.relation)
            log = LogPart(wanted, int(identity.facts["table"]), self._confirmed, continues=continues)
            with closing(self._messages(identity.slot, wanted)) as sent:
                for event, size_bytes in log.events(sent):
                    if isinstance(event, TransactionBegin):
                        begun, before = messages.size_bytes, 0
                        messages.position = max(messages.position, event.at)
                    elif isinstance(event, Relation):
                        changes.relate(event)
                    elif isinstance(event, RowChange):
                        changes.add(event, size_bytes, messages)
                        size = before + messages.size_bytes - begun
                        if size > self._max_transaction_bytes:
                            raise self._too_large(log.transaction.at)
                        if messages.is_full:
                            yield replace(messages.piece(reached), unfinished=True)
                            messages, begun, before = messages.next(), 0, size
                    elif isinstance(event, Truncation):
                        messages, begun, before = messages.next(clears=True), 0, 0
                    else:
                        reached = event.end
                        # A step may only end after a piece that ends a transaction.
                        if messages.is_full or before:
                            self._agreed = reached
                            self._settle(reached, reached, log)
                            yield replace(messages.piece(reached), last=log.last)
                            messages = messages.next()
            is_all = log.is_over or log.count < self._max_rows
            reached = wanted.end if is_all else reached
            self._settle(wanted.begin if log.is_empty else reached, reached, log)
        except psycopg.Error as error:
            raise self._table.failed(f"read the changes of {self._table.where}", error) from None
        except OtherLog as error:
            stalled = self._of_other_log(wanted, identity.slot, error.before)
            self._unusable[identity.slot] = stalled
            raise SourceChanged(str(stalled)) from None
        except Unfit as error:
            # The next probe raises it, or begins a new epoch.
            stalled = SourceStalled(f"{self._table.where} {error.reason}", hint=error.hint)
            self._unusable[identity.slot] = stalled
            raise SourceChanged(str(stalled)) from None
        finally:
            if self._stream is not None and not self._stream.is_settled:
                self._end_stream()
        self._table.has_read()
        if self._confirmed < wanted.begin:
            self._agreed = wanted.begin
            self._acknowledge()
        self._agreed = reached
        yield replace(messages.piece(reached), last=log.last)

    # The stream

    def _check_stream(self, server: ServerState, slots: Mapping[str, Slot]) -> None:
        """End the stream unless the server has it, and has had it since it was opened."""
        if self._stream is None:
            return
        slot = slots.get(self._stream.slot)
        is_ours = slot is not None and slot.process == self._stream.process
        if not is_ours or self._stream_opened != self._client.opened or server.waits_for_receivers:
            self._end_stream()

    def _stream_at(self, slot: str, begin: int) -> ChangeStream | None:
        """The stream, if there is one. It is settled if it continues from there.

        Raises `psycopg.Error`, and `SourceChanged` if another instance has the slot.
        """
        if self._stream is not None and not self._stream.continues(begin):
            self._end_stream()
        if self._streams and self._stream is None and time.monotonic() >= self._no_stream_until:
            self._open_stream(slot)
        return self._stream

    def _settle(self, begin: int, end: int, log: LogPart) -> None:
        """Remember how far a stream was read."""
        if self._stream is not None:
            self._stream.settle(begin, end, log.relation)

    def _messages(self, slot: str, wanted: Range) -> Generator[bytes]:
        """The messages of a part of the log, after those that the slot has before it. About `max_rows`.

        Without a stream, the first transaction after it may follow.
        """
        begin, end, most = wanted.begin, wanted.end, self._max_rows
        if self._stream is not None:
            return self._stream.messages(begin, end, most)
        if self._confirmed < begin < end:
            # The server counts them too.
            with closing(self._peek(slot, begin)) as before:
                most += sum(1 for _ in before)
        return self._peek(slot, end, most if begin < end else None)

    def _peek(self, slot: str, end: int, most: int | None = None) -> Generator[bytes]:
        """The messages of the transactions before a position, and perhaps the first one after it."""
        publication = quoted([self._spec.publication])
        asked = {"slot": slot, "publication": publication, "upto": lsn(end), "most": most}
        with self._client.stream(_PEEK, asked) as rows:
            if self._client.opened != self._looked:
                raise SourceChanged(f"the connection to {self._client.where} was lost")
            for number, (message,) in enumerate(rows):
                if number % _CHECK_EVERY == 0:
                    self._waits.pause(0)
                yield message

    def _open_stream(self, slot: str) -> None:
        """Open the stream. If the server has none for us, peek for a while, and say so."""
        if self._table.used_by not in {None, self._table.left}:
            raise self._table.in_use()
        why = "synchronous_standby_names has *, so that commits would wait for it"
        if not self._table.look().waits_for_receivers:
            self._stream = self._client.changes(slot, self._spec.publication)
            why = self._client.refusal
        if self._stream is None:
            self._table.look()
            if self._client.opened != self._looked:
                raise SourceChanged(f"the connection to {self._client.where} was lost")
            self._no_stream_until = time.monotonic() + _STREAM_AGAIN_S
            self._waits.note(
                f"reading {self._table.where} without a stream: {why}. Each step makes the server read its"
                " log again from the oldest open transaction"
            )
            return
        self._stream_opened = self._looked
        self._check_stream(self._table.look(), self._table.slots())
        if self._stream is None or self._client.opened != self._looked:
            raise SourceChanged(f"the stream of {self._table.where} belongs to another server")

    def _end_stream(self) -> None:
        if self._stream is not None:
            ended, self._stream = self._stream, None
            self._table.left = ended.process
            ended.close()
            self._client.await_free(ended.slot, ended.process)

    def _of_other_log(self, wanted: Range, slot: str, before: TransactionBegin | None) -> SourceStalled:
        """The error for another log. Raises `SourceChanged` if another instance has just moved the slot."""
        assert wanted.after is not None
        since, found = wanted.after.position, self._table.slots().get(slot)
        if before is None and (found is None or found.confirmed > since):
            raise SourceChanged(f"slot {slot} of {self._table.where} was moved while it was read")
        since = min(since, self._confirmed)
        return self._table.gone(
            f"the server's log is not the one that the collection was fed from: the data directory was"
            f" replaced by an older copy. Changes from {lsn(since)} to {lsn(wanted.begin)} may be lost"
        )

    def _too_large(self, commit: int) -> SourceStalled:
        return SourceStalled(
            f"{self._table.where}: the transaction with its commit at {lsn(commit)} has more than"
            f" {self._max_transaction_bytes:,} bytes",
            hint="raise batch.maxTransactionBytes (at most 2Gi), and give the process about ten times as"
            " much memory",
        )

    # The slot

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        """Move the slot up to the binding, but not before a probe has compared them."""
        self._durable = bound.get(self._spec.table)
        if self._is_compared:
            # If the pipeline is to end, the next one moves it.
            with suppress(Stopped):
                self._acknowledge()

    def _acknowledge(self) -> None:
        binding = self._durable
        if binding is None or not self._confirmed < binding.position <= self._agreed:
            return
        slot = SlotIdentity.of(binding.identity)
        if slot.facts is None or not slot.slot.startswith(self._table.prefix):
            return
        upto = {"slot": slot.slot, "upto": lsn(binding.position)}
        try:
            if self._stream is not None and self._stream.slot == slot.slot:
                self._stream.confirm(binding.position)
                self._confirmed = binding.position
                return
            # A server that was away may have another log, which the next probe compares.
            if not self._client.once(self._looked, _ADVANCE, upto):
                return
        except (errors.ObjectInUse, errors.UndefinedObject, errors.ObjectNotInPrerequisiteState):
            # The next probe says what became of the slot.
            return
        except psycopg.Error as error:
            if is_lost(error):
                # The stream was lost.
                return
            raise self._client.failure(f"move slot {slot.slot}", error) from error
        self._confirmed = binding.position

    def forget(self) -> None:
        """Drop the slots of this reader. One that another instance uses is left to that."""
        self._contents.end()
        self._end_stream()
        self._table.drop_others(self._table.slots(), "")

    def close(self) -> None:
        """Close the connections."""
        self._contents.end_snapshot()
        self._end_stream()
        self._client.close()
