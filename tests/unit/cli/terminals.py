"""Runs commands as processes, at a terminal of some width and into pipes."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
DEADLINE_S = 300


def at_a_terminal(command: list[str], *, columns: int, home: Path) -> tuple[int, str]:
    """The exit code of a command, and all that it wrote to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}
    }
    done = subprocess.Popen(
        [HOLDFAST, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**environment, "TERM": "xterm-256color", "HOME": str(home)},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:
            break
        if not more:
            break
        shown += more
    os.close(ours)
    return done.wait(DEADLINE_S), shown.decode()


def lines_of(shown: str) -> list[str]:
    """What stood on the lines of a terminal, one after the other, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def left_on_screen(shown: str) -> list[str]:
    """The lines that a terminal shows at the end, where only lines that are taken away move the cursor."""
    lines = [""]
    for text, control in re.findall(r"([^\x1b\r\n]+)|(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", shown):
        match control[-1:]:
            case "":
                lines[-1] += text
            case "\r":
                lines[-1] = "\r" + lines[-1].lstrip("\r")
            case "\n":
                lines.append("")
            case "A":
                lines = lines[: len(lines) - int(control[2:-1] or 1)] or [""]
            case "K":
                lines[-1] = ""
            case _:
                pass
        if text and lines[-1].startswith("\r"):
            lines[-1] = text
    return [line.strip("\r") for line in lines if line.strip("\r ")]
