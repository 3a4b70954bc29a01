# ruff: noqa: D102 - the interface documents its methods
"""The catalog's shard: rows and changes of rows in persist.

Each organization has one shard. Its id is derived from the organization's, so every process finds the same
one.
"""

import struct
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from itertools import accumulate, chain, groupby, islice
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.codec import TAG_BYTES, Row, RowUpdate
from holdfast.catalog.objects.packed import rows_of
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores.store import (
    BATCH_ROWS,
    RETAIN_VERSIONS,
    RETENTION_STEP,
    CatalogStore,
    Feed,
    Kept,
    kept_name,
    kept_of,
)
from holdfast.errors import CLOSED, BadInput, CodecMismatch
from holdfast.persist import (
    CriticalSince,
    KeyRange,
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

# A catalog is opened in processes with little memory. Small pieces cost only some milliseconds more.
_BUFFER_BYTES = 4 * 1024 * 1024
_BUILD_BYTES = 32 * 1024 * 1024
_TAGS = 1 << 8 * TAG_BYTES


def catalog_shard_id(organization_id: uuid.UUID | str) -> str:
    """The shard of an organization's catalog. Raises `BadInput` if `organization_id` is not a UUID."""
    text = str(parse_organization_id(organization_id))
    return f"s{uuid.UUID(bytes=sha256((text + 'catalog').encode()).digest()[:16])}"


def parse_organization_id(organization_id: uuid.UUID | str) -> uuid.UUID:
    """Parse the UUID. Raises `BadInput` if it is invalid."""
    if isinstance(organization_id, uuid.UUID):
        return organization_id
    try:
        return uuid.UUID(organization_id)
    except ValueError:
        raise BadInput(
            f"organization id {organization_id!r} is not a UUID",
            hint="it must look like 00000000-0000-0000-0000-000000000000",
        ) from None


def ranges_with(kinds: Iterable[Kind]) -> list[KeyRange]:
    """The ranges of the keys of these kinds, ascending. Adjacent tags share one range."""
    cuts: list[int] = []
    for tag in sorted({*kinds}):
        if cuts and cuts[-1] == tag:
            cuts.pop()
        else:
            cuts.append(tag)
        cuts.append(tag + 1)
    return [_between(lower, upper) for lower, upper in zip(cuts[::2], cuts[1::2], strict=True)]


def ranges_without(kinds: Iterable[Kind]) -> list[KeyRange]:
    """The ranges of all other keys, including keys of unknown kinds and keys shorter than a tag."""
    cuts = [0]
    for tag in sorted({*kinds}):
        cuts += (tag, tag + 1)
    cuts.append(_TAGS)
    pairs = zip(cuts[::2], cuts[1::2], strict=True)
    return [_between(lower, upper) for lower, upper in pairs if lower < upper]


def _between(lower: int, upper: int) -> KeyRange:
    """The keys with `lower <= tag < upper`. The least and the greatest tag are open ends."""
    limits = [tag.to_bytes(TAG_BYTES, "big") if 0 < tag < _TAGS else None for tag in (lower, upper)]
    return KeyRange.between(SCHEMA, *limits)


class CatalogShard(CatalogStore):
    """A catalog's store on persist.

    It does not compare the fence row, because a command on a shard's state can't read rows. Another history
    can arise only from a restore, and `holdfast persist recover`, which every restore of a location needs,
    makes it known.
    """

    def __init__(
        self,
        client: PersistClient,
        shard_id: str,
        *,
        purpose: str,
        where: str | None = None,
        organization_id: str = "UUID",
    ) -> None:
        """`where` is the name of the location in messages. Default: the name of its blob store.

        `organization_id` is for commands in hints.
        """
        self._shard_id = shard_id
        self._organization_id = organization_id
        self._where = client.location.blob.description if where is None else where
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
    def location(self) -> str:
        return f"{self._shard_id} in {self._where}"

    @property
    def writable(self) -> bool:
        return self._client.mode != "read"

    def another(self, *, purpose: str) -> "CatalogShard":
        return CatalogShard(
            self._client,
            self._shard_id,
            purpose=purpose,
            where=self._where,
            organization_id=self._organization_id,
        )

    def older_log_hint(self, epoch: int, *, linked: bool) -> str:
        location = self._client.location.arguments
        stash = "--stash URL " if linked else ""
        return (
            "to keep the history that the store has lost, stop all clients and restore the newer state; to"
            " keep the one that it has now, stop all writers of the catalog, run the two commands at the end,"
            " and open the catalog again (without --yes, the first one only shows what each history has):"
            f" holdfast persist recover {location} --accept --yes"
            f" && holdfast catalog fence --at-least {epoch}"
            f" {stash}--persist {location} --organization-id {self._organization_id}"
        )

    def upper(self) -> int:
        return self._client.recent_upper(self._shard_id)

    @property
    def since(self) -> int:
        return self._read().since()

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        for batch in self._within(as_of, ranges_with(kinds) or [KeyRange()]):
            yield from rows_of(batch)

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        for batch in self._within(as_of, ranges_without(but)):
            yield batch.select(["key", "value"])

    def count(self, as_of: int, kinds: Iterable[Kind]) -> Counter[Kind]:
        found = Counter[Kind]()
        for kind in kinds:
            found[kind] += sum(batch.num_rows for batch in self._within(as_of, ranges_with([kind])))
        return found

    def _within(self, as_of: int, ranges: Iterable[KeyRange]) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges of keys. Where statistics allow, other rows aren't decoded."""
        for wanted in ranges:
            for batch in self._read().snapshot(as_of, wanted=wanted, buffer_bytes=_BUFFER_BYTES):
                if pc.any(pc.not_equal(batch.column("_diff"), 1)).as_py():
                    raise corrupt(f"the catalog in {self._shard_id}", "each row once", "a row several times")
                yield batch

    def changes(
        self,
        lower: int,
        upper: int,
        *,
        fence: Row | None = None,  # noqa: ARG002 - see the class
    ) -> list[tuple[int, list[RowUpdate]]]:
        if lower >= upper:
            return []
        feed = self.feed(lower)
        found = []
        while feed.frontier < upper:
            found += feed.next(None)
        return [(time, updates) for time, updates in found if time < upper]

    def feed(self, lower: int, *, fence: Row | None = None) -> "ShardFeed":  # noqa: ARG002 - see the class
        # The contents at time 0 are exactly the first commit.
        listen = self._read().listen(lower - 1) if lower else self._read().subscribe(0)
        return ShardFeed(listen, lower)

    def append(
        self,
        updates: Iterable[RowUpdate],
        at: int,
        *,
        fence: Row | None = None,  # noqa: ARG002 - see the class
        take_hold: bool = False,
    ) -> None:
        writer = self._write()
        rest = iter(updates)
        first = list(islice(rest, BATCH_ROWS))
        with ExitStack() as until_committed:
            if len(first) < BATCH_ROWS:
                batch = _prepared(first, at) if first else None
                append = writer.prepare_batch(batch, at, at + 1)
            else:
                # Check before everything is uploaded, rather than after.
                writer.check_upper(at)
                builder = until_committed.enter_context(writer.batch_builder(memory_bytes=_BUILD_BYTES))
                builder.add(map(_columns, chain([first], iter(lambda: list(islice(rest, BATCH_ROWS)), []))))
                append = builder.prepare_append(at, at + 1)
            commands = [append]
            if take_hold:
                commands.append(self._client.prepare_critical(self._shard_id, purpose=RETENTION_PURPOSE))
            self._client.multi_write(commands)
        if len(first) == BATCH_ROWS:
            # Sorting and encoding used several times the memory. Without this, the pool would keep it.
            pa.default_memory_pool().release_unused()

    def advance(self, at: int, to: int, *, fence: Row | None = None) -> None:  # noqa: ARG002 - see the class
        self._client.multi_write([self._write().prepare_append(None, at, to)])

    def expect(self, upper: int) -> Prepared:
        return self._client.prepare_expect_upper(self._shard_id, upper)

    def move_holds(self, upper: int) -> None:
        # The retention hold belongs to the catalog, not to this process.
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

    def keep(self, time: int, version: int) -> None:
        self._client.critical_since(self._shard_id, purpose=kept_name(version)).downgrade(time)

    def kept(self) -> list[Kept]:
        holds = self._client.inspect(self._shard_id).holds if self._client.exists(self._shard_id) else ()
        return kept_of((hold.purpose, hold.since) for hold in holds if hold.kind == "critical")

    def let_go(self, version: int) -> None:
        release = self._client.prepare_release_critical(self._shard_id, purpose=kept_name(version))
        self._client.multi_write([release])

    def reopen(self) -> None:
        self._reader = self._writer = self._retention = None
        self._held = 0

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _write(self) -> WriteHandle:
        if self._writer is None:
            self._writer = self._client.writer(self._shard_id, SCHEMA, purpose=self._purpose)
        return self._writer

    def _read(self) -> ReadHandle:
        if self._reader is None:
            reader = self._client.reader(self._shard_id, purpose=self._purpose)
            if reader.schema != SCHEMA:
                raise CodecMismatch(f"{self._shard_id} is not a catalog: it has {reader.schema}")
            self._reader = reader
        return self._reader


class ShardFeed(Feed):
    """The changes of a shard as they are committed."""

    def __init__(self, listen: Listen, lower: int) -> None:
        self._listen = listen
        # Not the frontier of `listen`, which is ahead of what was returned.
        self._frontier = lower
        self._waiting: list[tuple[int, RowUpdate]] = []

    @property
    def frontier(self) -> int:
        return self._frontier

    def next(self, timeout: float | None) -> list[tuple[int, list[RowUpdate]]]:
        for event in self._listen.next(timeout):
            match event:
                case Updates(table):
                    self._waiting += _timed_updates(table)
                case Progress(frontier):
                    self._frontier = frontier
                    found = sorted(self._waiting, key=itemgetter(0))
                    self._waiting = []
                    return [(time, [u for _, u in group]) for time, group in groupby(found, itemgetter(0))]
        return []


def _prepared(updates: Sequence[RowUpdate], time: int) -> pa.RecordBatch:
    """Updates at one time in the form in which persist stores them. The conversion is costly for small
    commits.

    For a few rows, Arrow's own conversion takes twice as long, and waits for other threads each time.
    """
    rows, diffs = zip(*updates, strict=True)
    keys, values = zip(*rows, strict=True)
    # At the end of time the append is refused anyway.
    times = min(time, CLOSED - 1).to_bytes(8, "little") * len(updates)
    arrays = [
        _binary(keys),
        _binary(values),
        _numbers(pa.uint64(), times),
        _numbers(pa.int64(), struct.pack(f"<{len(diffs)}q", *diffs)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.arrow_updates)


def _binary(values: Sequence[bytes]) -> pa.Array:
    offsets = struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values)))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _numbers(type_: pa.DataType, data: bytes) -> pa.Array:
    """An array of numbers of eight bytes each."""
    return pa.Array.from_buffers(type_, len(data) // 8, [None, pa.py_buffer(data)])


def _columns(updates: Sequence[RowUpdate]) -> pa.RecordBatch:
    rows, diffs = zip(*updates, strict=True)
    keys, values = zip(*rows, strict=True)
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(diffs, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, ["key", "value", "_diff"])


def _timed_updates(table: pa.Table) -> list[tuple[int, RowUpdate]]:
    columns = (table.column(name).to_pylist() for name in ("_time", "key", "value", "_diff"))
    return [(time, RowUpdate(Row(key, value), diff)) for time, key, value, diff in zip(*columns, strict=True)]
