"""What a source asks a Postgres server about its table and its slots, and what the errors mean."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import errors
from psycopg.rows import dict_row

from holdfast.errors import HoldfastError, SourceChanged, SourceStalled
from holdfast.ingest.sources.postgres_client import PATIENCE_S, PostgresClient, is_lost
from holdfast.ingest.sources.postgres_server import (
    COPY_SLOT,
    SERVER,
    SLOT_WAIT,
    SLOTS,
    ServerState,
    Slot,
    SlotWait,
)
from holdfast.ingest.sources.postgres_table import NEW_EPOCH, QUERY, FittingTable, Unfit, checked
from holdfast.ingest.spec import PostgresSpec
from holdfast.ingest.waits import Waits
from holdfast.pg_session import Connection, reason_of, told

_OTHER: Final = "another instance"
_LEFT: Final = "a process of the server"


class AskedTable:
    """The table of a spec, with the slots whose names begin with `prefix`. It fills these columns.

    `used_by` is the server's process that uses the slot that is bound, and `left` is the one that sent the
    last stream which the source has ended.
    """

    def __init__(
        self,
        client: PostgresClient,
        spec: PostgresSpec,
        prefix: str,
        columns: pa.Schema,
        keys: Sequence[str],
        waits: Waits,
    ) -> None:
        self.client = client
        self.spec = spec
        self.prefix = prefix
        self.columns = columns
        self.keys = keys
        self.waits = waits
        self.used_by: int | None = None
        self.left: int | None = None
        self._failing_s = self._waiting_s = 0.0

    @property
    def where(self) -> str:
        """The table and its server, for messages."""
        return f"table {self.spec.table} at {self.client.where}"

    def ask(self, what: str, query: Any, parameters: Mapping[str, object] | None = None) -> list[Any]:
        """The rows of a query. Raises `StoreUnreachable`."""
        try:
            return self.client.rows(query, parameters)
        except psycopg.Error as error:
            raise self.client.failure(what, error) from error

    def look(self) -> ServerState:
        """What the server is and where its log ends now."""
        return ServerState(*self.ask("look at the server", SERVER)[0])

    def facts(self, connection: Connection) -> FittingTable:
        """The table as a connection sees it. Raises `Unfit`."""
        schema, name = self.spec.table.split(".")
        wanted = {
            "schema": schema,
            "name": name,
            "publication": self.spec.publication,
            "columns": self.columns.names,
        }
        with connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(QUERY, wanted).fetchone()
        return checked(row, self.columns, self.keys, self.spec.publication)

    def fitting(self, failure: type[HoldfastError]) -> FittingTable:
        """The table as it is now. Raises `failure` if it can't feed the collection."""
        try:
            return self.client.retried(self.facts, long=True)
        except Unfit as error:
            raise failure(f"{self.where} {error.reason}", hint=error.hint) from None
        except psycopg.Error as error:
            raise self.client.failure(f"look at {self.where}", error) from error

    def slots(self) -> dict[str, Slot]:
        """The slots of the reader, by name."""
        rows = self.ask("look at the slots", SLOTS, {"prefix": self.prefix})
        ours = len(self.prefix) + 8
        return {each[0]: Slot(*each) for each in rows if len(each[0]) == ours}

    def copy_slot(self, name: str, copy: str, position: int) -> bool:
        """Copy a slot of another reader. False if it is gone, or beyond a position."""
        asked = {"slot": name, "copy": copy, "position": position}
        try:
            return bool(self.client.rows(COPY_SLOT, asked))
        except errors.DuplicateObject:
            # Another instance was faster.
            return True
        except psycopg.Error as error:
            raise self.client.failure(f"copy slot {name}", error) from error

    def slot_wait(self, process: int) -> SlotWait:
        """What a process of the server that makes a slot waits for."""
        rows = self.client.rows_soon(SLOT_WAIT, {"process": process})
        return SlotWait.of(self.client.where, process, rows)

    def drop_others(self, slots: Mapping[str, Slot], kept: str) -> None:
        """Drop the slots of attempts that are not bound. Nobody can bind them any more."""
        for each in slots.values():
            if each.name != kept:
                # One that is in use is dropped next time.
                with suppress(errors.ObjectInUse, errors.UndefinedObject):
                    self.drop(each.name)

    def drop(self, name: str) -> None:
        """Drop a slot. Raises `ObjectInUse` and `UndefinedObject` as they are."""
        try:
            self.client.rows("SELECT pg_drop_replication_slot(%(slot)s)", {"slot": name})
        except (errors.ObjectInUse, errors.UndefinedObject):
            raise
        except psycopg.Error as error:
            raise self.client.failure(f"drop slot {name}", error) from error

    def gone(self, what: str, hint: str = "") -> SourceStalled:
        """The error for changes that can't be read any more."""
        return SourceStalled(f"{self.where}: {what}", hint=f"{NEW_EPOCH}{hint}")

    def in_use(self) -> SourceChanged:
        """The error while another instance has the slot. Shows that this one waits."""
        self._waiting_s = self._waiting_s or time.monotonic()
        is_left = self.left is not None and self.used_by == self.left
        who, does = (_LEFT, "still sends a lost stream, and uses") if is_left else (_OTHER, "uses")
        what = f"{does} the slot of {self.where}"
        self.waits.away(who, f"it {what}", self._waiting_s)
        return SourceChanged(f"{who} {what}")

    def has_read(self) -> None:
        """The end of what failed, or was waited for."""
        self._failing_s = self._waiting_s = 0.0
        for each in (_OTHER, _LEFT, self.where):
            self.waits.back(each)

    def failed(self, what: str, error: psycopg.Error) -> HoldfastError:
        """What to raise: `SourceChanged` if it may work next time, for as long as a server may be gone."""
        if isinstance(error, errors.ObjectInUse):
            return self.in_use()
        now = time.monotonic()
        self._failing_s = self._failing_s or now
        passing = (errors.UndefinedObject, errors.ObjectNotInPrerequisiteState, errors.DuplicateObject)
        if (is_lost(error) or isinstance(error, passing)) and now - self._failing_s < PATIENCE_S:
            self.waits.away(self.where, f"can't {what}: {reason_of(error)}", self._failing_s)
            return SourceChanged(f"can't {what}: {told(error)}")
        return self.client.failure(what, error)
