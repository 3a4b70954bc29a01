"""The page about moving a catalog is run: its commands, in order, as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to"


def test_the_commands_of_a_move_do_what_they_say(tmp_path: Path) -> None:
    page = (PAGES / "move-a-catalog.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = "\n".join(["set -eu", *blocks])
    assert "/tmp/shop" in program
    done = subprocess.run(
        ["bash", "-c", program.replace("/tmp/shop", f"{tmp_path}/shop")],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert re.findall(r"migration (\S+) is ([a-z ]+): the source of truth is (\w+)", done.stdout) == [
        ("to-persist", "done", "Persist"),
        ("to-persist", "rolled back", "Stash"),
        ("for-good", "done", "Persist"),
    ]
