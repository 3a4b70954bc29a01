"""Who appended to a shard, and when: read from its log, and kept in blobs when a cut removes rows of the log.

An append records the purpose and the host of its writer in its row of the log. A purpose such as
`holdfast.table: upsert` says who wrote and, after `: `, what the write did. A cut keeps the appends of the
rows that it removes, if one of them, or a writer of the shard, has such a purpose. This takes no step of an
append.

- A cut first writes a blob with the appends of the rows that it is about to remove. So an append is in the
  log, in a blob, or in both. A reader reads the log first, so it misses none.
- While the newest blob is small, the next cut writes its appends again, together with later ones, and then
  deletes it. A crash in between leaves an append in two blobs. It is read once: its version identifies it.
- A blob is deleted when the since has passed its last append: the times of its appends are merged then.
- Older builds cut without keeping appends, and skip these blobs. Then the appends are missing, and nothing
  else. So these records only say who wrote something. What was written is in the shard's data.
- After a failover the blobs may have appends that the log has lost. The data doesn't have their rows either.
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import CLOSED, CorruptBlob
from holdfast.persist.ids import APPENDS_NAME
from holdfast.persist.state.codec import DIFF_MAGIC, open_frame
from holdfast.persist.state.state import ShardState
from holdfast.persist.stores import BlobMeta, Location
from holdfast.persist.stores.frame import parse, seal, unseal

log = logging.getLogger(__name__)

SAYS_WHAT: Final = ": "
"""What separates who writes from what a write does, in a purpose."""

APPENDS: Final = pa.schema(
    [
        ("seqno", pa.uint64()),
        ("lower", pa.uint64()),
        ("upper", pa.uint64()),
        ("wall_ms", pa.uint64()),
        ("purpose", pa.string()),
        ("hostname", pa.string()),
    ]
)

_MAGIC: Final = b"HFh\n"
_FORMAT: Final = 1
_SMALL_BYTES: Final = 32 * 1024
_MOST_BYTES: Final = 64 << 20
"""More than a blob has. Nobody reads more of a damaged one."""
_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class _Append:
    """An append with rows: its version, its interval, and its writer."""

    seqno: int
    lower: int
    upper: int
    wall_ms: int
    purpose: str
    hostname: str


def names_writes(location: Location, state: ShardState, seqno: int) -> bool:
    """Whether a writer of the shard says what its writes do, or one with an append below `seqno` did."""
    if any(SAYS_WHAT in writer.purpose for writer in state.writers.values()):
        return True
    # A writer that was closed is no longer in the state.
    return any(SAYS_WHAT in each.purpose for each in _in_log(location, state.shard_id, 0, seqno))


def keep_appends(location: Location, state: ShardState, seqno: int) -> None:
    """Keep the appends of the rows below `seqno`, which a cut is about to remove."""
    shard, since = state.shard_id, state.since
    blobs = _listed(location, shard)
    newest = blobs[-1] if blobs else None
    known = _seqno(newest) if newest else 0
    found = [each for each in _in_log(location, shard, known + 1, seqno) if each.upper > since]
    if found:
        merged = newest if newest is not None and newest.size <= _SMALL_BYTES else None
        earlier = _read(location, merged.key) if merged is not None else None
        appends = [*([] if earlier is None else _of(earlier)), *found]
        last = max(each.upper for each in appends)
        key = f"{shard}/h{found[-1].seqno}-{last}-{uuid.uuid4()}"
        location.blob.put(key, _encode(appends))
        if merged is not None and earlier is not None:
            location.blob.delete(merged.key)
            blobs.remove(merged)
    for meta in blobs:
        if _upper(meta) <= since:
            location.blob.delete(meta.key)


def forget_appends(location: Location, shard_id: str) -> None:
    """Delete the kept appends of a finalized shard."""
    for meta in _listed(location, shard_id):
        location.blob.delete(meta.key)


def appends(location: Location, shard_id: str, after: int) -> pa.Table:
    """The known appends with rows of a shard whose upper is after `after`, by their version (`APPENDS`)."""
    rows = [each for each in _in_log(location, shard_id, 0, None) if each.upper > after]
    tables = [_table(rows)]
    while True:
        blobs = [meta for meta in _listed(location, shard_id) if _upper(meta) > after]
        kept = [_read(location, meta.key) for meta in blobs]
        # Another process may have replaced a blob meanwhile. A damaged one stays.
        again = {meta.key for meta in _listed(location, shard_id)}
        if all(found is not None or meta.key in again for meta, found in zip(blobs, kept, strict=True)):
            break
    tables += [each for each in kept if each is not None]
    found = pa.concat_tables(tables)
    found = found.filter(pc.greater(found["upper"], pa.scalar(after, pa.uint64())))
    first = found.append_column("row", pa.array(range(found.num_rows), pa.int64()))
    first = first.group_by("seqno").aggregate([("row", "min")])
    return found.take(first["row_min"]).sort_by("seqno")


def _in_log(location: Location, shard_id: str, first: int, end: int | None) -> Iterable[_Append]:
    """The appends with rows in the log, from version `first` and before `end`."""
    while True:
        entries = location.consensus.scan(shard_id, first, _ROWS)
        for entry in entries:
            if end is not None and entry.seqno >= end:
                return
            found = _append_in(entry.data, f"{shard_id} row {entry.seqno}")
            if found is not None:
                yield found
        if len(entries) < _ROWS:
            return
        first = entries[-1].seqno + 1


def _append_in(data: bytes, key: str) -> _Append | None:
    """The append with rows in a row of the log. Decodes no more of the row than that."""
    diff = parse(pb.StateDiff(), open_frame(DIFF_MAGIC, data, key), key)
    batch = writer = None
    for change in diff.changes:
        match change.WhichOneof("change"):
            case "append" if change.append.runs:
                batch = change.append
            case "put_writer":
                writer = change.put_writer
    if batch is None or writer is None:
        return None
    upper = batch.upper.time if batch.upper.HasField("time") else CLOSED - 1
    purpose, hostname = writer.purpose, writer.hostname
    return _Append(diff.seqno, batch.lower.time, upper, diff.wall_ms, purpose, hostname)


def _listed(location: Location, shard_id: str) -> list[BlobMeta]:
    """The blobs of kept appends, by the version of their last one."""
    found = (meta for meta in location.blob.direct.list(f"{shard_id}/h"))
    return sorted((meta for meta in found if APPENDS_NAME.fullmatch(meta.key)), key=_seqno)


def _seqno(meta: BlobMeta) -> int:
    name = APPENDS_NAME.fullmatch(meta.key)
    assert name is not None
    return int(name["seqno"])


def _upper(meta: BlobMeta) -> int:
    name = APPENDS_NAME.fullmatch(meta.key)
    assert name is not None
    return int(name["upper"])


def _encode(appends: Sequence[_Append]) -> bytes:
    texts: dict[str, int] = {}
    message = pb.KeptAppends(
        seqnos=[each.seqno for each in appends],
        lowers=[each.lower for each in appends],
        uppers=[each.upper for each in appends],
        wall_ms=[each.wall_ms for each in appends],
        purposes=[texts.setdefault(each.purpose, len(texts)) for each in appends],
        hostnames=[texts.setdefault(each.hostname, len(texts)) for each in appends],
    )
    message.texts.extend(texts)
    return seal(_MAGIC, _FORMAT, message.SerializeToString())


def _read(location: Location, key: str) -> pa.Table | None:
    """Read a blob of kept appends. None if it is missing or damaged."""
    data = location.blob.direct.get_start(key, _MOST_BYTES)
    if data is None:
        return None
    try:
        message = parse(pb.KeptAppends(), unseal(_MAGIC, _FORMAT, data, key), key)
        texts = pa.array(message.texts, pa.string())
        columns = [
            pa.array(message.seqnos, pa.uint64()),
            pa.array(message.lowers, pa.uint64()),
            pa.array(message.uppers, pa.uint64()),
            pa.array(message.wall_ms, pa.uint64()),
            *(texts.take(pa.array(each, pa.uint32())) for each in (message.purposes, message.hostnames)),
        ]
        return pa.Table.from_arrays(columns, schema=APPENDS)
    except (CorruptBlob, pa.ArrowException) as error:
        log.warning("can't use a damaged blob of kept appends in %s: %s", location.blob.description, error)
        return None


def _table(appends: Sequence[_Append]) -> pa.Table:
    columns = {name: [getattr(each, name) for each in appends] for name in APPENDS.names}
    return pa.table(columns, schema=APPENDS)


def _of(table: pa.Table) -> list[_Append]:
    return [_Append(**row) for row in table.to_pylist()]
