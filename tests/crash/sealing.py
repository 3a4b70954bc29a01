"""A writer in mode WRITE_SEAL that lives until it is killed: it takes the write lock, writes and seals.

Several writers live at once and take the lock from each other. So a seal finds pending updates that a fenced
or dead writer left. `crash.oracle` reads the notes of a writer. Seals are noted too, but only for people.
"""

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from crash.writer import SCHEMA, Order, config, patiently, table
from holdfast.errors import (
    Determinate,
    Fenced,
    HandleExpired,
    Indeterminate,
    LockHeld,
    UpperMismatch,
)
from holdfast.persist import PersistClient, WriteMode
from holdfast.persist.handles.exclusive import Exclusive

_LONGEST_WAIT_S = 0.2


def live_sealing(order: Order, say: Callable[[dict[str, Any]], None]) -> None:
    """Do what is ordered."""
    stores = {"blob": order.blob, "consensus": order.consensus}
    nursery = os.getppid()
    chance = random.Random(f"{order.seed}/{order.writer}/{order.first}/seals")
    with patiently(
        nursery, lambda: PersistClient.open(**stores, config=config(order.retry_deadline_s))
    ) as client:

        def opened() -> Any:
            return client.writer(order.shard, SCHEMA, purpose=order.writer, mode=WriteMode.WRITE_SEAL)

        lock = patiently(nursery, lambda: locked(client, order.writer, chance))
        writer = patiently(nursery, opened)
        say({"open": os.getpid()})
        number = order.first
        while number < order.first + order.count:
            if os.getppid() != nursery:
                return  # the test has ended, and its servers with it
            at = writer.cached_upper + chance.randrange(0, 4)
            say({"try": number, "at": at})
            answer, error = attempt(writer.write, written(order, number, at))
            say({"answer": answer, "error": error})
            if answer != "refused":
                number += 1
            if not error and chance.random() < 0.5:
                upper = writer.cached_upper + chance.randrange(1, 5)
                say({"seal": upper})
                done, error = attempt(writer.seal, upper)
                say({"sealed": done, "error": error})
            if error == "Fenced":
                lock = patiently(nursery, lambda: locked(client, order.writer, chance))
            elif chance.random() < 0.1:
                patiently(nursery, lock.close)
                lock = patiently(nursery, lambda: locked(client, order.writer, chance))
            if error in ("Indeterminate", "HandleExpired", "Fenced"):
                writer = patiently(nursery, opened)
        patiently(nursery, lock.close)
        say({"end": True})


def written(order: Order, number: int, at: int) -> pa.Table:
    """The rows of a write, all at one time."""
    rows = table(order, number)
    return rows.append_column("_time", pa.array([at] * len(rows), pa.uint64()))


def attempt(action: Callable[[Any], object], argument: object) -> tuple[str, str]:
    """Whether it was done, refused, or nobody knows, and the error."""
    try:
        action(argument)
    except (UpperMismatch, Determinate, Fenced) as refused:
        return "refused", type(refused).__name__
    except (Indeterminate, HandleExpired) as unknown:
        return "unknown", type(unknown).__name__
    return "done", ""


def locked(client: PersistClient, who: str, chance: random.Random) -> Exclusive:
    """The write lock: it is taken from its holder, dead or alive, after a while."""
    patience = time.monotonic() + chance.uniform(0, _LONGEST_WAIT_S)
    while True:
        try:
            return client.exclusive(who, purpose="seal", take_over=time.monotonic() > patience)
        except LockHeld:
            time.sleep(0.005)  # the lock has no event to wait for
