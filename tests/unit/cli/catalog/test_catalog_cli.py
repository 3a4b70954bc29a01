"""`holdfast catalog`, by click's runner and as a real process."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.catalog import CATALOG_VERSION, OBJECT_TYPES, OpenMode, catalog_shard_id, persist_catalog
from holdfast.cli import GROUPS, VERBS, main
from holdfast.persist import PersistClient
from testbed.children import plain_path

ORG = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def on(url: str, command: str, *args: str, org: str = ORG) -> Result:
    return run("catalog", command, "--persist", url, "--organization-id", org, *args)


def lines(result: Result) -> list[str]:
    assert result.stdout == ""
    return result.stderr.splitlines()


def process(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": plain_path()}
    command = [str(Path(sys.executable).parent / "holdfast"), *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


def test_init_makes_a_catalog_once(url: str) -> None:
    first, second = on(url, "init", "--deploy-generation", "2"), on(url, "init")
    shard_id = catalog_shard_id(ORG)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == f"initialized catalog {shard_id}, version {CATALOG_VERSION}, epoch 1\n"
    assert second.stdout == f"already initialized: catalog {shard_id}, version {CATALOG_VERSION}, epoch 1\n"
    with PersistClient.open(url, mode="read") as client:
        assert persist_catalog(client, ORG).deploy_generation() == 2


def test_init_does_not_fence_a_running_catalog(url: str) -> None:
    with PersistClient.open(url) as client:
        catalog = persist_catalog(client, ORG).open(OpenMode.WRITABLE, holder="db", purpose="test")
        assert on(url, "init").exit_code == 0
        catalog.confirm_leadership()
        assert on(url, "epoch").stdout == "1\n"


def test_dump_shows_each_object_by_type_with_key_and_value(url: str, tmp_path: Path) -> None:
    on(url, "init")
    with PersistClient.open(url) as client:
        catalog = persist_catalog(client, ORG).open(OpenMode.WRITABLE, holder="db", purpose="test")
        catalog.ensure_item("holdfast", "public", "flights", definition="délayed")
    dumped = json.loads(on(url, "dump").stdout)
    assert set(dumped) == {row.name for row in OBJECT_TYPES.values()}
    (item,) = dumped["items"]
    assert item["key"] == {"id": {"user": "1"}}
    assert (item["value"]["name"], item["value"]["type"]) == ("flights", "OBJECT_TYPE_COLLECTION")
    assert "délayed" in on(url, "dump").stdout
    assert json.loads(on(url, "dump", "--as-of", "0").stdout)["items"] == []
    target = tmp_path / "dump.json"
    target.write_text("old")
    assert lines(on(url, "dump", "--target", str(target))) == []
    assert json.loads(target.read_text()) == dumped
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".dump")] == []


def test_a_time_that_is_not_there_yet_is_a_negative_answer(url: str) -> None:
    on(url, "init")
    result = on(url, "dump", "--as-of", "7")
    assert result.exit_code == 1
    assert lines(result)[0].startswith("holdfast: as_of 7 is not complete")


@pytest.mark.parametrize("command", ["dump", "epoch"])
def test_an_uninitialized_catalog_is_a_negative_answer_with_a_hint(url: str, command: str) -> None:
    on(url, "init", org=str(uuid.uuid4()))
    result = on(url, command)
    assert result.exit_code == 1
    message, hint = lines(result)
    assert message == f"holdfast: the catalog in {catalog_shard_id(ORG)} is not initialized"
    assert "holdfast catalog init" in hint


@pytest.mark.parametrize("command", ["dump", "epoch"])
def test_a_location_that_is_not_there_is_unreachable_and_not_made(
    url: str, command: str, tmp_path: Path
) -> None:
    result = on(url, command)
    assert result.exit_code == 3
    assert lines(result)[0].startswith("holdfast: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--persist", "ftp://x/y", "--organization-id", ORG], "scheme ftp://"),
        (["--persist", "u:secret@h/d", "--organization-id", ORG], "is not a URL"),
        (["--persist", "file:///{tmp}/store", "--organization-id", "me"], "'me' is not a UUID"),
        (["--persist", "file:///{tmp}/store"], "--organization-id is missing"),
        (["--organization-id", ORG], "--url is missing"),
        ([], "--stash, or --url, is missing"),
        (["--stash", "postgresql://u:secret@h/d", "--persist", "memory://x"], "--organization-id is missing"),
        (["--stash", "sqlite:///{tmp}/x", "--consensus", "sqlite:///y"], "--url is missing"),
        (["--stash", "mysql://u:secret@h/d"], "scheme mysql://"),
        (["--stash", "sqlite://relative"], "absolute path"),
        (["--stash", "{tmp}"], "is not a URL"),
        (["--consensus", "sqlite:///{tmp}/x", "--organization-id", ORG], "--url is missing"),
        (
            ["--stash", "postgresql://u:secret@h/d", "--organization-id", ORG],
            "--url is missing",
        ),
        (["--persist"], "requires an argument"),
        (["--nonsense"], "No such option"),
    ],
)
@pytest.mark.parametrize("command", ["init", "dump", "epoch"])
def test_bad_input_is_one_line_and_changes_nothing(
    command: str, args: Sequence[str], expected: str, tmp_path: Path
) -> None:
    given = [arg.replace("/{tmp}", str(tmp_path)) for arg in args]
    result = run("catalog", command, *given)
    assert result.exit_code == 2
    message, *hint = lines(result)
    assert message.startswith("holdfast: ")
    assert expected in message
    assert len(hint) <= 1
    assert "secret" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_unknown_before_the_store_is_bad_input(url: str, tmp_path: Path) -> None:
    for result in (
        run("nonsense"),
        run("--nonsense"),
        run("catalog", "nonsense"),
        on(url, "init", "--deploy-generation", "-1"),
        on(url, "dump", "--as-of", "yesterday"),
    ):
        assert result.exit_code == 2
        assert len(lines(result)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_is_bad_input(url: str, tmp_path: Path) -> None:
    on(url, "init")
    result = on(url, "dump", "--target", str(tmp_path / "missing" / "dump.json"))
    assert result.exit_code == 2
    assert "can't write" in lines(result)[0]


def test_debug_shows_where_an_error_comes_from() -> None:
    args = ("catalog", "epoch", "--persist", "ftp://x", "--organization-id", ORG)
    assert "Traceback" not in run(*args).stderr
    assert "Traceback" in run("--debug", *args).stderr


def test_help_tells_all_groups_and_imports_none_of_them() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, group in {**GROUPS, **VERBS}.items():
        assert name in result.stdout
        assert group.help in result.stdout
    script = (
        "import sys; from holdfast.cli import main;"
        " main(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert not {"pyarrow", "polars", "numpy", "google"} & imported
    assert run("--version").stdout.startswith("holdfast, version ")


def test_importing_holdfast_imports_no_library_that_only_some_commands_need() -> None:
    """Pandas alone takes as long as all of them. Other tests start processes without it."""
    pytest.importorskip("pandas")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = (
        "import sys, holdfast.catalog, holdfast.catalog.move.hashed, holdfast.collections.recovery,"
        " holdfast.persist.admin.recover, holdfast.persist.admin.verify; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert "pyarrow" in imported
    assert not {"pandas", "boto3", "botocore", "psycopg", "pyspark", "kubernetes"} & imported


@pytest.mark.long
def test_a_catalog_in_files_outlives_the_processes_that_use_it(url: str) -> None:
    where = ("--persist", url, "--organization-id", ORG)
    assert process("catalog", "epoch", *where).returncode == 3
    made = process("catalog", "init", *where)
    assert (made.returncode, made.stderr) == (0, "")
    assert process("catalog", "epoch", *where).stdout == "1\n"
    dumped = process("catalog", "dump", *where)
    assert [row["value"]["name"] for row in json.loads(dumped.stdout)["databases"]] == ["holdfast"]
    refused = process("catalog", "epoch", "--persist", url, "--organization-id", str(uuid.uuid4()))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert len(refused.stderr.splitlines()) == 2
