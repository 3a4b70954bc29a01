"""The workflows call what is in the repository, and each job has only the permissions that it needs."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def jobs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(RELEASE.read_text())["jobs"]
    return found


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def test_the_release_calls_targets_and_checks_that_exist() -> None:
    text = "\n".join(commands(job) for job in jobs().values())
    targets = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
    assert targets == {"audit", "release-check"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}: setup" in makefile for target in targets)
    checks = set(re.findall(r"checks/[a-z_]+[.]py", text))
    assert checks == {"checks/base.py", "checks/version.py"}
    assert all((ROOT / path).is_file() for path in checks)


def test_a_job_of_the_release_may_do_only_what_it_does() -> None:
    assert yaml.safe_load(RELEASE.read_text())["permissions"] == {}
    writes = {
        name: {what for what, how in job["permissions"].items() if how == "write"}
        for name, job in jobs().items()
    }
    signs = {"id-token", "attestations"}
    assert writes == {
        "build": set(),
        "publish-images": {"packages", *signs},
        "publish-charts": {"packages", *signs},
        "publish-files": {"contents", *signs},
    }


def test_the_release_is_built_once_and_from_a_pinned_base() -> None:
    found = jobs()
    built = [name for name, job in found.items() if "buildah build" in commands(job)]
    assert built == ["build"]
    steps = [step.get("name", step.get("run", "")) for step in found["build"]["steps"]]
    assert steps.index("Refuse a base without a digest") < steps.index("make release-check")
    for name, job in found.items():
        if name != "build":
            assert "cosign sign" in commands(job)
            assert any("attest-build-provenance" in step.get("uses", "") for step in job["steps"])
