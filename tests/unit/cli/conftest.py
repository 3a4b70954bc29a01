"""A place for a catalog of each kind, for commands that work on every kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.cli.catalogs import KINDS, Place, make_place


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place for a catalog, with nothing in it."""
    made = make_place(request.param, tmp_path, request)
    yield made
    made.close()
