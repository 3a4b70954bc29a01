"""The report of the simulation after a test run: tables at the end of pytest's output.

If tests run in several processes (`-n`), each passes its lines to the process that writes the output.
"""

from typing import Any

import pytest

_TABLES = pytest.StashKey[list[str]]()
_HANDED = "tables of the simulation"


def tell(config: pytest.Config, lines: list[str]) -> None:
    """Print these lines when the run is over, whatever becomes of it."""
    config.stash.setdefault(_TABLES, []).extend(lines)


def pytest_sessionfinish(session: pytest.Session) -> None:
    handed = getattr(session.config, "workeroutput", None)
    if handed is not None:
        handed[_HANDED] = session.config.stash.get(_TABLES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # One that crashed has handed over nothing.
    tell(node.config, getattr(node, "workeroutput", {}).get(_HANDED, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_TABLES, []):
        terminalreporter.write_line(line)
