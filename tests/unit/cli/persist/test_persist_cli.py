"""`holdfast persist inspect` shows the shards of a location, and changes nothing."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores import Put

SCHEMA = Schema.of({"id": "int64"}, {"name": "string?"})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["persist", "inspect", *arguments])


def told(result: Result, code: int) -> list[str]:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr.splitlines()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'location'}"


@pytest.fixture
def shards(url: str) -> list[str]:
    with PersistClient.open(url, config=PersistConfig(hostname="ship")) as client:
        ids = sorted(client.new_shard_id() for _ in range(2))
        writer = client.writer(ids[0], SCHEMA, purpose="orders [red]ingest[/]")
        writer.compare_and_append(pa.table({"id": [1, 2], "name": ["a", None]}), 0, 10)
        client.critical_since(ids[0], purpose="retention").downgrade(4)
        client.multi_write([client.prepare_create(ids[1], SCHEMA, purpose="none")])
        client.finalize(ids[1])
    return ids


def test_a_location_is_shown_shard_by_shard(url: str, shards: list[str]) -> None:
    result = run(url)
    assert result.exit_code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["SHARD", "SINCE", "UPPER", "ROWS", "BYTES", "HOLDS", "USED", "FOR"]
    assert first.split()[:4] == [shards[0], "4", "10", "2"]
    assert first.endswith("retention")
    assert second.split()[:3] == [shards[1], "closed", "finalized"]
    assert result.stderr.startswith("2 shards in location ")


def on_a_terminal(width: int, *arguments: str) -> list[str]:
    """What `holdfast persist inspect` shows on a real terminal of that width."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    script = "import sys; from holdfast.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "persist", "inspect", *arguments]
    with subprocess.Popen(
        command, stdout=terminal, stderr=subprocess.DEVNULL, env={**environment, "TERM": "xterm"}
    ) as child:
        os.close(terminal)
        shown = b""
        # Reading ends in an error when the last process has closed the terminal.
        with contextlib.suppress(OSError):
            while chunk := os.read(controller, 4096):
                shown += chunk
        assert child.wait(60) == 0
    os.close(controller)
    return shown.decode().splitlines()


def test_a_narrow_terminal_shows_a_shard_on_few_whole_lines(url: str, shards: list[str]) -> None:
    first, facts, used_for, *second = on_a_terminal(80, url)
    assert first == shards[0]
    assert facts.startswith("  since 4, upper 10; 2 rows in ")
    assert used_for.endswith("retention")
    assert second == [shards[1], "  finalized; 0 rows in 0 bytes; 0 holds"]
    wide = on_a_terminal(140, url)
    assert "UPPER" in wide[1]
    assert sum(shards[0] in line for line in wide) == 1


def test_one_shard_is_shown_with_its_holds(url: str, shards: list[str]) -> None:
    result = run(url, shards[0])
    assert result.exit_code == 0
    facts = dict(line.split(maxsplit=1) for line in result.stdout.split("\n\n")[0].splitlines())
    assert facts["shard"] == shards[0]
    assert (facts["key"], facts["value"]) == ("id int64", "name string?")
    assert (facts["since"], facts["upper"]) == ("4", "10")
    assert facts["rows"].startswith("2 updates")
    assert int(facts["version"].split(",")[0]) >= 3
    assert "by ship" in facts["version"]
    holds = result.stdout.split("\n\n")[1].splitlines()
    assert holds[1].split() == ["4", "critical", "retention"]


def test_json_is_for_programs(url: str, shards: list[str]) -> None:
    one = json.loads(run(url, shards[1], "--json").stdout)
    assert (one["shard_id"], one["finalized"], one["since"], one["upper"]) == (shards[1], True, None, None)
    both = json.loads(run(url, "--json").stdout)
    assert [shard["shard_id"] for shard in both] == shards
    assert both[0]["holds"][0]["purpose"] == "retention"
    assert both[1] == one


def test_looking_changes_nothing(url: str, shards: list[str], tmp_path: Path) -> None:
    def stored() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in sorted(tmp_path.rglob("*"))
            if path.is_file() and not path.name.endswith("-shm")
        }

    before = stored()
    assert run(url).exit_code == 0
    assert run(url, shards[0], "--json").exit_code == 0
    assert stored() == before


def test_an_empty_location_has_no_shards(url: str) -> None:
    PersistClient.open(url).close()
    assert json.loads(run(url, "--json").stdout) == []
    assert run(url).stderr.startswith("0 shards in location ")


@pytest.mark.parametrize(
    ("shard", "what", "hints"),
    [
        (
            "orders",
            "'orders' is not a shard id",
            ["hint: 'holdfast persist inspect' without SHARD shows all shards"],
        ),
        (
            "s00000000-0000-4000-8000-000000000000",
            "does not exist in",
            ["hint: 'holdfast persist inspect' shows all shards"],
        ),
    ],
)
@pytest.mark.usefixtures("shards")
def test_a_shard_that_is_not_there_is_bad_input(url: str, shard: str, what: str, hints: list[str]) -> None:
    line, *rest = told(run(url, shard), 2)
    assert line.startswith("holdfast: ")
    assert what in line
    assert [each.strip() for each in rest] == hints


def test_a_url_without_meaning_is_bad_input() -> None:
    line, hint = told(run("ftp://somewhere"), 2)
    assert "ftp://" in line
    assert "file:///dir" in hint


def test_a_location_that_is_not_there_is_unreachable_and_is_not_made(url: str, tmp_path: Path) -> None:
    line, _ = told(run(url), 3)
    assert "does not exist" in line
    assert list(tmp_path.iterdir()) == []


def test_a_shard_that_was_damaged_is_named(url: str, shards: list[str]) -> None:
    with PersistClient.open(url) as client:
        head = client.location.consensus.heads(shards[:1])[shards[0]]
        client.location.consensus.compare_and_set([Put(shards[0], head.seqno + 1, head.data[:-1])])
    line, hint = told(run(url, shards[0]), 3)
    assert f"{shards[0]} log {head.seqno + 1} is corrupt" in line
    assert "persist verify" in hint


def test_a_wrong_password_is_told_as_such_and_not_as_an_absent_location(postgres_url: str, url: str) -> None:
    with PersistClient.open(blob=url, consensus=postgres_url):
        pass
    wrong = re.sub(r"//([^:]+):[^@]+@", r"//\1:wrong@", postgres_url)
    line, hint = told(run(url, "--consensus", wrong), 3)
    assert "password authentication failed" in line
    assert "user and password" in hint
    assert "catalog init" not in hint
