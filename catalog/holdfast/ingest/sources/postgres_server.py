"""What a look at a Postgres server finds: its log, the slots of a reader, and which of them is bound."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import xxhash

from holdfast.text import one_line

SERVER: Final[LiteralString] = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
  ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int,
  (pg_current_wal_insert_lsn() - '0/0')::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint,
  current_setting('wal_level'), current_setting('server_version_num')::int,
  current_setting('synchronous_standby_names')
"""
SLOTS: Final[LiteralString] = """
SELECT slot_name::text, plugin::text, database::text, (confirmed_flush_lsn - '0/0')::bigint, wal_status,
  active_pid
FROM pg_replication_slots WHERE slot_type = 'logical' AND starts_with(slot_name::text, %(prefix)s)
"""

DROP_SLOTS: Final = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '{}'"
)
"""A statement for people that drops the slots whose names match an expression, as `slots_of` returns it."""

COPY_SLOT: Final[LiteralString] = """
SELECT pg_copy_logical_replication_slot(slot_name, %(copy)s::name) FROM pg_replication_slots
WHERE slot_name = %(slot)s AND plugin = 'pgoutput' AND database = current_database()
  AND wal_status IS DISTINCT FROM 'lost' AND confirmed_flush_lsn - '0/0' <= %(position)s
"""

SLOT_WAIT: Final[LiteralString] = """
SELECT wait.locktype IS NOT NULL, holder.pid, active.usename::text, active.application_name,
  extract(epoch FROM clock_timestamp() - coalesce(active.xact_start, prepared.prepared))::float8,
  prepared.gid, concat_ws(' ', maker.wait_event_type, maker.wait_event)
FROM (SELECT %(process)s::int AS pid) AS made
LEFT JOIN pg_stat_activity AS maker USING (pid)
LEFT JOIN pg_locks AS wait ON wait.pid = made.pid AND NOT wait.granted AND wait.locktype = 'transactionid'
LEFT JOIN pg_locks AS holder
  ON holder.granted AND holder.locktype = 'transactionid' AND holder.transactionid = wait.transactionid
LEFT JOIN pg_stat_activity AS active ON active.pid = holder.pid
LEFT JOIN pg_prepared_xacts AS prepared ON prepared.transaction = wait.transactionid
"""
"""What a process that makes a slot waits for. A slot waits for the transactions that were open before it."""


@dataclass(frozen=True, slots=True)
class SlotWait:
    """What the making of a slot waits for, why that lasts, and what to do about it."""

    who: str
    reason: str
    hint: str

    @classmethod
    def of(cls, where: str, process: int, rows: Sequence[Sequence[Any]] | None) -> "SlotWait":
        """What the rows of `SLOT_WAIT` say. None: the server has not responded."""
        if not rows:
            server = f"Postgres at {where}"
            return cls(server, "it does not respond", "check the server and its storage")
        waits, holder, user, application, age_s, prepared, event = rows[0]
        if not waits:
            reason = "it makes the slot, waits for no transaction, and does not go on"
            reason += f" ({event})" if event else ""
            return cls(f"process {process} of the server", reason, "check the server and its storage")
        # Only a superuser or pg_read_all_stats sees when a transaction of another user began.
        age = "since before" if age_s is None else f"for {age_s:.0f} s"
        reason = f"it is open {age}, and a slot waits for the transactions before it"
        if prepared is not None:
            id_ = "'" + one_line(prepared).replace("'", "''") + "'"
            hint = f"end it with COMMIT PREPARED {id_} or ROLLBACK PREPARED {id_}, and repeat"
            return cls(f"the prepared transaction {id_}", reason, hint)
        names = (("user", user), ("application", application))
        known = ", ".join(f"{what} {one_line(name)}" for what, name in names if name)
        who = f"the transaction of process {holder}" + (f" ({known})" if known else "")
        return cls(who, reason, f"end it, for example with SELECT pg_terminate_backend({holder}), and repeat")


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a look at the server found. `end` and `flushed` are positions in its log."""

    system: str
    timeline: int
    end: int
    flushed: int
    wal_level: str
    version: int
    standbys: str

    @property
    def waits_for_receivers(self) -> bool:
        """Whether a commit may wait for any receiver, also for a stream."""
        return "*" in self.standbys


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of ours. `confirmed` is the position before which it has nothing any more.

    `process` is the server's process that uses it now.
    """

    name: str
    plugin: str | None
    database: str | None
    confirmed: int
    wal_status: str | None
    process: int | None


@dataclass(frozen=True, slots=True)
class SlotIdentity:
    """The identity of a binding. Without facts, it is that of an attempt that has not bound its contents."""

    slot: str
    timeline: int = 0
    facts: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, text: str) -> "SlotIdentity":
        """The identity that a text has, which `str` made of it."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        found: dict[str, Any] = {"slot": self.slot}
        if self.facts is not None:
            found |= {"timeline": self.timeline, "facts": self.facts}
        return json.dumps(found, separators=(",", ":"), sort_keys=True)


def slot_of(reader: str, slot: str = "") -> str:
    """How the names of the slots of a reader (see `reader_id`) begin. No other reader has such slots."""
    if slot:
        return f"{slot}_{xxhash.xxh32_hexdigest(reader.encode())}"
    try:
        return f"holdfast_{uuid.UUID(reader).hex}"
    except ValueError:
        return f"holdfast_{xxhash.xxh3_128_hexdigest(reader.encode())}"


def slots_of(readers: Iterable[str]) -> str:
    """A regular expression for the names of all slots that some readers may have. No other slot matches it.

    It means the same in Python and in Postgres.
    """
    begins = [begin for each in readers for begin in (slot_of(each), slot_of(each, ".+"))]
    return f"^({'|'.join(begins)})_[0-9a-f]{{8}}$"
