"""A restart writes the new epoch of each Catalog and nothing else, even if the catalogs open slowly.

The operator connects through a proxy, which counts its writes.
"""

from collections.abc import Callable
from typing import Any

import pytest

from testbed.children import patched
from testbed.faultyapi import FaultyApi

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
CATALOGS = ("demo", "orders", "stock")
SLOW = """
import time
from holdfast_operator.catalogs import handler, stores
from holdfast_operator.places.long_calls import LongCalls

handler._UNSHOWN_SECONDS = {unshown}
LongCalls.__init__.__kwdefaults__["patience"] = 0.2
openly = stores.OpenCatalog.open

def slowly(*args):
    time.sleep({opening})
    return openly(*args)

stores.OpenCatalog.open = slowly
"""
REASON = '.status.conditions[?(@.type=="Ready")].reason'


def test_a_restart_writes_one_status_and_one_event_of_each_catalog_that_opens_slowly(
    world: Any, api: FaultyApi, make_catalog: Make, make_collection: Make
) -> None:
    first = world.start(through=api.cluster(world.folder))
    world.apply(*(make_catalog(name) for name in CATALOGS))
    world.apply(*(make_collection(f"of-{name}", catalogRef={"name": name}) for name in CATALOGS))
    world.wait_ready(*(f"coll/of-{name}" for name in CATALOGS))
    # The last Event comes after the status.
    world.events("Available", 2 * len(CATALOGS))
    first.child.stop()
    before = api.writes.copy()
    slow = SLOW.format(unshown=30, opening=2)
    second = world.start(through=api.cluster(world.folder), environment=patched(world.folder / "slow", slow))
    for name in CATALOGS:
        world.wait_for(f"catalog/{name}", ".status.epoch", 2)
    second.wait_for_looks(4 * len(CATALOGS))
    assert api.writes - before == {"PATCH catalogs/status": len(CATALOGS), "POST events": len(CATALOGS)}


def test_a_catalog_that_opens_for_long_after_a_restart_says_so(world: Any, make_catalog: Make) -> None:
    first = world.start()
    world.apply(make_catalog())
    world.wait_ready("catalog/demo")
    first.child.stop()
    slow = SLOW.format(unshown=0.5, opening=5)
    world.start(environment=patched(world.folder / "slow", slow))
    world.wait_for("catalog/demo", REASON, "Opening")
    world.wait_ready("catalog/demo")


def test_a_ready_catalog_whose_spec_has_changed_meanwhile_says_that_it_opens(
    world: Any, make_catalog: Make
) -> None:
    first = world.start()
    catalog = make_catalog()
    world.apply(catalog)
    world.wait_ready("catalog/demo")
    first.child.stop()
    catalog["spec"]["spark"] = {"executor": {"instances": 2}}
    world.apply(catalog)
    slow = SLOW.format(unshown=600, opening=5)
    world.start(environment=patched(world.folder / "slow", slow))
    world.wait_for("catalog/demo", REASON, "Opening")
    world.wait_for("catalog/demo", ".status.observedGeneration", 2)
    world.wait_ready("catalog/demo")
