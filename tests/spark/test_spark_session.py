"""What `configure` sets and leaves alone, and how Spark finds the data source."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast.spark
from holdfast.errors import BadInput
from testbed import spark as testbed_spark


@pytest.fixture
def outside_submit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a plain Python process before Spark starts."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    return monkeypatch


@pytest.mark.spark
def test_a_local_session_gets_what_people_trip_over(outside_submit: pytest.MonkeyPatch) -> None:
    options = holdfast.spark.configure(SparkSession.Builder().master("local[2]"))._options
    assert options["spark.pyspark.python"] == os.environ["PYSPARK_PYTHON"] == sys.executable
    assert options["spark.sql.python.filterPushdown.enabled"] == "false"
    assert options["spark.sql.session.timeZone"] == "UTC"
    assert options["spark.driver.host"] == options["spark.driver.bindAddress"] == "127.0.0.1"
    assert options["spark.ui.enabled"] == "false"


@pytest.mark.spark
def test_what_was_chosen_before_stays_and_a_cluster_keeps_its_addresses(
    outside_submit: pytest.MonkeyPatch,
) -> None:
    outside_submit.setenv("PYSPARK_PYTHON", "/opt/python/bin/python3")
    builder = SparkSession.Builder().master("spark://master:7077")
    options = holdfast.spark.configure(builder.config("spark.sql.session.timeZone", "Asia/Tokyo"))._options
    assert options["spark.pyspark.python"] == "/opt/python/bin/python3"
    assert options["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert "spark.driver.host" not in options
    assert "spark.ui.enabled" not in options


def test_a_missing_java_is_said_before_spark_starts(
    outside_submit: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outside_submit.delenv("JAVA_HOME", raising=False)
    outside_submit.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="Spark needs Java, but there is none on PATH") as caught:
        holdfast.spark.configure(SparkSession.Builder())
    assert "openjdk-17" in traceback.format_exception_only(caught.value)[-1]


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python of this version that has no packages."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=60
    )
    return str(tmp_path / "bare" / "bin" / "python")


def other_python(folder: Path) -> str:
    """It answers as another version would."""
    python = folder / "python2"
    python.write_text("#!/bin/sh\necho 2.7 True\n")
    python.chmod(0o755)
    return str(python)


@pytest.mark.spark
@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_python_that_spark_could_not_use_is_said_before_it_starts(
    outside_submit: pytest.MonkeyPatch, tmp_path: Path, bare_python: str, variable: str
) -> None:
    builder = SparkSession.Builder().master("local[2]")
    for python, message in (
        (bare_python, "which does not have Holdfast"),
        (other_python(tmp_path), "which is Python 2.7; this is Python 3."),
        ("/nonexistent/python", "which does not run as a Python"),
        ("false", "which does not run as a Python"),
    ):
        outside_submit.setenv(variable, python)
        with pytest.raises(BadInput) as caught:
            holdfast.spark.configure(builder)
        assert f"{variable} is {python}, {message}" in str(caught.value)
        assert caught.value.hint == f"set {variable} to {sys.executable} before Spark starts"
    outside_submit.setenv(variable, str(Path(sys.executable).with_name("python3")))
    holdfast.spark.configure(builder)


_UNCONFIGURED = """
import sys
import holdfast.spark
from holdfast.errors import BadInput
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for what in (
    lambda: holdfast.spark.read(spark, url="file:///nowhere", collection="c"),
    lambda: holdfast.spark.write(spark.range(1), url="file:///nowhere", collection="c"),
):
    try:
        what()
    except BadInput as error:
        print(error, *error.__notes__, sep="\\n")
"""


@pytest.mark.spark
@pytest.mark.long
def test_without_configure_the_helpers_say_what_python_spark_runs(
    outside_submit: pytest.MonkeyPatch, tmp_path: Path, bare_python: str
) -> None:
    (tmp_path / "python3").symlink_to(bare_python)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, **testbed_spark.environment(), "PATH": path}
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environ.pop(variable)
    done = subprocess.run(
        [sys.executable, "-c", _UNCONFIGURED],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    line = "PYSPARK_PYTHON is not set, so Spark runs python3, which does not have Holdfast installed"
    assert (
        done.stdout.splitlines()
        == [
            line,
            f"hint: set PYSPARK_PYTHON to {sys.executable} before Spark starts",
        ]
        * 2
    )


@pytest.mark.spark
def test_the_data_source_is_found_without_and_with_registration(spark: SparkSession) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="option 'url' is missing"):
            spark.read.format("holdfast").load()
        holdfast.spark.register(spark)


def test_importing_the_package_needs_no_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import holdfast.spark, holdfast.spark.jobs.spec"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
