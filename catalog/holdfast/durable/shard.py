# ruff: noqa: D102 - the interface documents its methods
"""The catalog's shard: rows and changes of rows in persist.

One shard for each organization, its id derived, so that every process finds the same one.
"""

import uuid
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.durable.codec import TAG_BYTES, Row, Update
from holdfast.durable.registry import Kind
from holdfast.durable.store import RETAIN_VERSIONS, RETENTION_STEP, CatalogStore, Feed
from holdfast.errors import BadInput, CodecMismatch, CorruptBlob
from holdfast.persist import (
    CriticalSince,
    Listen,
    PersistClient,
    Prepared,
    Progress,
    ReadHandle,
    Schema,
    Updates,
    WriteHandle,
)

SCHEMA = Schema.of(key={"key": "binary"}, value={"value": "binary"}, codec=("holdfast.catalog", 1))

RETENTION_PURPOSE = "catalog retention"


def catalog_shard_id(organization_id: uuid.UUID | str) -> str:
    """The shard of an organization's catalog; `BadInput` when `organization_id` is not a UUID."""
    text = str(parse_organization_id(organization_id))
    return f"s{uuid.UUID(bytes=sha256((text + 'catalog').encode()).digest()[:16])}"


def parse_organization_id(organization_id: uuid.UUID | str) -> uuid.UUID:
    """The UUID; `BadInput` when it is none."""
    if isinstance(organization_id, uuid.UUID):
        return organization_id
    try:
        return uuid.UUID(organization_id)
    except ValueError:
        raise BadInput(
            f"organization id {organization_id!r} is not a UUID",
            hint="it looks like 00000000-0000-0000-0000-000000000000",
        ) from None


class CatalogShard(CatalogStore):
    """A catalog's store on persist."""

    def __init__(self, client: PersistClient, shard_id: str, *, purpose: str) -> None:
        self._shard_id = shard_id
        self._client = client
        self._purpose = purpose
        self._reader: ReadHandle | None = None
        self._writer: WriteHandle | None = None
        self._retention: CriticalSince | None = None
        self._held = 0

    @property
    def place(self) -> str:
        return self._shard_id

    @property
    def writable(self) -> bool:
        return self._client.mode != "read"

    def another(self, *, purpose: str) -> "CatalogShard":
        return CatalogShard(self._client, self._shard_id, purpose=purpose)

    def upper(self) -> int:
        return self._client.recent_upper(self._shard_id)

    @property
    def since(self) -> int:
        return self._read().since()

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        tags = pa.array([kind.tag for kind in kinds], pa.binary())
        for whole in self._read().snapshot(as_of):
            of_kinds = pc.is_in(pc.binary_slice(whole.column("key"), 0, TAG_BYTES), tags)
            batch = whole.filter(of_kinds) if len(tags) else whole
            if pc.any(pc.not_equal(batch.column("_diff"), 1)).as_py():
                raise CorruptBlob(f"the catalog in {self._shard_id}", "each row once", "a row several times")
            yield from map(Row, batch.column("key").to_pylist(), batch.column("value").to_pylist())

    def changes(self, lower: int, upper: int) -> list[tuple[int, list[Update]]]:
        if lower >= upper:
            return []
        feed = self.feed(lower)
        found = []
        while feed.frontier < upper:
            found += feed.next(None)
        return [(time, updates) for time, updates in found if time < upper]

    def feed(self, lower: int) -> "ShardFeed":
        return ShardFeed(self._read().listen(lower - 1))

    def append(self, updates: Iterable[Update], at: int, *, take_hold: bool = False) -> None:
        if self._writer is None:
            self._writer = self._client.writer(self._shard_id, SCHEMA, purpose=self._purpose)
        rows, diffs = zip(*((update.row, update.diff) for update in updates), strict=True)
        table = pa.table(
            {
                "key": pa.array([row.key for row in rows], pa.binary()),
                "value": pa.array([row.value for row in rows], pa.binary()),
                "_diff": pa.array(diffs, pa.int64()),
            }
        )
        commands = [self._writer.prepare_append(table, at, at + 1)]
        if take_hold:
            commands.append(self._client.prepare_critical(self._shard_id, purpose=RETENTION_PURPOSE))
        self._client.multi_write(commands)

    def expect(self, upper: int) -> Prepared:
        return self._client.prepare_expect_upper(self._shard_id, upper)

    def move_holds(self, upper: int) -> None:
        # The retention hold is the catalog's, not this process's.
        if self._retention is None:
            self._retention = self._client.critical_since(self._shard_id, purpose=RETENTION_PURPOSE)
        since = max(upper - RETAIN_VERSIONS, 0)
        if since - self._retention.since >= RETENTION_STEP:
            self._retention.downgrade(since)
        self.release_before(upper)

    def release_before(self, upper: int) -> None:
        if self._reader is not None and upper - 1 - self._held >= RETENTION_STEP:
            self._reader.allow_compaction(upper - 1)
            self._held = upper - 1

    def reopen(self) -> None:
        self._reader = self._writer = self._retention = None
        self._held = 0

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _read(self) -> ReadHandle:
        if self._reader is None:
            reader = self._client.reader(self._shard_id, purpose=self._purpose)
            if reader.schema != SCHEMA:
                raise CodecMismatch(f"{self._shard_id} is not a catalog: it has {reader.schema}")
            self._reader = reader
        return self._reader


class ShardFeed(Feed):
    """The changes of a shard as they come."""

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._waiting: list[tuple[int, Update]] = []

    @property
    def frontier(self) -> int:
        return self._listen.frontier

    def next(self, timeout: float | None) -> list[tuple[int, list[Update]]]:
        for event in self._listen.next(timeout):
            match event:
                case Updates(table):
                    self._waiting += _timed_updates(table)
                case Progress():
                    found = sorted(self._waiting, key=itemgetter(0))
                    self._waiting = []
                    return [(time, [u for _, u in group]) for time, group in groupby(found, itemgetter(0))]
        return []


def _timed_updates(table: pa.Table) -> list[tuple[int, Update]]:
    columns = (table.column(name).to_pylist() for name in ("_time", "key", "value", "_diff"))
    return [(time, Update(Row(key, value), diff)) for time, key, value, diff in zip(*columns, strict=True)]
