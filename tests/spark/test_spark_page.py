"""The pages about Spark do what they say, and print what they show."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from testbed import docpages
from testbed.pageruns import PageRun

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "page",
    [
        "how-to/compact-a-collection.md",
        "how-to/read-with-spark.md",
        "how-to/write-with-spark.md",
        "tutorial/with-spark.md",
    ],
)
def test_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path, page: str) -> None:
    with PageRun(tmp_path) as run:
        docpages.run(f"docs/{page}", run)
