"""Lasting troubles: each is logged when it starts, when it changes, and when it is over.

Invariants
- Retries don't fill the log. An attempt that fails like the one before logs nothing.
"""

import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Troubles(Generic[T]):
    """The current troubles, by what they concern."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[T, str] = {}

    def tell(self, what: T, text: str, *, level: int = logging.WARNING) -> None:
        """Records a trouble. Logs `text` if it is new. The same trouble must have the same text."""
        if self._said.get(what) != text:
            self._log.log(level, "%s", text)
            self._said[what] = text

    def said(self, what: T) -> str:
        """Returns the last text of a trouble, or empty if there is none."""
        return self._said.get(what, "")

    def over(self, what: T, text: str) -> None:
        """Ends a trouble. Logs `text` if there was one."""
        if self._said.pop(what, None) is not None:
            self._log.info("%s", text)
