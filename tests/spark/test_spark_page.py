"""The pages about Spark run, and their output is the output that they show."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from testbed import docpages
from testbed.minio import Minio
from testbed.pageruns import PageRun

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize(
    "page",
    [
        "how-to/compact-a-collection.md",
        "how-to/ingest-with-spark.md",
        "how-to/read-with-spark.md",
        "how-to/write-with-spark.md",
        "tutorial/with-spark.md",
    ],
)
def test_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path, page: str) -> None:
    with PageRun(tmp_path) as run:
        docpages.run(f"docs/{page}", run)


@pytest.mark.s3
def test_the_page_about_snapshots_does_what_it_says(
    spark: SparkSession, tmp_path: Path, minio: Minio, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in minio.credentials.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    backups = f"s3://{bucket}/orders?endpoint={minio.endpoint}&region=eu-central-1"
    with PageRun(tmp_path, places={"s3://backups/orders?region=eu-central-1": backups}) as run:
        docpages.run("docs/how-to/take-a-snapshot.md", run)
