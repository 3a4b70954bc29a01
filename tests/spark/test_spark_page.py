"""The page about reading with Spark does what it says."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "read-with-spark.md"


def test_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    assert program.count("file:///tmp/shop") == 1
    exec(
        compile(program.replace("/tmp/shop", f"{tmp_path}/shop"), PAGE.name, "exec"), {"__name__": "example"}
    )
