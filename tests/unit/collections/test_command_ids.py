"""A command's id stands for one command. A repeat returns the first answer, and another command fails."""

from collections.abc import Callable

import pytest

from holdfast.collections import CollectionSpec, Recipe, RenditionState, StorageController
from holdfast.errors import BadInput, HandleExpired
from holdfast.persist import Schema
from unit.collections.stores import SPEC, Stores, updates

WIDER = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?"})
WIDEST = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?", "gate": "string?"})
ANY_LAG = 1 << 40
Command = Callable[[StorageController, str], object]


@pytest.fixture
def controller() -> StorageController:
    """A collection that was handed over to r2, two renditions being filled, and somebody who holds it."""
    controller = StorageController(Stores().open())
    controller.create_collection(SPEC, command_id="creation")
    controller.writer("flights", purpose="test").append(updates([(1, "a", 5, 1)]), 0, 100)
    for rendition_id in ("r2", "r3", "r4"):
        controller.renditions.create("flights", shards=1, rendition_id=rendition_id)
        controller.renditions.catch_up("flights", rendition_id)
    turned(controller, "r2")
    # Of a copy that is trusted there is no difference to make.
    controller.renditions.suspect("flights", "r2", "it looks odd")
    controller.hold("flights", "p")
    controller.hold("flights", "p2")
    return controller


def turned(controller: StorageController, rendition_id: str, command_id: str | None = None) -> int:
    return controller.renditions.hand_over(
        "flights", rendition_id, max_lag_ms=ANY_LAG, command_id=command_id
    ).held_from


COMMANDS: dict[str, Command] = {
    "create": lambda c, id_: c.create_collection(CollectionSpec("c2", "other", SPEC.schema), command_id=id_),
    "drop": lambda c, id_: c.drop_collection("flights", command_id=id_),
    "evolve": lambda c, id_: c.evolve_collection("flights", WIDER, command_id=id_),
    "comment": lambda c, id_: c.comment_columns("flights", {"name": "of a flight"}, command_id=id_),
    "retain": lambda c, id_: c.retain("flights", 5, command_id=id_),
    "rename": lambda c, id_: c.rename("c1", "departures", command_id=id_),
    "rename a column": lambda c, id_: c.rename_column("c1", "name", "airline", command_id=id_),
    "drop a column": lambda c, id_: c.drop_column("c1", "name", command_id=id_),
    "make a rendition": lambda c, id_: c.renditions.create("flights", shards=1, command_id=id_),
    "hand over": lambda c, id_: turned(c, "r3", id_),
    "abort": lambda c, id_: c.renditions.abort("flights", "r3", command_id=id_),
    "suspect": lambda c, id_: c.renditions.suspect("flights", "r3", "why", command_id=id_),
    "make a difference": lambda c, id_: c.renditions.make_difference("flights", command_id=id_),
    "hold": lambda c, id_: c.hold("flights", "q", command_id=id_),
    "release": lambda c, id_: c.release_hold("flights", "p", command_id=id_),
    "hold to write": lambda c, id_: c.acquire_write("flights", "q", command_id=id_),
}
OTHERS: dict[str, tuple[Command, Command]] = {
    "shards": (
        lambda c, id_: c.renditions.create("flights", shards=1, command_id=id_),
        lambda c, id_: c.renditions.create("flights", shards=2, command_id=id_),
    ),
    "recipe": (
        lambda c, id_: c.renditions.create("flights", shards=1, command_id=id_),
        lambda c, id_: c.renditions.create("flights", shards=1, recipe=Recipe.SOURCE, command_id=id_),
    ),
    "id": (
        lambda c, id_: c.renditions.create("flights", shards=1, rendition_id="a", command_id=id_),
        lambda c, id_: c.renditions.create("flights", shards=1, rendition_id="b", command_id=id_),
    ),
    "evolve": (COMMANDS["evolve"], lambda c, id_: c.evolve_collection("flights", WIDEST, command_id=id_)),
    "comment": (
        COMMANDS["comment"],
        lambda c, id_: c.comment_columns("flights", {"name": "of an airline"}, command_id=id_),
    ),
    "hand over": (COMMANDS["hand over"], lambda c, id_: turned(c, "r4", id_)),
    "abort": (COMMANDS["abort"], lambda c, id_: c.renditions.abort("flights", "r4", command_id=id_)),
    "suspect": (
        COMMANDS["suspect"],
        lambda c, id_: c.renditions.suspect("flights", "r4", "why", command_id=id_),
    ),
    "hold": (COMMANDS["hold"], lambda c, id_: c.hold("flights", "r", command_id=id_)),
    "read or write": (COMMANDS["hold"], COMMANDS["hold to write"]),
    "release": (COMMANDS["release"], lambda c, id_: c.release_hold("flights", "p2", command_id=id_)),
}


def refused(controller: StorageController, command: Command, id_: str) -> None:
    before = controller.list_collections(), controller.history("flights")
    with pytest.raises(BadInput, match=f"command {id_} was ") as error:
        command(controller, id_)
    assert "its own id" in error.value.hint
    assert (controller.list_collections(), controller.history("flights")) == before


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_id_of_a_command_of_another_kind_is_refused(
    controller: StorageController, command: Command
) -> None:
    refused(controller, command, "creation")


@pytest.mark.parametrize(("first", "second"), OTHERS.values(), ids=OTHERS.keys())
def test_the_id_of_a_command_that_asked_for_something_else_is_refused(
    controller: StorageController, first: Command, second: Command
) -> None:
    first(controller, "k")
    refused(controller, second, "k")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_same_command_again_is_answered_and_on_record_once(
    controller: StorageController, command: Command
) -> None:
    controller.release_hold("flights", "p2")
    if command is COMMANDS["drop"]:
        controller.release_hold("flights", "p")
    answer = command(controller, "k")
    before = controller.list_collections(), controller.history("c1")
    if command is not COMMANDS["drop"]:  # Where it is not there any more by that name.
        again = command(controller, "k")
        assert type(again) is type(answer)
        assert again == answer or command in (COMMANDS["hold"], COMMANDS["hold to write"])
    assert (controller.list_collections(), controller.history("c1")) == before


def test_a_handover_is_answered_again_after_another_one(controller: StorageController) -> None:
    at = turned(controller, "r3", "k")
    turned(controller, "r4")
    assert turned(controller, "r3", "k") == at
    assert controller.describe("flights").rendition("r3").state is RenditionState.RETIRED
    with pytest.raises(BadInput, match="RETIRED, not HYDRATING"):
        turned(controller, "r3")


def test_a_release_ends_no_later_hold(controller: StorageController) -> None:
    controller.release_hold("flights", "p", command_id="k")
    later = controller.hold("flights", "p")
    controller.release_hold("flights", "p", command_id="k")
    assert later.since == 0


def test_a_hold_that_was_released_is_not_taken_again(controller: StorageController) -> None:
    controller.hold("flights", "q", command_id="k").release()
    controller.acquire_write("flights", "q", command_id="w").release()
    with pytest.raises(HandleExpired, match="was released"):
        controller.hold("flights", "q", command_id="k")
    with pytest.raises(HandleExpired, match="was released"):
        controller.acquire_write("flights", "q", command_id="w")
    assert {each.purpose for each in controller.describe("flights").holders} == {"p", "p2"}
