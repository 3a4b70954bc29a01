"""Renditions that pipelines write are filled, take over and retire, and nothing is copied."""

import threading
from collections import Counter
from typing import Any

import pytest

from holdfast.collections import Recipe, RenditionWriter, StorageController
from holdfast.collections.uploads import upload_rows
from holdfast.errors import AsOfNotYetAvailable, BadInput, HandedOver, HandoverInProgress, UpperMismatch
from holdfast.persist import Prepared
from holdfast.persist.rows.canonical import prepare_updates
from testbed.faults import ProcessDeath
from unit.collections.listeners import Heard, contents, listener
from unit.collections.stores import SCHEMA, SPEC, Row, Stores, counted, updates

P = 10_000


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    """A table of one row, and a rendition "r2" that a source fills."""
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    controller.writer("flights", purpose="table").append(updates([(1, "table", 5, 1)]), 0, 10)
    fed(controller)
    return controller


def fed(controller: StorageController) -> str:
    return controller.renditions.create("flights", shards=2, recipe=Recipe.SOURCE).id


def pipeline(controller: StorageController, rendition_id: str) -> RenditionWriter:
    return controller.rendition_writer("flights", rendition_id, purpose="pipeline")


def two_pipelines(controller: StorageController) -> tuple[RenditionWriter, RenditionWriter, int]:
    """The pipeline that feeds the collection, 500 beyond where it took over, and another that begins."""
    old = pipeline(controller, "r2")
    old.append(updates([(1, "old", 0, 1), (2, "old", 0, 1)]), 0, 10)
    at = controller.renditions.hand_over("flights", "r2").held_from
    old.append(updates([(3, "old", at, 1)]), 10, at + 500)
    new = pipeline(controller, fed(controller))
    return old, new, at


def test_a_table_becomes_fed_by_a_source(controller: StorageController) -> None:
    early = listener(controller, 9)
    table = controller.writer("flights", purpose="table")
    source = pipeline(controller, "r2")
    assert source.upper() == 0
    source.append(updates([(1, "source", 0, 1)]), 0, 8)
    at = controller.renditions.hand_over("flights", "r2").held_from
    assert at == 10 + P
    # The table is sealed up to there; the source has to get there.
    assert contents(controller) == Counter({(1, "table"): 1})
    assert controller.frontiers("flights").upper == at
    with pytest.raises(BadInput, match="written by a source"):
        table.append(updates([(2, "table", at, 1)]), at, at + 1)
    with pytest.raises(BadInput, match="written by a source"):
        controller.writer("flights", purpose="table")
    with pytest.raises(AsOfNotYetAvailable):
        contents(controller, at)
    assert early.listen.next(0.0) != []
    assert early.listen.frontier == at
    source.append(updates([(2, "source", at - 1, 1), (3, "source", at, 1)]), 8, at + 5)
    expected = Counter({(1, "source"): 1, (2, "source"): 1, (3, "source"): 1})
    assert contents(controller) == expected
    assert early.until(at + 5) == expected
    assert contents(controller, at - 1) == Counter({(1, "table"): 1})


def test_pipelines_go_on_through_a_handover(controller: StorageController) -> None:
    old, new, at = two_pipelines(controller)
    early = listener(controller, at + 1)
    new.append(updates([(1, "new", 100, 1)]), 100, at + 400)
    turn = controller.renditions.hand_over("flights", "r3").held_from
    assert turn >= at + 500
    # The old one goes on to the time of the handover, and is told where that is.
    with pytest.raises(HandedOver) as told:
        old.append(updates([(9, "old", turn, 1)]), at + 500, turn + 1)
    assert (told.value.at, told.value.follower) == (turn, "r3")
    old.append(updates([(4, "old", turn - 2, 1)]), at + 500, turn - 1)
    assert controller.frontiers("flights").upper == turn - 1
    new.append(updates([(2, "new", turn + 3, 1)]), at + 400, turn + 10)
    # What the old one still lacks is the gap, however far the new one is.
    assert controller.frontiers("flights").upper == turn - 1
    before = Counter({(1, "old"): 1, (2, "old"): 1, (3, "old"): 1, (4, "old"): 1})
    assert contents(controller) == before
    old.seal(turn)
    assert contents(controller, turn - 1) == before
    after = Counter({(1, "new"): 1, (2, "new"): 1})
    assert contents(controller, turn) == Counter({(1, "new"): 1})
    assert contents(controller) == after
    late = listener(controller, turn + 1)
    assert [early.until(turn + 10), late.until(turn + 10)] == [after] * 2
    assert old.upper() == turn
    with pytest.raises(HandedOver):
        old.seal(turn + 1)
    with pytest.raises(UpperMismatch):
        old.append(None, turn - 1, turn)


