"""Two operators on a bad day do what they are asked for: a migration, a snapshot and a source, all at once.

They share a Lease, and connect through a proxy that loses, delays, repeats and refuses requests, cuts watches
and shows old states. They freeze and are killed meanwhile, and somebody deletes SparkApplications by hand.
The clocks of their hosts are right, ten minutes ahead, or ten minutes behind. `make faults` runs more seeds.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from apiserver.test_operator_migration import items_of, migration, stash_of
from apiserver.test_operator_snapshot import ids_in, snapshot
from apiserver.test_operator_source import contents, put, source
from testbed.children import patched
from testbed.faultyapi import FaultyApi
from testbed.weather import Weather
from testbed.wrongclock import clock_patch

pytestmark = [pytest.mark.kube, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

Make = Callable[..., dict[str, Any]]
SEEDS: Final = range(int(os.environ.get("HOLDFAST_FAULT_SEEDS", "1")))
RATE: Final = 0.1
FLAGS: Final = (
    "--storage-shared",
    "--lease",
    "--lease-duration=9",
    "--lease-renew-deadline=6",
    "--lease-retry-period=1",
)
FLIGHTS: Final = "coll/flights"
CLOCKS: Final = (0, 600, -600)
"""By how many seconds the clock of each operator is ahead, in turns."""


def delete_application(world: Any, kind: str) -> bool:
    """Delete the SparkApplication of a job by hand. Returns whether there was one."""
    selector = f"holdfast.dev/job-kind={kind}"
    for each in world.objects.list("sparkapplications", labelSelector=selector):
        world.delete(f"sparkapplications/{each['metadata']['name']}", wait=False)
        return True
    return False


def rests(world: Any) -> bool:
    """Whether the leading operator writes nothing while it looks at all objects again.

    The source of a collection shows its progress all the time.
    """
    before = versions(world)
    leader = next((each for each in world.operators[::-1] if each.child.poll() is None and leads(each)), None)
    if leader is None:
        return False
    leader.wait_for_looks(8)
    return versions(world) == before


def versions(world: Any) -> dict[str, str]:
    return {what: each for what, each in world.versions().items() if "flights" not in what}


def leads(operator: Any) -> bool:
    return bool(operator.metric("holdfast_leader") == 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bad_day_ends_as_it_was_asked_for(
    seed: int, world: Any, drivers: Path, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    inbox, out = tmp_path / "in", tmp_path / "out"
    expected: Counter[tuple[int, str | None]] = Counter()

    def feed(number: int) -> None:
        rows = [(10 * number + each, f"{number}") for each in range(5)]
        put(inbox, str(number), *({"id": id_, "note": note} for id_, note in rows))
        expected.update(rows)

    clocks = [patched(tmp_path / f"clock{each}", clock_patch(each)) for each in CLOCKS]

    def start() -> Any:
        off = clocks[(seed + len(world.operators)) % len(clocks)]
        return world.start(*FLAGS, through=seen, environment=off)

    with FaultyApi(world.cluster, seed=seed, rate=RATE) as api:
        seen = api.cluster(world.folder)
        with Weather(start, api, seed) as weather:
            feed(1)
            there = make_catalog()
            moved = make_catalog("moved", backend="Stash", stash=stash_of(world))
            world.apply(
                there,
                moved,
                make_collection(source=source(inbox), deletionPolicy="Delete"),
                make_collection("inside", catalogRef={"name": "moved"}),
            )
            world.wait_ready("catalog/demo", "catalog/moved", "coll/inside")
            move = migration()
            move["spec"]["catalogRef"]["name"] = "moved"
            world.apply(move)
            world.wait_for(FLIGHTS, ".status.source.messages", 5)
            world.apply(snapshot("first", out))
            feed(2)
            assert delete_application(world, "ingest")
            world.objects.wait_until("catmig/move", "Completed")
            world.settle(
                lambda: delete_application(world, "snapshot"), lambda: str(world.get("collsnap/first"))
            )
            feed(3)
            world.wait_ready("collsnap/first")
            weather.calm()
            print(f"seed {seed}: {dict(weather.met)}, {api.faults.total()} faults")
            world.settle(
                lambda: world.status(FLIGHTS)["source"]["messages"] == 15,
                lambda: str(world.status(FLIGHTS)),
            )
            world.wait_ready("catalog/demo", "catalog/moved", FLIGHTS, "coll/inside", "catmig/move")
            assert contents(world, there["spec"]["organizationId"]) == expected
            taken = ids_in(world.status("collsnap/first")["location"])
            # A snapshot has whole files, in their order.
            assert taken in (
                [*range(10, 15)],
                [*range(10, 15), *range(20, 25)],
                sorted(id_ for id_, _ in expected),
            )
            assert world.status("collsnap/first")["rows"] == len(taken)
            assert world.status("catalog/moved")["sourceOfTruth"] == "Persist"
            assert items_of(world, moved["spec"]["organizationId"]) == 1
            world.settle(lambda: rests(world), lambda: f"it doesn't rest: {world.versions()}")
            assert weather.wrong == []
            assert sum(map(leads, weather.operators)) == 1
            failed = [
                line
                for operator in world.operators
                for line in operator.lines()
                if line["logger"].startswith("holdfast") and "exception" in line
            ]
            assert failed == []
            world.delete(FLIGHTS)
        world.stop()
