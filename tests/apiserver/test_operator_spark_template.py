"""The template of Spark jobs that a Catalog, a StorageCollection and a job make together. No driver runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.kube import ControlPlane
from testbed.sparkfaces import KUBEFLOW
from testbed.sparkoperator import install_crd

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
CATALOG = "catalog/demo"
FLIGHTS = "storagecollection/flights"
QUEUE = {"kueue.x-k8s.io/queue-name": "night"}


def only(world: Any) -> dict[str, Any] | None:
    """The one SparkApplication, or None if there are none or several."""
    found: list[dict[str, Any]] = world.objects.list("sparkapplications")
    return found[0] if len(found) == 1 else None


def test_a_change_of_any_part_restarts_a_continuous_source_only_if_the_result_differs(
    world: Any, control_plane: ControlPlane, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    install_crd(control_plane, KUBEFLOW)
    # No look by itself within the test: it must be the Catalog's change that wakes the collection.
    flags = ("--spark-adapter=kubeflow", "--spark-allow-priority-class=night", "--steady-interval=600")
    world.start("--storage-shared", *flags)
    inbox = tmp_path / "in"
    inbox.mkdir()
    source = {
        "files": {"path": str(inbox)},
        "format": {"json": {}},
        "spark": {"executor": {"instances": 2}},
    }
    there = make_catalog(spark={"image": "r/spark:1", "driver": {"cores": 2}, "metadata": {"labels": QUEUE}})
    wanted = make_collection(source=source, spark={"driver": {"memory": "2Gi"}})
    world.apply(there, wanted)

    def settled(holds: Callable[[dict[str, Any]], bool]) -> str:
        def there_is_one() -> bool:
            found = only(world)
            return found is not None and holds(found)

        world.settle(there_is_one, lambda: str(world.objects.list("sparkapplications")))
        found = only(world)
        assert found is not None
        return str(found["metadata"]["name"])

    first = settled(lambda app: app["spec"]["image"] == "r/spark:1")
    made = only(world)
    assert made is not None
    assert (made["spec"]["driver"]["cores"], made["spec"]["driver"]["memory"]) == (2, "2048m")
    assert (made["spec"]["executor"]["instances"], made["spec"]["executor"]["memory"]) == (2, "1024m")
    assert made["metadata"]["labels"].items() >= QUEUE.items()

    # A setting moves from the Catalog to the collection, and nothing restarts.
    wanted["spec"]["spark"]["image"] = "r/spark:1"
    world.apply(wanted)
    generation = world.get(FLIGHTS)["metadata"]["generation"]
    world.wait_for(FLIGHTS, ".status.observedGeneration", generation)
    assert settled(lambda _: True) == first

    # A change of the Catalog counts for its collection, without a change of that.
    pod = {"priorityClassName": "night", "tolerations": [{"key": "spot", "operator": "Exists"}]}
    there["spec"]["spark"]["pod"] = pod
    world.apply(there)

    def has_priority(app: dict[str, Any]) -> bool:
        spec = app["spec"]["driver"]["template"]["spec"]
        return bool(
            spec.get("priorityClassName") == "night" and spec.get("tolerations") == pod["tolerations"]
        )

    second = settled(has_priority)
    assert second != first

    # What the administrator does not allow ends the job, and says what to do.
    there["spec"]["spark"]["pod"] = {"priorityClassName": "system-node-critical"}
    world.apply(there)
    reason = '.status.conditions[?(@.type=="SourceStalled")].reason'
    world.wait_for(FLIGHTS, reason, "SparkTemplateRefused")
    message = world.condition(FLIGHTS, "SourceStalled")["message"]
    assert "spark.pod.priorityClassName is system-node-critical, which is not allowed" in message
    assert "--spark-allow-priority-class" in message
    there["spec"]["spark"]["pod"] = pod
    world.apply(there)
    assert settled(has_priority) != first