def test_a_pipeline_that_is_ahead_is_handed_over_to_another(controller: StorageController) -> None:
    """What was written beyond the promise before it took over bounds the next handover."""
    old = pipeline(controller, "r2")
    old.append(updates([(1, "old", 50_000, 1)]), 0, 60_000)
    at = controller.renditions.hand_over("flights", "r2").held_from
    assert at < 60_000
    early = listener(controller, at - 1)
    new = pipeline(controller, fed(controller))
    new.append(updates([(1, "new", 60_000, 1)]), 60_000, 90_000)
    turn = controller.renditions.hand_over("flights", "r3").held_from
    assert turn == 60_001  # the least after what the new one begins with
    old.seal(turn)
    controller.renditions.create("flights", shards=1)
    copied = controller.hydrate("flights", "r4")
    assert copied == turn + 1
    last = controller.renditions.hand_over("flights", "r4", max_lag_ms=1 << 40).held_from
    assert last == 90_000
    assert early.until(last) == Counter({(1, "new"): 1}) == contents(controller)
    with pytest.raises(HandedOver):
        new.append(None, last, last + 1)
    controller.writer("flights", purpose="table").append(updates([(7, "table", last, 1)]), last, last + 1)
    assert early.until(last + 1) == Counter({(1, "new"): 1, (7, "table"): 1})


def test_no_handover_before_the_earlier_one_is_complete(controller: StorageController) -> None:
    old, new, at = two_pipelines(controller)
    new.append(updates([(1, "new", 0, 1)]), 0, at + 20_000)
    turn = controller.renditions.hand_over("flights", "r3").held_from
    newest = pipeline(controller, fed(controller))
    newest.append(updates([(1, "newest", 0, 1)]), 0, at)
    with pytest.raises(HandoverInProgress, match="r2 is written up to"):
        controller.renditions.hand_over("flights", "r4")
    old.seal(turn)
    last = controller.renditions.hand_over("flights", "r4").held_from
    early = listener(controller, turn - 1)
    new.seal(last)
    newest.seal(last + 1)
    assert early.until(last + 1) == Counter({(1, "newest"): 1}) == contents(controller)
    # Nor where the one that took over isn't there.
    other = pipeline(controller, fed(controller))
    other.seal(last)
    far = controller.renditions.hand_over("flights", "r5").held_from
    newest.seal(far)
    fed(controller)
    with pytest.raises(HandoverInProgress, match="r5 is written up to"):
        controller.renditions.hand_over("flights", "r6")
    assert far > last


def test_a_rendition_begins_where_its_source_does(controller: StorageController) -> None:
    source = pipeline(controller, "r2")
    rows = updates([(1, "source", 40_000, 1)])
    source.append(rows, 40_000, 40_010)
    assert source.rendition.start == 0  # as it was last seen
    assert source.upper() == 40_010
    assert source.rendition.start == 40_000
    with pytest.raises(UpperMismatch):
        pipeline(controller, "r2").append(rows, 40_000, 40_010)
    at = controller.renditions.hand_over("flights", "r2").held_from
    assert at == 40_001
    assert contents(controller, at - 1) == Counter({(1, "table"): 1})
    assert contents(controller, at) == Counter({(1, "source"): 1})


