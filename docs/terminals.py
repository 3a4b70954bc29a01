"""Draws the terminal pictures of the documentation: `images/terminal-*.svg`, from real runs.

`pictures` runs the commands of each picture on a terminal, in a new folder and with fixed times and ids, so a
picture is a function of the code only. `generate.py` writes the files and checks that they are up to date.
All commands of all pictures run in one process, because most of the time of a command is its start.
"""

import io
import json
import os
import pty
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

_COLUMNS: Final = 92
_NEXT: Final = "\x1d"
"""Between two pictures in the output of the process."""


@dataclass(frozen=True)
class Picture:
    """A picture of a terminal: its title, and what is typed, line by line."""

    title: str
    lines: Sequence[str]


PICTURES: Final[Mapping[str, Picture]] = {
    "first-table": Picture(
        "a first table",
        (
            "holdfast collection create orders --id orders-1 --key id:int64 --column item:string",
            "holdfast collection alter orders --add 'count:int32?'",
            "cat morning.csv",
            "holdfast write orders morning.csv --at 2025-03-02T09:00",
            "holdfast read orders",
        ),
    ),
    "time-travel": Picture(
        "what was changed, and when",
        (
            "cat noon.csv",
            "holdfast write orders noon.csv --at 2025-03-02T12:00",
            "holdfast read orders",
            "holdfast read orders --as-of 2025-03-02T09:00",
            "holdfast diff orders --start 2025-03-02T09:00",
        ),
    ),
    "sql": Picture(
        "SQL on tables",
        (
            'holdfast sql "select item, sum(count) as sold from orders group by item order by item"',
            "holdfast sql \"select * from as_of('orders', '2025-03-02T09:00') where count > 1\" --format csv",
            "holdfast read orders --as-of yesterday",
        ),
    ),
}

FILES: Final[Mapping[str, str]] = {
    "morning.csv": "id,item,count\n1,apple,3\n2,pear,1\n",
    "noon.csv": "id,item,count,_diff\n2,pear,1,-1\n2,pear,5,1\n3,plum,4,1\n",
}

_RUN: Final = """
import json, shlex, sys
from pathlib import Path
from holdfast.cli import main
# A progress bar that disappears again is not part of the picture.
sys.stderr.isatty = lambda: False
for lines in json.load(open(sys.argv[1])):
    for line in lines:
        print(f"\\x1b[1;32m$\\x1b[0m {line}", flush=True)
        program, *words = shlex.split(line)
        if program == "cat":
            print(Path(words[0]).read_text(), end="", flush=True)
            continue
        try:
            main(words, prog_name=program)
        except SystemExit:
            pass
    print("\\x1d", flush=True)
"""


def pictures() -> dict[str, str]:
    """The text of each SVG file, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text)
        typed = Path(folder) / "typed.json"
        typed.write_text(json.dumps([list(each.lines) for each in PICTURES.values()]))
        shown = _at_a_terminal([sys.executable, "-c", _RUN, str(typed)], folder)
    found = shown.split(_NEXT)
    return {
        f"images/terminal-{name}.svg": _drawn(name, each.title, text.strip("\r\n"))
        for (name, each), text in zip(PICTURES.items(), found, strict=False)
    }


def _at_a_terminal(command: Sequence[str], folder: str) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, _COLUMNS))
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONDONTWRITEBYTECODE") if name in os.environ}
    process = subprocess.Popen(  # noqa: S603 - this program
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**kept, "HOME": folder, "HOLDFAST_URL": f"{folder}/shop", "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # all of the terminal's users have ended
            break
        if not more:
            break
        shown += more
    os.close(ours)
    if process.wait():
        raise RuntimeError(shown.decode())
    return shown.decode()


def _drawn(name: str, title: str, shown: str) -> str:
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown.replace("\r", "")))
    return console.export_svg(title=title, code_format=_SVG, unique_id=name)


_SVG: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""
