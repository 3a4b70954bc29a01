"""Active replication: identical writers make one history, and a different writer is found."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from holdfast.collections import CollectionWriter, Recipe, RenditionWriter, StorageController
from holdfast.collections.record.state import CommandKind
from holdfast.errors import (
    BadInput,
    ConflictingWrite,
    HandedOver,
    HoldfastError,
    NotComparable,
    Overtaken,
    UpperMismatch,
)
from unit.collections.listeners import contents, listener
from unit.collections.stores import SPEC, Stores, counted, updates

Update = tuple[int, str | None, int, int]
ROWS: list[Update] = [(number % 40, f"n{number % 7}", number, 1 + number % 2) for number in range(400)]


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open())
    controller.create_collection(SPEC)
    return controller


def replica(stores: Stores) -> CollectionWriter:
    return StorageController(stores.open()).writer("flights", purpose="replica", replicated=True)


def at(rows: Sequence[Update], lower: int, upper: int) -> list[Update]:
    return [row for row in rows if lower <= row[2] < upper]


def test_what_another_has_written_counts_as_written(stores: Stores, controller: StorageController) -> None:
    one, other = replica(stores), replica(stores)
    one.append(updates(at(ROWS, 0, 100)), 0, 100)
    other.append(updates(at(ROWS, 0, 60)), 0, 60)
    # A part of it is there; the rest is new, and of that the first has the greater part to write.
    other.append(updates(at(ROWS, 60, 110)), 60, 110)
    # The same sum of rows in other pieces is the same.
    extra = [(7, "gone", 120, 5), (7, "gone", 120, -5)]
    one.append(updates([*at(ROWS, 100, 150), *extra]), 100, 150)
    other.append(updates(at(ROWS, 110, 200)), 110, 200)
    one.append(None, 200, 300)
    other.seal(300)
    assert contents(controller) == counted(updates(at(ROWS, 0, 200)))
    with pytest.raises(UpperMismatch) as ahead:
        one.append(None, 301, 302)
    assert ahead.value.actual == 300
    assert controller.describe("flights").holding.suspect == ""


@pytest.mark.parametrize(
    ("mine", "shown"),
    [
        # Rows of equal number, and of equal sum.
        (
            [(1, "a", 5, 1), (2, "c", 7, 1)],
            ["at 7 (id=2, name='b') 1 x only there", "name='c') 1 x only mine"],
        ),
        ([(1, "a", 5, 1), (2, "b", 6, 1)], ["at 6 (id=2, name='b') 1 x only mine", "at 7 (id=2"]),
        ([(1, "a", 5, 2)], ["at 5 (id=1, name='a') 1 x only mine", "at 7 (id=2"]),
        ([], ["at 5 (id=1, name='a') 1 x only there", "at 7 (id=2"]),
    ],
)
def test_what_differs_is_shown_and_the_rendition_becomes_suspect(
    stores: Stores, controller: StorageController, mine: list[Update], shown: list[str]
) -> None:
    one, other = replica(stores), replica(stores)
    one.append(updates([(1, "a", 5, 1), (2, "b", 7, 1)]), 0, 10)
    reader = listener(controller, 9)
    with pytest.raises(ConflictingWrite) as conflict:
        other.append(updates(mine), 0, 20)
    assert (conflict.value.lower, conflict.value.upper) == (0, 10)
    assert len(conflict.value.rows) == conflict.value.differing == 2
    assert all(text in row for text, row in zip(shown, conflict.value.rows, strict=True))
    suspect = controller.describe("flights").holding.suspect
    assert suspect in str(conflict.value)
    (command,) = [
        each for each in controller.history("flights") if each.kind is CommandKind.SUSPECT_RENDITION
    ]
    assert command.result["rendition"] == "r1"
    # It goes on nevertheless, for readers and for who is right.
    one.append(updates([(3, "c", 15, 1)]), 10, 20)
    assert reader.until(20) == contents(controller) == Counter({(1, "a"): 1, (2, "b"): 1, (3, "c"): 1})
    controller.renditions.create("flights", shards=1)
    controller.hydrate("flights", "r2")
    assert controller.renditions.hand_over("flights", "r2").suspect == ""


@pytest.mark.usefixtures("controller")
def test_many_rows_that_differ_are_not_all_shown(stores: Stores) -> None:
    one, other = replica(stores), replica(stores)
    one.append(updates([(number, "x" * 500, number, 1) for number in range(20)]), 0, 20)
    with pytest.raises(ConflictingWrite, match="and 15 more") as conflict:
        other.append(None, 0, 20)
    assert len(conflict.value.rows) == 5
    assert len(str(conflict.value)) < 1000


def test_nothing_is_guessed_where_the_times_are_gone(stores: Stores, controller: StorageController) -> None:
    one = replica(stores)
    one.append(updates(at(ROWS, 0, 100)), 0, 100)
    controller.set_retention_hold("flights", 50)
    assert controller.frontiers("flights").since == 0  # that is held
    plain = replica(stores)
    for each in (one, plain):
        assert hasattr(each, "close")
        each.close()
    controller.set_retention_hold("flights", 50)
    late = replica(stores)
    late.append(updates(at(ROWS, 60, 110)), 60, 110)
    with pytest.raises(NotComparable):
        late.append(updates(at(ROWS, 30, 60)), 30, 60)
    assert contents(controller) == counted(updates(at(ROWS, 0, 110)))


def test_the_hold_follows_what_is_written(stores: Stores, controller: StorageController) -> None:
    one, other = replica(stores), replica(stores)
    for number in range(66):
        for each in (one, other):
            each.append(updates([(number, "row", number, 1)]), number, number + 1)
    metadata = controller.describe("flights").metadata_shard
    holds = [hold for hold in controller.client.inspect(metadata).holds if hold.purpose == "replica"]
    assert [hold.since for hold in holds] == [63, 63]
    assert contents(controller) == Counter({(number, "row"): 1 for number in range(66)})


def pieces(seed: int, rows: Sequence[Update], upper: int) -> list[tuple[int, int, list[Update]]]:
    """The rows with random borders, as a replica gives them."""
    generator = random.Random(seed)
    borders = sorted({0, upper, *(generator.randrange(1, upper) for _ in range(25))})
    return [(lower, above, at(rows, lower, above)) for lower, above in pairwise(borders)]


def together(*work: Callable[[], object]) -> list[HoldfastError]:
    """Run each in a thread of its own; what they raised."""
    errors: list[HoldfastError] = []

    def run(each: Callable[[], object]) -> None:
        try:
            each()
        except HoldfastError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def feed(writer: CollectionWriter | RenditionWriter, seed: int, rows: Sequence[Update]) -> None:
    for lower, upper, some in pieces(seed, rows, 400):
        writer.append(updates(some), lower, upper)


def test_replicas_with_any_borders_make_one_history(stores: Stores, controller: StorageController) -> None:
    replicas = [replica(stores), replica(stores)]
    errors = together(*(lambda w=w, n=n: feed(w, n, ROWS) for n, w in enumerate(replicas)))  # type: ignore[misc]
    assert errors == []
    for time in (0, 57, 233, 399):
        assert contents(controller, time) == counted(updates(at(ROWS, 0, time + 1)))


def test_one_wrong_row_is_found_by_one_of_them(stores: Stores, controller: StorageController) -> None:
    wrong = [*ROWS[:200], (ROWS[200][0], "wrong", 200, ROWS[200][3]), *ROWS[201:]]
    one, other = replica(stores), replica(stores)
    errors = together(lambda: feed(one, 1, ROWS), lambda: feed(other, 2, wrong))
    assert errors
    assert all(isinstance(error, ConflictingWrite) for error in errors)
    assert "wrong" in str(errors[0])
    assert controller.describe("flights").holding.suspect


def test_what_a_handover_took_is_told_alike_to_all(stores: Stores, controller: StorageController) -> None:
    one, other = replica(stores), replica(stores)
    one.append(updates(at(ROWS, 0, 100)), 0, 100)
    controller.renditions.create("flights", shards=2)
    controller.hydrate("flights", "r2")
    turn = controller.renditions.hand_over("flights", "r2").held_from
    overtaken = [(5, "late", 150, 1), (6, "late", turn + 1, 1)]
    told = []
    for each, lower in ((one, 100), (other, 40)):
        with pytest.raises(Overtaken) as error:
            each.append(updates([*at(ROWS, lower, 100), *overtaken]), lower, turn + 10)
        told.append((error.value.written, error.value.actual))
    assert told == [(100, turn), (100, turn)]
    moved = [(5, "late", turn, 1), (6, "late", turn + 1, 1)]
    one.append(updates(moved), turn, turn + 10)
    other.append(updates(moved), turn, turn + 10)
    # Where nothing was to come at these times, nobody is told anything.
    slow = StorageController(stores.open()).writer("flights", purpose="slow", replicated=True)
    slow.append(updates([*at(ROWS, 0, 100), *moved]), 0, turn + 5)
    slow.append(updates([(9, "end", turn + 11, 1)]), turn + 5, turn + 12)
    expected = counted(updates([*at(ROWS, 0, 100), *moved, (9, "end", turn + 11, 1)]))
    assert contents(controller) == expected
    assert controller.describe("flights").holding.suspect == ""
    # A row that the other one had written before is no such row.
    with pytest.raises(ConflictingWrite):
        replica(stores).append(updates(at(ROWS, 1, 100)), 0, turn + 5)
    assert controller.describe("flights").rendition("r1").suspect


def test_replicated_pipelines_go_through_a_handover(stores: Stores, controller: StorageController) -> None:
    for rendition_id in ("r2", "r3"):
        made = controller.renditions.create("flights", shards=2, recipe=Recipe.SOURCE)
        assert made.id == rendition_id

    def pipeline(rendition_id: str) -> RenditionWriter:
        mine = StorageController(stores.open())
        return mine.rendition_writer("flights", rendition_id, purpose="pipeline", replicated=True)

    controller.renditions.hand_over("flights", "r2")
    new = [(id_, "new", time, diff) for id_, _, time, diff in ROWS]

    def old() -> None:
        writer = pipeline("r2")
        feed(writer, 3, ROWS)
        with pytest.raises(HandedOver) as over:
            writer.append(None, 400, 1 << 40)
        writer.append(None, 400, over.value.at)

    pipelines = [pipeline("r2"), pipeline("r2"), pipeline("r3"), pipeline("r3")]
    errors = together(
        lambda: feed(pipelines[0], 1, ROWS),
        lambda: feed(pipelines[1], 2, ROWS),
        lambda: feed(pipelines[2], 3, new),
        lambda: feed(pipelines[3], 4, new),
    )
    assert errors == []
    assert contents(controller) == counted(updates(ROWS))
    last = controller.renditions.hand_over("flights", "r3").held_from
    assert together(old, old) == []
    for writer in pipelines[2:]:
        writer.append(updates([(1, "after", last, 1)]), 400, last + 1)
    after = counted(updates([*new, (1, "after", last, 1)]))
    assert contents(controller) == after
    assert contents(controller, last - 1) == counted(updates(ROWS))
    assert listener(controller, 0).until(last + 1) == after
    with pytest.raises(ConflictingWrite):
        pipeline("r3").append(updates(ROWS), 0, 400)
    assert controller.describe("flights").rendition("r3").suspect
    with pytest.raises(BadInput):
        controller.renditions.suspect("flights", "r9", "no such rendition")
