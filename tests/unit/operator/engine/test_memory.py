"""What the process keeps for each of thousands of objects."""

import json
import subprocess
import sys

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from holdfast_operator.engine.known import KnownObjects
from holdfast_operator.engine.metrics import CompactGauge
from testbed.children import plain_path


def test_a_compact_gauge_shows_what_a_gauge_shows() -> None:
    plain, compact = CollectorRegistry(), CollectorRegistry()
    series = {("ns", "a"): 7, ("ns", 'b"\n'): 2**64 - 1, ("other", "a"): 0}
    gauge = Gauge("holdfast_x", "The x.", ["namespace", "name"], registry=plain)
    numbers = CompactGauge("holdfast_x", "The x.", ["namespace", "name"], registry=compact)
    assert generate_latest(compact) == generate_latest(plain)
    for labels, value in series.items():
        gauge.labels(*labels).set(value)
        numbers.show(labels, value)
    assert generate_latest(compact) == generate_latest(plain)
    gauge.remove("ns", "a")
    for _ in range(2):
        numbers.forget(("ns", "a"))
    assert generate_latest(compact) == generate_latest(plain)


def test_known_objects_are_kept_compressed() -> None:
    condition = {"status": "True", "observedGeneration": 1, "lastTransitionTime": "2026-11-30T08:00:00Z"}
    conditions = [{**condition, "type": each, "message": ""} for each in ("Ready", "Reconciling", "Stalled")]
    metadata = {"resourceVersion": "7", "name": "a", "managedFields": [{"manager": "m"}]}
    known: KnownObjects[str] = KnownObjects()
    known.follow(lambda: True)
    known.put("a", {"metadata": metadata, "status": {"conditions": conditions}})
    found = known.get("a")
    assert found == {
        "metadata": {"resourceVersion": "7", "name": "a"},
        "status": {"conditions": conditions},
    }
    assert len(known._known["a"].content) < len(json.dumps(found)) / 2


def test_arrow_uses_the_heaps_that_are_given_back() -> None:
    code = (
        "import pyarrow as pa; from holdfast_operator.engine.memory import use_one_allocator, give_back;"
        "use_one_allocator(); assert pa.default_memory_pool().backend_name == 'system'; give_back()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": plain_path(*sys.path)})
