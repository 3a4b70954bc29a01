"""The options of `df.write.format("holdfast")` and `df.writeStream...`, checked before anything is opened.

| option | meaning |
|---|---|
| `url`, or `blob` and `consensus`; `collection` | as for reading |
| `at` | the time of the rows; the wall clock's, or the collection's upper where that is later, when absent |
| `farAhead` | `true`: `at` may be more than an hour ahead of the store's clock |
| `writeId` | a name for this write: a write of that name that is done is not done again (not for streams) |
| `checkpointLocation` | a stream's own, for Spark |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.errors import CLOSED, BadInput
from holdfast.spark.options import boolean, checked, integer
from holdfast.spark.place import Place

_KNOWN: Final = ("url", "blob", "consensus", "collection", "at", "farAhead", "writeId")
# What Spark puts beside the options of a stream.
_OF_SPARK: Final = ("checkpointLocation", "path", "queryName")
_MAX_ID: Final = 200


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Where to write, and how. `at` None means now; without `write_id`, a repeated write adds rows again."""

    place: Place
    collection: str
    at: int | None = None
    far_ahead: bool = False
    write_id: str | None = None


def parse_write_options(options: Mapping[str, str], *, stream: bool = False) -> WriteOptions:
    """Parse options from Spark, with keys in any case; a `BadInput` names the wrong option and why."""
    given = checked(options, (*_KNOWN, *_OF_SPARK) if stream else _KNOWN)
    if stream and (wrong := {"at", "farahead", "writeid"} & given.keys()):
        raise BadInput(f"option {min(wrong)!r} is only for batch writes: a stream sets it for its batches")
    write_id = given.get("writeid")
    if write_id is not None and not (0 < len(write_id) <= _MAX_ID and write_id.isprintable()):
        raise BadInput(f"option 'writeId' is {write_id!r:.60}, not 1 to {_MAX_ID} printable characters")
    return WriteOptions(
        place=Place(given.get("url"), given.get("blob"), given.get("consensus")),
        collection=given["collection"],
        at=integer("at", given["at"], 0, CLOSED - 2) if "at" in given else None,
        far_ahead=boolean("farAhead", given.get("farahead", "false")),
        write_id=write_id,
    )
