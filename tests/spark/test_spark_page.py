"""The pages about reading and writing with Spark do what they say."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("name", ["read-with-spark.md", "write-with-spark.md"])
def test_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path, name: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (HOW_TO / name).read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    assert program.count("file:///tmp/shop") == 1
    exec(compile(program.replace("/tmp/shop", f"{tmp_path}/shop"), name, "exec"), {"__name__": "example"})
