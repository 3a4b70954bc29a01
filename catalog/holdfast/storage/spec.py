"""What a collection is: the specification it is created from, and what the controller knows of it.

A collection has a metadata shard, which tells which rendition holds at which time, and renditions, each with
a fixed number of data shards. An id is never used twice in a location, a name by one live collection only.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from holdfast.errors import BadInput
from holdfast.persist.schema import Schema

MAX_SHARDS: Final = 1024
FIRST_RENDITION: Final = "r1"
_MAX_NAME: Final = 255


class CollectionState(IntEnum):
    """Where a collection is in its life; the numbers are those of the stored record.

    A collection is created in one step, so `CREATING` is not written yet; nobody may open one that is.
    """

    CREATING = 1
    ACTIVE = 2
    DROPPING = 3
    DROPPED = 4


@dataclass(frozen=True, slots=True)
class Frontiers:
    """`[since, upper)`: what can be read of a collection, as exact points in time."""

    since: int
    upper: int


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """What to create.

    `collection_id` is the caller's and unique in the location, `name` unique among live collections.
    `hash_columns` decide which of the `shards` a row goes to: the key columns where none are given, all
    columns where there is no key.

    Raises `BadInput` naming what has no meaning.
    """

    collection_id: str
    name: str
    schema: Schema
    shards: int = 1
    hash_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, text in (("collection id", self.collection_id), ("collection name", self.name)):
            if not text or len(text) > _MAX_NAME or not text.isprintable():
                raise BadInput(f"{what} {text!r}: expected 1 to {_MAX_NAME} printable characters")
        if not 1 <= self.shards <= MAX_SHARDS:
            raise BadInput(f"collection {self.name}: shards is {self.shards}, expected 1 to {MAX_SHARDS}")
        columns = (*self.schema.key_names, *self.schema.value_names)
        chosen = tuple(self.hash_columns) or tuple(self.schema.key_names) or columns
        unknown = [column for column in chosen if column not in columns]
        if unknown:
            raise BadInput(
                f"collection {self.name}: hash column '{unknown[0]}' is not among its columns"
                f" ({', '.join(columns)})"
            )
        if len(set(chosen)) != len(chosen):
            raise BadInput(f"collection {self.name}: a hash column is named twice ({', '.join(chosen)})")
        object.__setattr__(self, "hash_columns", chosen)


@dataclass(frozen=True, slots=True)
class RenditionInfo:
    """One rendition: its id, its data shards in routing order, and the first time that it is for."""

    id: str
    shards: tuple[str, ...]
    start: int
    hash_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What the controller has on record for a collection.

    `shards` and `hash_columns` are those asked for at its creation.
    """

    collection_id: str
    name: str
    schema: Schema
    shards: int
    hash_columns: tuple[str, ...]
    metadata_shard: str
    renditions: tuple[RenditionInfo, ...]
    state: CollectionState
    created_ms: int
    dropped_ms: int = 0

    @property
    def dropped(self) -> bool:
        """Whether it is gone or on its way out."""
        return self.state in {CollectionState.DROPPING, CollectionState.DROPPED}

    @property
    def data_shards(self) -> tuple[str, ...]:
        """The data shards of all renditions."""
        return tuple(shard for rendition in self.renditions for shard in rendition.shards)

    def rendition(self, rendition_id: str) -> RenditionInfo:
        """The rendition with this id; `KeyError` where the record doesn't know it."""
        for rendition in self.renditions:
            if rendition.id == rendition_id:
                return rendition
        raise KeyError(rendition_id)


def difference(info: CollectionInfo, spec: CollectionSpec) -> str:
    """What `spec` asks for otherwise than what was created: one line, empty where nothing differs."""
    pairs = {
        "id": (info.collection_id, spec.collection_id),
        "name": (info.name, spec.name),
        "schema": (info.schema, spec.schema),
        "shards": (info.shards, spec.shards),
        "hash columns": (list(info.hash_columns), list(spec.hash_columns)),
    }
    return "; ".join(
        f"{what} is {is_}, asked for {want}" for what, (is_, want) in pairs.items() if is_ != want
    )
