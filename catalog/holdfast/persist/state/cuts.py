"""The cut of a log below its newest rollup, and what is kept of the rows that it drops: their digests.

A client that is idle for a long time finds that the row that it knows is gone. It still has to tell whether
the log goes on from that row. So a cut at version S works in this order:

1. The digests of the last `MOST_DIGESTS` rows up to S go into a blob that is written once. Its key names S
   and the digest of row S, so a blob of another history is never taken for it.
2. The rows below S are dropped, if the log has a row that the collector knows and that names the rollup of
   version S. A failover may take back that row and keep row S: then nothing leads to the rollup, and the rows
   below S are needed. Row S stays as the anchor that leads to the blob.
3. The blob of the cut before is deleted: the new one contains its digests.

A crash after step 1 or 2 leaves one small blob more than is needed, which the sweeper finds. A blob has 8
bytes per row, so at most 128 KiB.

A failover can take back a cut after step 3: the log then begins at an older anchor, and the blob of that
anchor is gone. The blob of the lost cut is still there and contains the digest of that anchor. So it is of
the same history up to that row, and its digests below it are those of the log.

A blob that is damaged counts as none. The next cut keeps the digests of the rows that are there, and deletes
the damaged blob. A client that knows an older row is refused until it is opened anew.

Of a finalized shard nothing is kept: nobody can write to it, so there is nothing to compare.
"""

import logging
import struct
from collections.abc import Iterator
from typing import Final

from holdfast.errors import CorruptBlob
from holdfast.persist.ids import CUT_NAME
from holdfast.persist.stores import Consensus, Digest, Location, Row
from holdfast.persist.stores.frame import seal, unseal

log = logging.getLogger(__name__)

MOST_DIGESTS: Final = 16 * 1024
_MAGIC: Final = b"HFg\n"
_FORMAT: Final = 1
_FIRST: Final = struct.Struct("<Q")
_ROW: Final = struct.Struct("<I4s")


def cut_key(shard_id: str, seqno: int, digest: Digest) -> str:
    """The key of the blob of a cut whose anchor is row `seqno`."""
    return f"{shard_id}/c{seqno}-{digest}"


def encode_digests(first: int, rows: bytes) -> bytes:
    """The bytes of the blob: the number of the first row, then `rows`, the packed digest of each."""
    return seal(_MAGIC, _FORMAT, _FIRST.pack(first) + rows)


def decode_digests(data: bytes, key: str) -> tuple[int, bytes]:
    """The first row's number and all packed digests; raises `CorruptBlob` and `VersionTooNew`."""
    body = unseal(_MAGIC, _FORMAT, data, key)
    if len(body) < _FIRST.size or (len(body) - _FIRST.size) % _ROW.size:
        raise CorruptBlob(key, "digests of 8 bytes each", f"{len(body)} bytes")
    return _FIRST.unpack_from(body)[0], body[_FIRST.size :]


