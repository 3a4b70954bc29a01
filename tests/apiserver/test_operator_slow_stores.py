"""Many catalogs with databases that never respond delay no other catalog, and the operator stays healthy."""

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]

SERVERS = 8
DATABASES = 40
UNKNOWN = 100
SOON = 10.0
"""Seconds: those of one who waits for all of the others would be minutes."""


@contextmanager
def dead_servers(count: int) -> Iterator[list[int]]:
    """The ports of servers that take every connection, and never say a word."""
    with ExitStack() as stack:
        there = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512)) for _ in range(count)
        ]
        yield [each.getsockname()[1] for each in there]


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with dead_servers(SERVERS) as there:
        yield there


def dead(
    make_catalog: Make, world: Any, organization: str, number: int, port: int, name: str
) -> dict[str, Any]:
    """A Catalog whose database is on one of them."""
    place = {
        "blob": f"{world.volume(organization)}-{number}",
        "consensus": f"postgresql://127.0.0.1:{port}/{name}",
    }
    return make_catalog(f"dead{number}", storage=place)


@pytest.mark.long
def test_those_who_wait_for_dead_databases_delay_nobody_else(
    world: Any,
    make_catalog: Make,
    make_collection: Make,
    ports: list[int],
    record_property: Callable[[str, object], None],
) -> None:
    there = make_catalog()
    operator = world.start("--concurrency=8")
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")

    places = [(port, "shop") for port in ports] + [(ports[0], f"shop{n}") for n in range(DATABASES)]
    organization = there["spec"]["organizationId"]
    for number, (port, name) in enumerate(places):
        world.apply(dead(make_catalog, world, organization, number, port, name))
    # Each server is waited for once, until it is known to be slow.
    operator.wait_for_looks(SERVERS + 4)

    for number in range(3):
        begun = time.monotonic()
        world.apply(make_collection(f"new{number}"))
        world.wait_ready(f"storagecollection/new{number}")
        took = time.monotonic() - begun
        record_property("ready after seconds", round(took, 1))
        print(f"ready after {took:.1f} s")
        assert took < SOON
        assert operator.get("/healthz").strip() == "ok"
    begun = time.monotonic()
    world.apply(make_catalog("other"), make_collection("elsewhere", catalogRef={"name": "other"}))
    world.wait_ready("storagecollection/elsewhere")
    assert time.monotonic() - begun < SOON
    shown = world.condition("catalog/dead0", "Ready")["message"]
    assert "connection timeout expired" in shown or "its store is slow" in shown


@pytest.mark.long
def test_servers_that_nobody_knows_yet_delay_no_other_namespace(
    world: Any, neighbour: Any, make_catalog: Make, make_collection: Make
) -> None:
    """Each is waited for, as nothing is known of it: there are as many as keep all workers for a while."""
    operator = world.start("--concurrency=4", f"--namespace={neighbour.namespace}")
    with dead_servers(UNKNOWN) as ports:
        neighbour.apply(
            *(
                dead(make_catalog, neighbour, str(uuid.uuid4()), number, port, "shop")
                for number, port in enumerate(ports)
            )
        )
        operator.wait_for_looks(4)
        begun = time.monotonic()
        world.apply(make_catalog(), make_collection())
        world.wait_ready("catalog/demo", "storagecollection/flights")
        took = time.monotonic() - begun
        print(f"ready after {took:.1f} s")
        assert took < SOON
        theirs = json.loads(neighbour.kubectl("get", "catalogs", "-o", "json"))["items"]
        touched = sum("conditions" in each["status"] for each in theirs)
        assert touched < UNKNOWN // 2, "the others must be in the midst of it"
