"""A StorageCollection is re-sharded and gets columns during reads and writes, on a real API server."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from apiserver.livewriting import Writing, counted, load
from holdfast.collections import RenditionState, StorageController
from holdfast.persist import Progress
from testbed.errors import KubectlError

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
FLIGHTS = "storagecollection/flights"
REASON = '.status.conditions[?(@.type=="Ready")].reason'
LOADED = 100_000
"""Rows that are there before, so many that a copy takes a while."""


def patch(world: Any, **spec: Any) -> None:
    world.patch(FLIGHTS, json.dumps({"spec": spec}))


def phases(world: Any) -> dict[str, str]:
    return {each["id"]: each["phase"] for each in world.status(FLIGHTS).get("renditions", [])}


def wait_for_phase(world: Any, rendition: str, phase: str) -> None:
    world.wait_for(FLIGHTS, f'.status.renditions[?(@.id=="{rendition}")].phase', phase)


@pytest.fixture
def flights(world: Any, make_catalog: Make, make_collection: Make) -> Iterator[StorageController]:
    """The controller of an application, and a collection that is there; an operator looks after it."""
    there = make_catalog()
    world.start()
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", FLIGHTS)
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        yield controller


def kill_while_it_fills(world: Any, controller: StorageController, collection: str) -> str:
    """Ask for more shards until the operator is killed with a rendition that has nothing yet; its id."""
    for shards in (4, 5, 6):
        patch(world, rendition={"shards": shards})
        name = f"spec-{shards - 2}"
        wait_for_phase(world, name, "Hydrating")
        operator = world.operators[-1].child
        os.kill(operator.pid, signal.SIGSTOP)
        rendition = controller.describe(collection).rendition(name)
        if all(controller.client.recent_upper(shard) == 0 for shard in rendition.shards):
            operator.kill()
            return name
        os.kill(operator.pid, signal.SIGCONT)
    raise AssertionError("it fills renditions faster than anybody can look")


@pytest.mark.long
def test_a_collection_is_resharded_by_operators_that_are_killed(
    world: Any, flights: StorageController
) -> None:
    patch(world, handover={"policy": "Manual"})
    collection = world.status(FLIGHTS)["collectionId"]
    writer = flights.writer(collection, purpose="application")
    load(writer, LOADED)
    reader = flights.reader(collection, purpose="follower")
    heard = counted(reader.snapshot(9).to_table())
    listen = reader.listen(9)
    with Writing(writer, pace_s=0.02).running() as writing:
        new = kill_while_it_fills(world, flights, collection)
        world.start()
        wait_for_phase(world, new, "CaughtUp")
        world.wait_for(FLIGHTS, REASON, "WaitingForHandover")
        world.operators[-1].child.kill()
        patch(world, handover={"policy": "WhenCaughtUp"})
        last = world.start()
        world.wait_for(FLIGHTS, ".status.activeRendition", new)
        handover = world.status(FLIGHTS)["handover"]
        assert (handover["from"], handover["to"]) == ("r1", new)
        # Whatever was written in between, and some of what comes after it.
        while listen.frontier <= handover["at"] + 20:
            heard.update(told(listen))
    upper = writer.upper()
    while listen.frontier < upper:
        heard.update(told(listen))
    expected = Counter({(number, "before"): 1 for number in range(LOADED)}) + writing.written
    assert +heard == expected
    assert counted(reader.snapshot().to_table()) == expected
    world.events("HandedOver")
    world.wait_for(FLIGHTS, REASON, "RetiringRendition")
    assert (phases(world)["r1"], phases(world)[new]) == ("Retiring", "Active")
    assert last.child.poll() is None


@pytest.mark.long
def test_a_rendition_waits_for_a_word_and_is_given_up_for_another(
    world: Any, flights: StorageController
) -> None:
    collection = world.status(FLIGHTS)["collectionId"]
    writer = flights.writer(collection, purpose="application")
    load(writer, 1000)
    patch(world, rendition={"shards": 3}, maxBytes=10)
    assert "would exceed spec.maxBytes, 10" in world.wait_stalled(FLIGHTS, "OverMaxBytes")
    world.wait_for(FLIGHTS, '.status.conditions[?(@.type=="OverMaxBytes")].status', "True")
    assert phases(world) == {"r1": "Active"}
    patch(world, maxBytes=None, handover={"policy": "Manual"})
    wait_for_phase(world, "spec-2", "CaughtUp")
    assert world.status(FLIGHTS)["nextRendition"] == "spec-2"
    patch(world, rendition={"shards": 2})
    wait_for_phase(world, "spec-2", "Aborted")
    world.wait_ready(FLIGHTS)
    assert "nextRendition" not in world.status(FLIGHTS)
    patch(
        world,
        rendition={"shards": 3, "hashColumns": ["note"]},
        handover={"policy": "Manual", "to": "spec-3"},
    )
    world.wait_for(FLIGHTS, ".status.activeRendition", "spec-3")
    world.wait_for(FLIGHTS, REASON, "RetiringRendition")
    active = flights.describe(collection).holding
    assert (active.id, len(active.shards), active.hash_columns) == ("spec-3", 3, ("note",))
    assert phases(world) == {"r1": "Retiring", "spec-2": "Aborted", "spec-3": "Active"}
    # What was before may still be read; when its last reader is gone, and the retention is past it, it goes.
    with flights.reader(collection, purpose="report") as reader:
        assert reader.snapshot(9).to_table().num_rows == 1000
        writer.seal(writer.upper() + 10_000)
        patch(world, retention={"period": "1ms"})
        world.wait_for(FLIGHTS, '.status.holds[?(@.purpose=="report")].durable', "False")
        (hold,) = world.status(FLIGHTS)["holds"]
        assert (hold["since"], hold["renditions"]) == (reader.since(), ["r1"])
        many = [f"export {number:02} {'x' * 1000}" for number in range(60)]
        for purpose in many:
            flights.hold(collection, purpose)
        world.wait_for(FLIGHTS, ".status.holdsTotal", 61)
        assert len(world.status(FLIGHTS)["holds"]) == 50
        for purpose in many:
            flights.release_hold(collection, purpose)
        assert phases(world)["r1"] == "Retiring"
    wait_for_phase(world, "r1", "Dropped")
    world.wait_for(FLIGHTS, REASON, "Available")
    assert flights.describe(collection).rendition("r1").state is RenditionState.DROPPED
    with flights.reader(collection, purpose="check") as check:
        assert check.snapshot().to_table().num_rows == 1000
    for reason in ("RenditionCreated", "Hydrated", "RenditionAborted", "RenditionDropped", "OverMaxBytes"):
        world.events(reason)
    assert len(world.events("RenditionCreated", 2)) == 2
    assert len(world.events("RenditionAborted")) == len(world.events("RenditionDropped")) == 1
    heading, shown = world.kubectl("get", "coll").splitlines()
    assert heading.split()[5:8] == ["RENDITION", "SHARDS", "NEXT"]
    assert shown.split()[5:7] == ["spec-3", "3"]
    for change, message in (
        ({"handover": {"policy": "At"}}, "policy At needs at"),
        ({"handover": {"policy": "WhenCaughtUp", "to": "r1"}}, "to needs policy Manual"),
        ({"rendition": {"hashColumns": ["other"]}}, "a column that isn't in spec.columns"),
    ):
        with pytest.raises(KubectlError, match=message):
            patch(world, **change)


COLUMNS = [{"name": "id", "type": "int64"}, {"name": "note", "type": "string", "nullable": True}]
COUNT = {"name": "count", "type": "int32", "nullable": True}


def test_columns_are_added_and_made_wider(world: Any, flights: StorageController) -> None:
    collection = world.status(FLIGHTS)["collectionId"]
    load(flights.writer(collection, purpose="application"), 10)
    patch(world, columns=[*COLUMNS, COUNT])
    world.wait_for(FLIGHTS, ".status.observedGeneration", world.get(FLIGHTS)["metadata"]["generation"])
    world.wait_ready(FLIGHTS)
    wider = [*COLUMNS, {**COUNT, "type": "int64"}]
    patch(world, columns=wider, rendition={"shards": 3})
    world.wait_for(FLIGHTS, ".status.activeRendition", "spec-2")
    rows = [
        {"id": 7, "note": "before", "count": None, "_diff": -1},
        {"id": 7, "note": "new", "count": 1 << 40},
    ]
    writer = flights.writer(collection, purpose="application")
    upper = writer.upper()
    writer.append(rows, upper, upper + 1)
    with flights.reader(collection, purpose="check") as check:
        found = {row["id"]: row["count"] for row in check.snapshot().to_table().to_pylist()}
    assert found == {**dict.fromkeys(range(10)), 7: 1 << 40}
    world.events("ColumnsAdded")
    changes = " ".join(event["message"] for event in world.events("ColumnsAdded"))
    assert "added count int32?" in changes
    assert "count int32? became int64?" in changes
    for columns, message in (
        (COLUMNS, "can't be removed"),
        ([*COLUMNS, COUNT], "change to a wider one of its kind"),
        ([*COLUMNS, {**COUNT, "type": "string"}], "change to a wider one of its kind"),
        ([COLUMNS[0], {"name": "note", "type": "string"}, wider[2]], "become non-nullable"),
        ([*wider, {"name": "new", "type": "bool"}], "must be nullable"),
    ):
        with pytest.raises(KubectlError, match=message):
            patch(world, columns=columns)
    # What the API server can't tell, the operator does, and nothing is changed.
    patch(world, columns=[wider[0], wider[2], wider[1]])
    assert "must stay where it is" in world.wait_stalled(FLIGHTS, "SchemaMismatch")
    patch(world, columns=wider)
    world.wait_ready(FLIGHTS)


def test_comments_change_nothing_but_what_is_said_of_columns(
    world: Any, flights: StorageController, make_collection: Make
) -> None:
    collection = world.status(FLIGHTS)["collectionId"]
    before = flights.describe(collection)

    def commented(**comments: str) -> list[dict[str, Any]]:
        return [
            {**each, "comment": comments[each["name"]]} if each["name"] in comments else each
            for each in COLUMNS
        ]

    def comment(**comments: str) -> None:
        patch(world, columns=commented(**comments))
        generation = world.get(FLIGHTS)["metadata"]["generation"]
        world.wait_for(FLIGHTS, ".status.observedGeneration", generation)
        world.wait_ready(FLIGHTS)

    for comments in ({"id": "its number", "note": "a\n\tb ✈"}, {"note": "x" * 1024}, {}):
        comment(**comments)
        assert flights.describe(collection) == replace(before, comments=comments)
    # Somebody else's go too: the spec says what there is.
    flights.comment_columns(collection, {"id": "mine"})
    comment(note="last")
    assert flights.describe(collection) == replace(before, comments={"note": "last"})
    for bad, message in (
        ("x" * 1025, "1024"),
        ("a\x1b[31m", "can't contain control characters"),
        ("\x85", "control characters"),
    ):
        with pytest.raises(KubectlError, match=message):
            comment(id=bad)
    # Where there is no key all columns are it, and comments change all the same.
    keyless = "storagecollection/keyless"
    world.apply(make_collection("keyless", columns=commented(id="a"), key=[]))
    world.wait_ready(keyless)
    columns = commented(id="b", note="c")
    world.patch(keyless, json.dumps({"spec": {"columns": columns}}))
    with pytest.raises(KubectlError, match="all columns are the key: spec"):
        world.patch(keyless, json.dumps({"spec": {"columns": [*columns, COUNT]}}))
    generation = world.get(keyless)["metadata"]["generation"]
    world.wait_for(keyless, ".status.observedGeneration", generation)
    world.wait_ready(keyless)
    info = flights.describe(world.status(keyless)["collectionId"])
    assert info.comments == {"id": "b", "note": "c"}
    done = [each.kind.name for name in (collection, info.collection_id) for each in flights.history(name)]
    assert set(done) == {"CREATE_COLLECTION", "COMMENT_COLUMNS"}


def told(listen: Any) -> Counter[tuple[int, str]]:
    """What comes next."""
    counts: Counter[tuple[int, str]] = Counter()
    for event in listen.next(10.0):
        if not isinstance(event, Progress):
            counts.update(counted(event.table))
    return counts