def cut_log(location: Location, shard_id: str, seqno: int, known: Row) -> bool:
    """Drop the rows below `seqno`, keeping their digests; False if the log does not have row `seqno`.

    `known` is a version that names the rollup of version `seqno`.
    """
    rows = location.consensus.digests(shard_id, max(0, seqno - MOST_DIGESTS + 1), MOST_DIGESTS)
    rows = [row for row in rows if row[0] <= seqno]
    if not rows or rows[-1][0] != seqno:
        return False
    (first, oldest), (_, newest) = rows[0], rows[-1]
    packed = b"".join([_ROW.pack(*digest) for _, digest in rows])
    before = cut_key(shard_id, first, oldest)
    # The first cut of a log that was cut by none before has nothing to take over.
    was_cut = first > 1
    kept = _digests_to(location, shard_id, first, oldest) if was_cut else None
    if kept is not None:
        first, packed = kept[0], kept[1] + packed[_ROW.size :]
    spare = max(0, len(packed) // _ROW.size - MOST_DIGESTS)
    key = cut_key(shard_id, seqno, newest)
    if key != before or (was_cut and kept is None):
        location.blob.put(key, encode_digests(first + spare, packed[spare * _ROW.size :]))
    dropped = location.consensus.truncate(shard_id, seqno, known)
    if dropped and was_cut and key != before:
        location.blob.delete(before)
    return True


def cut_finalized_log(location: Location, shard_id: str, seqno: int, known: Row) -> None:
    """Drop the rows below `seqno`, if the log has `known`, and the digests that were kept of earlier ones."""
    oldest = _anchor(location.consensus, shard_id)
    if location.consensus.truncate(shard_id, seqno, known) and oldest is not None:
        location.blob.delete(cut_key(shard_id, *oldest))


def known_digest(location: Location, shard_id: str, seqno: int) -> Digest | None:
    """The digest of a row, also of one that was cut; None if it was not kept."""
    anchor = _anchor(location.consensus, shard_id)
    while anchor is not None:
        if anchor[0] <= seqno:
            # The row is there: it was not cut, or the store went back while we looked.
            found = dict(location.consensus.digests(shard_id, seqno, 1))
            return found.get(seqno)
        kept = _digests_to(location, shard_id, *anchor)
        if kept is not None:
            return _digest_at(kept, seqno)
        # Without a blob the next cut has come meanwhile, or a client that keeps none made the cut.
        after = _anchor(location.consensus, shard_id)
        if after == anchor:
            return None
        anchor = after
    return None


def _digests_to(location: Location, shard_id: str, seqno: int, digest: Digest) -> tuple[int, bytes] | None:
    """What is kept of the rows up to an anchor: the first row's number and all digests; None if nothing is.

    If the anchor has no blob of its own, it is looked up in the blobs of other cuts.
    """
    own = cut_key(shard_id, seqno, digest)
    kept = _read(location, own)
    if kept is not None:
        return kept
    best: tuple[int, bytes] | None = None
    for meta in location.blob.direct.list(f"{shard_id}/c"):
        if meta.key == own or not CUT_NAME.fullmatch(meta.key):
            continue
        found = _read(location, meta.key)
        if found is None or _digest_at(found, seqno) != digest or (best is not None and best[0] <= found[0]):
            continue
        best = found[0], found[1][: (seqno - found[0] + 1) * _ROW.size]
    return best


def _digest_at(kept: tuple[int, bytes], seqno: int) -> Digest | None:
    first, packed = kept
    place = (seqno - first) * _ROW.size
    return Digest(*_ROW.unpack_from(packed, place)) if 0 <= place < len(packed) else None


def damaged_digests(location: Location, shard_id: str) -> Iterator[tuple[str, str]]:
    """The blobs of cuts that are not what was written, each with what is wrong with it."""
    for meta in location.blob.direct.list(f"{shard_id}/c"):
        name = CUT_NAME.fullmatch(meta.key)
        data = location.blob.direct.get(meta.key) if name is not None else None
        if name is None or data is None:
            continue
        try:
            kept = decode_digests(data, meta.key)
        except CorruptBlob as error:
            yield meta.key, str(error)
            continue
        seqno = int(name["seqno"])
        digest = _digest_at(kept, seqno)
        if digest is None or cut_key(shard_id, seqno, digest) != meta.key:
            yield meta.key, f"it does not have the digest of row {seqno} that its name has"


def _anchor(consensus: Consensus, shard_id: str) -> tuple[int, Digest] | None:
    rows = consensus.digests(shard_id, 0, 1)
    return rows[0] if rows else None


def _read(location: Location, key: str) -> tuple[int, bytes] | None:
    """What a blob has; None if there is none, or it is damaged."""
    data = location.blob.direct.get(key)
    if data is None:
        return None
    try:
        return decode_digests(data, key)
    except CorruptBlob as error:
        log.warning("what a cut of %s has kept can't be used: %s", location.blob.description, error)
        return None
