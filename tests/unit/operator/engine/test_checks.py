"""What the hooks of the chart check: stuck resources, and an operator that does not respond."""

import asyncio
import http.server
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus

import pytest
from kubernetes.client import ApiClient, Configuration

from holdfast_operator.__main__ import main
from holdfast_operator.api.names import Kind
from holdfast_operator.engine import checks
from holdfast_operator.engine.kube import Kube, ObjectKey
from testbed.serving import Serving


@contextmanager
def serving(*answers: int) -> Iterator[str]:
    """A server that gives these answers in turn, the last one for ever; its URL."""
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code = left.pop(0) if len(left) > 1 else left[0]
            body = b"ok\n" if code == HTTPStatus.OK else b"not yet\n"
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with closing(Serving(Handler)) as server:
        yield f"{server.url}/readyz"


def test_a_probe_waits_until_the_operator_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    waits: list[float] = []
    with serving(503, 503, 200) as url:
        assert checks.probe(url, timeout=60, clock=lambda: float(len(waits)), pause=waits.append) == 0
    assert len(waits) == 2
    assert capsys.readouterr().out == f"{url}: ok\n"


def test_a_probe_gives_up_and_says_what_it_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    waits: list[float] = []
    with serving(503) as url:
        assert checks.probe(url, timeout=3, clock=lambda: float(len(waits)), pause=waits.append) == 2
    assert "not ready after 3 s: 503 not yet" in capsys.readouterr().err


def test_a_probe_takes_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "file:///etc/passwd"]) == 2
    assert "is not an http:// or https:// URL" in capsys.readouterr().err


def test_what_would_be_stuck_is_named_with_what_to_do() -> None:
    kept = [ObjectKey(Kind.STORAGE_COLLECTION, "b", f"c{number}") for number in range(30)]
    kept.append(ObjectKey(Kind.CATALOG, "a", "demo"))
    lines = checks.advice(kept)
    assert lines[0].startswith("holdfast-operator: 31 resources have the finalizer holdfast.dev/operator")
    assert "  StorageCollection b/c0" in lines
    assert "  ... and 11 more" in lines
    kinds = "collectionsnapshots,catalogmigrations,storagecollections,catalogs"
    assert f"  hint: kubectl delete {kinds} --all --namespace a" in lines
    assert len(lines) < 30


def test_nothing_is_stuck_where_the_crds_are_gone() -> None:
    with serving(404) as url:
        kube = Kube(ApiClient(Configuration(host=url.removesuffix("/readyz"))))
        assert asyncio.run(checks.with_finalizer(kube, ["a", "b"])) == []
        kube.close()
