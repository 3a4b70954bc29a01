"""Names of Spark applications under the real webhook of the Kubeflow Spark operator, on its real definitions.

The webhook requires a DNS-1035 label: at most 63 characters, of which the first is a letter. Names of our
resources may be longer, contain dots, and start with a digit. No Spark runs here.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from holdfast_operator.api.names import Kind
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.kube import Kube, ObjectKey
from holdfast_operator.sparkapps.adapter import Launch, LaunchRefused, SecretFiles
from holdfast_operator.sparkapps.kubeflow import KubeflowAdapter
from testbed.children import patched
from testbed.kube import ControlPlane
from testbed.kubeflowwebhook import KubeflowWebhook

# The first run builds the Spark operator, which takes minutes.
pytestmark = [pytest.mark.kube, pytest.mark.helm, pytest.mark.long, pytest.mark.timeout(1200)]

Make = Callable[..., dict[str, Any]]
LONGEST: Final = "1" + "0" * 252
"""The longest name that a resource may have."""
LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{,61}[a-z0-9])?")
EARLIER: Final = """
from holdfast_operator.sparkapps import objects

def application_name(owner, job_kind, job_id, attempt):
    return f"{owner.name}-{job_kind}-{job_id[:8]}-{attempt}"

objects.application_name = application_name
"""
"""Names applications after their owner, as an earlier operator did."""


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeflowWebhook]:
    folder = tmp_path_factory.mktemp("webhook")
    with ControlPlane.start() as cluster, KubeflowWebhook(cluster, folder) as running:
        yield running


@pytest.fixture(scope="module")
def control_plane(webhook: KubeflowWebhook) -> ControlPlane:
    """A cluster of its own: the other tests use other definitions of the same resources."""
    return webhook.cluster


class Naming(KubeflowAdapter):
    """Names its applications as it is told."""

    def __init__(self, kube: Kube, given: str) -> None:
        super().__init__(kube)
        self._given = given

    def body(self, launch: Launch) -> dict[str, Any]:
        body = super().body(launch)
        body["metadata"]["name"] = self._given
        return body


def launch(namespace: str, owner: str, job_kind: str = "snapshot", attempt: int = 1) -> Launch:
    return Launch(
        owner=ObjectKey(Kind.STORAGE_COLLECTION, namespace, owner),
        owner_uid="7a0c2f3e-0000-5000-8000-000000000002",
        job_kind=job_kind,
        job_id="7a0c2f3e-0000-5000-8000-000000000001",
        attempt=attempt,
        arguments=("{}",),
        template=SparkTemplate(),
        store_keys=SecretFiles("keys", ("PGUSER", "PGPASSWORD"), shared=True),
    )


@pytest.fixture
def kube(kube_api: Any) -> Iterator[Kube]:
    made = Kube(kube_api)
    yield made
    made.close()


def make(world: Any, there: dict[str, Any], *made: dict[str, Any]) -> None:
    """Make a Catalog and its collections, with one row in each."""
    world.apply(there, *made)
    names = [f"storagecollection/{each['metadata']['name']}" for each in made]
    world.wait_ready(*names)
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        for name in names:
            writer = controller.writer(world.status(name)["collectionId"], purpose="test")
            writer.append(pa.table({"id": [1], "note": ["x"]}), writer.upper(), 11)


def applications(world: Any) -> dict[str, str]:
    """The names of the applications, by the name of their owner."""
    found = (each["metadata"] for each in world.objects.list("sparkapplications"))
    return {each["ownerReferences"][0]["name"]: each["name"] for each in found}


def test_the_webhook_refuses_what_is_no_label(namespace: str, kube: Kube) -> None:
    """The negative control: it reaches the webhook as all applications of the operator do."""
    there = launch(namespace, "1db")
    for given in ("1db-snapshot-0a1b2c3d-1", "2024", "db.flights", "c" * 64, LONGEST):
        with pytest.raises(LaunchRefused, match=f'invalid SparkApplication name "{given}"'):
            asyncio.run(Naming(kube, given).launch(there))
    for given in ("c1db-snapshot-0a1b2c3d-1", "c", "c" * 63):
        asyncio.run(Naming(kube, given).launch(there))


@pytest.mark.parametrize("owner", ["1db-flights", "2024.flights", "9", "flights", LONGEST, "1-" * 126 + "1"])
def test_the_webhook_admits_the_name_of_any_attempt(
    namespace: str, kube: Kube, webhook: KubeflowWebhook, owner: str
) -> None:
    for job_kind in ("snapshot", "compact", "hydrate"):
        attempt = launch(namespace, owner, job_kind, attempt=10**12)
        asyncio.run(KubeflowAdapter(kube).launch(attempt))
        name = KubeflowAdapter(kube).body(attempt)["metadata"]["name"]
        assert LABEL.fullmatch(name)
        assert name in webhook.asked()


def taken(name: str, folder: Path, **spec: Any) -> dict[str, Any]:
    """A CollectionSnapshot of the collection with the same name."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "CollectionSnapshot",
        "metadata": {"name": name},
        "spec": {"collectionRef": {"name": name}, "destination": (folder / "out").as_uri(), **spec},
    }


