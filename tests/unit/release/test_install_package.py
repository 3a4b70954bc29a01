"""`operator/image/install-package` takes Debian's packages of the base's day for a release."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "operator" / "image" / "install-package"
SOURCES = """Types: deb
# http://snapshot.debian.org/archive/debian/20250520T000000Z
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates

Types: deb
# http://snapshot.debian.org/archive/debian-security/20250520T000000Z
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
"""
"""The list of an official image, without components and keys."""
APT = """#!/bin/sh
echo "$@" >> "$CALLS"
for each; do
  case $each in Dir::Etc::SourceParts=*) cat "${each#*=}/debian.sources" > "$SEEN" ;; esac
done
"""


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Run the script with programs in the place of apt-get and rm, so this machine stays as it is."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"apt-get": APT, "rm": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(program: str, sources: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "sources").write_text(sources)
        return subprocess.run(
            [SCRIPT, program, "tini"],
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "CALLS": str(tmp_path / "calls"),
                "SEEN": str(tmp_path / "seen"),
                "SOURCES": str(tmp_path / "sources"),
                "TMPDIR": str(tmp_path),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_program_that_is_there_needs_nothing(install: Install, tmp_path: Path) -> None:
    assert install("sh", SOURCES, DATED="yes").returncode == 0
    assert not (tmp_path / "calls").exists()


def test_packages_are_those_of_today_by_default(install: Install, tmp_path: Path) -> None:
    assert install("no-such-program", SOURCES).returncode == 0
    update, last = (tmp_path / "calls").read_text().splitlines()
    assert update == "-o Acquire::Retries=3 -qq update"
    assert last == "-o Acquire::Retries=3 -qq install --yes --no-install-recommends tini"
    assert not (tmp_path / "seen").exists()


def test_packages_of_a_release_are_those_of_the_base_s_day(install: Install, tmp_path: Path) -> None:
    assert install("no-such-program", SOURCES, DATED="yes").returncode == 0
    update, last = (tmp_path / "calls").read_text().splitlines()
    assert "Acquire::Retries=3" in update
    assert "Dir::Etc::SourceList=/dev/null" in update
    assert "Dir::Etc::SourceParts=" in last
    assert last.endswith("install --yes --no-install-recommends tini")
    found = [line for line in (tmp_path / "seen").read_text().splitlines() if line.startswith("URIs:")]
    assert found == [
        "URIs: http://snapshot.debian.org/archive/debian/20250520T000000Z",
        "URIs: http://snapshot.debian.org/archive/debian-security/20250520T000000Z",
    ]


@pytest.mark.parametrize(
    "sources", ["", "Types: deb\nURIs: http://deb.debian.org/debian\n", SOURCES + "\nURIs: http://other\n"]
)
def test_a_base_that_names_no_day_is_refused(install: Install, tmp_path: Path, sources: str) -> None:
    done = install("no-such-program", sources, DATED="yes")
    assert done.returncode == 1
    assert "doesn't name the archive of its day" in done.stderr
    assert not (tmp_path / "calls").exists()


def test_the_release_asks_for_packages_of_the_base_s_day() -> None:
    assert "--build-arg DATED=yes" in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    dockerfile = (ROOT / "operator" / "Dockerfile").read_text()
    assert "apt-get" not in dockerfile
    for stage in dockerfile.split("\nFROM ")[1:]:
        assert ("install-package" in stage) == ("\nARG DATED\n" in stage)
