"""What a look at a Postgres server finds: its log, the slots of a reader, and which of them is bound."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import xxhash

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


def slot_of(collection_id: str, slot: str = "") -> str:
    """How the names of the slots of a collection begin. No other collection has slots of these names."""
    if slot:
        return f"{slot}_{xxhash.xxh32_hexdigest(collection_id.encode())}"
    try:
        return f"holdfast_{uuid.UUID(collection_id).hex}"
    except ValueError:
        return f"holdfast_{xxhash.xxh3_128_hexdigest(collection_id.encode())}"
