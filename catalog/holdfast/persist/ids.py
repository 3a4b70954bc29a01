"""Identifiers: a letter for the kind, and a UUID.

`s` shard, `w` writer, `r` reader, `c` critical hold, `p` part, `k` compaction claim, `b` pending batch.

A shard id is also the key of the shard's log in Consensus, and the first segment of its blob keys. Other
programs and people may put objects next to ours. Objects with names of another form are skipped.
"""

import hashlib
import re
import uuid
from typing import Final

from holdfast.errors import BadInput

EPOCH_BITS: Final = 40
"""A version number is `epoch * 2^40` plus a count. After a recovery, the log continues in another epoch."""

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DIGEST: Final = r"[0-9]+\.(?:[0-9a-f]{2})*"
# No log gets to greater numbers, and the stores hold no number of more than 63 bits.
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,17})"
_SHARD: Final = re.compile(rf"s{_UUID}")

BLOB_NAME: Final = re.compile(rf"(s{_UUID})/(?:(?P<writer>w{_UUID})/p{_UUID}|v(?P<seqno>{_NUMBER})-{_UUID})")
"""The key of a part or of a rollup."""

CUT_NAME: Final = re.compile(rf"s{_UUID}/c(?P<seqno>{_NUMBER})-{_DIGEST}")
"""The key of the row digests that a cut keeps (`holdfast.persist.state.cuts`)."""

APPENDS_NAME: Final = re.compile(rf"s{_UUID}/h(?P<seqno>{_NUMBER})-(?P<upper>[0-9]{{1,20}})-{_UUID}")
"""The key of the appends that a cut keeps (`holdfast.persist.state.appends`)."""

MARKER_NAME: Final = re.compile(
    rf"s{_UUID}/f(?P<seqno>{_NUMBER})-(?P<recoveries>{_NUMBER})-{_DIGEST}-(?:none|{_DIGEST})"
)
"""The key of a marker of two histories (`holdfast.persist.state.divergence`)."""

LINE_NAME: Final = re.compile(rf"lines/(?P<number>[0-9]{{1,18}})-(?P<recoveries>{_NUMBER})-(?P<line>.+)")
"""The key of a record that clients wrote on a line of the consensus store's history."""


def shard_id(value: uuid.UUID) -> str:
    """Return the shard id for a UUID, for ids that derive from something else."""
    return f"s{value}"


def check_shard_id(value: str) -> str:
    """Return `value`, or raise `BadInput` if it is not a shard id."""
    if not isinstance(value, str) or not _SHARD.fullmatch(value):
        raise BadInput(
            f"'{value}' is not a shard id: expected 's' and a lower-case UUID",
            hint="'holdfast persist inspect' without SHARD shows all shards",
        )
    return value


def new_id(kind: str) -> str:
    """Return a random id of a kind."""
    return f"{kind}{uuid.uuid4()}"


def critical_id(shard: str, purpose: str) -> str:
    """Return the id of the critical hold with this purpose. It is the same for every caller."""
    return f"c{uuid.uuid5(uuid.UUID(shard[1:]), purpose)}"


def fingerprint(hold: str, opaque: bytes) -> str:
    """Return what people see of a critical hold's token: eight hexadecimal digits, to compare tokens."""
    return hashlib.blake2b(opaque, key=hold.encode(), digest_size=4).hexdigest() if opaque else "none"


def part_key(shard: str, writer: str, part: str) -> str:
    """Return the blob key of a part. By the writer in it, a sweeper knows orphans from parts in progress."""
    return f"{shard}/{writer}/{part}"


def rollup_key(shard: str, seqno: int) -> str:
    """Return a new blob key for the rollup of version `seqno`."""
    return f"{shard}/v{seqno}-{uuid.uuid4()}"


def rollup_seqno(key: str) -> int | None:
    """Return the version in the blob key of a rollup; None for any other key."""
    found = BLOB_NAME.fullmatch(key)
    return int(found["seqno"]) if found is not None and found["seqno"] else None
