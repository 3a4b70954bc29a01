"""The Holdfast objects as they were last seen or written, so that a reconciliation needn't read them again.

Invariants
- An object never goes back. A state that is older than one that was seen or written is ignored, no matter
  whether an event, a list or a response delivers it. So a watch that is late can't hide a write of this
  process.
- Only existing objects are known. Whether an unknown object exists, the API server decides.
- After a write that was refused or had no response, an object is in doubt. It is read before it is used.
- Nothing is known while a watch is down (`follows`). `engine.watches` says when one is.
- A watch that began before a CRD was changed may deliver objects without the new fields, in the same version.
  So a response replaces the contents that an event delivered.
- A decision records what it depends on (`reading`). Before an irreversible step, all of that is confirmed: it
  was read or written within the last second, or it is read again and has not changed.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from holdfast_operator.engine.lists import own, packed, unpacked

Json = dict[str, Any]
K = TypeVar("K", bound=Hashable)

_FRESH_SECONDS: Final = 1.0
"""Seconds for which a response of the API server confirms a state. A call to a store may take longer."""
_REMEMBERED: Final = 4096
"""The number of latest deletions that are remembered, so that a late response can't bring an object back."""
_NEVER: Final = float("-inf")

Reads = dict[Hashable, Callable[[], Awaitable[bool]]]
"""What a decision depends on. Each value returns whether it is still as it was."""
_READS: ContextVar[Reads | None] = ContextVar("reads", default=None)


@contextmanager
def reading() -> Iterator[Reads]:
    """Collects everything that this task reads from memory within."""
    reads: Reads = {}
    token = _READS.set(reads)
    try:
        yield reads
    finally:
        _READS.reset(token)


def record(what: Hashable, is_current: Callable[[], Awaitable[bool]]) -> None:
    """Records for `reading` that something was read, and how to find out whether it has changed since."""
    reads = _READS.get()
    if reads is not None:
        reads[what] = is_current


async def are_current(reads: Reads) -> bool:
    """Returns whether nothing has changed since it was read."""
    for is_current in reads.values():
        if not await is_current():
            return False
    return True


def version_of(body: Mapping[str, Any]) -> int:
    """Returns the resourceVersion of an object or a list as a number, or 0 if it has none.

    Kubernetes guarantees that the versions of a type are numbers that grow.
    """
    text = str(body["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


@dataclass(slots=True)
class _Known:
    version: int
    content: bytes
    """As `packed` makes it."""
    confirmed: float
    """When the request was sent whose response last showed this state."""
    in_doubt: bool = False


class KnownObjects(Generic[K]):
    """The last known state of each object. For one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[K, _Known] = {}
        self._gone: OrderedDict[K, int] = OrderedDict()
        """The versions of the latest deletions."""
        self.newest = 0
        """The newest version of any object."""
        self._is_watching: Callable[[], bool] = lambda: False

    @property
    def follows(self) -> bool:
        """Whether watches keep the objects up to date."""
        return self._is_watching()

    def follow(self, is_watching: Callable[[], bool]) -> None:
        """Uses the objects as they are known while `is_watching` returns that all watches work."""
        self._is_watching = is_watching

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._known))

    def get(self, key: K) -> Json | None:
        """Returns a copy of an object, or None if it must be read."""
        known = self._known.get(key)
        if known is None or known.in_doubt or not self.follows:
            return None
        return unpacked(known.content)

    def version(self, key: K) -> int:
        """Returns the newest known version of an object, or 0."""
        known = self._known.get(key)
        return 0 if known is None else known.version

    def put(self, key: K, body: Json, *, asked: float = _NEVER) -> bool:
        """Records a state. `asked` is when the request for it was sent, if it is a response.

        Returns False if the state isn't new.
        """
        version, known = version_of(body), self._known.get(key)
        if not version or version <= self._gone.get(key, 0):
            return False
        self.newest = max(self.newest, version)
        if known is not None and version <= known.version:
            if version == known.version and asked > _NEVER:
                known.content = _slim(body)
                known.confirmed = max(known.confirmed, asked)
                known.in_doubt = False
            return False
        self._known[key] = _Known(version, _slim(body), asked)
        return True

    def learn(self, key: K, body: Json, asked: float) -> Json | None:
        """Records a response, and returns the newest known state, or None if the object was deleted since."""
        self.put(key, body, asked=asked)
        if not self.follows or not version_of(body):
            return body
        known = self._known.get(key)
        if known is None:
            return None if key in self._gone else body
        return unpacked(known.content)

    def drop(self, key: K, body: Json | None = None) -> None:
        """Forgets an object that is gone. `body` is its last state, from the event of its deletion."""
        known = self._known.get(key)
        version = (
            known.version if body is None and known is not None else version_of(body or {"metadata": {}})
        )
        if known is not None and known.version > version:
            # It was created again.
            return
        self._known.pop(key, None)
        self._gone[key] = max(version, self._gone.pop(key, 0))
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def doubt(self, key: K) -> None:
        """Has an object read before it is used again."""
        known = self._known.get(key)
        if known is not None:
            known.in_doubt = True

    def doubt_all(self) -> None:
        """Forgets everything, because the API server's history went back. Every object is read again."""
        self._known.clear()
        self._gone.clear()
        self.newest = 0

    def is_confirmed(self, key: K) -> bool:
        """Returns whether a response has just shown the known state of an object."""
        known = self._known.get(key)
        return known is not None and not known.in_doubt and self._now() - known.confirmed <= _FRESH_SECONDS

    def shows(self, key: K, body: Json) -> bool:
        """Returns whether this is the known state of an object, with all its contents."""
        known = self._known.get(key)
        return known is not None and known.version == version_of(body) and known.content == _slim(body)

    def now(self) -> float:
        """Returns the time for `asked`."""
        return self._now()


def is_same(body: Json, other: Json) -> bool:
    """Returns whether two objects are the same state with the same contents."""
    return _slim(body) == _slim(other)


def _slim(body: Json) -> bytes:
    return packed(own(body))
