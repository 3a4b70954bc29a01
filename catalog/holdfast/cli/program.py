"""The program `holdfast`: the commands, in a process without pandas.

If pandas is installed, Arrow imports it when it first makes an array of a list. That takes longer than
everything else that a command does, and no command needs it. Arrow and Polars do without it if it can't be
imported.
"""

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from holdfast.cli import main

COMPLETING: Final = "_HOLDFAST_COMPLETE"
"""The variable with which a shell asks for completions."""


class _WithoutPandas(MetaPathFinder, Loader):
    """Finds pandas before others do, and doesn't load it."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Return a specification of pandas, and None for other modules."""
        return ModuleSpec(fullname, self) if fullname == "pandas" else None

    def exec_module(self, module: ModuleType) -> None:
        """Raise `ModuleNotFoundError`."""
        raise ModuleNotFoundError(f"no command imports {module.__name__}", name=module.__name__)


def run() -> None:
    """Run the command of `sys.argv`, and exit with its code."""
    sys.meta_path.insert(0, _WithoutPandas())
    if COMPLETING in os.environ:
        # Registers how a shell asks.
        importlib.import_module("holdfast.cli.completing")
    main(prog_name="holdfast", complete_var=COMPLETING)
