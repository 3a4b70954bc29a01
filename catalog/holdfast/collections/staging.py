"""Fills a rendition in pieces that outlive the attempt that uploaded them.

- The first attempt of a job records its plan in the JobRecord: the time that it reads, and the pieces, each
  of them ranges of keys. Later attempts take over the plan. So a piece has the same rows whichever attempt
  uploads it.
- What was uploaded of a piece is staged in the shards of the rendition, under a name that the plan and the
  number of the piece determine. It is kept when the attempt ends, and no reader sees it. The next attempt
  uploads only the pieces that are not staged yet. If several attempts upload a piece, the first one to stage
  it counts.
- One commit appends all pieces, in all shards, together with the change of the JobRecord from
  Running(attempt) to Done. It needs every piece in every shard. So an earlier attempt that still runs can
  stage pieces, but can neither commit nor drop them.
- If a plan can't be read any more, the attempt records another one, and drops what is staged in the same
  commit. An earlier attempt that still runs may stage pieces of the old plan after that. Their names are
  not in the new plan, so they are never appended, and upkeep drops them after the commit.
- What is staged for a rendition ends with it, because the end of a shard drops it.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from holdfast.collections.collection_snapshot import CollectionPart
from holdfast.collections.controller import StorageController
from holdfast.collections.record.jobs import Json
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.errors import AsOfTooEarly
from holdfast.persist import PersistClient, Prepared, Schema, StoredSize, Upload, WriteHandle
from holdfast.persist.parts.snapshot import SnapshotPart

MOST_PLAN_BYTES: Final = 1 << 20
"""A recorded plan has about this many bytes at most, because every process reads the records of jobs."""


@dataclass(frozen=True)
class FillPlan:
    """The contents of a collection at `as_of` in pieces. Each row is in exactly one piece."""

    as_of: int
    pieces: tuple[CollectionPart, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the pieces, in their order. The same names stand for the same rows."""
        text = json.dumps(self.recorded(), sort_keys=True)
        id_ = hashlib.sha256(text.encode()).hexdigest()[:16]
        return tuple(f"{id_} {number} of {len(self.pieces)}" for number in range(len(self.pieces)))

    def recorded(self) -> Json:
        """Return the plan as it is recorded."""
        parts = [part for piece in self.pieces for part in piece.parts]
        shards = [*dict.fromkeys((part.shard_id, part.schema_id) for part in parts)]
        place = {shard: number for number, shard in enumerate(shards)}
        return {
            "as_of": self.as_of,
            "shards": [[*shard] for shard in shards],
            "pieces": [
                [
                    [place[part.shard_id, part.schema_id], _to_json(part.lower), _to_json(part.upper)]
                    for part in piece.parts
                ]
                for piece in self.pieces
            ],
        }

    @staticmethod
    def of(collection_id: str, recorded: Json) -> "FillPlan":
        """Return the plan that was recorded."""
        as_of, shards = recorded["as_of"], recorded["shards"]

        def part(shard: int, lower: Any, upper: Any) -> SnapshotPart:
            shard_id, schema_id = shards[shard]
            return SnapshotPart(shard_id, as_of, _from_json(lower), _from_json(upper), schema_id)

        pieces = (tuple(part(*each) for each in piece) for piece in recorded["pieces"])
        return FillPlan(as_of, tuple(CollectionPart(collection_id, as_of, each) for each in pieces))


def _to_json(limit: Any) -> Any:
    """A limit of a range. What JSON doesn't have is in an object."""
    match limit:
        case bytes():
            return {"base64": base64.b64encode(limit).decode()}
        case Decimal():
            return {"decimal": str(limit)}
        case _:
            return limit


def _from_json(limit: Any) -> Any:
    match limit:
        case {"base64": text}:
            return base64.b64decode(text)
        case {"decimal": text}:
            return Decimal(text)
        case _:
            return limit


