"""What `.ci/run` asks: whether this machine can have a node."""

import os

import pytest

from testbed import node
from testbed.__main__ import main


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
