"""Runs the blocks of a documentation page as a reader does: one shell, one Python, one folder.

Invariants
- Nothing outside the folder is written. Paths that pages name (`/tmp/`, `/data/`) are folders inside it.
- If a command fails, the page fails, unless the page shows the failure.
- A shell that does not end in time is killed. The page fails with the output of the shell.
"""

import contextlib
import io
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from testbed.pages import Block, commands, differs

_SECONDS: Final = 180.0
_FOLDERS: Final = ("/tmp/", "/data/", "/var/lib/holdfast/")
_REFUSAL: Final = re.compile(r"^(?:holdfast|Error|error)\b.*:", re.MULTILINE)


class PageFailed(AssertionError):
    """A block doesn't do what its page says; the message says which, and what it did instead."""


class PageRun:
    """The shell and the Python of one page."""

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """`places`: what stands here for further texts of pages, such as the address of a server."""
        self.folder = folder
        for name in _FOLDERS:
            (folder / name.strip("/")).mkdir(parents=True, exist_ok=True)
        self._places = {name: f"{folder}{name}" for name in _FOLDERS} | dict(places or {})
        names = "|".join(re.escape(name) for name in sorted(self._places, key=len, reverse=True))
        self._place = re.compile(rf"(?<![\w.])(?:{names})")
        self._names: dict[str, Any] = {"__name__": "example"}
        self._variables = dict(os.environ)
        self._shell = _Shell(folder, dict(os.environ if environment is None else environment))

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the shell, and give the process its variables back, which a page's Python may have set."""
        os.environ.clear()
        os.environ.update(self._variables)
        self._shell.close()

    def here(self, text: str) -> str:
        """A text of a page with its places in the folder."""
        return self._place.sub(lambda found: self._places[found[0]], text)

    def run(self, block: Block) -> None:
        """Do what a block says. Raises `PageFailed`."""
        if block.title is not None:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.here(block.text))
            return
        match block.language:
            case "sh":
                printed = self.shell(block, block.text)
                self._compare(block, block.shows, printed)
            case "console":
                for command in commands(block):
                    fails = _REFUSAL.search(command.shows) is not None
                    printed = self.shell(block, command.text, may_fail=fails)
                    self._compare(block, command.shows, printed)
            case "python":
                self._compare(block, block.shows, self._python(block))
            case _:
                raise PageFailed(f'{_where(block)}: a block of {block.language} needs a title="file name"')

    def shell(self, block: Block, text: str, *, may_fail: bool = False) -> str:
        """What a command of a block prints. Raises `PageFailed` where it fails and may not."""
        code, printed = self._shell.run(self.here(text), ends=not may_fail)
        if code != 0 and not may_fail:
            raise PageFailed(f"{_where(block)}: exit code {code}\n{text}\n{printed}")
        return printed.replace(f"{self.folder}/", "/")

    def before(self, page: str, text: str) -> None:
        """Run what makes what the reader has already. Raises `PageFailed`."""
        self.shell(Block(page, 0, "sh", None, text), text)

    def _python(self, block: Block) -> str:
        printed = io.StringIO()
        code = compile("\n" * block.line + self.here(block.text), block.page, "exec")
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
            exec(code, self._names)
        return printed.getvalue()

    def _compare(self, block: Block, shown: str | None, printed: str) -> None:
        wrong = differs(shown, printed) if shown is not None else None
        if wrong is not None:
            raise PageFailed(f"{_where(block)}: {wrong}")


class _Shell:
    """One bash, which is given commands one after another."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._script = folder / ".block.sh"
        self._mark = f"--- end {secrets.token_hex(8)}"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def run(self, text: str, *, ends: bool) -> tuple[int, str]:
        """The exit code of commands and what they print; `ends`: the first that fails ends the shell."""
        self._script.write_text(text)
        to, out = self._pipes()
        watchdog = threading.Timer(_SECONDS, self._kill)
        watchdog.start()
        mark = f'echo "{self._mark} $?"'
        try:
            with contextlib.suppress(BrokenPipeError):
                begin = f"set -euo pipefail; trap '{mark}' EXIT; " if ends else ""
                end = "; trap - EXIT; set +euo pipefail" if ends else ""
                to.write(f"{begin}source {self._script} </dev/null; {mark}{end}\n")
                to.flush()
            lines: list[str] = []
            for line in out:
                before, found, code = line.partition(self._mark)
                if found:
                    return int(code), "".join([*lines, before])
                lines.append(line)
            return 1, "".join(lines)
        finally:
            watchdog.cancel()

    def close(self) -> None:
        """End it with all that it started."""
        self._kill()
        self._process.wait()
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _kill(self) -> None:
        # What it started holds the pipe too, and may go on for ever.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def _where(block: Block) -> str:
    return f"{block.page}:{block.line}"
