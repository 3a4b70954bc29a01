"""A program that forgets to close Postgres, or loses its server, prints nothing about pools."""

import subprocess
import sys

import pytest

DEADLINE_S = 120
PROGRAM = """
import socket, threading
import holdfast.pg_session as sessions_module
from holdfast.errors import Determinate

sessions_module.WAIT_FOR_CONNECTION_S = 0.1
hung = socket.create_server(("127.0.0.1", 0))
address = sessions_module.PostgresAddress.parse(f"postgresql://u@127.0.0.1:{hung.getsockname()[1]}/db")
sessions = sessions_module.Sessions(address, size=2)
workers = lambda: [each for each in threading.enumerate() if each.name.startswith("pool-")]
try:
    with sessions.connection():
        raise AssertionError("somebody answered")
except Determinate:
    pass
assert workers()
"""
ENDS = {
    "at the end of the program": "",
    "where it is closed": "sessions.close()",
    "while the server is gone": """
(worker, *_) = workers()
hung.close()
try:
    with sessions.connection():
        raise AssertionError("somebody answered")
except Determinate:
    pass
""",
    "in a child": """
import os
child = os.fork()
if not child:
    del sessions
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
assert workers()
""",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.long
def test_nothing_is_said_of_a_pool(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
