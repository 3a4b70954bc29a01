"""Clients that the tables and queries of this process share: one for each location, mode and user.

A client is in one of these states:

- Current: who comes next uses it, too. The first who comes opens it, and the others wait for that.
- Idle: current, and nobody uses it. Only queries of local locations leave a client idle. It stays for
  `IDLE_S` seconds.
- Gone: its location was removed, moved or replaced. Who uses it goes on with it. Who comes next opens the
  location anew.
- Ended: nobody uses it, and it is not idle. It is forgotten, and closed.

Invariants:

- `_lock` is held only to look at these states. Nobody calls a store under it, so a disk that hangs stops
  only who uses its location.
- A client that somebody uses is not closed. A `Use` that is lost, because of Ctrl-C or because nobody closed
  the result of a query, ends when it is collected. The client is idle from when that is noticed.
"""

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final, NamedTuple

from holdfast.collections import StorageController
from holdfast.collections.who import who_here
from holdfast.errors import StoreUnreachable
from holdfast.forks import ForkLock, fork_count
from holdfast.persist import PersistClient
from holdfast.persist.parts.verified import kept_bytes
from holdfast.persist.session import Mode
from holdfast.sqlite_guard import OpenElsewhere

WHO: Final = "holdfast.table"
IDLE_S: Final = 10.0
"""Seconds for which a client of queries stays open after the last one."""
_MOST_IDLE: Final = 4
_MOST_SHARDS: Final = 1024
_MOST_BYTES: Final = 256 * 1024 * 1024
_MOST_NAMED: Final = 3


class Key(NamedTuple):
    """What two uses must have in common to share a client."""

    where: str
    consensus: str | None
    mode: Mode
    rights: tuple[int, ...]
    process: int

    @classmethod
    def of(cls, where: str, mode: Mode, consensus: str | None) -> "Key":
        """The key of a use now, in this process."""
        # A process may change its user, who may not have the rights with which files were opened. A forked
        # child can't use what its parent has open.
        rights = os.geteuid(), os.getegid(), *os.getgroups()
        return cls(where, consensus, mode, rights, fork_count())

    @property
    def is_local_read(self) -> bool:
        """Whether its client is for reads of a local location."""
        return self.mode == "read" and self.consensus is None and self.where.startswith("file:")


class Use:
    """What a table or a query uses a shared client by. `what` names it in errors."""

    def __init__(self, client: "SharedClient", what: str) -> None:
        self.what: Final = what
        self._client: Final = client
        self.was_idle: Final = client.is_open and not client.is_used
        """Whether the client stayed open from others, and nobody else used it."""

    @property
    def controller(self) -> StorageController:
        """The controller of the location."""
        assert self._client.controller is not None
        return self._client.controller

    def pin(self) -> None:
        """Count until `end`, also if this is collected."""
        with _lock:
            _pinned.add(self)

    def watch(self) -> None:
        """Let a timer notice if this is lost."""
        if self._client.key.is_local_read:
            with _lock:
                _wait(IDLE_S)

    def end(self, *, stays: bool = False, gone: bool = False) -> None:
        """Stop using the client. With `stays`, it may become idle; with `gone`, nobody else gets it.

        Only a client of a local location becomes idle, so that the next query doesn't open the location
        again, and doesn't verify again what was verified. Its URL has no secrets, and no server counts its
        connections. At most `_MOST_IDLE` are idle, each with 3 open files, at most `_MOST_SHARDS` shards and
        `_MOST_BYTES` of footers and checksums.
        """
        client = self._client
        with _lock:
            _pinned.discard(self)
            client.users.discard(self)
            if gone and _current.get(client.key) is client:
                del _current[client.key]
                _gone.add(client)
            client.left_s = time.monotonic() if stays and client.is_small else -math.inf
            ended = _ended(IDLE_S)
        _close(ended)


