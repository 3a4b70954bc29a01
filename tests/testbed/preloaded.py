"""Runs modules as programs, without most of their imports: a process that has done them forks for each run.

Python and the packages of others take most of the start of a short program. Only the packages of this project
are imported anew in each run, because it may use a copy of them.

Invariants
- A run has an exit code, also if it dies.
- Each process ends when its starter closes its standard input.
"""

import gc
import json
import os
import queue
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

from testbed.children import plain_path

_TESTS: Final = Path(__file__).parents[1]
_OURS: Final = frozenset({"holdfast", *(folder.name for folder in _TESTS.iterdir() if folder.is_dir())})
_SECONDS: Final = 1800


class Preloaded:
    """Runs modules of `tests/`, as many at once as threads ask for. Its processes end with the block."""

    def __init__(self, *modules: str) -> None:
        """Do the imports of these modules before all runs."""
        self._modules = modules
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[str]] = []

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module, as `python -m` does, and return its exit code and what it wrote."""
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="holdfast-run-") as folder:
            files = [f"{folder}/{name}" for name in ("stdout", "stderr")]
            process.stdin.write(json.dumps([module, *files, *arguments]) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            told = [Path(file).read_text() for file in files]
        self._idle.put(process)
        return subprocess.CompletedProcess([module, *arguments], code, *told)

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "testbed.preloaded", *self._modules],
            cwd=_TESTS,
            env={
                **os.environ,
                "PYTHONPATH": plain_path(_TESTS),
                "PYTHONDONTWRITEBYTECODE": "1",
                "POLARS_MAX_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            process.communicate()


def _serve(modules: list[str]) -> None:
    for module in modules:
        import_module(module)
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(module: str, out: str, err: str, *arguments: str) -> NoReturn:
    code = 1
    try:
        for number, file in enumerate((os.devnull, out, err)):
            opened = os.open(file, os.O_RDWR | os.O_CREAT)
            os.dup2(opened, number)
            os.close(opened)
        signal.alarm(_SECONDS)
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ends:
        code = ends.code if isinstance(ends.code, int) else int(ends.code is not None)
        if isinstance(ends.code, str):
            print(ends.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as Python does at the end of a program
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1:])