def agreed(
    controller: StorageController,
    info: CollectionInfo,
    rendition: RenditionInfo,
    *,
    job: str,
    attempt: int,
    make: Callable[[], FillPlan],
) -> FillPlan:
    """Return the plan on record, or record the one that `make` returns.

    A plan on record whose time can't be read any more is replaced, and what is staged is dropped.

    Raises `Fenced` if the attempt isn't the running one.
    """
    known = controller.check_attempt(job, attempt).plan
    if known is not None:
        plan = FillPlan.of(info.collection_id, known)
        if _fits(controller, info, rendition, plan):
            return plan
    drops = [controller.client.prepare_drop_staged(shard) for shard in rendition.shards]
    made = make()
    record = controller.plan_job(job, attempt, made.recorded(), instead_of=known, effects=drops)
    assert record.plan is not None
    # Another driver of this attempt may have been faster.
    return FillPlan.of(info.collection_id, record.plan)


def _fits(
    controller: StorageController, info: CollectionInfo, rendition: RenditionInfo, plan: FillPlan
) -> bool:
    """Whether a plan can be read until it is committed: the rendition holds its time, and the same shards
    have it.
    """
    holds = controller.client.inspect(info.metadata_shard).holds
    held = [hold.since for hold in holds if hold.purpose == rendition_hold(rendition.id)]
    if not held or held[0] > plan.as_of:
        return False
    try:
        with controller.reader(info.collection_id, purpose="hydrate") as reader:
            there = {part.shard_id for each in reader.snapshot_parts(plan.as_of, 1) for part in each.parts}
    except AsOfTooEarly:
        return False
    return {part.shard_id for piece in plan.pieces for part in piece.parts} == there


class Staging:
    """Stages the pieces of a plan for a rendition, and prepares their append. Not thread-safe.

    Keep the writers alive (`keep_alive`) while others upload with the tickets.
    """

    def __init__(
        self,
        stack: ExitStack,
        client: PersistClient,
        rendition: RenditionInfo,
        schema: Schema,
        plan: FillPlan,
    ) -> None:
        self._client = client
        self._plan = plan
        self._names = plan.names
        purpose = rendition_hold(rendition.id)
        self.writers: list[WriteHandle] = [
            stack.enter_context(client.writer(shard, schema, purpose=purpose)) for shard in rendition.shards
        ]
        self._staged = set.intersection(*({*self._sizes(writer)} for writer in self.writers))

    def _sizes(self, writer: WriteHandle) -> dict[str, StoredSize]:
        """The pieces that are staged for the shard of a writer, by their names."""
        found = self._client.staged(writer.shard_id)
        return {name: found[name] for name in self._names if name in found}

    @property
    def missing(self) -> list[int]:
        """The numbers of the pieces that are not staged in all shards."""
        return [number for number, name in enumerate(self._names) if name not in self._staged]

    @property
    def progress(self) -> str:
        """How many pieces are staged, for people."""
        return f"{len(self._staged):,} of {len(self._names):,} pieces are staged"

    def stage(self, number: int, uploads: Sequence[Upload]) -> None:
        """Stage what was uploaded of a piece: one upload for each shard, in their order.

        Deletes the uploads if another process has staged the piece. Raises `HandleExpired` if they may be
        gone, and `UpperMismatch` if another process has filled the rendition.
        """
        name = self._names[number]
        named = [{name: each} for each in uploads]
        upper = self._plan.as_of + 1
        self._client.multi_write(
            [writer.prepare_stage(each, 0, upper) for writer, each in zip(self.writers, named, strict=True)]
        )
        self._staged.add(name)
        for writer, each in zip(self.writers, named, strict=True):
            self._client.discard(writer.refused(each))

    def rows(self) -> int:
        """Return the number of staged rows."""
        return sum(size.rows for writer in self.writers for size in self._sizes(writer).values())

    def appends(self) -> list[Prepared]:
        """Prepare the appends of all pieces to all shards."""
        upper = self._plan.as_of + 1
        return [writer.prepare_staged(self._names, 0, upper) for writer in self.writers]