class SharedClient:
    """A client, and who uses it. `_lock` guards all but `controller`."""

    def __init__(self, key: Key) -> None:
        self.key: Final = key
        self.users: Final[weakref.WeakSet[Use]] = weakref.WeakSet()
        self.left_s: float | None = None
        """When it became idle, on the monotonic clock. None if a user came since then."""
        self.controller: StorageController | None = None
        self._opening: Final = threading.Lock()

    @property
    def is_used(self) -> bool:
        """Whether somebody uses it."""
        # The length of a weak set may count what Ctrl-C kept from being removed.
        return any(True for _ in self.users)

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self.controller is not None

    @property
    def is_small(self) -> bool:
        """Whether it may stay open while nobody uses it."""
        if self.controller is None or not self.key.is_local_read:
            return False
        machines = list(self.controller.client.session.machines.values())
        return len(machines) <= _MOST_SHARDS and sum(map(kept_bytes, machines)) <= _MOST_BYTES

    @property
    def store(self) -> str | None:
        """How errors call its consensus store."""
        return None if self.controller is None else self.controller.client.location.consensus.description

    def is_ready(self, open_: Callable[[], PersistClient], *, is_used: bool) -> bool:
        """Open it, or return whether its location is still there. Raises the errors of `open_`.

        Clients that write, or read what is not local, are not asked while others use them.
        """
        with self._opening:
            if self.controller is None:
                self.controller = StorageController(_opened(open_), who=who_here(WHO))
                return True
        if is_used and not self.key.is_local_read:
            return True
        return self.controller.client.location.is_there()

    def close(self) -> None:
        """Close the client."""
        if self.controller is None:
            return
        try:
            self.controller.close()
        finally:
            # Nobody opens a location that was moved while this has it open.
            self.controller.client.close()


_lock: Final = ForkLock()
_current: dict[Key, SharedClient] = {}
_gone: set[SharedClient] = set()
_pinned: Final[set[Use]] = set()
_timer: "tuple[int, threading.Timer] | None" = None
"""What closes idle clients, and the process that it runs in, as `fork_count` numbers it."""


def use_of(key: Key, what: str, open_: Callable[[], PersistClient]) -> Use:
    """Use the client with a key. If there is none, or its location is gone, `open_` opens one.

    Raises the errors of `open_`.
    """
    while True:
        with _lock:
            client = _current.get(key) or _current.setdefault(key, SharedClient(key))
            is_used = client.is_used
            use = Use(client, what)
            client.users.add(use)
            client.left_s = None
        try:
            if client.is_ready(open_, is_used=is_used):
                return use
        except BaseException:
            use.end()
            raise
        use.end(gone=True)


def _opened(open_: Callable[[], PersistClient]) -> PersistClient:
    """Open a client. Close idle ones that have the location open where it was before it was moved."""
    while True:
        try:
            return open_()
        except OpenElsewhere as error:
            with _lock:
                found = [each for each in _all() if each.store == error.store]
                idle = [each for each in found if not each.is_used]
                users = [use.what for each in found for use in each.users]
                _forget(idle)
            _close(idle)
            if users:
                named = ", ".join(users[:_MOST_NAMED]) + (", ..." if len(users) > _MOST_NAMED else "")
                raise StoreUnreachable(str(error), hint=f"close {named}, and try again") from error
            if not idle:
                raise


def _ended(idle_s: float) -> list[SharedClient]:
    """Forget the clients that nobody uses, but those that are idle for less. Return those to close."""
    now_s = time.monotonic()
    idle: list[tuple[float, SharedClient]] = []
    ended: list[SharedClient] = []
    may_lose_users = False
    for each in _all():
        if each.is_used:
            may_lose_users |= each.key.is_local_read and any(use not in _pinned for use in each.users)
            continue
        if each.left_s is None:
            each.left_s = now_s if each.is_small else -math.inf
        if each.left_s > now_s - idle_s and each not in _gone:
            idle.append((each.left_s, each))
        else:
            ended.append(each)
    idle.sort(key=lambda each: -each[0])
    ended += [each for _, each in idle[_MOST_IDLE:]]
    _forget(ended)
    if stay := idle[:_MOST_IDLE]:
        _wait(max(0.0, stay[-1][0] + IDLE_S - now_s))
    elif may_lose_users:
        _wait(IDLE_S)
    return ended


def _all() -> list[SharedClient]:
    """The clients of this process, and not those of one that forked it."""
    return [each for each in (*_current.values(), *_gone) if each.key.process == fork_count()]


def _forget(clients: Iterable[SharedClient]) -> None:
    for each in clients:
        _gone.discard(each)
        if _current.get(each.key) is each:
            del _current[each.key]


def _close(clients: Iterable[SharedClient]) -> None:
    # Ctrl-C may end any of these, and the others run nevertheless.
    with ExitStack() as ends:
        for each in clients:
            ends.callback(each.close)


def _wait(seconds: float) -> None:
    """Let a timer close idle clients, unless one runs."""
    global _timer
    if _timer is None or _timer[0] != fork_count():
        timer = threading.Timer(seconds, close_idle)
        timer.daemon = True
        timer.start()
        _timer = fork_count(), timer


def close_idle(idle_s: float | None = None) -> None:
    """Close clients that have been idle for that long (None: `IDLE_S`)."""
    global _timer
    with _lock:
        _timer = None
        ended = _ended(IDLE_S if idle_s is None else idle_s)
    _close(ended)


@atexit.register
def _close_all_idle() -> None:
    close_idle(0.0)
