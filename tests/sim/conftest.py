"""Prints the tables of the simulation at the end of a run."""

import pytest

from sim.report import TABLES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(TABLES, []):
        terminalreporter.write_line(line)
