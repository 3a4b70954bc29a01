"""Forked children, and the states in which a fork can find the objects that they inherit."""

import json
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.persist.stores import Blob, Consensus
from holdfast.stash import Stash

LIMIT_S: Final = 30
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_STORES: Final = (Blob, Consensus, Stash)


def in_child(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """What each call raises in one forked child of this process: the error's class, or "" for none.

    A call that doesn't return is "hung", and those after it are missing.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIMIT_S)
            os.close(read)
            with os.fdopen(write, "w") as out:
                for name, call in calls.items():
                    _say(out, name, "hung")
                    try:
                        call()
                    except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
                        if type(error).__name__ != "UsedAfterFork":
                            traceback.print_exc()
                        _say(out, name, type(error).__name__)
                    else:
                        _say(out, name, "")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        found = [json.loads(line) for line in said]
    os.waitpid(child, 0)
    return dict(found)


def _say(out: Any, name: str, what: str) -> None:
    out.write(json.dumps([name, what]) + "\n")
    out.flush()


@contextmanager
def locks_held(*roots: object) -> Iterator[int]:
    """Another thread holds every lock of these objects and of what they are made of; how many.

    Those of stores are not held: stores wait for the calls in flight before a fork.
    """
    taken, ready, done = 0, threading.Event(), threading.Event()

    def hold() -> None:
        nonlocal taken
        held = [lock for lock in _locks(roots) if lock.acquire(blocking=False)]
        taken = len(held)
        ready.set()
        done.wait()
        for lock in held:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        yield taken
    finally:
        done.set()
        thread.join()


def _locks(roots: Iterable[object]) -> list[Any]:
    seen: set[int] = set()
    found: list[Any] = []
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _STORES):
            continue
        seen.add(id(thing))
        if isinstance(thing, _LOCKS):
            found.append(thing)
        elif isinstance(thing, Mapping):
            waiting += thing.values()
        elif isinstance(thing, list | tuple | set | frozenset):
            waiting += thing
        elif type(thing).__module__.startswith("holdfast."):
            waiting += getattr(thing, "__dict__", {}).values()
            waiting += [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    return found


def public_names(kind: type) -> set[str]:
    """The methods and properties of a class that users call."""
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("holdfast.")
        for name, member in vars(base).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
        if not isinstance(member, type)
    }
