"""Reads what pipelines keep besides the contents: positions in the source, and bad records."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections import CollectionInfo, RenditionInfo, StorageController
from holdfast.collections.pipeline import BESIDE, ENDS, FORGOTTEN
from holdfast.errors import BadInput
from holdfast.ingest.following import fed_from
from holdfast.ingest.schema_texts import stored_texts
from holdfast.ingest.source import reader_id
from holdfast.ingest.sources.postgres_server import slots_of
from holdfast.persist import PersistClient, SnapshotPart
from holdfast.persist.rows.schema import DIFF

_COUNTED: Final = ("kafka://", "generator/")
"""How the names of sources begin whose positions count messages."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far a pipeline is: the next position of each partition, all messages, and standing bad records.

    `complete_before` is the upper of the output. `ends` are those of the partitions that had more at the last
    step, if the positions of the source count its messages. `source` is its name, as in the bindings, and
    `slot` the replication slot in Postgres that they name: see `own_slot`.
    """

    complete_before: int
    positions: tuple[tuple[str, int], ...]
    messages: int
    errors: int
    ends: tuple[tuple[str, int], ...] = ()
    source: str = ""
    slot: str = ""

    @property
    def lags(self) -> dict[str, int]:
        """The number of messages that each partition had left at the last step, if it had any."""
        reached = dict(self.positions)
        return {partition: end - reached[partition] for partition, end in self.ends}

    @property
    def counts_messages(self) -> bool:
        """Whether the positions of the source count its messages, so that `behind` is known."""
        return self.source.startswith(_COUNTED)

    @property
    def behind(self) -> int:
        """The number of messages that the source had more at the last step, or 0 if it doesn't count them."""
        return sum(self.lags.values())


def progress(client: PersistClient, rendition: RenditionInfo) -> SourceProgress | None:
    """Return how far the pipeline of a rendition is, or None if it has no pipeline or no step yet.

    It takes no lease, so it writes nothing. Raises like `PersistClient.read_snapshot_part`.
    """
    if rendition.pipeline is None:
        return None
    upper = min(client.recent_uppers(rendition.written_shards).values())
    if upper == 0:
        return None
    bound, bad = (
        client.read_snapshot_part(SnapshotPart(shard, upper - 1)).to_table()
        for shard in (rendition.pipeline.remap, rendition.pipeline.errors)
    )
    counted, bound, ends = _bindings(bound, FORGOTTEN), _bindings(bound), _ends(bound)
    messages = pc.sum(counted["total"]).as_py() or 0
    source = min(fed_from(counted.slice(0, 1).to_pylist()), default="")
    slot = json.loads(bound["identity"][0].as_py())["slot"] if source.startswith("postgres://") else ""
    return SourceProgress(upper, _positions(bound), messages, bad.num_rows, _positions(ends), source, slot)


def own_slot(info: CollectionInfo, fed: SourceProgress) -> str:
    """The replication slot that a rendition uses, if it is one of the collection. Otherwise empty.

    A copy of a collection has bindings that name the slot of that one, until the copy is fed.
    """
    return fed.slot if fed.slot and re.match(_slots(info, info.renditions), fed.slot) else ""


def slots_left(info: CollectionInfo, rendition: RenditionInfo, fed: SourceProgress) -> str:
    """A regular expression for the names of slots of a rendition that no binding names. Empty: none is left.

    If its pipeline ended as it began to feed a copy, Postgres has copied a slot that is not bound.
    """
    mine = _slots(info, [rendition])
    return mine if fed.slot and not re.match(mine, fed.slot) else ""


def _slots(info: CollectionInfo, renditions: Iterable[RenditionInfo]) -> str:
    return slots_of(reader_id(info.collection_id, each.id) for each in renditions)


