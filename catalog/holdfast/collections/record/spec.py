"""What a collection is: the specification it is created from, and what the controller knows of it.

A collection has a metadata shard, which tells which rendition holds at which time, and renditions, each with
a fixed number of data shards. An id is never used twice in a location, a name by one live collection only.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from holdfast.collections.record.comments import Comments, changed_comments, check_comments
from holdfast.errors import CLOSED, BadInput
from holdfast.persist.rows.schema import Schema

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
    columns where there is no key. `comments` are those of its columns, as `check_comments` takes them.

    Raises `BadInput` naming what has no meaning.
    """

    collection_id: str
    name: str
    schema: Schema
    shards: int = 1
    hash_columns: tuple[str, ...] = ()
    comments: Comments = field(default_factory=dict, hash=False)

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
        asked = check_comments(self.comments, self.schema, f"collection {self.name}")
        object.__setattr__(self, "comments", changed_comments({}, asked))


class RenditionState(IntEnum):
    """Where a rendition is in its life; the numbers are those of the stored record.

    `HOLDING`: it is the collection from `held_from` on. `HYDRATING`: it is being filled, nobody reads it.
    `RETIRED`: it was the collection in `[held_from, held_to)`, and somebody may still read it there.
    `DROPPED`: its shards are gone. `ABORTED`: so are those of one that never held.
    """

    HOLDING = 0
    HYDRATING = 1
    RETIRED = 2
    DROPPED = 3
    ABORTED = 4

    @property
    def never_held(self) -> bool:
        """Whether a rendition in this state has not been the collection at any time."""
        return self in {RenditionState.HYDRATING, RenditionState.ABORTED}


class Recipe(IntEnum):
    """Where the contents of a rendition come from; the numbers are those of the stored record.

    `COPY`: from the collection itself. `SOURCE`: from a pipeline of its own, which alone writes it, before
    and after it holds. `RESTORED`: from a snapshot; what the collection had otherwise is given up.
    """

    COPY = 0
    SOURCE = 1
    RESTORED = 2


@dataclass(frozen=True, slots=True)
class RenditionInfo:
    """One rendition: its id, its data shards in routing order, and the times for which it is the collection.

    It is the collection in `[held_from, held_to)`; `held_from` is `CLOSED` for one that never was. `start` is
    the first time that it has contents of its own for: its shards are never compacted past that and the
    collection's since. `difference_shard` holds what differs, at `held_from`, from the one that held
    before; `suspect` says why its contents are not to be trusted.
    """

    id: str
    shards: tuple[str, ...]
    start: int
    hash_columns: tuple[str, ...]
    state: RenditionState = RenditionState.HOLDING
    recipe: Recipe = Recipe.COPY
    held_from: int = 0
    held_to: int = CLOSED
    difference_shard: str = ""
    suspect: str = ""
    created_ms: int = 0

    @property
    def all_shards(self) -> tuple[str, ...]:
        """Its shards, with that of the difference where there is one."""
        return (*self.shards, *([self.difference_shard] if self.difference_shard else []))

    @property
    def dropped(self) -> bool:
        """Whether its shards are gone."""
        return self.state in {RenditionState.DROPPED, RenditionState.ABORTED}

    def sealed_by(self, follower: "RenditionInfo") -> bool:
        """Whether a handover to `follower` seals this one: not where two pipelines write the two."""
        return self.recipe is not Recipe.SOURCE or follower.recipe is not Recipe.SOURCE

    def copies(self, before: "RenditionInfo") -> bool:
        """Whether it took over with just what `before` had, so that nothing differs at the handover.

        A rendition of recipe COPY is filled from the collection alone, up to its handover; nobody else may
        write it before.
        """
        return self.recipe is Recipe.COPY and not (self.suspect or before.suspect)

    def holds_at(self, time: int) -> bool:
        """Whether it is the collection at this time."""
        return self.held_from <= time < self.held_to


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a durable capability on a collection, to write or else to read; found again by its purpose."""

    purpose: str
    writes: bool
    who: str = ""
    host: str = ""
    acquired_ms: int = 0


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What the controller has on record for a collection.

    `shards` and `hash_columns` are those asked for at its creation; `schema` is the newest. `holders` are in
    the order in which they came. `comments` are those of the columns that have one.
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
    holders: tuple[Holder, ...] = ()
    comments: Comments = field(default_factory=dict, hash=False)

    @property
    def dropped(self) -> bool:
        """Whether it is gone or on its way out."""
        return self.state in {CollectionState.DROPPING, CollectionState.DROPPED}

    @property
    def end(self) -> str:
        """What there is to say of one that is `dropped`, in words."""
        how = "is being" if self.state is CollectionState.DROPPING else "was"
        return f"collection {self.name} ({self.collection_id}) {how} dropped"

    @property
    def data_shards(self) -> tuple[str, ...]:
        """The shards of all renditions, those of differences among them; not the metadata shard."""
        return tuple(shard for rendition in self.renditions for shard in rendition.all_shards)

    @property
    def live(self) -> tuple[RenditionInfo, ...]:
        """The renditions that have shards, in the order of their creation."""
        return tuple(each for each in self.renditions if not each.dropped)

    @property
    def held(self) -> tuple[RenditionInfo, ...]:
        """The renditions that hold or held and are not dropped, in the order of their times."""
        held = (each for each in self.live if each.state is not RenditionState.HYDRATING)
        return tuple(sorted(held, key=lambda each: each.held_from))

    def held_before(self, rendition: RenditionInfo) -> RenditionInfo | None:
        """The rendition that this one took over from; None where it is dropped or there was none."""
        return next((each for each in self.held if each.held_to == rendition.held_from), None)

    def held_after(self, rendition: RenditionInfo) -> RenditionInfo | None:
        """The rendition that took over from this one; None where it is dropped or there is none."""
        return next((each for each in self.held if each.held_from == rendition.held_to), None)

    @property
    def holding(self) -> RenditionInfo:
        """The rendition that is the collection from its `held_from` on."""
        (holding,) = (each for each in self.renditions if each.state is RenditionState.HOLDING)
        return holding

    def with_renditions(self, *changed: RenditionInfo) -> "CollectionInfo":
        """The same with these renditions in place of those of their ids, or new at the end."""
        ids = {each.id: each for each in changed}
        known = tuple(ids.pop(each.id, each) for each in self.renditions)
        return replace(self, renditions=(*known, *ids.values()))

    def find(self, rendition_id: str) -> RenditionInfo | None:
        """The rendition with this id, dropped or not; None where the record doesn't know it."""
        return next((each for each in self.renditions if each.id == rendition_id), None)

    def known(self, rendition_id: str) -> RenditionInfo:
        """As `find`, of an id that somebody gave: `BadInput` where the record doesn't know it."""
        if (known := self.find(rendition_id)) is not None:
            return known
        ids = ", ".join(each.id for each in self.renditions)
        raise BadInput(f"collection {self.name} has no rendition {rendition_id}", hint=f"it has {ids}")

    def rendition(self, rendition_id: str) -> RenditionInfo:
        """As `find`, of an id that is on record: `KeyError` where it is not."""
        if (known := self.find(rendition_id)) is not None:
            return known
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
