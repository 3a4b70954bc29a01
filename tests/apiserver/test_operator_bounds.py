"""Values of other writers may have any length. The API server accepts what the operator shows of them."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.catalog import Catalog, OpenMode, persist_catalog

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
LONG = "h" * 2_000_000


def take(client: Any, organization: str) -> Catalog:
    return persist_catalog(client, organization).open(
        OpenMode.WRITABLE, holder=LONG, purpose="a load of its own"
    )


def test_a_holder_of_any_length_is_shown(
    world: Any, make_catalog: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took it is of another version of the library, which knows no bound."""
    monkeypatch.setattr("holdfast.catalog.opening.check_who", lambda *_: None)
    operator = world.start()
    managed, observed = make_catalog(), make_catalog("observed", access="Observed")
    world.apply(managed, observed)
    world.wait_for("catalog/demo", ".status.epoch", 1)
    world.wait_for("catalog/observed", ".status.connection.configMap", "observed-connection")
    url = world.get("configmaps/observed-connection")["data"]["HOLDFAST_URL"]
    with world.store(url) as client:
        take(client, observed["spec"]["organizationId"])
        world.wait_ready("catalog/observed")
        assert world.status("catalog/observed")["holder"] == f"{'h' * 499}…, a load of its own"
    organization = managed["spec"]["organizationId"]
    with world.store(world.volume(organization)) as client:
        take(client, organization)
        assert operator.child.wait(timeout=60) == 0
    (fence,) = world.status("catalog/demo")["fencedBy"]
    assert (fence["epoch"], fence["holder"]) == (2, f"{'h' * 499}…, a load of its own")
    assert world.condition("catalog/demo", "Ready")["reason"] == "FencedByOther"
