"""Looks up known vulnerabilities of all packages in uv.lock: `make audit`.

pip-audit asks the service OSV (https://osv.dev). It runs in an environment of its own, which uv makes.

Exit codes: 0 if there are no known vulnerabilities, 1 if a package has one, and 3 if not all packages could
be looked up, as when the service can't be reached. A package that isn't looked up never counts as safe.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
PIP_AUDIT: Final = "pip-audit>=2.10,<3"
OSV: Final = "https://api.osv.dev/v1/query"
VULNERABLE: Final = 1
NOT_AUDITED: Final = 3


class NotAudited(Exception):
    """Not all packages were looked up. The message says why, in one line."""


def locked() -> list[str]:
    """Return all packages of the lock file, for all platforms, as requirements. Raises `NotAudited`."""
    what = ("--all-packages", "--all-extras", "--all-groups", "--no-emit-workspace")
    command = [UV, "export", "--quiet", "--locked", *what, "--no-annotate", "--no-header"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotAudited(f"uv can't read the lock file: {_last_line(done.stderr)}")
    # Without markers. pip-audit would leave out what this platform doesn't install.
    lines = {line.split(";")[0].rstrip(" \\") for line in done.stdout.splitlines()}
    return sorted(line for line in lines if line and not line.startswith(" "))


def rounds(requirements: Sequence[str]) -> list[list[str]]:
    """Return the same requirements in lists that name a package once, because pip-audit refuses others.

    Some packages have several versions, for several versions of Python.
    """
    found: list[dict[str, str]] = []
    for requirement in requirements:
        name = requirement.split("==")[0]
        free = next((each for each in found if name not in each), None)
        if free is None:
            found.append(free := {})
        free[name] = requirement
    return [list(each.values()) for each in found]


def look_up(requirements: Sequence[str], service: str, folder: Path) -> dict[str, Any]:
    """Ask the service about each package; returns pip-audit's report. Raises `NotAudited` if it made none."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    file = folder / "requirements.txt"
    file.write_text("\n".join(requirements))
    tool = [UV, "tool", "run", "--quiet", "--from", PIP_AUDIT, "pip-audit"]
    how: list[str | Path] = ["--requirement", file, "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    which = ["--vulnerability-service", "osv", "--osv-url", service]
    done = subprocess.run(
        [*tool, *how, *which, "--format", "json", "--output", report],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    # pip-audit exits with 1 both if it finds a vulnerability and if it fails. Only a report tells them apart.
    if not report.exists() or not report.stat().st_size:
        raise NotAudited(f"pip-audit could not ask {service}: {_last_line(done.stderr)}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def vulnerabilities(report: Mapping[str, Any], expected: int) -> list[str]:
    """Return one line for each vulnerability in a report.

    Raises `NotAudited` if a package was skipped, or if there are fewer packages than `expected`.
    """
    packages = report["dependencies"]
    for each in packages:
        if "skip_reason" in each:
            raise NotAudited(f"{each['name']} was not looked up: {' '.join(each['skip_reason'].split())}")
    if len(packages) < expected:
        raise NotAudited(f"only {len(packages)} of {expected} packages were looked up")
    return [
        f"{package['name']} {package['version']} has {vulnerability['id']}"
        f"{_in_brackets(vulnerability['aliases'])}: "
        + (f"fixed in {', '.join(fixes)}" if (fixes := vulnerability["fix_versions"]) else "not fixed yet")
        for package in packages
        for vulnerability in package["vulns"]
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the lock file; returns the exit code."""
    parser = argparse.ArgumentParser(description="Looks up known vulnerabilities of the packages in uv.lock.")
    parser.add_argument("--osv-url", default=OSV, help="the service to ask (default: %(default)s)")
    service = parser.parse_args(arguments).osv_url
    with tempfile.TemporaryDirectory(prefix="holdfast-audit-") as home:
        try:
            packages = locked()
            found = [
                line
                for some in rounds(packages)
                for line in vulnerabilities(look_up(some, service, Path(home)), len(some))
            ]
        except NotAudited as error:
            print(f"audit: not audited: {error}", file=sys.stderr)
            return NOT_AUDITED
    for line in found:
        print(f"audit: {line}", file=sys.stderr)
    if found:
        return VULNERABLE
    print(f"audit: no known vulnerabilities in {len(packages)} packages")
    return 0


def _in_brackets(aliases: Sequence[str]) -> str:
    return f" ({', '.join(aliases)})" if aliases else ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


if __name__ == "__main__":
    sys.exit(main())
