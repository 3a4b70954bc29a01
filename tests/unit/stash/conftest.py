"""A place for a stash on SQLite or Postgres. The same tests run on both."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def stash_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a stash that is not there yet."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/stash.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