def behind_at(client: PersistClient, rendition: RenditionInfo, time: int) -> int:
    """Return how many messages the source of a rendition had more at an earlier time. It takes no lease.

    It is 0 if the positions of the source don't count messages. Raises `AsOfTooEarly`, and `BadInput` for a
    rendition without a pipeline.
    """
    if rendition.pipeline is None:
        raise BadInput(f"rendition {rendition.id} has no pipeline")
    rows = client.read_snapshot_part(SnapshotPart(rendition.pipeline.remap, time)).to_table()
    reached = dict(_positions(_bindings(rows)))
    return sum(end - reached[partition] for partition, end in _positions(_ends(rows)))


def _positions(rows: pa.Table) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(zip(rows["partition"].to_pylist(), rows["position"].to_pylist(), strict=True)))


def _bindings(rows: pa.Table, *others: str) -> pa.Table:
    """The bindings, and rows with these sources."""
    beside = sorted(BESIDE.difference(others))
    return rows.filter(pc.invert(pc.is_in(rows["source"], pa.array(beside, pa.string()))))


def _ends(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.equal(rows["source"], ENDS))


def offsets(controller: StorageController, name: str, as_of: int | None = None) -> tuple[int, pa.Table]:
    """The bindings of a collection at one time: exactly what its contents at that time were made from.

    They are ordered by source and partition. Columns: source, partition, position (the next to read),
    identity, rows and checksum of the last range, where the messages without a gap begin, the total of all
    messages, and how many messages behind it was at that time (null: the positions of the source don't count
    messages). Files that are forgotten are one row with `forgotten` as its source, their number as position,
    and their messages as total. Returns the time, which is the latest complete one if `as_of` is None. Raises
    `BadInput` for a collection that was not fed from a source at that time, and like
    `CollectionReader.snapshot`.
    """
    time, rows = _kept(controller, name, as_of, "remap")
    bound, ends = _bindings(rows, FORGOTTEN), dict(_positions(_ends(rows)))
    behind = [
        ends[name] - position if name in ends else 0 if source.startswith(_COUNTED) else None
        for source, name, position in zip(
            *(bound[each].to_pylist() for each in ("source", "partition", "position")), strict=True
        )
    ]
    place = bound.schema.get_field_index(DIFF)
    return time, _in_order(bound.add_column(place, "behind", pa.array(behind, pa.int64())), "source")


def schemas(controller: StorageController, name: str, as_of: int | None = None) -> tuple[int, dict[str, str]]:
    """The texts of the schemas that the messages of a collection were decoded with, by id.

    Raises like `offsets`.
    """
    time, rows = _kept(controller, name, as_of, "remap")
    return time, stored_texts(rows.to_pylist())


def errors(controller: StorageController, name: str, as_of: int | None = None) -> tuple[int, pa.Table]:
    """The bad records of a collection at one time, ordered by partition and position.

    Columns: partition, position, kind, reason, and the raw key and value, cut. Raises like `offsets`.
    """
    time, rows = _kept(controller, name, as_of, "errors")
    return time, _in_order(rows)


def _in_order(rows: pa.Table, *before: str) -> pa.Table:
    """The rows in the order of these columns, of partitions and of positions. Partition 9 is before 10."""
    names = rows["partition"]
    digits = pc.if_else(pc.utf8_is_digit(names), pc.utf8_length(names), 0)
    by = [*before, "digits", "partition", "position"]
    order = pc.sort_indices(
        rows.append_column("digits", digits), sort_keys=[(each, "ascending") for each in by]
    )
    return rows.take(order)


def _kept(controller: StorageController, name: str, as_of: int | None, which: str) -> tuple[int, pa.Table]:
    with controller.reader(name, purpose=f"ingest {which}") as reader:
        time = reader.readable(as_of)
        # The record is read after the time, so it has every handover up to that time.
        info = controller.describe(name)
        (rendition,) = (each for each in info.held if each.holds_at(time))
        if rendition.pipeline is None:
            raise BadInput(
                f"collection {info.name} was not fed from a source at {time}: its rendition {rendition.id}"
                " keeps nothing for a pipeline"
            )
        shard = getattr(rendition.pipeline, which)
        with controller.client.reader(shard, purpose=f"ingest {which}") as kept:
            return time, kept.snapshot(time).to_table()
