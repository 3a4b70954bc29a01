"""What a source is: partitions of messages in the order of their addresses.

- An address is a partition and a position in it. Positions never go back, and a position has the same message
  for every reader, or is gone.
- A source says what is new beyond the bindings that the collection has. It never decides what was read: only
  the remap of the collection does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from holdfast.collections.record.spec import FIRST_RENDITION

MESSAGES: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""Messages of one partition, in the order of their positions. `timestamp` is in milliseconds since 1970."""


def reader_id(collection_id: str, rendition_id: str) -> str:
    """What the source calls the reader of a rendition."""
    return collection_id if rendition_id == FIRST_RENDITION else f"{collection_id}-{rendition_id}"


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message that is bound of a partition: its position and its checksum."""

    position: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Binding:
    """How far a collection contains a partition: all messages below `position`.

    `identity` says which contents the partition had, where a partition can be replaced. `rows` and `checksum`
    describe the messages of the range that was bound last. In all, `total` messages are bound. Those from
    `begin` on follow each other without a gap. `last` is the last one, if the source can look for it later.
    """

    position: int
    identity: str = ""
    rows: int = 0
    checksum: int = 0
    begin: int = 0
    total: int = 0
    last: LastMessage | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of a partition in `[begin, end)`. A `whole` range can't be split.

    `size_bytes` is 0 if it is not known before the range is read. A range that `waits` can't be read yet: a
    later probe returns it again. An empty range that can be split binds where its partition begins. The
    positions of a `sparse` range say nothing about the number of its messages: it is read from its beginning
    to where the limits of the step are reached, and is bound up to the last piece. Without messages it may
    wait for more. `after` is the last message that is bound before the range, if it may be there still.
    """

    partition: str
    begin: int
    end: int
    identity: str = ""
    whole: bool = False
    size_bytes: int = 0
    waits: bool = False
    sparse: bool = False
    after: LastMessage | None = None


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that the source can't read as a whole: its index in the piece, and why."""

    index: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Some messages of a range. `reached` is the next position, also after messages that nobody may read.

    If the piece `clears`, everything that came before it is deleted: rows, and messages of this range. If it
    is `unfinished`, its messages belong together with those of the next one.
    `last` is its last message, if the source can look for it later.
    `counted` is what the binding counts and sums. Default: the messages.
    """

    messages: pa.RecordBatch
    reached: int
    bad: Sequence[BadMessage] = ()
    clears: bool = False
    last: LastMessage | None = None
    counted: pa.RecordBatch | None = None
    unfinished: bool = False


class Source(Protocol):
    """A source of messages. One thread uses it."""

    @property
    def name(self) -> str:
        """What the remap calls it. A source with another name has other messages."""

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return what is new, oldest first. A range begins where the binding of its partition ends.

        Raises `SourceStalled` if messages between a binding and the range are gone.
        """

    def read(self, wanted: Range) -> Iterator[Piece]:
        """Read the messages of a range.

        Raises `SourceChanged` if the partition no longer has the contents that the range names, and
        `SourceStalled` if it has another message in the place of the one before the range.
        """

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        """Tell the source that these bindings are durable."""

    def forget(self) -> None:
        """Remove what the source keeps for this reader, which needs nothing any more."""

    def close(self) -> None:
        """Release what it has open."""
