"""Limits on what users write, and on what the operator needs for it.

Values of other writers may have any length. The API server accepts what the operator shows of them.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.catalog import Catalog, OpenMode, persist_catalog
from testbed.errors import KubectlError

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


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def nodes(*requirements: Any, terms: int = 1, **term: Any) -> dict[str, Any]:
    term = {"matchExpressions": [*requirements], **term}
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term] * terms}}}}


def pods(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone", **term}]}}}


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"affinity": {"x": [[]] * 400_000}}, 'unknown field "spec.spark.pod.affinity.x"'),
    (nodes(ZONE, x=[[]]), 'nodeSelectorTerms[0].x"'),
    (nodes(ZONE, terms=9), "nodeSelectorTerms: Too many: 9: must have at most 8 items"),
    (nodes(*[ZONE] * 5), "matchExpressions: Too many: 5: must have at most 4 items"),
    (nodes(ZONE | {"values": ["a"] * 17}), "values: Too many: 17: must have at most 16 items"),
    (nodes(ZONE | {"values": ["a" * 64]}), "values[0]: Too long: may not be more than 63"),
    (nodes(ZONE | {"key": "a" * 318}), "key: Too long: may not be more than 317"),
    (nodes(ZONE | {"operator": "Like"}), "operator: Unsupported value"),
    (
        nodes(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]),
        "matchFields[0].values: Too many",
    ),
    (pods(labelSelector={"matchLabels": {str(n): "a" for n in range(5)}}), "matchLabels: Too many"),
    (pods(labelSelector={"matchLabels": {"a" * 318: "a"}}), "must have keys of at most 317 characters"),
    (pods(matchLabelKeys=["a"] * 5), "matchLabelKeys: Too many"),
    ({"tolerations": [{}]}, "operator Equal needs a key; use Exists to tolerate any taint"),
    ({"tolerations": [{"key": ""}]}, "operator Equal needs a key; use Exists to tolerate any taint"),
    ({"tolerations": [{"operator": "Exists", "value": "x"}]}, "operator Exists takes no value"),
    ({"tolerations": [{"key": "a b", "operator": "Exists"}]}, "must be the key of a taint"),
    ({"tolerations": [{"key": "a", "value": "b c"}]}, "must be the value of a taint"),
    ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "tolerationSeconds needs the effect NoExecute"),
    *(
        (
            {"volumes": [{"name": name, "mountPath": "/a"}]},
            "volume names that begin with holdfast- are reserved",
        )
        for name in ("holdfast-store-keys", "holdfast-secret-0", "holdfast-tmp")
    ),
)
ACCEPTED: tuple[dict[str, Any], ...] = (
    nodes(*[ZONE | {"values": ["a" * 63] * 16}] * 4),
    nodes(matchFields=[{"key": "metadata.name", "operator": "NotIn", "values": ["n" * 253]}]),
    pods(labelSelector={"matchLabels": {"example.com/a": "b"}}, matchLabelKeys=["c"]),
    {
        "affinity": {
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}
        }
    },
    {
        "tolerations": [
            {"operator": "Exists"},
            {"key": "", "operator": "Exists"},
            {"key": "example.com/spot", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 9},
            {"key": "a", "value": ""},
        ]
    },
    {"volumes": [{"name": "my-holdfast-data", "mountPath": "/data"}]},
)
STARTS: tuple[Any, ...] = (
    *("Earliest", "Latest"),
    {"timestamp": "2026-01-31T00:00:00Z"},
    {"offsets": {"0": 17, "1": 4}},
)
NO_STARTS: tuple[tuple[Any, str], ...] = (
    ("Sometimes", "spec.source.kafka.start: Too long"),
    ([[]] * 9, "spec.source.kafka.start: Too many"),
    ({"x": [[]] * 9}, "spec.source.kafka.start"),
    ({"offsets": {"0": 17}, "x": [[]]}, "spec.source.kafka.start: Too many"),
    ({"offsets": {"0": [[]]}}, "spec.source.kafka.start.offsets.0"),
    ({"timestamp": "1" * 65}, "spec.source.kafka.start.timestamp: Too long"),
)


def test_the_api_server_refuses_what_has_no_limit_or_no_pod_may_have(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    def kafka(start: Any) -> dict[str, Any]:
        topic = {"bootstrapServers": "kafka:9092", "topic": "orders", "start": start}
        return make_collection(source={"kafka": topic, "format": {"json": {}}})

    many = [{"name": f"d{n}", "schemas": [{"name": f"s{m}"} for m in range(205)]} for n in range(5)]
    refused = (
        *((make_catalog(spark={"pod": pod}), message) for pod, message in REFUSED),
        *((make_collection(spark={"pod": pod}), message) for pod, message in REFUSED),
        *((kafka(start), message) for start, message in NO_STARTS),
        (make_catalog(objects={"databases": many}), "at most 1024 schemas in all databases"),
        (
            make_catalog(objects={"systemConfigurations": {"a" * 257: "x"}}),
            "must have keys of at most 256 characters",
        ),
    )
    for made, message in refused:
        with pytest.raises(KubectlError) as error:
            world.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(made))
        assert message in str(error.value), json.dumps(made)[:1000]
    unchecked = make_catalog(spark={"pod": REFUSED[0][0]})
    made = world.kubectl(
        *("create", "--dry-run=server", "--validate=ignore", "-o", "json", "-f", "-"),
        stdin=json.dumps(unchecked),
    )
    assert json.loads(made)["spec"]["spark"]["pod"] == {"affinity": {}}
    accepted = (
        *(make_catalog(spark={"pod": pod}) for pod in ACCEPTED),
        *(make_collection(spark={"pod": pod}) for pod in ACCEPTED),
        *map(kafka, STARTS),
        make_catalog(objects={"databases": many[:4]}),
    )
    for made in accepted:
        world.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(made))


def test_kubectl_explains_an_affinity(world: Any) -> None:
    text = world.kubectl("explain", "storagecollections.spec.spark.pod.affinity")
    assert "16 KiB" in text
    for name in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        assert name in text


def levels(depth: int) -> str:
    return '{"f:a":' * depth + "{}" + "}" * depth


def with_fields(made: dict[str, Any], fields: str) -> str:
    """An object as JSON whose managedFields somebody wrote. The API server takes them as they are."""
    entry = {
        "manager": "me",
        "operation": "Update",
        "apiVersion": made["apiVersion"],
        "fieldsType": "FieldsV1",
    }
    made["metadata"]["managedFields"] = [{**entry, "time": "2026-01-01T00:00:00Z", "fieldsV1": "HERE"}]
    return json.dumps(made).replace('"HERE"', fields)


def labelled_job(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """A Job of a user that looks like one of the operator."""
    containers = [{"name": "x", "image": "x"}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "holdfast-operator", **labels}},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": containers}}},
    }


def test_objects_nested_as_deep_as_the_api_server_allows_stop_nothing(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    """A user who may create Jobs in one namespace ended the watches of all."""
    deep = levels(5_000)

    def add(number: int) -> None:
        for made in (labelled_job(f"deep-{number}", {}), make_catalog(f"deep-{number}", suspend=True)):
            text = with_fields(made, deep)
            world.kubectl("create", "--validate=ignore", "-f", "-", stdin=text)
        there = world.kubectl("get", "jobs,catalogs", "-o", "json", "--show-managed-fields")
        assert there.count("f:a") > 10_000

    add(0)
    operator = world.start("--spark-adapter=job")
    world.apply(make_catalog())
    world.wait_ready("catalog/demo")
    add(1)
    world.apply(make_collection())
    world.wait_ready("storagecollection/flights")
    world.kubectl("wait", "--for=jsonpath={.status.observedGeneration}=1", "catalog/deep-1", "--timeout=60s")
    assert operator.get("/readyz")
    texts = [line["message"] for line in operator.lines() if line["level"] in ("WARNING", "ERROR")]
    assert not [text for text in texts if "watch" in text]
    # The tests' own client can't read them.
    world.kubectl("delete", "job/deep-0", "job/deep-1", "catalog/deep-0", "catalog/deep-1")
