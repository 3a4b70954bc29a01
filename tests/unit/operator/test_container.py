"""The roles of the image: the arguments of a Spark pod become a Java command, without a shell."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_operator import container
from holdfast_operator.container import CannotRun, Place

PLACE = Place(java=Path("/jre/bin/java"), spark_home=Path("/spark"), python=Path("/venv/bin/python"))
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-7f",
    "SPARK_EXECUTOR_POD_IP": "10.244.0.9",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-1",
}


def test_an_executor_is_the_backend_of_kubernetes_with_what_its_pod_was_told() -> None:
    command = container.executor_command(EXECUTOR, PLACE)
    assert command[0] == "/jre/bin/java"
    assert command[command.index("-cp") + 1] == "/spark/jars/*"
    assert {"-Xms512m", "-Xmx512m"} <= set(command)
    backend = command.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    told = dict(zip(command[backend + 1 :: 2], command[backend + 2 :: 2], strict=True))
    assert told == {
        "--driver-url": "spark://CoarseGrainedScheduler@driver:7078",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "spark-7f",
        "--hostname": "10.244.0.9",
        "--resourceProfileId": "0",
        "--podName": "job-exec-1",
    }


def test_java_options_of_an_executor_are_in_the_order_of_their_numbers() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in (10, 2, 0)}
    command = container.executor_command({**EXECUTOR, **options, "SPARK_JAVA_OPT_x": "-Dno"}, PLACE)
    assert command[1:4] == ["-Dn=0", "-Dn=2", "-Dn=10"]
    assert "-Dno" not in command


def test_settings_and_further_jars_are_on_the_classpath_around_sparks() -> None:
    environ = {
        **EXECUTOR,
        "SPARK_CONF_DIR": "/opt/spark/conf",
        "SPARK_EXTRA_CLASSPATH": "/a.jar",
        "SPARK_DIST_CLASSPATH": "/z.jar",
    }
    command = container.executor_command(environ, PLACE)
    assert command[command.index("-cp") + 1] == "/opt/spark/conf:/a.jar:/spark/jars/*:/z.jar"


def test_what_an_executor_was_not_told_is_named() -> None:
    environ = {name: value for name, value in EXECUTOR.items() if name != "SPARK_EXECUTOR_MEMORY"}
    with pytest.raises(CannotRun, match="SPARK_EXECUTOR_MEMORY not set"):
        container.executor_command(environ, PLACE)


def test_a_driver_binds_to_its_pod_and_runs_here() -> None:
    arguments = container.driver_arguments(
        ["--properties-file", "/opt/spark/conf/spark.properties"],
        {"SPARK_DRIVER_BIND_ADDRESS": "10.244.0.8"},
    )
    assert arguments == [
        *("--conf", "spark.driver.bindAddress=10.244.0.8"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.244.0.8"),
        *("--deploy-mode", "client"),
        *("--properties-file", "/opt/spark/conf/spark.properties"),
    ]
    with pytest.raises(CannotRun, match="SPARK_DRIVER_BIND_ADDRESS"):
        container.driver_arguments([], {})


def test_the_launchers_command_is_read_with_its_spaces_and_lines() -> None:
    told = b"a warning\n\0\njava\0-Dname=with a space\0two\nlines\0"
    assert container.launched(told) == ["java", "-Dname=with a space", "two\nlines"]
    with pytest.raises(CannotRun, match="Error: bad option"):
        container.launched(b"Error: bad option\n")


def test_what_the_pod_says_of_python_wins_over_the_images() -> None:
    given = {"PYSPARK_PYTHON": "/other/python", "SPARK_HOME": "/wrong", "AWS_REGION": "eu"}
    environ = container.spark_environment(given, PLACE)
    assert environ["PYSPARK_PYTHON"] == "/other/python"
    assert environ["PYSPARK_DRIVER_PYTHON"] == "/venv/bin/python"
    assert environ["SPARK_HOME"] == "/spark"
    assert environ["AWS_REGION"] == "eu"


@pytest.mark.parametrize("role", ["driver", "executor"])
def test_an_image_without_java_says_so_in_one_line(role: str) -> None:
    done = run(role, PATH="/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast: this image has no Java")
    assert done.stderr.count("\n") == 1


def test_everything_else_is_the_operators_command_line() -> None:
    done = run("run", "--listen=nowhere")
    assert done.returncode == 2
    assert "'nowhere' is not HOST:PORT" in done.stderr


@pytest.mark.spark
def test_spark_names_the_command_of_a_driver_with_the_memory_of_its_settings(tmp_path: Path) -> None:
    settings = tmp_path / "spark.properties"
    settings.write_text("spark.driver.memory=345m\n")
    environ = {**os.environ, "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}
    job = "local:///opt/holdfast/jobs/snapshot.py"
    arguments = ["--properties-file", str(settings), "--class", "org.apache.spark.deploy.PythonRunner", job]
    command = container.driver_command(arguments, environ, container.find(environ))
    assert "-Xmx345m" in command
    submit = command.index("org.apache.spark.deploy.SparkSubmit")
    assert command[submit + 1 :][-1] == job
    assert "spark.driver.bindAddress=127.0.0.1" in command[submit:]


def test_a_signal_before_the_operator_listens_to_it_ends_the_process() -> None:
    code = (
        "import os, signal, sys; from holdfast_operator import container;"
        ""
        "container.find = lambda environ: os.kill(os.getpid(), signal.SIGTERM);"
        "sys.exit(container.main(['executor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast_operator.container", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environ},
    )
