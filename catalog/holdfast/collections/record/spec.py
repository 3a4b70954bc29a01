"""What a collection is: the spec that it is created from, and the controller's record of it.

A collection has a metadata shard, which records which rendition is current at which time, and renditions,
each with a fixed number of data shards. An id is never used twice in a location. A name belongs to at most
one live collection.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames
from holdfast.collections.record.comments import Comments, changed_comments, check_comments
from holdfast.errors import CLOSED, BadInput
from holdfast.persist.rows.column_types import TYPE_NAMES, is_basic
from holdfast.persist.rows.schema import Schema

MAX_SHARDS: Final = 1024
FIRST_RENDITION: Final = "r1"
_MAX_NAME: Final = 255


class CollectionState(IntEnum):
    """The state of a collection. The numbers are stored.

    A collection is created in one commit, so `CREATING` is never written today. A collection in that state
    can't be opened.
    """

    CREATING = 1
    ACTIVE = 2
    DROPPING = 3
    DROPPED = 4


@dataclass(frozen=True, slots=True)
class Frontiers:
    """`[since, upper)`: the times of a collection that you can read."""

    since: int
    upper: int


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """The collection to create.

    You choose `collection_id`, which must be unique in the location, and `name`, which must be unique among
    live collections. `hash_columns` decide which of the `shards` a row goes to. Default: the key columns, or
    all columns if there is no key. `comments` are the comments of columns (see `check_comments`). The first
    rendition of a collection that is `source_fed` has recipe SOURCE, and only its pipeline writes it.
    `made_from` is as for a rendition. `retain_ms` is how much history it keeps (see
    `StorageController.retain`; None: all). `names` has columns that were renamed or dropped, if the
    collection is a copy. `hash_columns` are stored names then.

    Raises `BadInput` and names the invalid value.
    """

    collection_id: str
    name: str
    schema: Schema
    shards: int = 1
    hash_columns: tuple[str, ...] = ()
    comments: Comments = field(default_factory=dict, hash=False)
    source_fed: bool = False
    made_from: str = ""
    retain_ms: int | None = None
    names: ColumnNames = PLAIN_NAMES

    @property
    def stored_schema(self) -> Schema:
        """The schema of its shards."""
        return self.names.stored_schema(self.schema)

    def __post_init__(self) -> None:
        for what, text in (("collection id", self.collection_id), ("collection name", self.name)):
            check_name(what, text)
        check_retention(self.retain_ms)
        if not 1 <= self.shards <= MAX_SHARDS:
            raise BadInput(f"collection {self.name}: shards is {self.shards}, expected 1 to {MAX_SHARDS}")
        columns = self.stored_schema.names
        chosen = tuple(self.hash_columns) or tuple(self.stored_schema.key_names) or tuple(columns)
        unknown = [column for column in chosen if column not in columns]
        if unknown:
            raise BadInput(
                f"collection {self.name}: hash column '{unknown[0]}' is not among its columns"
                f" ({', '.join(columns)})"
            )
        if len(set(chosen)) != len(chosen):
            raise BadInput(f"collection {self.name}: a hash column is named twice ({', '.join(chosen)})")
        object.__setattr__(self, "hash_columns", chosen)
        if self.source_fed:
            check_fed(self.name, self.schema)
        asked = check_comments(self.comments, self.schema, f"collection {self.name}")
        object.__setattr__(self, "comments", changed_comments({}, asked))


def check_fed(name: str, schema: Schema) -> None:
    """Raise `BadInput` if a source can't feed a collection with this schema."""
    for column in schema.columns:
        if not is_basic(column.type):
            raise BadInput(
                f"collection {name}: column {column.name!r} is {column.type}, which a source can't fill",
                hint=f"use one of {', '.join(TYPE_NAMES)}",
            )


def check_name(what: str, text: str) -> None:
    """Raise `BadInput` unless a text can be an id or a name. `what` says which."""
    if not isinstance(text, str) or not text or len(text) > _MAX_NAME or not text.isprintable():
        raise BadInput(f"{what} {text!r}: expected 1 to {_MAX_NAME} printable characters")


def check_retention(retain_ms: int | None) -> None:
    """Raise `BadInput` unless this can be the length of the history that a collection keeps."""
    if retain_ms is not None and not (type(retain_ms) is int and 0 <= retain_ms < CLOSED):
        raise BadInput(f"retain_ms is {retain_ms!r}, expected a number of milliseconds, or None")


