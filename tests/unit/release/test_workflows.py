"""The workflows call what is in the repository, and each job has only the permissions that it needs."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CI = ROOT / ".github" / "workflows" / "ci.yml"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def jobs(workflow: Path = RELEASE) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]
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
    assert checks == {"checks/base.py", "checks/image_bill.py", "checks/version.py"}
    assert all((ROOT / path).is_file() for path in checks)


@pytest.mark.parametrize("workflow", [CI, RELEASE], ids=lambda path: path.stem)
def test_actions_of_others_are_named_by_commit_which_dependabot_renews(workflow: Path) -> None:
    """A tag can be moved to other code, which would then run with the permissions of the job."""
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


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


def test_a_release_ends_at_a_base_without_a_digest_and_builds_everything_on_one_with_it(
    tmp_path: Path,
) -> None:
    """The step runs as the forge runs it."""
    steps = jobs()["build"]["steps"]
    (check,) = (step["run"] for step in steps if step.get("id") == "base")
    base, output = tmp_path / "operator" / "base" / "Dockerfile", tmp_path / "output"
    base.parent.mkdir(parents=True)
    (tmp_path / "checks").mkdir()
    shutil.copy(ROOT / "checks" / "base.py", tmp_path / "checks")

    def run(text: str) -> int:
        base.write_text(text)
        environment = {"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(output)}
        return subprocess.run(
            ["bash", "-e", "-c", check], cwd=tmp_path, env=environment, check=False
        ).returncode

    assert run("FROM python:3.11\n") != 0
    assert not output.exists()
    pinned = "python:3.11@sha256:" + "a" * 64
    assert run(f"FROM {pinned}\n") == 0
    assert output.read_text() == f"base={pinned}\n"
    (build,) = (step for step in steps if "buildah build" in step.get("run", ""))
    assert build["env"]["BASE"] == "${{ steps.base.outputs.base }}"
    assert '--build-arg "BASE=$BASE"' in build["run"]
    text = (ROOT / "operator" / "Dockerfile").read_text()
    stages = {"${BASE}", *re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)}
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= stages


def test_jobs_that_run_tests_have_the_history_that_earlier_commits_are_built_from() -> None:
    testing = [job for job in jobs(CI).values() if "make test" in commands(job)]
    assert len(testing) == 2
    for job in testing:
        (checkout,) = (step for step in job["steps"] if "actions/checkout" in step.get("uses", ""))
        assert checkout["with"]["fetch-depth"] == 0
