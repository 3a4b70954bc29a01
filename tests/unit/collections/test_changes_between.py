"""The changes between two times, in pieces as a listen returns them, or as their sum."""

import pickle
from collections import Counter
from itertools import combinations_with_replacement

import pyarrow as pa
import pytest

from holdfast.collections import ChangesPart, Recipe, StorageController, plan_changes, read_changes
from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly, BadInput
from holdfast.persist import PersistClient, Updates
from unit.collections.listeners import contents
from unit.collections.stores import SPEC, Row, Stores, counted, updates

TIMES = (10, 13, 14, 20, 25)
END = 30


@pytest.fixture
def controller(client: PersistClient) -> StorageController:
    """A collection with changes at `TIMES` that was handed over twice, to other rows and to other shards."""
    controller = StorageController(client)
    controller.create_collection(SPEC)
    writer = controller.writer("flights", purpose="test")
    for time in TIMES:
        writer.append(
            updates([(time, "came", time, 1), (1, f"at {time}", time, 1)]), writer.upper(), time + 1
        )
    old = None
    for number in range(2):
        made = controller.renditions.create("flights", shards=number + 2, recipe=Recipe.SOURCE)
        new = controller.rendition_writer("flights", made.id, purpose="pipeline")
        upper = controller.frontiers("flights").upper
        new.append(updates([(2, f"other {number}", 3, 1)]), 0, upper)
        at = controller.renditions.hand_over("flights", made.id).held_from
        if old is not None:
            old.append(None, upper, at)
        new.append(updates([(3, "at", at, 1), (4, "later", at + 1, 1)]), upper, at + 5)
        old = new
    return controller


def told(tables: list[object]) -> list[tuple[int, dict[object, int]]]:
    """What there is at each time; what comes and goes at one time is nothing."""
    found: dict[int, Counter[object]] = {}
    for table in tables:
        for row in table.to_pylist():
            found.setdefault(row["_time"], Counter())[(row["id"], row["name"])] += row["_diff"]
    return [(time, {row: n for row, n in rows.items() if n}) for time, rows in sorted(found.items())]


def all_changes(controller: StorageController) -> tuple[list[object], int]:
    with controller.reader("flights", purpose="test") as reader:
        upper = reader.upper()
        listen = reader.listen(0)
        tables = []
        while listen.frontier < upper:
            tables += [event.table for event in listen.next(60.0) if isinstance(event, Updates)]
    return tables, upper


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_pieces_are_together_what_a_listen_tells(controller: StorageController, rows: int) -> None:
    whole, upper = all_changes(controller)
    times = sorted({time for table in whole for time in table["_time"].to_pylist()})
    assert times[: len(TIMES)] == [*TIMES]
    assert len(times) > len(TIMES) + 2
    with controller.reader("flights", purpose="test") as reader:
        for after in (0, 10, 13, times[-2] - 1, times[-1]):
            for until in (after, 13, 20, times[-3], upper - 1):
                if until < after:
                    with pytest.raises(BadInput, match=f"forward in time, not from {after} to {until}"):
                        plan_changes(reader, after, until, rows)
                    continue
                parts = plan_changes(reader, after, until, rows)
                assert [part.after for part in parts[1:]] == [part.until for part in parts[:-1]]
                read = [
                    table
                    for part in pickle.loads(pickle.dumps(parts))
                    for table in read_changes(controller.client, part)
                ]
                wanted = [(time, changed) for time, changed in told(whole) if after < time <= until]
                assert told(read) == wanted, (after, until)
        assert len(plan_changes(reader, 0, upper - 1, 1)) > len(plan_changes(reader, 0, upper - 1, 5)) > 1


def held(controller: StorageController, time: int) -> Counter[Row]:
    with controller.reader("flights", purpose="test") as reader:
        return counted(reader.snapshot(time).to_table())


def test_their_sum_is_what_later_contents_have_more(controller: StorageController) -> None:
    info = controller.describe("flights")
    turns = [each.held_from for each in info.held][1:]
    with controller.reader("flights", purpose="test") as reader:
        around = [turn + step for turn in turns for step in (-1, 0, 1)]
        times = [9, 10, 13, 19, 25, *around, reader.upper() - 1]
        for after, until in combinations_with_replacement(times, 2):
            summed: Counter[Row] = Counter()
            for batch in reader.changes(after, until):
                summed.update(counted(pa.Table.from_batches([batch])))
            wanted = held(controller, until)
            wanted.subtract(held(controller, after))
            assert {row: n for row, n in summed.items() if n} == {row: n for row, n in wanted.items() if n}
        with pytest.raises(AsOfNotYetAvailable):
            reader.changes(10, reader.upper())
        with pytest.raises(BadInput, match="forward in time"):
            reader.changes(20, 13)
        with pytest.raises(BadInput, match="after 'a' is not a time"):
            reader.changes("a", 13)


def test_of_what_was_there_before_nothing_is_read(stores: Stores) -> None:
    """However much is stored, what is new can be had for its own size."""
    controller = StorageController(stores.open(inline_max_bytes=0))
    controller.create_collection(SPEC)
    writer = controller.writer("flights", purpose="test")
    writer.append(updates([(number, "old", 5, 1) for number in range(200)]), 0, 10)
    old = [meta.key for meta in stores.blob.list("")]
    writer.append(updates([(1, "new", 12, 1)]), 10, 20)
    with controller.reader("flights", purpose="test") as reader:
        changes = reader.changes(9, 19)
        for key in old:
            stores.blob.delete(key)
        assert [counted(pa.Table.from_batches([batch])) for batch in changes] == [Counter({(1, "new"): 1})]


def test_what_is_not_there_any_more_or_not_yet_is_refused(controller: StorageController) -> None:
    with controller.reader("flights", purpose="test") as reader:
        upper = reader.upper()
        with pytest.raises(AsOfNotYetAvailable):
            plan_changes(reader, 0, upper, 10)
        before = ChangesPart(reader.info.collection_id, 0, 14)
    assert contents(controller)
    controller.set_retention_hold("flights", 13)
    with controller.reader("flights", purpose="test") as reader, pytest.raises(AsOfTooEarly):
        plan_changes(reader, 12, 20, 10)
    with pytest.raises(AsOfTooEarly):
        list(read_changes(controller.client, before))
    (part,) = [ChangesPart(before.collection_id, 13, 14)]
    assert sum(sum(counted(table).values()) for table in read_changes(controller.client, part)) == 2
