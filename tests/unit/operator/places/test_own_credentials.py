"""A process that any Catalog can point anywhere doesn't start with credentials of its own."""

import os
import re
from pathlib import Path

import pytest

from holdfast_operator.__main__ import main
from holdfast_operator.places.own_credentials import FLAG, VARIABLES, check, trim

FILES = (".aws/credentials", ".pgpass", ".postgresql/postgresql.key")
START = {"run": ("--listen=127.0.0.1:0",), "console": ("--listen=127.0.0.1:0", "--health=127.0.0.1:0")}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without credentials, in which nothing finds a cluster. Returns its home folder."""
    for name in (*VARIABLES, "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    # The process sets it, and the tests after this one must not see it.
    monkeypatch.setenv("PGREQUIREAUTH", "none")
    return tmp_path


def start(command: str, *flags: str) -> int | str | None:
    try:
        return main([command, *START[command], *flags])
    except SystemExit as stopped:
        return stopped.code


@pytest.mark.parametrize("command", START)
@pytest.mark.parametrize("limit", ["", "--namespace=a", "--allow-location=s3://bucket", FLAG])
def test_a_start_with_own_credentials_needs_a_limit_or_a_permission(
    command: str, limit: str, bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x")
    assert start(command, *filter(None, [limit])) == 2
    last = capsys.readouterr().err
    if limit:
        assert "no cluster to connect to" in last
    else:
        assert "the variable AWS_ROLE_ARN gives this process credentials" in last
        assert f"set --allow-location or --namespace, or permit it with {FLAG}" in last
        assert "role/x" not in last


def test_without_credentials_it_starts(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in START:
        assert start(command) == 2
        assert "no cluster to connect to" in capsys.readouterr().err


@pytest.mark.parametrize("name", VARIABLES)
def test_each_variable_counts_unless_it_is_empty(name: str, tmp_path: Path) -> None:
    limits = {"namespaces": (), "places": (), "permitted": False}
    check({"HOME": str(tmp_path), name: ""}, **limits)
    with pytest.raises(ValueError, match=f"^the variable {name} gives"):
        check({"HOME": str(tmp_path), name: "x"}, **limits)


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_read_without_a_variable_count(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    with pytest.raises(ValueError, match=re.escape(f"the file {file} gives")):
        check({"HOME": str(tmp_path)}, namespaces=(), places=(), permitted=False)


def test_the_newline_that_a_secret_adds_is_no_part_of_a_variable() -> None:
    environ = {"PGPASSWORD": "x \n", "AWS_SECRET_ACCESS_KEY": "y", "NOTE": "z\n"}
    trim(environ)
    assert environ == {"PGPASSWORD": "x ", "AWS_SECRET_ACCESS_KEY": "y", "NOTE": "z\n"}


@pytest.mark.parametrize("command", START)
def test_it_is_gone_before_anything_connects(
    command: str, bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGPASSWORD", "x\n")
    assert start(command, "--namespace=a") == 2
    assert os.environ["PGPASSWORD"] == "x"