class RenditionState(IntEnum):
    """The state of a rendition. The numbers are stored.

    `HOLDING`: it is current from `held_from` on. `HYDRATING`: it is being filled, and nobody reads it.
    `RETIRED`: it was current in `[held_from, held_to)`, and may still be read at these times. `DROPPED`: its
    shards are gone. `ABORTED`: its shards are gone, and it never was current.
    """

    HOLDING = 0
    HYDRATING = 1
    RETIRED = 2
    DROPPED = 3
    ABORTED = 4

    @property
    def never_held(self) -> bool:
        """Whether a rendition in this state was never current."""
        return self in {RenditionState.HYDRATING, RenditionState.ABORTED}


class Recipe(IntEnum):
    """Where the contents of a rendition come from. The numbers are stored.

    `COPY`: from the collection itself. If that has a pipeline, the pipeline may continue the copy from its
    handover on. `SOURCE`: from its own pipeline. Only that pipeline writes it, before
    and after it becomes current. `RESTORED`: from a snapshot. The other contents of the collection are given
    up. If the snapshot was of a rendition with a pipeline, a pipeline writes it from its handover on.
    """

    COPY = 0
    SOURCE = 1
    RESTORED = 2


@dataclass(frozen=True, slots=True)
class PipelineShards:
    """What the pipeline of a rendition keeps besides its contents.

    `remap` says where the pipeline is in its source at each time. `errors` has the records that it could not
    decode. Both have the upper of the rendition, and are created and dropped with it.
    """

    remap: str
    errors: str

    @property
    def all(self) -> tuple[str, ...]:
        """Both shards."""
        return (self.remap, self.errors)


