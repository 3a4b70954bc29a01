"""The archive of Spark's classes is used if it exists, and nothing breaks without it."""

from pathlib import Path

import pytest

from testbed.sparkstart import archive_of, flags, make


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that can't start anything, and a folder `spark` beside it."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    return java


@pytest.mark.long
def test_an_archive_is_used_by_the_spark_and_the_java_that_it_was_made_of(java: Path, tmp_path: Path) -> None:
    spark = tmp_path / "spark"
    assert "SharedArchiveFile" not in flags(java, spark)
    assert not make(java, spark, {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    folder = tmp_path / "cache" / "testbed" / "spark"
    assert list(folder.iterdir()) == []
    made = archive_of(java, spark)
    assert made.parent == folder
    made.touch()
    assert f"-XX:SharedArchiveFile={made}" in flags(java, spark)
    assert make(java, spark, {})
    java.write_text("#!/bin/sh\nexit 2\n")
    assert "SharedArchiveFile" not in flags(java, spark)
