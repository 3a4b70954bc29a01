"""A missing or old Java gives a one-line error before Spark starts."""

from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.spark.java import require_java


def fake_java(folder: Path, told: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("told", "major"), [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "21"', 21)]
)
def test_a_new_enough_java_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, told)))
    assert require_java() == major


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_292"', "is Java 8"),
        ("no such thing", "does not print its version"),
    ],
)
def test_an_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, message: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, told)))
    with pytest.raises(BadInput, match=message) as caught:
        require_java()
    assert "install Java 17" in caught.value.hint


def test_no_java_at_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="there is none on PATH"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(BadInput, match="JAVA_HOME has none"):
        require_java()