@dataclass(frozen=True, slots=True)
class RenditionInfo:
    """A rendition: its id, its data shards in routing order, and the times at which it is current.

    It is current in `[held_from, held_to)`. `held_from` is `CLOSED` if it never was. `start` is the first
    time for which it has contents of its own: its shards are not compacted past both this time and the
    collection's since. `difference_shard` contains the difference, at `held_from`, from the rendition before.
    `suspect` says why you should not trust its contents. `pipeline` is None unless a pipeline of
    `holdfast.ingest` writes it. `made_from` says, as JSON, what that pipeline makes rows from, and how. It is
    empty if that was not recorded.
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
    pipeline: PipelineShards | None = None
    made_from: str = ""

    @property
    def content_shards(self) -> tuple[str, ...]:
        """Its shards that have the collection's schema, including the difference shard if there is one."""
        return (*self.shards, *([self.difference_shard] if self.difference_shard else []))

    @property
    def written_shards(self) -> tuple[str, ...]:
        """Its shards that move together, from one upper to the next."""
        return (*self.shards, *(self.pipeline.all if self.pipeline else ()))

    @property
    def all_shards(self) -> tuple[str, ...]:
        """All its shards, also the difference shard if there is one."""
        return (*self.content_shards, *(self.pipeline.all if self.pipeline else ()))

    @property
    def is_fed(self) -> bool:
        """Whether only its own pipeline writes it once it is current."""
        return self.recipe is Recipe.SOURCE or self.pipeline is not None

    @property
    def dropped(self) -> bool:
        """Whether its shards are gone."""
        return self.state in {RenditionState.DROPPED, RenditionState.ABORTED}

    def sealed_by(self, follower: "RenditionInfo") -> bool:
        """Whether a handover to `follower` seals this one. It doesn't if pipelines fill both."""
        return not self.is_fed or follower.recipe is not Recipe.SOURCE

    def copies(self, before: "RenditionInfo") -> bool:
        """Whether it took over with exactly the contents of `before`, so that the handover has no difference.

        A rendition of recipe COPY is filled only from the collection, up to its handover. Nobody else may
        write it before that.
        """
        return self.recipe is Recipe.COPY and not (self.suspect or before.suspect)

    def holds_at(self, time: int) -> bool:
        """Whether it is current at this time."""
        return self.held_from <= time < self.held_to


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a durable capability to write a collection, or to read it.

    It is identified by its purpose.
    """

    purpose: str
    writes: bool
    who: str = ""
    host: str = ""
    acquired_ms: int = 0


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """The controller's record of a collection.

    `shards` and `hash_columns` are those of its creation. `schema` is the newest one. `holders` are in the
    order in which they came. `comments` has an entry for each column with a comment.
    `retain_ms` is how much history it keeps (None: all). `names` has the columns that were renamed or
    dropped. Hash columns, here and in renditions, are stored names.
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
    retain_ms: int | None = None
    names: ColumnNames = PLAIN_NAMES

    @property
    def stored_schema(self) -> Schema:
        """The schema of its shards. Its columns have the names under which shards store them."""
        return self.names.stored_schema(self.schema)

    def schema_at(self, time: int) -> Schema:
        """The columns that a read at a time shows: also those that were dropped after it."""
        names = self.names.at(time)
        return self.schema if names == self.names else names.shown_schema(self.stored_schema)

    @property
    def dropped(self) -> bool:
        """Whether it is dropped or being dropped."""
        return self.state in {CollectionState.DROPPING, CollectionState.DROPPED}

    @property
    def source_fed(self) -> bool:
        """Whether it was created to be written by a pipeline."""
        return self.renditions[0].recipe is Recipe.SOURCE

    @property
    def end(self) -> str:
        """A text for errors that says that it was or is being dropped."""
        how = "is being" if self.state is CollectionState.DROPPING else "was"
        return f"collection {self.name} ({self.collection_id}) {how} dropped"

    @property
    def data_shards(self) -> tuple[str, ...]:
        """The shards of the live renditions and their differences, without the metadata shard."""
        return tuple(shard for rendition in self.live for shard in rendition.all_shards)

    @property
    def live(self) -> tuple[RenditionInfo, ...]:
        """The renditions that have shards, in the order of their creation."""
        return tuple(each for each in self.renditions if not each.dropped)

    @property
    def held(self) -> tuple[RenditionInfo, ...]:
        """The renditions that are or were current and are not dropped, in the order of their times."""
        held = (each for each in self.live if each.state is not RenditionState.HYDRATING)
        return tuple(sorted(held, key=lambda each: each.held_from))

    def held_before(self, rendition: RenditionInfo) -> RenditionInfo | None:
        """The rendition that this one took over from. None if it is dropped or there was none."""
        return next((each for each in self.held if each.held_to == rendition.held_from), None)

    def held_after(self, rendition: RenditionInfo) -> RenditionInfo | None:
        """The rendition that took over from this one. None if it is dropped or there is none."""
        return next((each for each in self.held if each.held_from == rendition.held_to), None)

    @property
    def holding(self) -> RenditionInfo:
        """The rendition that is current from its `held_from` on."""
        (holding,) = (each for each in self.renditions if each.state is RenditionState.HOLDING)
        return holding

    def with_renditions(self, *changed: RenditionInfo) -> "CollectionInfo":
        """A copy in which these renditions replace those with the same ids, or are added at the end."""
        ids = {each.id: each for each in changed}
        known = tuple(ids.pop(each.id, each) for each in self.renditions)
        return replace(self, renditions=(*known, *ids.values()))

    def find(self, rendition_id: str) -> RenditionInfo | None:
        """The rendition with this id, dropped or not. None if there is none."""
        return next((each for each in self.renditions if each.id == rendition_id), None)

    def known(self, rendition_id: str) -> RenditionInfo:
        """Like `find`, for an id that a user gave. Raises `BadInput` if there is none."""
        if (known := self.find(rendition_id)) is not None:
            return known
        ids = ", ".join(each.id for each in self.renditions)
        raise BadInput(f"collection {self.name} has no rendition {rendition_id}", hint=f"it has {ids}")

    def rendition(self, rendition_id: str) -> RenditionInfo:
        """Like `find`, for an id from a record. Raises `KeyError` if there is none."""
        if (known := self.find(rendition_id)) is not None:
            return known
        raise KeyError(rendition_id)


def difference(info: CollectionInfo, spec: CollectionSpec) -> str:
    """How `spec` differs from the spec of the collection, in one line. Empty if it doesn't."""
    pairs = {
        "id": (info.collection_id, spec.collection_id),
        "name": (info.name, spec.name),
        "schema": (info.schema, spec.schema),
        "shards": (info.shards, spec.shards),
        "hash columns": (list(info.hash_columns), list(spec.hash_columns)),
        "source-fed": (info.source_fed, spec.source_fed),
    }
    return "; ".join(
        f"{what} is {is_}, requested {want}" for what, (is_, want) in pairs.items() if is_ != want
    )
