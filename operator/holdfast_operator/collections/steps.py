"""The steps that the plans for a StorageCollection and its renditions can choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast.collections import Recipe
from holdfast.persist import Schema
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.steps import Decision, Settle, StoreChange


@dataclass(frozen=True)
class EnsureItem(StoreChange):
    """Create the item in the catalog, or update its definition."""

    call: ClassVar[str] = "ensure_item"
    item: ItemName
    schema: Schema
    shards: int


@dataclass(frozen=True)
class CreateCollection(StoreChange):
    """Create the collection in storage."""

    call: ClassVar[str] = "create_collection"
    collection_id: str
    item: ItemName
    schema: Schema
    shards: int
    made_from: str = ""
    """What its source makes rows from. Empty without a source."""


@dataclass(frozen=True)
class EvolveColumns(StoreChange):
    """Add columns to the collection in storage, or widen them."""

    call: ClassVar[str] = "evolve_columns"
    collection_id: str
    before: Schema
    schema: Schema


@dataclass(frozen=True)
class CommentColumns(StoreChange):
    """Change comments of the collection's columns in storage. None removes a comment."""

    call: ClassVar[str] = "comment_columns"
    collection_id: str
    comments: Mapping[str, str | None]


@dataclass(frozen=True)
class Retain(StoreChange):
    """Give up the history before `since`."""

    call: ClassVar[str] = "retain"
    collection_id: str
    since: int


@dataclass(frozen=True)
class DropCollection(StoreChange):
    """Drop the collection in storage."""

    call: ClassVar[str] = "drop_collection"
    collection_id: str


@dataclass(frozen=True)
class DropItem(StoreChange):
    """Remove the item from the catalog."""

    call: ClassVar[str] = "drop_item"
    item: ItemName
    left: str = ""
    """What its source may still keep for it, and why, as a sentence. Empty if it keeps nothing."""


@dataclass(frozen=True)
class CreateRendition(StoreChange):
    """Create a rendition to be filled."""

    call: ClassVar[str] = "create_rendition"
    collection_id: str
    rendition_id: str
    shards: int
    hash_columns: tuple[str, ...]
    recipe: Recipe
    made_from: str = ""
    """What its own pipeline makes rows from. Empty if it has none, or that of what it copies."""


@dataclass(frozen=True)
class AbortRendition(StoreChange):
    """Give up a rendition that is being filled."""

    call: ClassVar[str] = "abort_rendition"
    collection_id: str
    rendition_id: str


@dataclass(frozen=True)
class LongChange(Decision):
    """A step that may take minutes. The collection shows `resting` while it runs."""

    collection_id: str
    rendition_id: str
    health: Health
    resting: Settle | None = None
    """The status, conditions and Events to show while the step runs."""


@dataclass(frozen=True)
class Hydrate(LongChange):
    """Fill a rendition with the rows of the collection."""


@dataclass(frozen=True)
class HandOver(LongChange):
    """Hand over to a rendition, at `at` or later."""

    irreversible: ClassVar[bool] = True
    at: int | None = None


@dataclass(frozen=True)
class Restore(LongChange):
    """Fill a rendition from a snapshot of at most `room` bytes, and hand over to it."""

    irreversible: ClassVar[bool] = True
    snapshot: str = ""
    room: int | None = None


@dataclass(frozen=True)
class Advance(LongChange):
    """Do the upkeep that is due: copy missing rows to the active rendition, and drop unreadable ones."""

    irreversible: ClassVar[bool] = True


@dataclass(frozen=True)
class Erase(LongChange):
    """Delete the data of a dropped collection. `rendition_id` is empty."""

    irreversible: ClassVar[bool] = True


@dataclass(frozen=True)
class MakeDifference(LongChange):
    """Store the difference of the last handover, so that listeners needn't compare the two renditions.

    The process that handed over normally does this, but did not get to it.
    """

    irreversible: ClassVar[bool] = True
