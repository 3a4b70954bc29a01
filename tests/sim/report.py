"""What the simulation has to tell after a test run: tables at the end of pytest's output."""

import pytest

TABLES = pytest.StashKey[list[str]]()


def tell(config: pytest.Config, lines: list[str]) -> None:
    """Print these lines when the run is over, whatever becomes of it."""
    config.stash.setdefault(TABLES, []).extend(lines)
