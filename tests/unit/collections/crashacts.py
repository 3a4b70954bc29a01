"""All commands on collections, each in a world where it has work. The crash model interrupts them."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from holdfast.collections import Recipe, RestoreSource, StorageController
from holdfast.errors import ConflictingWrite, StorageError
from holdfast.persist import Schema
from testbed.faults import Fault, ProcessDeath
from unit.collections.crashmodel import ANY_LAG, Act, Book, Cast, Recorder, copied, feed, opened
from unit.collections.stores import SPEC, Row, Stores

WIDER = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?"})
ROWS: list[Row] = [(number, str(number)) for number in range(12)]
WRITTEN = [(row, 5) for row in ROWS]
LATER: list[tuple[Row, int]] = [((90, "later"), 12), ((91, "later"), 17)]


# The worlds before the commands.


def nothing(stores: Stores, book: Book) -> None:
    """An empty location."""


def table(stores: Stores, book: Book) -> None:
    """A collection with some rows."""
    controller = opened(stores)
    controller.create_collection(SPEC)
    writer = controller.writer("flights", purpose="writer")
    writer.append([{"id": id_, "name": name, "_time": 5} for id_, name in ROWS], 0, 20)
    book.written += WRITTEN


def made(stores: Stores, book: Book) -> None:
    """And a second rendition, empty."""
    table(stores, book)
    opened(stores).renditions.create("flights", shards=2)


def filled(stores: Stores, book: Book) -> None:
    """And filled, but for what was written since."""
    made(stores, book)
    opened(stores).renditions.catch_up("flights", "r2")
    written(stores, book)


def tailless(stores: Stores, book: Book) -> None:
    """And handed over to by a process that ended before it had brought the tail."""
    filled(stores, book)
    broken_before_the_tail(stores, lambda c: c.renditions.hand_over("flights", "r2"))


def taken_over(stores: Stores, book: Book) -> None:
    """And handed over to; nobody reads what was before any more."""
    filled(stores, book)
    controller = opened(stores)
    controller.renditions.hand_over("flights", "r2")
    written(stores, book)
    controller.set_retention_hold("flights", controller.frontiers("flights").upper - 1)


def unfed(stores: Stores, book: Book) -> None:
    """A second rendition, of a source that has not begun."""
    table(stores, book)
    opened(stores).renditions.create("flights", shards=2, recipe=Recipe.SOURCE)


def begun(stores: Stores, book: Book) -> None:
    """And begun with, before the first rows."""
    unfed(stores, book)
    feed(opened(stores), WRITTEN, "r2", 5)


def fed(stores: Stores, book: Book) -> None:
    """And fed with all that there is."""
    unfed(stores, book)
    feed(opened(stores), WRITTEN, "r2", 20)


def fed_half(stores: Stores, book: Book) -> None:
    """And fed with what there is, but not as far as that is complete."""
    unfed(stores, book)
    feed(opened(stores), WRITTEN, "r2", 10)


def fed_on(stores: Stores, book: Book) -> None:
    """And handed over to; it lacks all from its beginning on."""
    begun(stores, book)
    opened(stores).renditions.hand_over("flights", "r2")


def fed_twice(stores: Stores, book: Book) -> None:
    """And going on; a third one is fed by another source."""
    fed(stores, book)
    controller = opened(stores)
    controller.renditions.hand_over("flights", "r2")
    written(stores, book, fed=True)
    controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE)
    feed(controller, book.written, "r3", 15)


def fed_in_turn(stores: Stores, book: Book) -> None:
    """And handed over to; neither is at the time of the handover yet."""
    fed_twice(stores, book)
    opened(stores).renditions.hand_over("flights", "r3")


def fed_and_copied(stores: Stores, book: Book) -> None:
    """A second rendition that its source feeds holds, a third one is copied from it."""
    fed(stores, book)
    controller = opened(stores)
    controller.renditions.hand_over("flights", "r2")
    written(stores, book, fed=True)
    controller.renditions.create("flights", shards=1)
    controller.renditions.catch_up("flights", "r3")
    written(stores, book, fed=True)


def held(stores: Stores, book: Book) -> None:
    """A collection that somebody holds."""
    table(stores, book)
    opened(stores).hold("flights", "audit", since=10)


def held_to_write(stores: Stores, book: Book) -> None:
    """A collection that somebody may write."""
    table(stores, book)
    opened(stores).acquire_write("flights", "loader")


def replicated(stores: Stores, book: Book) -> None:
    """A collection that has what the first of two writers gave: some of what the other one gives."""
    table(stores, book)
    book.written += [((id_, name), time + 20) for (id_, name), time in LATER]
    replica(opened(stores), 25, 35)


def written(stores: Stores, book: Book, *, fed: bool = False) -> None:
    """Somebody writes a row."""
    cast = Cast(stores, book, fed=fed)
    cast.write(3)
    cast.close()


def broken_before_the_tail(stores: Stores, hand_over: Callable[[StorageController], object]) -> None:
    """Hand over to r2, and end with the step that does, before the tail is there."""
    for number in count():
        tried = copied(stores)
        with suppress(ProcessDeath):
            hand_over(opened(tried, Recorder(number, Fault.DEATH_AFTER)))
        if opened(tried).describe("c1").holding.id == "r2":
            break
    with suppress(ProcessDeath):
        hand_over(opened(stores, Recorder(number, Fault.DEATH_AFTER)))
    view = opened(stores).renditions.look("flights")
    assert view.info.holding.id == "r2"
    assert view.uppers["r2"] < view.info.holding.held_from


# What is done beside the controller's commands.


def replica(controller: StorageController, lower: int, upper: int) -> None:
    """Be one of several writers that give the same rows."""
    rows = [(row, time + 20) for row, time in LATER if lower <= time + 20 < upper]
    writer = controller.writer("flights", purpose="replica", replicated=True)
    if writer.upper() < lower:
        writer.seal(lower)
    writer.append([{"id": id_, "name": name, "_time": time} for (id_, name), time in rows], lower, upper)


def fed_replica(controller: StorageController) -> None:
    """Be one of several pipelines that give the same rows."""
    pipeline = controller.rendition_writer("flights", "r2", purpose="replica", replicated=True)
    rows = [{"id": id_, "name": name, "_time": time} for (id_, name), time in WRITTEN]
    pipeline.append(rows, 4, 20)


def conflict(controller: StorageController) -> None:
    """Give other rows than are there, as if one was as good as they: somebody is to look at that."""
    writer = controller.writer("flights", purpose="replica", replicated=True)
    with suppress(ConflictingWrite):
        writer.append([{"id": 1, "name": "otherwise", "_time": 5}], 4, 15)
        raise AssertionError("rows that differ were taken")
    if not controller.describe("flights").rendition("r1").suspect:
        raise StorageError("it could not be put on record")


def suspected(controller: StorageController) -> None:
    """Say that a rendition is not to be trusted."""
    controller.renditions.suspect("flights", "r1", "it looks wrong", command_id="k")
    assert controller.describe("flights").rendition("r1").suspect == "it looks wrong"


def fed_to_the_end(controller: StorageController) -> None:
    """Write a rendition of a source up to where the next one took over."""
    feed(controller, WRITTEN, "r2", controller.describe("flights").rendition("r2").held_to)


def different(controller: StorageController) -> None:
    """Put into a shard what differs."""
    assert controller.renditions.make_difference("flights", command_id="k")


def acts(source: RestoreSource, restored: Counter[Row]) -> list[Act]:
    """All commands, and what pipelines and replicas do."""
    return [*_commands(source, restored), *_handovers(source, restored), *_pipelines()]


def _commands(source: RestoreSource, restored: Counter[Row]) -> list[Act]:
    both = ("HOLDING", "HYDRATING")
    return [
        Act("create", nothing, lambda c: c.create_collection(SPEC, command_id="k"), cast=False),
        Act("evolve", filled, lambda c: c.evolve_collection("flights", WIDER, command_id="k"), both),
        Act("comment", filled, lambda c: c.comment_columns("flights", {"id": "n"}, command_id="k"), both),
        Act("retain", filled, lambda c: c.retain("flights", 1 << 40, command_id="k"), both),
        Act(
            "create rendition",
            table,
            lambda c: c.renditions.create("flights", shards=2, rendition_id="r2", command_id="k"),
            both,
        ),
        Act("catch up with all", made, lambda c: c.renditions.catch_up("flights", "r2"), both, uploads=True),
        Act("catch up with more", filled, lambda c: c.renditions.catch_up("flights", "r2"), both),
        Act("hydrate", made, lambda c: c.hydrate("flights", "r2"), both),
        Act(
            "restore",
            table,
            lambda c: c.restore_collection("flights", source, command_id="k"),
            ("RETIRED", "HOLDING"),
            restores=restored,
            uploads=True,
        ),
        Act(
            "abort",
            filled,
            lambda c: c.renditions.abort("flights", "r2", command_id="k"),
            ("HOLDING", "ABORTED"),
        ),
        Act("suspect", table, suspected),
        Act("move retention", table, lambda c: c.set_retention_hold("flights", 15), cast=False),
        Act(
            "hold",
            table,
            lambda c: c.hold("flights", "audit", since=10, command_id="k"),
            keeps=frozenset({"read: audit"}),
        ),
        Act("release", held, lambda c: c.release_hold("flights", "audit", command_id="k")),
        Act(
            "hold to write",
            table,
            lambda c: c.acquire_write("flights", "loader", command_id="k"),
            keeps=frozenset({"write: loader"}),
        ),
        Act(
            "release to write",
            held_to_write,
            lambda c: c.release_write("flights", "loader", command_id="k"),
        ),
        Act("drop", filled, lambda c: c.drop_collection("c1", command_id="k"), both, cast=False),
    ]


def _handovers(source: RestoreSource, restored: Counter[Row]) -> list[Act]:
    turned = ("RETIRED", "HOLDING")

    def restored_now(stores: Stores, book: Book) -> None:
        table(stores, book)
        at = opened(stores).restore_collection("flights", source).held_from
        book.restored = (at, restored)

    def restored_without_tail(stores: Stores, book: Book) -> None:
        table(stores, book)
        broken_before_the_tail(stores, lambda c: c.restore_collection("flights", source, rendition_id="r2"))

    return [
        Act(
            "hand over to a copy",
            filled,
            lambda c: c.renditions.hand_over("flights", "r2", command_id="k", max_lag_ms=ANY_LAG),
            turned,
        ),
        Act(
            "hand over to a source",
            fed,
            lambda c: c.renditions.hand_over("flights", "r2", command_id="k"),
            turned,
            fed=True,
        ),
        Act(
            "hand over to another source",
            fed_twice,
            lambda c: c.renditions.hand_over("flights", "r3", command_id="k"),
            ("RETIRED", "RETIRED", "HOLDING"),
            fed=True,
        ),
        Act(
            "hand over from a source",
            fed_and_copied,
            lambda c: c.renditions.hand_over("flights", "r3", command_id="k", max_lag_ms=ANY_LAG),
            ("RETIRED", "RETIRED", "HOLDING"),
            fed=True,
        ),
        # Whoever writes brings it too: that is part of the handovers. Here nobody does.
        Act("bring the tail", tailless, lambda c: c.renditions.copy_tail("flights"), turned, cast=False),
        Act(
            "bring the tail of what is restored",
            restored_without_tail,
            lambda c: c.renditions.copy_tail("flights"),
            turned,
            late=True,
            restores=restored,
        ),
        Act("make a difference", restored_now, different, turned),
        Act(
            "drop what retired",
            taken_over,
            lambda c: c.renditions.drop_retired("flights"),
            ("DROPPED", "HOLDING"),
            advances=True,
        ),
    ]


def _pipelines() -> list[Act]:
    both, turned = ("HOLDING", "HYDRATING"), ("RETIRED", "HOLDING")
    return [
        Act("begin with a source", unfed, lambda c: feed(c, WRITTEN, "r2", 20), both, fed=True),
        Act("feed what is filled", begun, lambda c: feed(c, WRITTEN, "r2", 20), both, fed=True, uploads=True),
        Act("feed what holds", fed_on, lambda c: feed(c, WRITTEN, "r2", 60_000), turned, fed=True),
        Act(
            "feed what has retired",
            fed_in_turn,
            fed_to_the_end,
            ("RETIRED", "RETIRED", "HOLDING"),
            fed=True,
        ),
        Act("write the same as another", replicated, lambda c: replica(c, 20, 60_000), cast=False),
        Act("feed the same as another", fed_half, fed_replica, both, cast=False, fed=True),
        Act("write otherwise than another", table, conflict),
    ]
