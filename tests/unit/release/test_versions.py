"""One version for the whole project: both distributions, both charts and the image."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml
from click.testing import CliRunner

import holdfast
from holdfast.cli import main

ROOT = Path(__file__).resolve().parents[3]


def declared(distribution: str) -> str:
    return str(tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]["version"])


def test_the_distributions_the_charts_and_the_image_have_one_version() -> None:
    expected = declared("catalog")
    assert declared("operator") == expected
    semver = re.sub(r"\.dev(\d+)$", r"-dev.\1", expected)
    for chart in ("holdfast-crds", "holdfast-operator"):
        found = yaml.safe_load((ROOT / "charts" / chart / "Chart.yaml").read_text())
        assert (found["appVersion"], found["version"]) == (expected, semver)
    assert f"ARG VERSION={expected}\n" in (ROOT / "operator" / "Dockerfile").read_text()


def test_the_library_and_the_command_show_the_version() -> None:
    assert holdfast.__version__ == version("holdfast") == declared("catalog")
    assert "__version__" in dir(holdfast)
    done = CliRunner().invoke(main, ["--version"])
    assert done.output == f"holdfast, version {holdfast.__version__}\n"
