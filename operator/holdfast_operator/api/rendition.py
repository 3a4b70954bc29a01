"""Renditions of a StorageCollection: how its data is laid out, and how the next layout takes over."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from holdfast_operator.api.base import ApiModel, Frontier, validations
from holdfast_operator.api.columns import MAX_COLUMNS, NO_NAME_TWICE
from holdfast_operator.api.spark import SparkJobStatus, SparkTemplate


class FillRecipe(StrEnum):
    """What a new rendition is filled from."""

    COPY = "Copy"
    SOURCE = "Source"


class HandoverPolicy(StrEnum):
    """When the next rendition takes over."""

    WHEN_CAUGHT_UP = "WhenCaughtUp"
    MANUAL = "Manual"
    AT = "At"


class CollectionRendition(ApiModel):
    """How the data is laid out. A change makes a new rendition, which takes over as `handover` says."""

    shards: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Over how many shards the rows are spread by the hash of their key.",
    )
    hash_columns: tuple[Annotated[str, Field(max_length=128)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_COLUMNS,
        description="The columns whose hash decides which shard a row goes to. Where it isn't given, a new "
        "rendition takes the key (all columns where there is none), and the one that is there is left as it "
        "is.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"} | validations(NO_NAME_TWICE),
    )
    recipe: FillRecipe = Field(
        default=FillRecipe.COPY,
        description="Copy: a new rendition is filled from the collection. Source: the pipeline that feeds "
        "the collection fills it anew, at first where the one that is there is a copy. "
        "A collection that isn't there yet begins with Copy.",
    )


class CollectionHandover(ApiModel):
    """When a new rendition takes over."""

    policy: HandoverPolicy = Field(
        default=HandoverPolicy.WHEN_CAUGHT_UP,
        description="WhenCaughtUp: as soon as it has all that the collection has. Manual: when `to` names "
        "it. At: at the first possible time that is not before `at`.",
    )
    at: datetime | None = Field(
        default=None, description="The time to hand over at (RFC 3339), with policy At."
    )
    to: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Id of the rendition that is to take over (status.nextRendition), with policy Manual.",
    )


HANDOVER_RULES = validations(
    (
        "(has(self.policy) && self.policy == 'At') == has(self.at)",
        "policy At needs at, and no other policy takes it",
    ),
    ("(has(self.policy) && self.policy == 'Manual') || !has(self.to)", "to is for policy Manual"),
)


class CollectionHydration(ApiModel):
    """How new renditions of recipe Copy are filled."""

    spark: SparkTemplate | None = Field(
        default=None,
        description="What a Spark job runs with that fills a rendition of a large collection. Where it isn't "
        "given, the operator's own process fills all of them.",
    )
    minimum_bytes: int | None = Field(
        default=None,
        ge=0,
        description="From how many stored bytes of the active rendition on a Spark job fills the next one. "
        "Where it isn't given: from 256 MiB, or 20 million rows, on.",
    )


HYDRATION_RULES = validations(("!has(self.minimumBytes) || has(self.spark)", "minimumBytes needs spark"))


class RenditionPhase(StrEnum):
    """The life of a rendition."""

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
        description="Hydrating: it is being filled. CaughtUp: it could take over. Active: it is the "
        "collection. Retiring: it was, and may still be read there. Dropped, Aborted: it is gone. Suspect: "
        "its contents are not to be trusted."
    )
    shards: int | None = Field(default=None, description="How many shards it has.")
    since: Frontier | None = Field(default=None, description="It can be read as of this time on.")
    upper: Frontier | None = Field(default=None, description="It is complete before this time.")
    rows: int | None = Field(
        default=None, description="Updates that its shards hold, before they are consolidated."
    )
    bytes: int | None = Field(default=None, description="Bytes that its shards hold.")
    waits_for: str | None = Field(default=None, description="What has to come before its next phase.")
    job: HydrationJobStatus | None = Field(
        default=None, description="The Spark job that fills it, until it is active."
    )


class HandoverStatus(ApiModel):
    """The last handover."""

    source: str | None = Field(
        default=None, alias="from", description="The rendition that was the collection before."
    )
    to: str = Field(description="The rendition that took over.")
    at: Frontier = Field(description="From this time on, in the collection's own.")


class CollectionRestoreStatus(ApiModel):
    """The restore that the spec asks for, once it is done."""

    snapshot: str = Field(description="What it was restored from.")
    rendition: str = Field(description="The rendition that it was restored into.")
    at: Frontier = Field(description="From this time on, in the collection's own.")


class HoldStatus(ApiModel):
    """What keeps a retired rendition, beside the retention."""

    purpose: str = Field(description="What it is for, in its owner's words.")
    who: str | None = Field(default=None, description="Who took it, where that is on record.")
    host: str | None = Field(default=None, description="Where its owner runs.")
    durable: bool = Field(
        description="Whether it stays until it is released; another one ends with its process."
    )
    since: Frontier = Field(description="It reads as of this time on.")
    held_since: datetime | None = Field(
        default=None, description="When it was taken, where that is on record."
    )
    renditions: tuple[str, ...] = Field(
        default=(),
        description="The retired renditions that it keeps, the oldest 10.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
