"""Troubles that last: each is logged when it begins or changes, and when it is over.

Invariants
- What is tried again and again fills no log: a try that fails as the one before says nothing.
"""

import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Troubles(Generic[T]):
    """What is known of them, by whom or what they trouble."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[T, str] = {}

    def tell(self, what: T, text: str, *, level: int = logging.WARNING) -> None:
        """Something is wrong, as `text` says, which is the same as long as it is the same that is wrong."""
        if self._said.get(what) != text:
            self._log.log(level, "%s", text)
            self._said[what] = text

    def said(self, what: T) -> str:
        """What was told of it last; empty where nothing is wrong."""
        return self._said.get(what, "")

    def over(self, what: T, text: str) -> None:
        """Nothing is wrong any more; `text` tells so where something was."""
        if self._said.pop(what, None) is not None:
            self._log.info("%s", text)
