"""What `.ci/run` asks: whether this machine can have a tier."""

import os
from pathlib import Path

import pytest

from testbed import chromium, kafka, node
from testbed.__main__ import main
from testbed.errors import Unavailable
from testbed.require import Tier, missing, provide


def test_who_is_not_root_can_have_no_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["can", "node"]) == 3
    assert capsys.readouterr().out == "a node needs root on Linux\n"
    assert node.missing() == "a node needs root on Linux"


def test_packages_that_nothing_can_install_make_it_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    if node.impossible():
        pytest.skip("this machine can have none anyway")
    monkeypatch.setenv("PATH", "/nowhere")
    # Without any program there are no namespaces either.
    assert "missing" in (node.impossible() or "")


def test_a_machine_without_java_or_maven_can_have_no_kafka(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main(["can", "kafka"]) == 3
    assert capsys.readouterr().out.startswith("Java is missing: install Java 17")
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    assert main(["can", "kafka"]) == 3
    told = "Maven is missing: install it, such as with apt-get install maven"
    assert capsys.readouterr().out == f"{told}\n"
    assert kafka.missing() == told
    with pytest.raises(Unavailable, match="Maven is missing"):
        kafka.provide()


def test_jars_that_maven_can_not_get_leave_no_folder_and_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("java", "echo 'version \"17\"' >&2"), ("mvn", "echo no such artifact; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Unavailable, match="no such artifact"):
        kafka.provide()
    assert [each.name for each in (tmp_path / "cache" / "testbed").iterdir()] == [".kafka.lock"]
    assert kafka.missing() is not None


def test_who_can_install_nothing_can_have_no_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["can", "browser"]) == 3
    told = "Chromium is missing: install it, such as with apt-get install chromium-headless-shell"
    assert capsys.readouterr().out == f"{told}\n"
    assert missing(Tier.BROWSER) == told
    with pytest.raises(Unavailable, match="only root on Debian can install chromium-headless-shell"):
        provide(Tier.BROWSER)
    browser = tmp_path / "chromium"
    browser.touch(mode=0o755)
    assert chromium.find() == browser
    assert main(["can", "browser"]) == 0
    provide(Tier.BROWSER)
