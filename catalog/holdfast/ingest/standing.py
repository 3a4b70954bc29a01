"""Bad records: which key each one has, and what ends it.

- A bad record of an envelope with keys ends with a later good message that has the same key or writes its
  row. Two keys are the same if they are decoded to the same key columns, however they are written, or have
  the same bytes.
- A bad record that hides no row ends when it is older than the history that the collection keeps. That is any
  with envelope None, and one without a key with envelope Upsert.
- Of the others, one without a key, or of kind `UNCLEAR`, does not end.
- A key of `RAW_BYTES` or more is stored as its beginning and a digest. So it is compared as a whole.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from holdfast.collections.pipeline import ERRORS_SCHEMA
from holdfast.ingest.envelope import ORDER, Envelope
from holdfast.ingest.formats.decoded import UNCLEAR, Format, full_rows
from holdfast.ingest.source import MESSAGES
from holdfast.persist.rows.row_hash import canonical_bytes
from holdfast.persist.rows.schema import DIFF

RAW_BYTES: Final = 16 << 10
"""An error record keeps so much of a message's key and of its value."""
ENDS_WITH: Final = "_ends_with"
"""What the row of an error has besides its columns: the marks of good records that end it."""
MESSAGE_KEY: Final = "_message_key"
SETTLES: Final = "_settles"
"""Columns of records: the key of the message, and whether the message was good."""
_DIGEST_BYTES: Final = 16
_ROW, _RAW, _DIGEST = b"r", b"k", b"d"
"""How the mark of a key begins: with its columns, with its bytes, and with the digest of such a mark."""


def mark(errors: Sequence[dict[str, Any]], keys: Format, *, stored: bool = False) -> None:
    """Add `ENDS_WITH` to rows of errors, and cut the keys unless they are `stored`."""
    for row in errors:
        row[ENDS_WITH] = ()
    marked = [row for row in errors if row["key"] is not None and row["kind"] != UNCLEAR]
    whole = [row for row in marked if not (stored and len(row["key"]) == RAW_BYTES)]
    of_rows = _rows_of([row["key"] for row in whole], keys)
    for row, of_row in zip(whole, of_rows, strict=True):
        row[ENDS_WITH] = (_RAW + row["key"],) if of_row is None else (_ROW + of_row, _RAW + row["key"])
    for row in errors:
        if (key := row["key"]) is not None and len(key) >= RAW_BYTES:
            if not stored:
                first = row[ENDS_WITH][0] if row[ENDS_WITH] else _RAW + key
                row["key"] = key[: RAW_BYTES - _DIGEST_BYTES] + xxhash.xxh3_128_digest(first)
            if row["kind"] != UNCLEAR:
                row[ENDS_WITH] = (_DIGEST + row["key"][-_DIGEST_BYTES:],)


def _rows_of(keys: Sequence[bytes], form: Format) -> list[bytes | None]:
    """The key columns of keys, as canonical bytes. None for a key that can't be decoded."""
    if not keys:
        return []
    count = len(keys)
    columns = [pa.array(range(count), pa.int64()), pa.nulls(count, pa.int64()), keys, keys]
    decoded = form.decode(
        pa.RecordBatch.from_arrays(
            [pa.array(each, field.type) for each, field in zip(columns, MESSAGES, strict=True)],
            schema=MESSAGES,
        )
    )
    of_rows: list[bytes | None] = [None] * count
    found = canonical_bytes(decoded.rows, decoded.rows.column_names).to_pylist()
    for at in np.flatnonzero(full_rows(decoded.rows)).tolist():
        of_rows[int(decoded.index[at])] = found[at]
    return of_rows


def latest_good(
    records: pa.Table, key_names: Sequence[str], errors: Sequence[dict[str, Any]]
) -> dict[bytes, tuple[int, str, int]]:
    """What orders the last good record of a step, for each mark that such errors have."""
    wanted = {mark for row in errors for mark in row[ENDS_WITH]}
    latest: dict[bytes, tuple[int, str, int]] = {}
    if not wanted:
        return latest
    records = records.filter(records[SETTLES])
    of_rows = canonical_bytes(records, key_names)
    raw = pa.concat_arrays(records[MESSAGE_KEY].chunks or [pa.array([], pa.binary())]).cast(pa.large_binary())
    marks = [(_ROW, of_rows), (_RAW, raw)]
    if any(each.startswith(_DIGEST) for each in wanted):
        marks += [(_DIGEST, _digests(kind, keys)) for kind, keys in marks]
    for kind, keys in marks:
        some = [each.removeprefix(kind) for each in wanted if each.startswith(kind)]
        hits = pa.array(
            np.flatnonzero(pc.is_in(keys, pa.array(some, pa.large_binary())).to_numpy(zero_copy_only=False))
        )
        columns = [keys.take(hits), *(records[each].take(hits) for each in ORDER)]
        for key, timestamp, partition, position in zip(*(each.to_pylist() for each in columns), strict=True):
            order = (-1 if timestamp is None else timestamp, partition, position)
            if latest.get(kind + key, order) <= order:
                latest[kind + key] = order
    return latest


def _digests(kind: bytes, keys: pa.Array) -> pa.Array:
    digests = [None if each is None else xxhash.xxh3_128_digest(kind + each) for each in keys.to_pylist()]
    return pa.array(digests, pa.large_binary())


def last_end(row: dict[str, Any], latest: dict[bytes, tuple[int, str, int]]) -> tuple[int, str, int] | None:
    """Return what orders the last good record that ends an error, or None."""
    return max((latest[each] for each in row[ENDS_WITH] if each in latest), default=None)


def outlived(standing: Sequence[dict[str, Any]], old: pa.Table, envelope: Envelope) -> list[dict[str, Any]]:
    """Return the errors that are among `old` ones, as often as there, and hide no row."""
    left: Counter[tuple[Any, ...]] = Counter()
    for row in old.to_pylist():
        left[_stored(row)] += row[DIFF]
    found = []
    for row in standing:
        hides = envelope.is_keyed and (envelope is not Envelope.UPSERT or row["key"] is not None)
        if not hides and left[_stored(row)] > 0:
            left[_stored(row)] -= 1
            found.append(row)
    return found


def _stored(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[each] for each in (*ERRORS_SCHEMA.key_names, *ERRORS_SCHEMA.value_names))
