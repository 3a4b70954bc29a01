"""Secrets of a job stay in Secrets: no object, Event, log or argument of the operator has their values."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.collections import StorageController
from holdfast.persist import PersistClient
from testbed.minio import Minio
from testbed.postgres import USER, PostgresServer
from testbed.sparkfaces import APACHE, KUBEFLOW, PODS, Face
from testbed.sparkoperator import install_crd

pytestmark = [pytest.mark.kube, pytest.mark.long]

Make = Callable[..., dict[str, Any]]


def keep_secret(world: Any, name: str, values: Mapping[str, str]) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(values)}
    # With `create`, no annotation has the values.
    world.kubectl("create", "-f", "-", stdin=json.dumps(secret))


def everything(world: Any) -> str:
    """All objects of the namespace but the Secrets."""
    kinds = world.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    shown = ",".join(kind for kind in kinds if kind != "secrets")
    return str(world.kubectl("get", shown, "-o", "json"))


def applications(world: Any, kind: str) -> list[dict[str, Any]]:
    return list(json.loads(world.kubectl("get", kind, "-o", "json"))["items"])


@pytest.mark.parametrize(
    ("face", "adapter", "kind"),
    [
        (KUBEFLOW, "kubeflow", "sparkapplications.sparkoperator.k8s.io"),
        (APACHE, "apache", "sparkapplications.spark.apache.org"),
        (PODS, "job", "jobs"),
    ],
    ids=["kubeflow", "apache", "job"],
)
def test_an_application_names_its_image_and_secrets_and_nothing_shows_their_values(
    world: Any,
    make_catalog: Make,
    make_collection: Make,
    tmp_path: Path,
    face: Face,
    adapter: str,
    kind: str,
) -> None:
    if face is not PODS:
        install_crd(world.cluster, face)
    image = "registry.example/holdfast-spark:0.1.0"
    flags = ("--storage-shared", f"--spark-adapter={adapter}", f"--spark-image={image}", "--log-level=debug")
    operator = world.start(*flags)
    why = f"the image {image} of Spark jobs has another version than this operator"
    operator.wait_until_it_says(why)
    keep_secret(world, "stores", {"AWS_SECRET_ACCESS_KEY": "planted-a1", "PGPASSWORD": "planted-b2"})
    keep_secret(world, "more", {"KAFKA_PASSWORD": "planted-c3"})
    there = make_catalog(spark={"envSecretRef": {"name": "more"}})
    url = world.volume(there["spec"]["organizationId"])
    there["spec"]["storage"] = {"url": url, "credentialsSecretRef": {"name": "stores"}}
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    with world.controller(url) as controller:
        writer = controller.writer(world.status("storagecollection/flights")["collectionId"], purpose="test")
        rows = {"id": pa.array([1]), "note": pa.array(["x"]), "_time": pa.array([50], pa.uint64())}
        writer.append(pa.table(rows), writer.upper(), 51)
    world.apply(
        {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "CollectionSnapshot",
            "metadata": {"name": "one"},
            "spec": {"collectionRef": {"name": "flights"}, "destination": (tmp_path / "s").as_uri()},
        }
    )
    world.settle(lambda: bool(applications(world, kind)), lambda: str(world.status("collsnap/one")))
    (application,) = applications(world, kind)
    assert '"secretRef": {"name": "more"}' in json.dumps(application)
    # A catalog in files needs none of its keys.
    assert '"stores"' not in json.dumps(application)
    assert image in json.dumps(application)
    (event,) = world.events("OtherImageVersion")
    assert (event["type"], event["involvedObject"]["name"]) == ("Warning", "one")
    assert why in event["message"]
    told = everything(world) + operator.log.read_text()
    assert application["metadata"]["uid"] in told
    assert "planted" not in told


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.parametrize("face", [KUBEFLOW, APACHE, PODS], ids=("kubeflow", "apache", "job"))
def test_a_job_opens_the_stores_of_its_catalog_with_keys_in_files(
    world: Any,
    drivers: Path,
    make_catalog: Make,
    make_collection: Make,
    minio: Minio,
    postgres: PostgresServer,
    face: Face,
) -> None:
    """Real drivers, whose environment has nothing but what the pod template gives them."""
    adapter = {KUBEFLOW: "kubeflow", APACHE: "apache", PODS: "job"}[face]
    kind = "jobs" if face is PODS else f"{face.plural}.{face.group}"
    nothing = {"PGPASSFILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}
    operator = world.start(f"--spark-adapter={adapter}", environment=nothing)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    keys = {name: minio.credentials[name] for name in names}
    keys |= {"PGUSER": USER, "PGPASSWORD": postgres.password}
    keep_secret(world, "stores", {**keys, "KAFKA_PASSWORD": "not for this job"})
    bucket = minio.make_bucket()
    with postgres.database() as database:
        place = {
            "blob": f"s3://{bucket}/lake?endpoint={minio.endpoint}",
            "consensus": f"postgresql://{postgres.address}:{postgres.port}/{database}",
        }
        there = make_catalog(storage={**place, "credentialsSecretRef": {"name": "stores"}})
        world.apply(there, make_collection(spark={"serviceAccount": "default"}))
        world.wait_ready("catalog/demo", "storagecollection/flights")
        with (
            PersistClient.open(**place, credentials=keys) as client,
            StorageController(client) as controller,
        ):
            id_ = world.status("storagecollection/flights")["collectionId"]
            writer = controller.writer(id_, purpose="test")
            writer.append(pa.table({"id": [1, 2], "note": ["x", "y"]}), writer.upper(), 51)
        world.apply(
            {
                "apiVersion": "holdfast.dev/v1alpha1",
                "kind": "CollectionSnapshot",
                "metadata": {"name": "one"},
                "spec": {
                    "collectionRef": {"name": "flights"},
                    "destination": f"s3://{bucket}/out?endpoint={minio.endpoint}",
                },
            }
        )
        # An application may be removed as soon as its job is done.
        world.settle(lambda: bool(applications(world, kind)), lambda: str(world.status("collsnap/one")))
        (application,) = applications(world, kind)
        world.wait_ready("collsnap/one")
        found = minio.client.list_objects_v2(Bucket=bucket, Prefix="out/")["Contents"]
        assert [each["Key"] for each in found if each["Key"].endswith("_manifest.json")]
        wanted = json.dumps(application)
        for name in keys:
            assert f'"key": "{name}"' in wanted
            assert f'"name": "{name}"' not in wanted
        assert "KAFKA_PASSWORD" not in wanted
        told = everything(world) + operator.log.read_text()
        told += "".join(path.read_text(errors="replace") for path in drivers.rglob("*.log"))
        assert "driver" in told
        assert keys["AWS_SECRET_ACCESS_KEY"] not in told
        assert keys["PGPASSWORD"] not in told
        world.delete("collsnap/one", "storagecollection/flights", "catalog/demo")
