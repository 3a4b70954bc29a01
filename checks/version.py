"""Prints the version of the project: `python checks/version.py`."""

import tomllib
from pathlib import Path

if __name__ == "__main__":
    text = (Path(__file__).resolve().parents[1] / "catalog" / "pyproject.toml").read_text()
    print(tomllib.loads(text)["project"]["version"])