def test_only_pipelines_write_what_they_feed(controller: StorageController) -> None:
    for rendition_id in ("r1", "r9"):
        with pytest.raises(BadInput):
            pipeline(controller, rendition_id)
    with pytest.raises(BadInput):
        controller.hydrate("flights", "r2")
    # Whatever its source takes, it keeps nothing of the collection.
    metadata = controller.describe("flights").metadata_shard
    assert "rendition r2" not in {hold.purpose for hold in controller.client.inspect(metadata).holds}
    source = pipeline(controller, "r2")
    controller.renditions.abort("flights", "r2")
    with pytest.raises(BadInput, match="ABORTED"):
        source.append(None, 0, 1)
    with pytest.raises(BadInput, match="ABORTED"):
        source.upper()


def test_a_handover_between_two_appends_is_noticed(stores: Stores, controller: StorageController) -> None:
    """An append that was begun before the handover moves the promise as one after it does."""
    source = pipeline(controller, "r2")
    source.append(updates([(1, "source", 0, 1)]), 0, 5)
    at = StorageController(stores.open()).renditions.hand_over("flights", "r2").held_from
    source.append(updates([(2, "source", at + 3, 1)]), 5, at + 4)
    assert controller.frontiers("flights").upper == at + 4
    assert contents(controller) == Counter({(1, "source"): 1, (2, "source"): 1})


def test_pipelines_of_several_processes_race_handovers(stores: Stores, controller: StorageController) -> None:
    """Two instances of each pipeline: they write the same, and every reader tells the same history."""
    turns: list[int] = []
    done = threading.Event()
    failed: list[BaseException] = []

    def rows(rendition_id: str, lower: int, upper: int) -> list[tuple[int, str | None, int, int]]:
        return [(time, rendition_id, time, 1) for time in range(lower, upper) if time % 1000 == 0]

    def feed(rendition_id: str) -> None:
        try:
            source = pipeline(StorageController(stores.open()), rendition_id)
            while not done.is_set():
                lower = source.upper()
                upper = lower + 2500
                try:
                    source.append(updates(rows(rendition_id, lower, upper)), lower, upper)
                except UpperMismatch:
                    continue
                except HandedOver as over:
                    if lower >= over.at:
                        return
                    try:
                        source.append(updates(rows(rendition_id, lower, over.at)), lower, over.at)
                    except UpperMismatch:
                        continue
        except BaseException as error:
            failed.append(error)
            raise

    early: Heard = listener(controller, 9)
    threads = [threading.Thread(target=feed, args=(each,)) for each in ("r2", "r2", "r3", "r3")]
    fed(controller)
    for thread in threads:
        thread.start()
    for rendition_id in ("r2", "r3"):
        while True:
            try:
                turns.append(controller.renditions.hand_over("flights", rendition_id).held_from)
                break
            except HandoverInProgress:
                assert not failed
    reached = turns[-1] + 5000
    heard = early.until(reached)
    done.set()
    for thread in threads:
        thread.join()
    assert not failed
    frontier = early.listen.frontier
    expected: Counter[Row] = counted(updates(rows("r3", 0, frontier)))
    assert heard == expected
    assert contents(controller, frontier - 1) == expected
    between = contents(controller, turns[1] - 1)
    assert between == counted(updates(rows("r2", 0, turns[1])))


