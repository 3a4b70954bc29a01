"""Many catalogs whose databases never answer: nobody else waits for them, and the operator stays healthy."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]

SERVERS = 8
DATABASES = 40
SOON = 10.0
"""Seconds: those of one who waits for all of the others would be minutes."""


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Servers that take every connection, and never say a word."""
    with ExitStack() as stack:
        there = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512)) for _ in range(SERVERS)
        ]
        yield [each.getsockname()[1] for each in there]


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
    for number, (port, name) in enumerate(places):
        place = {
            "blob": f"{world.volume(there['spec']['organizationId'])}-{number}",
            "consensus": f"postgresql://127.0.0.1:{port}/{name}",
        }
        world.apply(make_catalog(f"dead{number}", storage=place))
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
    assert "connection timeout expired" in shown or "its store answers slowly" in shown
