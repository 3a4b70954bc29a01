"""`checks/audit.py` names a vulnerable package, and never calls one safe that it could not look up."""

import importlib.util
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def audit() -> ModuleType:
    """`checks/audit.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("audit_check", ROOT / "checks" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def stand_in_for_osv(vulnerable: str, *, breaks_at: str | None = None) -> Iterator[tuple[str, set[str]]]:
    """Stands in for the service OSV: one package is vulnerable. Yields its URL and what it was asked."""
    asked: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = query["package"]["name"]
            asked.add(f"{name} {query['version']}")
            known = {
                "id": "GHSA-0000-0000-0000",
                "aliases": ["CVE-2026-0000"],
                "summary": "An example.",
                "details": "An example.",
                "modified": "2026-01-01T00:00:00Z",
                "affected": [
                    {
                        "package": {"name": name, "ecosystem": "PyPI"},
                        "ranges": [
                            {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999.0"}]}
                        ],
                    }
                ],
            }
            body = json.dumps({"vulns": [known]} if name == vulnerable else {}).encode()
            self.send_response(503 if name == breaks_at else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
def test_a_vulnerable_package_is_named(audit: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in_for_osv("pyarrow") as (url, asked):
        assert audit.main(["--osv-url", url]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("audit: pyarrow ")
    assert "GHSA-0000-0000-0000" in line
    assert "CVE-2026-0000" in line
    assert line.endswith(": fixed in 999.0")
    # Packages of other platforms and of the tools, too.
    assert {"colorama", "mypy", "pyspark"} <= {each.split()[0] for each in asked}
    assert len([each for each in asked if each.startswith("numpy ")]) == 2
    with stand_in_for_osv("none") as (url, _):
        assert audit.main(["--osv-url", url]) == 0
    assert capsys.readouterr().out == f"audit: no known vulnerabilities in {len(asked)} packages\n"


@pytest.mark.long
def test_without_the_service_nothing_is_called_safe(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/query"
    with stand_in_for_osv("none", breaks_at="pyarrow") as (broken, _):
        for service in (url, broken):
            assert audit.main(["--osv-url", service]) == 3
            told = capsys.readouterr()
            assert told.out == ""
            (line,) = told.err.splitlines()
            assert line.startswith(f"audit: not audited: pip-audit could not ask {service}: ")


def test_a_package_that_was_not_looked_up_is_not_safe(audit: ModuleType) -> None:
    safe = {"name": "a", "version": "1", "vulns": []}
    assert audit.vulnerabilities({"dependencies": [safe]}, 1) == []
    with pytest.raises(audit.NotAudited, match="only 1 of 2 packages"):
        audit.vulnerabilities({"dependencies": [safe]}, 2)
    skipped = {"name": "b", "skip_reason": "not\nfound"}
    with pytest.raises(audit.NotAudited, match="b was not looked up: not found"):
        audit.vulnerabilities({"dependencies": [safe, skipped]}, 2)


def test_a_vulnerability_without_a_fix_is_told_too(audit: ModuleType) -> None:
    vulnerability = {"id": "X-1", "aliases": [], "fix_versions": []}
    report = {"dependencies": [{"name": "a", "version": "1", "vulns": [vulnerability]}]}
    assert audit.vulnerabilities(report, 1) == ["a 1 has X-1: not fixed yet"]
