"""The steps that the plans for a StorageCollection and its renditions may decide on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from holdfast.collections import Recipe
from holdfast.persist import Schema
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.engine.status import Health
from holdfast_operator.engine.steps import Decision, Settle, StoreChange


@dataclass(frozen=True)
class EnsureItem(StoreChange):
    """Make the item in the catalog, or bring it up to date."""

    call: ClassVar[str] = "ensure_item"
    item: ItemName
    schema: Schema
    shards: int


@dataclass(frozen=True)
class CreateCollection(StoreChange):
    """Make the collection in storage."""

    call: ClassVar[str] = "create_collection"
    collection_id: str
    item: ItemName
    schema: Schema
    shards: int


@dataclass(frozen=True)
class EvolveColumns(StoreChange):
    """Add columns to the collection in storage, or make them wider."""

    call: ClassVar[str] = "evolve_columns"
    collection_id: str
    before: Schema
    schema: Schema


@dataclass(frozen=True)
class CommentColumns(StoreChange):
    """Give columns of the collection in storage other comments; None takes one away."""

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


@dataclass(frozen=True)
class CreateRendition(StoreChange):
    """Make a rendition that is to be filled."""

    call: ClassVar[str] = "create_rendition"
    collection_id: str
    rendition_id: str
    shards: int
    hash_columns: tuple[str, ...]
    recipe: Recipe


@dataclass(frozen=True)
class AbortRendition(StoreChange):
    """Give up a rendition that is being filled."""

    call: ClassVar[str] = "abort_rendition"
    collection_id: str
    rendition_id: str


@dataclass(frozen=True)
class LongChange(Decision):
    """A step that may take minutes: it goes on while the collection rests as `resting` says."""

    collection_id: str
    rendition_id: str
    health: Health
    resting: Settle | None = None
    """All that is shown meanwhile."""


@dataclass(frozen=True)
class Hydrate(LongChange):
    """Fill a rendition with what the collection has."""


@dataclass(frozen=True)
class HandOver(LongChange):
    """Make a rendition the collection, not before `at`."""

    irreversible: ClassVar[bool] = True
    at: int | None = None


@dataclass(frozen=True)
class Restore(LongChange):
    """Fill a rendition from a snapshot of at most `room` bytes, and make it the collection."""

    irreversible: ClassVar[bool] = True
    snapshot: str = ""
    room: int | None = None


@dataclass(frozen=True)
class Advance(LongChange):
    """Do what is due without anybody's word: bring what is lacking, drop what nobody can read any more."""

    irreversible: ClassVar[bool] = True


@dataclass(frozen=True)
class MakeDifference(LongChange):
    """Spare who listens through the last handover a comparison: whoever handed over didn't come to it."""

    irreversible: ClassVar[bool] = True
