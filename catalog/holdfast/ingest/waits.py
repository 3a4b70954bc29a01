"""Shows what a pipeline waits for: once when it begins to wait, and once when it goes on.

A source that waits or reads for long also asks here whether the pipeline is to end.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

_SHOWN_AFTER_S: Final = 2.0
"""Most waits for a server are over before anybody needs to know."""


class Stopped(Exception):
    """The pipeline is to end in the middle of a step. What the step has read is not committed."""


class Waits:
    """What one pipeline waits for. `say` gets each line. By default nobody does.

    `stopped(seconds)` waits for at most so many seconds. It returns True if the pipeline is to end.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.stopped: Callable[[float], bool] = threading.Event().wait
        self._say = say
        self._shown = ""
        self._since_s = 0.0
        self._server = ""
        self._noted: set[str] = set()

    def pause(self, seconds: float) -> None:
        """Wait for at most so many seconds. Raises `Stopped` if the pipeline is to end."""
        if self.stopped(seconds):
            raise Stopped

    def show(self, what: str) -> None:
        """Show what it waits for. Empty: it goes on."""
        if what == self._shown:
            return
        now_s = time.monotonic()
        self._say(what or f"going on after {now_s - self._since_s:.0f} s")
        if not self._shown:
            self._since_s = now_s
        # What is shown now is not the wait for a server. `away` says so itself if it is.
        self._shown, self._server = what, ""

    def note(self, what: str) -> None:
        """Show something else that a user should know, once."""
        if what not in self._noted:
            self._noted.add(what)
            self._say(what)

    def away(self, server: str, reason: str, since_s: float) -> None:
        """Show that a server has not responded since then, unless that is only a moment."""
        if self._server != server and time.monotonic() - since_s >= _SHOWN_AFTER_S:
            self.show(f"waiting for {server}: {reason}")
            self._server, self._since_s = server, since_s

    def back(self, server: str) -> None:
        """The end of `away`, if there was one."""
        if self._server == server:
            self.show("")
