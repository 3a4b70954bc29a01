"""Identifiers: a letter for the kind and a UUID.

`s` shard, `w` writer, `r` reader, `c` critical hold, `p` part, `k` claim of a compaction, `b` pending batch.

A shard id is also the key of the shard's log in Consensus and the first segment of its blob keys. Other
programs and people may put objects beside ours. What has another form of name is not ours: it is skipped.
"""

import hashlib
import re
import uuid
from typing import Final

from holdfast.errors import BadInput

EPOCH_BITS: Final = 40
"""A version number is `epoch * 2^40` and a count: a log that is recovered goes on in another epoch."""

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DIGEST: Final = r"[0-9]+\.(?:[0-9a-f]{2})*"
_SHARD: Final = re.compile(rf"s{_UUID}")

BLOB_NAME: Final = re.compile(rf"(s{_UUID})/(?:(?P<writer>w{_UUID})/p{_UUID}|v(?P<seqno>[0-9]+)-{_UUID})")
"""The key of a part, or of a rollup."""

CUT_NAME: Final = re.compile(rf"s{_UUID}/c(?P<seqno>[0-9]+)-{_DIGEST}")
"""The key of the digests that a cut has kept (`holdfast.persist.state.cuts`)."""

MARKER_NAME: Final = re.compile(
    rf"s{_UUID}/f(?P<seqno>[0-9]+)-(?P<recoveries>[0-9]+)-{_DIGEST}-(?:none|{_DIGEST})"
)
"""The key of a marker of two histories (`holdfast.persist.state.divergence`)."""

LINE_NAME: Final = re.compile(r"lines/(?P<number>[0-9]+)-(?P<recoveries>[0-9]+)-(?P<line>.+)")
"""The key of a record that clients wrote on a line of the consensus store."""


def shard_id(value: uuid.UUID) -> str:
    """The shard id of a UUID, for ids derived from something else."""
    return f"s{value}"


def check_shard_id(value: str) -> str:
    """Return `value`, or raise `BadInput` where it is not a shard id."""
    if not isinstance(value, str) or not _SHARD.fullmatch(value):
        raise BadInput(f"'{value}' is not a shard id: expected 's' and a lower-case UUID")
    return value


def new_id(kind: str) -> str:
    """A random id of one kind."""
    return f"{kind}{uuid.uuid4()}"


def critical_id(shard: str, purpose: str) -> str:
    """The id of the critical hold that has this purpose: the same for all who ask for it."""
    return f"c{uuid.uuid5(uuid.UUID(shard[1:]), purpose)}"


def fingerprint(hold: str, opaque: bytes) -> str:
    """What people see of a critical hold's token: eight hexadecimal digits that tell two of them apart."""
    return hashlib.blake2b(opaque, key=hold.encode(), digest_size=4).hexdigest() if opaque else "none"


def part_key(shard: str, writer: str, part: str) -> str:
    """The blob key of a part. The writer in it lets a sweeper tell orphans from parts in the making."""
    return f"{shard}/{writer}/{part}"


def rollup_key(shard: str, seqno: int) -> str:
    """A fresh blob key for the rollup of version `seqno`."""
    return f"{shard}/v{seqno}-{uuid.uuid4()}"


def rollup_seqno(key: str) -> int | None:
    """The version in the blob key of a rollup; None if the key is not one."""
    found = BLOB_NAME.fullmatch(key)
    return int(found["seqno"]) if found is not None and found["seqno"] else None
