"""Renditions of a StorageCollection: how its data is laid out, and how the next layout takes over."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from holdfast_operator.api.base import ApiModel, Frontier, QuantityOrZero, validations
from holdfast_operator.api.columns import MAX_COLUMNS, NO_NAME_TWICE
from holdfast_operator.api.spark import SparkJobStatus, SparkOverride


class FillRecipe(StrEnum):
    """The source that a new rendition is filled from."""

    COPY = "Copy"
    SOURCE = "Source"


class HandoverPolicy(StrEnum):
    """When the next rendition becomes current."""

    WHEN_CAUGHT_UP = "WhenCaughtUp"
    MANUAL = "Manual"
    AT = "At"


class CollectionRendition(ApiModel):
    """How the data is laid out. A change creates a new rendition, which takes over as `handover` says."""

    shards: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Number of data shards. The hash of a row's key decides which shard holds the row.",
    )
    hash_columns: tuple[Annotated[str, Field(max_length=128)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_COLUMNS,
        description="The columns whose hash decides which shard holds a row. By default, a new rendition "
        "uses the key, or all columns if there is no key, and an existing rendition stays as it is.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"} | validations(NO_NAME_TWICE),
    )
    recipe: FillRecipe = Field(
        default=FillRecipe.COPY,
        description="Copy: a new rendition is filled from the collection. Source: the pipeline that feeds "
        "the collection fills the new rendition from its sources. If the current rendition was made with "
        "Copy, a change to Source creates a new rendition. A new collection must start with Copy.",
    )


class CollectionHandover(ApiModel):
    """When a new rendition becomes current."""

    policy: HandoverPolicy = Field(
        default=HandoverPolicy.WHEN_CAUGHT_UP,
        description="WhenCaughtUp: as soon as it holds everything that the collection holds. Manual: when "
        "`to` names it. At: at the first possible time at or after `at`.",
    )
    at: datetime | None = Field(
        default=None,
        description="With policy At: the earliest time of the handover (RFC 3339).",
        json_schema_extra={"maxLength": 64},
    )
    to: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="With policy Manual: id of the rendition to hand over to (status.nextRendition).",
    )


HANDOVER_RULES = validations(
    (
        "(has(self.policy) && self.policy == 'At') == has(self.at)",
        "policy At needs at, and no other policy takes it",
    ),
    ("(has(self.policy) && self.policy == 'Manual') || !has(self.to)", "to needs policy Manual"),
)


class CollectionHydration(ApiModel):
    """How new renditions of recipe Copy are filled."""

    spark: SparkOverride | None = Field(
        default=None,
        description="Lets a Spark job fill the renditions of a large collection. Contains how the job "
        "differs from spec.spark, or {} if it doesn't. By default, the operator's own process fills all "
        "renditions.",
    )
    minimum_bytes: QuantityOrZero | None = Field(
        default=None,
        description="A Spark job fills the next rendition if the active one has at least this many stored "
        "bytes, e.g. 10Gi. The default is 256Mi, or 20 million rows.",
    )


HYDRATION_RULES = validations(("!has(self.minimumBytes) || has(self.spark)", "minimumBytes needs spark"))


class RenditionPhase(StrEnum):
    """The phases of a rendition."""

    HYDRATING = "Hydrating"
    CAUGHT_UP = "CaughtUp"
    ACTIVE = "Active"
    RETIRING = "Retiring"
    DROPPED = "Dropped"
    ABORTED = "Aborted"
    SUSPECT = "Suspect"


class HydrationJobStatus(SparkJobStatus):
    """The Spark job that fills a rendition."""


class RenditionStatus(ApiModel):
    """One rendition."""

    id: str = Field(description="Id of the rendition.")
    phase: RenditionPhase = Field(
        description="Hydrating: it is being filled. CaughtUp: it can take over. Active: it holds the "
        "collection's current rows. Retiring: it did so earlier, and those times may still be read. Dropped, "
        "Aborted: it is gone. Suspect: don't trust its contents."
    )
    shards: int | None = Field(default=None, description="Number of shards.")
    since: Frontier | None = Field(default=None, description="The earliest time at which it can be read.")
    upper: Frontier | None = Field(default=None, description="It is complete before this time.")
    rows: int | None = Field(
        default=None, description="Number of updates in its shards, before they are consolidated."
    )
    bytes: int | None = Field(default=None, description="Stored bytes of its shards.")
    waits_for: str | None = Field(default=None, description="What its next phase waits for.")
    job: HydrationJobStatus | None = Field(
        default=None, description="The Spark job that fills it, until it is active."
    )


class HandoverStatus(ApiModel):
    """The last handover."""

    source: str | None = Field(
        default=None, alias="from", description="The rendition that was active before."
    )
    to: str = Field(description="The rendition that took over.")
    at: Frontier = Field(
        description="The time of the handover, in the collection's own time: the new rendition holds the "
        "rows from here on."
    )


class CollectionRestoreStatus(ApiModel):
    """The restore that the spec requests, once it is done."""

    snapshot: str = Field(description="The snapshot that it restored.")
    rendition: str = Field(description="The rendition that it restored into.")
    at: Frontier = Field(
        description="The time of the restore, in the collection's own time: the collection has the "
        "snapshot's contents from here on."
    )


class HoldStatus(ApiModel):
    """A hold that keeps a retired rendition in addition to the retention."""

    purpose: str = Field(description="The purpose that its owner gave.")
    who: str | None = Field(default=None, description="Its owner, if recorded.")
    host: str | None = Field(default=None, description="The host that its owner runs on.")
    durable: bool = Field(
        description="True if the hold stays until somebody releases it, false if it ends with its process."
    )
    since: Frontier = Field(description="The earliest time that it keeps readable.")
    held_since: datetime | None = Field(default=None, description="When it was taken, if recorded.")
    renditions: tuple[str, ...] = Field(
        default=(),
        description="The retired renditions that it keeps, at most the oldest 10.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
