"""Real job programs whose keys for S3 and Postgres are only in files."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import holdfast
from holdfast.collections import JobState, StorageController
from holdfast.persist import PersistClient
from holdfast.spark.jobs.spec import HydrateSpec, JobSpec, SnapshotSpec
from spark.attempts import record_of
from testbed import spark
from testbed.minio import Minio
from testbed.mounts import mount
from testbed.postgres import USER, PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.postgres]

ROWS = 5_000
NO_KEYS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "PGPASSFILE": os.devnull,
}
"""Nothing else on the machine gives a process keys."""


class Stores(NamedTuple):
    """A location on servers, the keys that open it, and where they are in files."""

    place: dict[str, str]
    keys: dict[str, str]
    folder: Path
    bucket: str

    @property
    def secrets(self) -> list[bytes]:
        return [self.keys[name].encode() for name in ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD")]


@pytest.fixture
def stores(minio: Minio, postgres: PostgresServer, tmp_path: Path) -> Iterator[Stores]:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    keys = {name: minio.credentials[name] for name in names}
    keys |= {"PGUSER": USER, "PGPASSWORD": postgres.password}
    bucket, folder = minio.make_bucket(), tmp_path / "store-keys"
    mount(folder, {name: f"{value}\n" for name, value in keys.items()})
    with postgres.database() as database:
        place = {
            "blob": f"s3://{bucket}/lake?endpoint={minio.endpoint}",
            "consensus": f"postgresql://{postgres.address}:{postgres.port}/{database}",
        }
        yield Stores(place, keys, folder, bucket)


class Seen(NamedTuple):
    """What a program and all processes that it started have shown."""

    code: int
    output: str
    environments: dict[str, set[bytes]]
    """The environments and arguments that processes had, by what kind of process it is."""


def run_program(spec: JobSpec, folder: Path, scratch: Path, *more: str) -> Seen:
    """Run the program of a spec on two executors of their own, and look at every process meanwhile."""
    home = scratch / "spark"
    for name in ("bin", "jars"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).symlink_to(spark.home() / name)
    (scratch / "events").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PG"))}
    given = spark.environment()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": given["SPARK_SUBMIT_OPTS"],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (scratch / "events").as_uri(),
        "spark.local.dir": str(scratch / "local"),
    }
    options = " ".join(f"--conf {name}={value!r}" for name, value in settings.items())
    env = {
        **inherited,
        **given,
        **NO_KEYS,
        "SPARK_HOME": str(home),
        "HOLDFAST_STORE_KEYS": str(folder),
        "PYSPARK_SUBMIT_ARGS": f"--master local-cluster[2,1,1024] {options} pyspark-shell",
    }
    command = [sys.executable, "-m", f"holdfast.spark.jobs.{spec.KIND}", spec.to_json(), *more]
    log = scratch / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            found: dict[str, set[bytes]] = {}
            ends = time.monotonic() + 280
            while child.poll() is None and time.monotonic() < ends:
                for process in _of_session(child.pid):
                    _look(process, found)
                time.sleep(0.05)
        finally:
            child.kill()
            child.wait()
    events = b"".join(path.read_bytes() for path in (scratch / "events").rglob("*") if path.is_file())
    written = b"".join(path.read_bytes() for path in home.glob("work/**/std*"))
    text = (events + written + log.read_bytes()).decode(errors="replace")
    return Seen(child.returncode, text, found)


def _of_session(pid: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid:
            yield process


def _look(process: Path, found: dict[str, set[bytes]]) -> None:
    try:
        command, environ = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
    except OSError:
        return
    kinds = {
        b"pyspark.daemon": "worker",
        b"CoarseGrainedExecutorBackend": "executor",
        b"SparkSubmit": "driver's JVM",
        b"holdfast.spark.jobs": "driver",
    }
    kind = next((kind for mark, kind in kinds.items() if mark in command), "")
    if kind:
        found.setdefault(kind, set()).add(command + environ)


@pytest.fixture
def order(stores: Stores) -> Iterator[Callable[[str, str], JobSpec]]:
    """Makes a collection with rows, and starts a job of it on record."""
    with (
        PersistClient.open(**stores.place, credentials=stores.keys) as client,
        StorageController(client) as controller,
    ):
        table = holdfast.table(client, "orders", columns={"id": "int64", "item": "string"}, key=["id"])
        table.append(pa.table({"id": range(ROWS), "item": ["x"] * ROWS}))
        info = controller.describe("orders")

        def make(kind: str, endpoint: str) -> JobSpec:
            slot = str(uuid.uuid4())
            if kind == "hydrate":
                slot = controller.renditions.create("orders", shards=2).id
            record = controller.start_job(info.collection_id, kind, slot, spec={})
            given: dict[str, Any] = {**stores.place, "collection": "orders", "job_id": record.job_id}
            if kind == "hydrate":
                return HydrateSpec(**given, attempt=1, rendition=slot)
            destination = f"s3://{stores.bucket}/out?endpoint={endpoint}"
            return SnapshotSpec(**given, attempt=1, destination=destination)

        yield make


@pytest.mark.long
@pytest.mark.parametrize("kind", ["snapshot", "hydrate"])
def test_a_job_works_with_keys_that_no_process_of_it_shows(
    kind: str, stores: Stores, order: Callable[[str, str], JobSpec], minio: Minio, tmp_path: Path
) -> None:
    spec = order(kind, minio.endpoint)
    seen = run_program(spec, stores.folder, tmp_path)
    assert seen.code == 0, seen.output[-3000:]
    assert "SparkListenerEnvironmentUpdate" in seen.output
    assert seen.environments.keys() == {"driver", "driver's JVM", "executor", "worker"}
    for process, texts in seen.environments.items():
        for text in texts:
            assert str(stores.folder).encode() in text, process
            assert not any(secret in text for secret in stores.secrets), process
            assert b"AWS_SECRET_ACCESS_KEY=" not in text
            assert b"PGPASSWORD=" not in text
    assert not any(secret.decode() in seen.output for secret in stores.secrets)
    with PersistClient.open(**stores.place, mode="read", credentials=stores.keys) as client:
        record = record_of(StorageController(client), spec)
    assert record.state is JobState.DONE
    assert record.result["rows"] == ROWS