def test_names_that_start_with_a_digit_lead_to_applications(
    world: Any, make_catalog: Make, make_collection: Make, webhook: KubeflowWebhook, tmp_path: Path
) -> None:
    world.start("--storage-shared")
    jobs = {"1db-flights": "snapshot", "2024.flights": "compact", "9": "hydrate", LONGEST: "snapshot"}
    # The name in the catalog has a lower limit than the name of the resource.
    made = [make_collection(name, catalogRef={"name": "1db"}, name=name[:100]) for name in jobs]
    make(world, make_catalog("1db"), *made)
    _, compacted, filled, _ = made
    compacted["metadata"]["annotations"] = {"holdfast.dev/compact": "first"}
    filled["spec"] |= {"rendition": {"shards": 3}, "hydration": {"minimumBytes": 0, "spark": {}}}
    world.apply(
        compacted, filled, *(taken(name, tmp_path) for name, job in jobs.items() if job == "snapshot")
    )
    world.settle(lambda: applications(world).keys() == jobs.keys(), lambda: str(applications(world)))
    for owner, name in applications(world).items():
        stem = owner.replace(".", "-")[:24]
        assert name.startswith(f"c{stem}-{jobs[owner]}-")
        assert name in webhook.asked()


def test_a_collection_of_the_catalog_with_the_longest_name_leads_to_an_application(
    world: Any, make_catalog: Make, make_collection: Make, webhook: KubeflowWebhook, tmp_path: Path
) -> None:
    world.start("--storage-shared")
    wanted = make_collection("1db", catalogRef={"name": LONGEST})
    make(world, make_catalog(LONGEST), wanted)
    world.apply(taken("1db", tmp_path))
    world.settle(lambda: "1db" in applications(world), lambda: str(world.status("collsnap/1db")))
    assert applications(world)["1db"] in webhook.asked()


def test_the_names_of_an_earlier_operator_are_refused_until_it_is_upgraded(
    world: Any, make_catalog: Make, make_collection: Make, webhook: KubeflowWebhook, tmp_path: Path
) -> None:
    """The negative control of the whole path: the operator shows the refusal as a failed attempt."""
    earlier = world.start("--storage-shared", environment=patched(tmp_path / "earlier", EARLIER))
    wanted = make_collection("1db-flights", catalogRef={"name": "1db"})
    make(world, make_catalog("1db"), wanted)
    world.apply(taken("1db-flights", tmp_path, spark={"maxAttempts": 20}))
    message = world.events("SnapshotRetrying")[0]["message"]
    assert "its application is refused" in message
    assert 'invalid SparkApplication name "1db-flights-snapshot-' in message
    assert applications(world) == {}
    earlier.child.kill()
    world.start("--storage-shared")
    world.settle(lambda: "1db-flights" in applications(world), lambda: str(world.events("SnapshotRetrying")))
    assert applications(world)["1db-flights"].startswith("c1db-flights-snapshot-")
