"""Attempts of Spark jobs: the next one, their records, and programs that do one in a process of its own."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import TypeVar

from holdfast.collections import JobRecord, StorageController
from holdfast.spark.jobs.spec import JobSpec
from testbed.minio import Minio
from testbed.postgres import PostgresServer
from testbed.spark import environment

Spec = TypeVar("Spec", bound=JobSpec)

# Runs a job in a process of its own and kills it, as a power cut would, when it says `sys.argv[4]`.
_KILLED_AT = """
import os, signal, sys
from importlib import import_module
from holdfast.spark.jobs import spec as specs

def say(text):
    print(text, flush=True)
    if sys.argv[4] in text:
        os.kill(os.getpid(), signal.SIGKILL)

if rows := sys.argv[5:]:
    from holdfast.spark import options

    options._TASK_ROWS = int(rows[0])
spec = specs.load_spec(sys.argv[3], getattr(specs, sys.argv[2]))
import_module(f"holdfast.spark.jobs.{sys.argv[1]}").run(spec, say=say)
"""


def killed_at(spec: JobSpec, moment: str, task_rows: str = "") -> subprocess.CompletedProcess[str]:
    """What became of the job of a spec that is killed when it says this. `task_rows` are worth a task."""
    arguments = [spec.KIND, type(spec).__name__, spec.to_json(), moment, *([task_rows] if task_rows else [])]
    command = [sys.executable, "-c", _KILLED_AT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def run_python(
    program: str, *arguments: str, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What became of a program that runs Spark, in a process of its own that has no other credentials."""
    command = [sys.executable, "-c", program, *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env = {**inherited, **environment(), **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)


def run_on_servers(
    program: str, minio: Minio, postgres: PostgresServer, timeout: float = 300, **variables: str
) -> str:
    """What a program prints, which must end well, on a new location on servers: its arguments are the two.

    The credentials of the object store are in its environment only, from which executors have them.
    """
    bucket = minio.make_bucket()
    with postgres.database() as name:
        blob = f"s3://{bucket}/lake?endpoint={minio.endpoint}"
        given = {**minio.credentials, **variables}
        done = run_python(program, blob, postgres.url(name), timeout=timeout, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def again(controller: StorageController, spec: Spec) -> Spec:
    """The spec of the next attempt, after this one was given up."""
    record = controller.retry_job(spec.job_id, abandoned=spec.attempt)
    return replace(spec, attempt=record.attempt)


def record_of(controller: StorageController, spec: JobSpec) -> JobRecord:
    """The record of a job."""
    record = controller.job(spec.job_id)
    assert record is not None
    return record
