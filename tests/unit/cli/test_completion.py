"""Shells complete commands, options, named locations and the names of tables."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from unit.cli.terminals import DEADLINE_S, HOLDFAST

COMPLETES = """
eval "$(holdfast completion bash)"
while IFS= read -r line; do
    COMP_LINE="$line" COMP_POINT=${#line}
    _holdfast_completion holdfast
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a location that its configuration names @shop."""
    home = tmp_path_factory.mktemp("home")
    file = home / ".config" / "holdfast" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'[locations]\nshop = "{home}/shop"\nspare = "{home}/spare"\n')
    for name in ("orders", "lines"):
        holdfast.table(home / "shop", name, columns={"id": "int64"}).close()
    return home


def environment(home: Path) -> dict[str, str]:
    ours = {
        "HOME": str(home),
        "PATH": f"{Path(HOLDFAST).parent}:{os.environ['PATH']}",
        "PS1": "$ ",
        "_HOLDFAST_REMEMBER": "1",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
    return {**others, **ours}


@pytest.mark.long
def test_bash_completes(home: Path) -> None:
    cases = {
        "holdfast re": "read",
        "holdfast collection des": "describe",
        "holdfast read --or": "--or-earlier",
        "holdfast read --format ": "table csv json parquet arrow",
        # Bash takes what is after the @ or the : for a word.
        "holdfast ls --url @s": "shop spare",
        "holdfast persist inspect --url @sh": "shop",
        "holdfast read --url @shop ": "lines orders",
        f"holdfast read --url file://{home}/shop ord": "orders",
        "holdfast read --url /nothing/here ": "",
        "holdfast read 'a quote that is open": "",
    }
    CliRunner(env=environment(home)).invoke(main, ["ls", "--url", "@shop"])
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETES],
        input="".join(f"{line}\n" for line in cases),
        env=environment(home),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert dict(zip(cases, done.stdout.splitlines(), strict=True)) == cases
    assert done.stderr == ""


def test_a_key_press_in_bash_completes_a_table(home: Path) -> None:
    CliRunner(env=environment(home)).invoke(main, ["ls", "--url", "@shop"])
    ours, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**environment(home), "TERM": "dumb"},
    )
    os.close(theirs)
    os.write(ours, b'eval "$(holdfast completion bash)"\nholdfast collection describe --url @shop ord\t')
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while b"--url @shop orders " not in shown and time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            shown += os.read(ours, 4096)
    shell.kill()
    shell.wait()
    os.close(ours)
    assert b"--url @shop orders " in shown


def test_a_change_of_the_tables_is_seen_at_once(home: Path) -> None:
    runner, at = CliRunner(env=environment(home)), ["--url", str(home / "other")]
    holdfast.table(home / "other", "zeroth", columns={"id": "int64"}).close()
    CliRunner(env={**environment(home), "_HOLDFAST_REMEMBER": None}).invoke(main, ["ls", *at])
    cache = home / ".cache" / "holdfast" / "tables"

    def known() -> list[str]:
        return sorted(each.read_text() for each in cache.iterdir())

    before = known() if cache.exists() else []
    assert not any("zeroth" in each for each in before)  # nobody completed anything there
    runner.invoke(main, ["collection", "create", "first", "--column", "id:int64", *at])
    runner.invoke(main, ["ls", *at])
    assert [each for each in known() if each not in before] == ["first\nzeroth\n"]
    runner.invoke(main, ["collection", "rename", "first", "second", *at])
    assert [each for each in known() if each not in before] == []


def test_a_completion_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from holdfast.cli.program import run; run()"
    )
    CliRunner(env=environment(home)).invoke(main, ["ls", "--url", "@shop"])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **environment(home),
            "COMP_LINE": "holdfast read --url @shop ",
            "_HOLDFAST_COMPLETE": "bash_complete",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["plain,lines", "plain,orders"]
    assert not {"pyarrow", "polars", "numpy", "rich", "holdfast.persist"} & set(done.stderr.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_HOLDFAST_COMPLETE" in done.stdout
    refused = CliRunner().invoke(main, ["completion", "tcsh"])
    assert (refused.exit_code, refused.stdout) == (2, "")