def test_a_writer_that_helps_is_turned_away_where_a_source_takes_over_meanwhile(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds a copy without its tail; when that is there, another handover has taken place."""
    first, other = StorageController(stores.open()), StorageController(stores.open())
    first.create_collection(SPEC)
    first.writer("flights", purpose="table").append(updates([(1, "table", 5, 1)]), 0, 10)
    first.renditions.create("flights", shards=2)
    first.renditions.catch_up("flights", "r2")
    first.writer("flights", purpose="table").append(updates([(2, "table", 15, 1)]), 10, 20)
    feeding = other.renditions.create("flights", shards=1, recipe=Recipe.SOURCE).id
    multi_write = first.client.multi_write

    def dying(steps: list[Prepared]) -> None:
        multi_write(steps)
        raise ProcessDeath

    monkeypatch.setattr(first.client, "multi_write", dying)
    with pytest.raises(ProcessDeath):
        first.renditions.hand_over("flights", "r2")
    assert other.describe("flights").holding.id == "r2"
    late = StorageController(stores.open())
    helping = late.client.multi_write

    def overtaken(steps: list[Prepared]) -> None:
        monkeypatch.undo()
        other.renditions.copy_tail("flights")
        assert other.renditions.hand_over("flights", feeding).id == feeding
        helping(steps)

    monkeypatch.setattr(late.client, "multi_write", overtaken)
    with pytest.raises(BadInput, match="written by a source"):
        late.writer("flights", purpose="late")


def uploaded(stores: Stores, source: RenditionWriter, rows: list[tuple[int, str, int, int]]) -> list[Any]:
    """What another process uploaded for the next append."""
    tickets = source.upload_tickets()
    batches = [prepare_updates(SCHEMA, updates(rows), default_time=0)]
    return [upload_rows(stores.open(), batches, source.rendition, tickets)]


def parts(stores: Stores, source: RenditionWriter) -> list[str]:
    return [each.key for shard in source.rendition.shards for each in stores.blob.list(f"{shard}/w")]


def test_what_others_uploaded_is_appended_like_updates(stores: Stores, controller: StorageController) -> None:
    """Also by the append that begins the rendition, and by later ones."""
    source = pipeline(controller, "r2")
    source.append(None, 5, 6, uploads=uploaded(stores, source, [(1, "a", 5, 1), (2, "b", 5, 1)]))
    source.keep_alive()
    source.append(None, 6, 20, uploads=uploaded(stores, source, [(3, "c", 19, 1)]))
    at = controller.renditions.hand_over("flights", "r2").held_from
    source.append(None, 20, at + 1, uploads=uploaded(stores, source, [(1, "a", at, -1), (4, "d", at, 1)]))
    assert contents(controller, at) == Counter({(2, "b"): 1, (3, "c"): 1, (4, "d"): 1})


def test_an_upload_that_lost_its_race_is_deleted(stores: Stores, controller: StorageController) -> None:
    source, other = pipeline(controller, "r2"), pipeline(controller, "r2")
    lost = uploaded(stores, source, [(n, "lost", 5, 1) for n in range(20)])
    assert parts(stores, source)
    other.append(updates([(1, "won", 5, 1)]), 5, 6)
    before = parts(stores, source)
    with pytest.raises(UpperMismatch):
        source.append(None, 5, 6, uploads=lost)
    gone = {part.blob_key for each in lost[0] for part in each.run}
    assert set(parts(stores, source)) == set(before) - gone
    assert gone <= set(before)
    source.append(None, 6, 7, uploads=uploaded(stores, source, [(2, "next", 6, 1)]))
    assert source.upper() == 7


def test_an_upload_for_the_first_append_follows_one_that_came_before(
    stores: Stores, controller: StorageController
) -> None:
    """The writer prepares it for an empty rendition, and another pipeline begins the rendition meanwhile."""
    source, other = pipeline(controller, "r2"), pipeline(controller, "r2")
    late = uploaded(stores, source, [(2, "late", 5, 1)])
    other.append(updates([(1, "first", 3, 1)]), 3, 5)
    source.append(None, 5, 6, uploads=late)
    assert {part.blob_key for each in late[0] for part in each.run} <= set(parts(stores, source))
    controller.renditions.hand_over("flights", "r2")
    source.seal(20_000)
    assert contents(controller, 19_999) == Counter({(1, "first"): 1, (2, "late"): 1})
