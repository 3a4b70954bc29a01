"""How a StorageCollection gets its next rendition: at a time, from a pipeline, and if writers disagree."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.collections import StorageController
from holdfast.errors import ConflictingWrite

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
REASON = '.status.conditions[?(@.type=="Ready")].reason'
BEFORE = [{"id": 1, "note": "before"}, {"id": 2, "note": "before"}]
NEW = [{"id": 1, "note": "new"}]


@pytest.fixture(scope="module")
def controller(module_world: Any, make_catalog: Make) -> Iterator[StorageController]:
    """That of an application beside an operator, in an open catalog."""
    there = make_catalog()
    module_world.start()
    module_world.apply(there)
    module_world.wait_ready("catalog/demo")
    with module_world.controller(module_world.volume(there["spec"]["organizationId"])) as controller:
        yield controller


class Collection:
    """A StorageCollection that is there, with rows before 10."""

    def __init__(self, world: Any, controller: StorageController, made: dict[str, Any]) -> None:
        self.world = world
        self.controller = controller
        self.name = f"coll/{made['metadata']['name']}"
        world.apply(made)
        world.wait_ready(self.name)
        self.id = world.status(self.name)["collectionId"]
        controller.writer(self.id, purpose="application").append(BEFORE, 0, 10)

    def patch(self, **spec: Any) -> None:
        self.world.patch(self.name, json.dumps({"spec": spec}))

    def wait_for(self, path: str, value: object) -> None:
        self.world.wait_for(self.name, path, value)

    def wait_for_phase(self, rendition: str, phase: str) -> None:
        self.wait_for(f'.status.renditions[?(@.id=="{rendition}")].phase', phase)

    def message(self, reason: str, type_: str = "Ready") -> str:
        """What the condition says, once it has this reason."""
        self.wait_for(f'.status.conditions[?(@.type=="{type_}")].reason', reason)
        return str(self.world.condition(self.name, type_)["message"])

    def waits_for(self, rendition: str) -> str:
        (found,) = (each for each in self.status["renditions"] if each["id"] == rendition)
        return str(found["waitsFor"])

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.world.status(self.name))

    def rows(self, as_of: int | None = None) -> list[dict[str, Any]]:
        with self.controller.reader(self.id, purpose="check") as reader:
            rows = reader.snapshot(as_of).to_table().to_pylist()
        return sorted(({"id": row["id"], "note": row["note"]} for row in rows), key=lambda row: row["id"])

    def told(self) -> list[str]:
        """The reasons of its Events, as `kubectl describe` and `kubectl events` list them."""
        kubectl, name = self.world.kubectl, self.name.partition("/")[2]
        _, described = kubectl("describe", self.name).split("\nEvents:\n")
        lines = [line.split() for line in described.splitlines()[2:]]
        reasons = [words[1] for words in lines]
        listed = kubectl("events", f"--for=StorageCollection/{name}", "--no-headers").splitlines()
        assert [line.split()[2] for line in listed] == reasons
        by_time = kubectl(
            "get",
            "events",
            f"--field-selector=involvedObject.name={name}",
            "--sort-by=.eventTime",
            "--no-headers",
        )
        assert [line.split()[2] for line in by_time.splitlines()] == reasons
        return reasons


@pytest.mark.long
def test_a_handover_waits_for_its_time(
    module_world: Any, controller: StorageController, make_collection: Make
) -> None:
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    at = {"policy": "At", "at": tomorrow.isoformat()}
    timed = Collection(module_world, controller, make_collection("timed", handover=at))
    timed.patch(rendition={"shards": 3})
    told = f"waits for its handover at {tomorrow:%Y-%m-%dT%H:%M:%SZ}"
    assert timed.message("WaitingForHandover").endswith(
        f"holds everything that the collection holds, and {told}"
    )
    assert told.endswith(timed.waits_for("spec-2"))
    assert (timed.status["activeRendition"], timed.status["nextRendition"]) == ("r1", "spec-2")
    soon = datetime.now(UTC) + timedelta(seconds=2)
    timed.patch(handover={"at": soon.isoformat()})
    timed.wait_for(".status.activeRendition", "spec-2")
    assert timed.status["handover"]["at"] >= int(soon.timestamp() * 1000)
    # A time that is over: as soon as it has caught up, where the collection is by then.
    upper = timed.status["handover"]["at"]
    timed.patch(handover={"at": "2001-01-01T00:00:00Z"}, rendition={"shards": 4})
    timed.wait_for(".status.activeRendition", "spec-3")
    assert timed.status["handover"]["at"] >= upper
    assert timed.rows() == BEFORE
    module_world.events("HandedOver", 2)
    timed.message("RetiringRendition")
    made = ["RenditionCreated", "Hydrated", "HandedOver"]
    assert [reason for reason in timed.told() if reason in made] == made * 2


def test_a_pipeline_fills_the_next_rendition(
    module_world: Any, controller: StorageController, make_collection: Make
) -> None:
    fed = Collection(module_world, controller, make_collection("fed"))
    fed.patch(rendition={"recipe": "Source"})
    told = "what its pipeline writes: it is complete before 0, the collection before 10"
    fed.wait_for_phase("spec-2", "Hydrating")
    assert told in fed.message("HydratingRendition")
    assert fed.waits_for("spec-2") == told
    pipeline = controller.rendition_writer(fed.id, "spec-2", purpose="pipeline")
    pipeline.append(NEW, 0, 10)
    fed.wait_for(".status.activeRendition", "spec-2")
    turn = fed.status["handover"]["at"]
    assert fed.waits_for("spec-2") == f"what was written before {turn}"
    message = fed.message("HydratingRendition")
    assert message.endswith(f"readers use it after: its pipeline writes the rows before {turn}")
    assert fed.rows(9) == BEFORE
    pipeline.append([{"id": 3, "note": "new"}], 10, turn + 5)
    module_world.wait_ready(fed.name)
    assert fed.rows() == [*NEW, {"id": 3, "note": "new"}]
    # The operator had handed over before there was anything to compare: that is made up for.
    fed.wait_for(REASON, "RetiringRendition")
    module_world.operators[-1].wait_for_looks(4)
    assert controller.client.exists(controller.describe(fed.id).holding.difference_shard)


def test_writers_that_differ_make_a_rendition_suspect(
    module_world: Any, controller: StorageController, make_collection: Make
) -> None:
    doubted = Collection(module_world, controller, make_collection("doubted"))
    doubted.patch(rendition={"shards": 3, "recipe": "Source"}, handover={"policy": "Manual"})
    doubted.wait_for_phase("spec-2", "Hydrating")
    one, other = (
        controller.rendition_writer(doubted.id, "spec-2", purpose="pipeline", replicated=True)
        for _ in range(2)
    )
    one.append(NEW, 0, 10)
    with pytest.raises(ConflictingWrite):
        other.append(BEFORE, 0, 10)
    message = module_world.wait_stalled(doubted.name, "RenditionSuspect")
    assert message.startswith("rendition spec-2 is suspect: ")
    assert "(id=1, note='new') 1 x only there" in message
    assert "to abort the rendition, undo the change of spec.rendition" in message
    assert doubted.message("RenditionSuspect", "RenditionSuspect") == message
    assert doubted.status["activeRendition"] == "r1"
    # It is named by hand, and does not take over.
    doubted.patch(handover={"to": "spec-2"})
    module_world.operators[-1].wait_for_looks(4)
    module_world.wait_stalled(doubted.name, "RenditionSuspect")
    # What the message says to do.
    doubted.patch(rendition={"shards": 2, "recipe": "Copy"})
    doubted.wait_for_phase("spec-2", "Aborted")
    module_world.wait_ready(doubted.name)
    assert [each["type"] for each in doubted.status["conditions"]] == ["Ready", "Reconciling", "Stalled"]
    # The same of one that is read.
    one, other = (controller.writer(doubted.id, purpose="application", replicated=True) for _ in range(2))
    one.append([{"id": 3, "note": "one"}], 10, 20)
    with pytest.raises(ConflictingWrite):
        other.append([{"id": 3, "note": "other"}], 10, 20)
    message = doubted.message("RenditionSuspect")
    assert "to copy its rows to a new rendition, change spec.rendition.shards" in message
    module_world.wait_ready(doubted.name)
    doubted.wait_for_phase("r1", "Suspect")
    doubted.patch(rendition={"shards": 3}, handover={"to": "spec-3"})
    doubted.wait_for(".status.activeRendition", "spec-3")
    doubted.message("RetiringRendition")
    doubted.wait_for_phase("r1", "Retiring")
    told = [event["message"] for event in module_world.events("RenditionSuspect", 2)]
    assert [text.split()[1] for text in told] == ["spec-2", "r1"]
    one.close()
    other.close()
