"""Cuts of a shard's log, and the digests of the rows that a cut removes.

Garbage collection cuts the log: it removes the rows below the newest rollup. A client that was idle for a
long time may know a row that was removed. It must still be able to check whether the log continues from that
row. So a cut keeps the digests of removed rows. A cut at version S has three steps:

1. Write the digests of the last `MOST_DIGESTS` rows up to S into a new blob. Its key contains S and the
   digest of row S, so nobody takes the blob of another history for it.
2. Remove the rows below S, if the log still has a row that the collector knows and that names the rollup of
   version S. This condition matters after a failover: it may remove that row and keep row S. Then nothing
   leads to the rollup, and the rows below S are needed. Row S stays as the anchor, which leads to the blob.
3. Delete the blob of the previous cut. The new blob contains its digests.

A crash after step 1 or 2 leaves one small blob too many, which the sweeper finds. A blob has 8 bytes per row,
so it has at most 128 KiB.

A failover can undo a cut after step 3. The log then begins at an older anchor, and the blob of that anchor is
gone. The blob of the undone cut is still there, and contains the digest of the older anchor. So both belong
to the same history up to that anchor, and the digests below it are valid for the log.

A damaged blob counts as missing. The next cut keeps the digests of the rows that are still there, and deletes
the damaged blob. A client that knows an older row gets an error and must be opened again.

No digests are kept for a finalized shard. Nobody can write to it, so there is nothing to compare.
"""

import logging
import struct
from collections.abc import Iterator
from typing import Final

from holdfast.errors import CorruptBlob
from holdfast.persist.ids import CUT_NAME
from holdfast.persist.stores import Consensus, Digest, Location, LogRow
from holdfast.persist.stores.frame import seal, unseal

log = logging.getLogger(__name__)

MOST_DIGESTS: Final = 16 * 1024
_MAGIC: Final = b"HFg\n"
_FORMAT: Final = 1
_FIRST: Final = struct.Struct("<Q")
_ROW: Final = struct.Struct("<I4s")
_MOST_BYTES: Final = MOST_DIGESTS * _ROW.size + 1024
"""More than a digest blob has. Nobody reads more of a damaged one."""


def cut_key(shard_id: str, seqno: int, digest: Digest) -> str:
    """Return the key of the blob of a cut whose anchor is row `seqno`."""
    return f"{shard_id}/c{seqno}-{digest}"


def encode_digests(first: int, rows: bytes) -> bytes:
    """Encode a digest blob: the number of the first row, then `rows`, the packed digests."""
    return seal(_MAGIC, _FORMAT, _FIRST.pack(first) + rows)


def decode_digests(data: bytes, key: str) -> tuple[int, bytes]:
    """Decode a digest blob into the first row's number and the packed digests.

    Raises `CorruptBlob` and `VersionTooNew`.
    """
    body = unseal(_MAGIC, _FORMAT, data, key)
    if len(body) < _FIRST.size or (len(body) - _FIRST.size) % _ROW.size:
        raise CorruptBlob(key, "digests of 8 bytes each", f"{len(body)} bytes")
    return _FIRST.unpack_from(body)[0], body[_FIRST.size :]


def cut_log(location: Location, shard_id: str, seqno: int, known: LogRow) -> bool:
    """Remove the rows below `seqno` and keep their digests. Return False if the log has no row `seqno`.

    `known` is a version that names the rollup of version `seqno`.
    """
    rows = location.consensus.digests(shard_id, max(0, seqno - MOST_DIGESTS + 1), MOST_DIGESTS)
    rows = [row for row in rows if row[0] <= seqno]
    if not rows or rows[-1][0] != seqno:
        return False
    (first, oldest), (_, newest) = rows[0], rows[-1]
    packed = b"".join([_ROW.pack(*digest) for _, digest in rows])
    before = cut_key(shard_id, first, oldest)
    # A log that begins at row 1 was never cut, so there are no earlier digests to take over.
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


def cut_finalized_log(location: Location, shard_id: str, seqno: int, known: LogRow) -> None:
    """Remove the rows below `seqno` if the log has `known`, and delete the digests of earlier cuts."""
    oldest = _anchor(location.consensus, shard_id)
    if location.consensus.truncate(shard_id, seqno, known) and oldest is not None:
        location.blob.delete(cut_key(shard_id, *oldest))


def known_digest(location: Location, shard_id: str, seqno: int) -> Digest | None:
    """Return the digest of a row, even if it was cut; None if its digest was not kept."""
    anchor = _anchor(location.consensus, shard_id)
    while anchor is not None:
        if anchor[0] <= seqno:
            # The row should be there: it was not cut, or the store went back during the search.
            found = dict(location.consensus.digests(shard_id, seqno, 1))
            return found.get(seqno)
        kept = _digests_to(location, shard_id, *anchor)
        if kept is not None:
            return _digest_at(kept, seqno)
            # The blob is missing: there was another cut meanwhile, or the client that cut kept no digests.
        after = _anchor(location.consensus, shard_id)
        if after == anchor:
            return None
        anchor = after
    return None


def _digests_to(location: Location, shard_id: str, seqno: int, digest: Digest) -> tuple[int, bytes] | None:
    """Return the digests up to an anchor, with the first row's number; None if none were kept.

    If the anchor has no blob of its own, search the blobs of other cuts for its digest.
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


def has_other_digests(location: Location, shard_id: str) -> bool:
    """Whether a digest that a cut kept differs from the log's row of that number."""
    for meta in location.blob.direct.list(f"{shard_id}/c"):
        kept = _read(location, meta.key) if CUT_NAME.fullmatch(meta.key) else None
        if kept is None:
            continue
        for seqno, digest in location.consensus.digests(shard_id, kept[0], MOST_DIGESTS):
            if _digest_at(kept, seqno) not in (None, digest):
                return True
    return False


def damaged_digests(location: Location, shard_id: str) -> Iterator[tuple[str, str]]:
    """Return the keys of damaged digest blobs, each with a description of the damage."""
    for meta in location.blob.direct.list(f"{shard_id}/c"):
        name = CUT_NAME.fullmatch(meta.key)
        data = location.blob.direct.get_start(meta.key, _MOST_BYTES) if name is not None else None
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
            yield meta.key, f"its digest of row {seqno} is not the one in its name"


def _anchor(consensus: Consensus, shard_id: str) -> tuple[int, Digest] | None:
    rows = consensus.digests(shard_id, 0, 1)
    return rows[0] if rows else None


def _read(location: Location, key: str) -> tuple[int, bytes] | None:
    """Read a digest blob; None if it is missing or damaged."""
    data = location.blob.direct.get_start(key, _MOST_BYTES)
    if data is None:
        return None
    try:
        return decode_digests(data, key)
    except CorruptBlob as error:
        log.warning("can't use a damaged blob of row digests in %s: %s", location.blob.description, error)
        return None
