"""What `configure` sets, what it leaves alone, and how Spark finds the data source."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast.spark
from holdfast.errors import BadInput


@pytest.fixture
def outside_submit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a plain Python process before Spark starts."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
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
    with pytest.raises(BadInput, match="Spark needs Java and there is none on PATH") as caught:
        holdfast.spark.configure(SparkSession.Builder())
    assert "openjdk-17" in caught.value.hint


@pytest.mark.spark
def test_the_data_source_is_found_without_and_with_registration(spark: SparkSession) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="option 'url' is missing"):
            spark.read.format("holdfast").load()
        holdfast.spark.register(spark)


def test_importing_the_package_needs_no_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import holdfast.spark, holdfast.spark.jobs.spec"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
