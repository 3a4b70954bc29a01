"""The command `holdfast` without its imports: a process that has imported them forks for each call.

A documentation page calls the command dozens of times, and the imports take most of each call. The fork runs
the command itself, with the arguments, folder, environment and files of its caller.

Invariants
- A caller passes its files and waits for the exit code. It also gets an exit code if the call dies.
- The process ends when its starter closes its standard input.
"""

import array
import contextlib
import importlib
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import holdfast.catalog
import holdfast.cli
import holdfast.collections
import holdfast.persist
import holdfast.tables
from testbed.children import plain_path

_CALLER: Final = """#!{python} -IS
import array, json, os, socket, sys
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    files = array.array("i", [0, 1, 2])
    server.sendmsg([b"%08d" % len(call)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    server.sendall(call)
    sys.exit(int(server.recv(16) or b"70"))
"""
_LENGTH: Final = 8


@contextlib.contextmanager
def serving(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Put the command into a folder, and serve it while the block runs."""
    address = str(folder / "holdfast.socket")
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed.commandserver", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environment, "PYTHONPATH": plain_path(Path(__file__).parents[1])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        command = folder / "holdfast"
        command.write_text(_CALLER.format(python=sys.executable, address=address))
        command.chmod(0o755)
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main(address: str) -> None:
    """Serve at the address, and print when ready. Ends when standard input ends."""
    for package in (holdfast.catalog, holdfast.persist, holdfast.collections, holdfast.tables, holdfast.cli):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            caller, _ = server.accept()
            with caller:
                if os.fork() == 0:
                    _answer(caller)
            _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(caller: socket.socket) -> NoReturn:
    """Tell a caller how its call ended, which is a process of its own."""
    files = array.array("i")
    length, passed, _, _ = caller.recvmsg(_LENGTH, socket.CMSG_SPACE(3 * files.itemsize))
    files.frombytes(passed[0][2])
    call = json.loads(caller.makefile("rb").read(int(length)))
    child = os.fork()
    if child == 0:
        caller.close()
        arguments, folder, environment = call
        _call(arguments, folder, environment, list(files))
    _, status = os.waitpid(child, 0)
    caller.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _call(arguments: list[str], folder: str, environment: dict[str, str], files: list[int]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["holdfast", *arguments]
    code: Any = 1
    try:
        holdfast.cli.main()
    except SystemExit as ends:
        code = ends.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main(sys.argv[1])
