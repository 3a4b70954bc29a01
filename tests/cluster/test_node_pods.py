"""What a pod on the test bed's node can reach: the API, names, Services, this machine. It also ends well."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.node

ASKS_THE_API = """
import json, ssl, urllib.request
from pathlib import Path
account = Path("/var/run/secrets/kubernetes.io/serviceaccount")
trust = ssl.create_default_context(cafile=account / "ca.crt")
token = (account / "token").read_text()
for host in ("10.96.0.1", "kubernetes.default.svc.cluster.local", "kubernetes.default"):
    request = urllib.request.Request(f"https://{host}/version", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
        print(host, json.load(answer)["gitVersion"])
"""

SERVES = """
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served")
http.server.ThreadingHTTPServer(("", 8000), Answer).serve_forever()
"""

ASKS_A_SERVICE = """
import time, urllib.request
deadline = time.monotonic() + 60
while True:
    # The node gets the rules of the service a moment after the pod behind it is ready.
    try:
        with urllib.request.urlopen("http://serves:80", timeout=30) as answer:
            print(answer.read().decode())
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.2)
"""

SENDS_LINES = """
import itertools, socket, time
with socket.create_connection(("{address}", {port}), timeout=60) as connection:
    for number in itertools.count():
        connection.sendall(b"%d\\n" % number)
        time.sleep(0.05)
"""


@contextlib.contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.create_server((address, 0)) as server:
        server.settimeout(120)
        yield server


def receive_all(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def test_a_pod_asks_the_api_by_address_and_by_name(place: Any) -> None:
    place.run_python("asks", ASKS_THE_API)
    phase, printed = place.finish("asks")
    assert phase == "Succeeded", printed
    version = place.node.plane.kubectl("version", "-o", "json")
    assert [line.split()[0] for line in printed.splitlines()] == [
        "10.96.0.1",
        "kubernetes.default.svc.cluster.local",
        "kubernetes.default",
    ]
    assert all(line.split()[1] in version for line in printed.splitlines())


def test_a_pod_reaches_another_by_its_service(place: Any) -> None:
    ready = {"httpGet": {"port": 8000}, "periodSeconds": 1}
    place.run_python("serves", SERVES, container={"readinessProbe": ready})
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "serves"},
            "spec": {"selector": {"app": "serves"}, "ports": [{"port": 80, "targetPort": 8000}]},
        }
    )
    place.wait_ready("serves")
    place.run_python("asks", ASKS_A_SERVICE)
    assert place.finish("asks") == ("Succeeded", "served\n")


def test_the_code_of_a_program_is_told_and_what_it_printed(place: Any) -> None:
    place.run_python("fails", "print('so be it'); raise SystemExit(7)")
    assert place.finish("fails") == ("Failed", "so be it\n")
    (status,) = place.get("pod/fails")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 7


def test_a_pod_reaches_this_machine_and_nothing_beyond(place: Any) -> None:
    with listening(place.node.address) as server:
        address, port = server.getsockname()
        script = f"""
import socket
socket.create_connection(("{address}", {port}), timeout=60).sendall(b"here")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError:
    print("no further")
"""
        place.run_python("calls", script)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(120)
            assert connection.recv(16) == b"here"
    assert place.finish("calls") == ("Succeeded", "no further\n")


def test_a_frozen_pod_says_nothing_until_it_is_thawed(place: Any) -> None:
    with listening(place.node.address) as server:
        address, port = server.getsockname()
        place.run_python("sends", SENDS_LINES.format(address=address, port=port))
        connection, _ = server.accept()
        with connection, connection.makefile("r") as lines:
            connection.settimeout(120)
            assert lines.readline() == "0\n"
            uid = place.get("pod/sends")["metadata"]["uid"]
            place.node.freeze(uid)
            try:
                # What was sent before is all that comes.
                connection.settimeout(1)
                with pytest.raises(TimeoutError):
                    receive_all(connection)
            finally:
                place.node.thaw(uid)
            connection.settimeout(120)
            assert connection.recv(4096)
