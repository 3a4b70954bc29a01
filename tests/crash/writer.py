"""A writer that lives until it is killed, and the nursery that it is forked from.

The nursery has imported everything, so a new life costs only a fork. It reads one order (JSON) per line of
its standard input. A writer writes its process id and each of its steps to the journal, a named pipe. Notes
from before a SIGKILL can be read after it. Nobody waits for dead processes, so that their ids aren't reused.

With `bug: "early"` a writer acknowledges an append before it makes it.
"""

import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    HandleExpired,
    Indeterminate,
    StorageError,
    UpperMismatch,
)
from holdfast.persist import PersistClient, PersistConfig, Schema

SCHEMA = Schema.of(
    key={"writer": "string", "number": "int64", "row": "int64"}, value={"rows": "int64", "load": "string"}
)
INLINE_MAX_BYTES = 4096


@dataclass(frozen=True)
class Order:
    """What a writer is to do. `count` appends from `first` on, of `seed`'s sizes."""

    blob: str
    consensus: str
    shard: str
    writer: str
    journal: str
    seed: int
    first: int
    count: int
    retry_deadline_s: float = 10.0
    bug: str = ""
    seals: bool = False
    """Whether it writes to be sealed, under the write lock (`crash.sealing`)."""


def config(retry_deadline_s: float = 10.0) -> PersistConfig:
    """Upkeep after every few appends, so that kills meet it too."""
    return PersistConfig(
        inline_max_bytes=INLINE_MAX_BYTES,
        rollup_every=16,
        compaction_fanin=4,
        gc_grace_s=0.0,
        debug_validate=True,
        retry_deadline_s=retry_deadline_s,
    )


def table(order: Order, number: int) -> pa.Table:
    """The rows of an append: a few, sometimes too large to be inline."""
    sizes = random.Random(f"{order.seed}/{order.writer}/{number}")
    rows = sizes.randrange(1, 5)
    load = "x" * (INLINE_MAX_BYTES if sizes.random() < 0.3 else 10)
    return pa.table(
        {
            "writer": [order.writer] * rows,
            "number": [number] * rows,
            "row": list(range(rows)),
            "rows": [rows] * rows,
            "load": [load] * rows,
        }
    )


def live(order: Order, say: Callable[[dict[str, Any]], None]) -> None:
    """Do what is ordered."""
    stores = {"blob": order.blob, "consensus": order.consensus}
    nursery = os.getppid()
    with patiently(
        nursery, lambda: PersistClient.open(**stores, config=config(order.retry_deadline_s))
    ) as client:
        writer = patiently(nursery, lambda: client.writer(order.shard, SCHEMA, purpose=order.writer))
        say({"open": os.getpid()})
        number = order.first
        while number < order.first + order.count:
            if os.getppid() != nursery:
                return  # the test has ended, and its servers with it
            at = writer.cached_upper
            say({"try": number, "at": at})
            if order.bug == "early":
                say({"answer": "done"})
            answer, error = "done", ""
            try:
                writer.compare_and_append(table(order, number), at, at + 1)
            except (UpperMismatch, Determinate) as refused:
                answer, error = "refused", type(refused).__name__
            except (Indeterminate, HandleExpired) as unknown:
                answer, error = "unknown", type(unknown).__name__
            if order.bug != "early":
                say({"answer": answer, "error": error})
            if answer == "unknown":
                writer = patiently(nursery, lambda: client.writer(order.shard, SCHEMA, purpose=order.writer))
            if answer != "refused":
                number += 1
        say({"end": True})


def patiently(nursery: int, action: Callable[[], Any]) -> Any:
    """What `action` gives, once its stores can be reached."""
    while True:
        try:
            return action()
        except CorruptBlob:
            raise
        except StorageError:
            if os.getppid() != nursery:
                raise


def main() -> None:
    from crash.sealing import live_sealing

    nursery = os.getpid()
    print("ready", flush=True)
    for line in sys.stdin:
        order = Order(**json.loads(line))
        if os.fork() == 0:
            sys.stdin.close()
            journal = os.open(order.journal, os.O_WRONLY)

            def say(note: dict[str, Any], journal: int = journal) -> None:
                os.write(journal, (json.dumps(note) + "\n").encode())

            say({"born": os.getpid()})
            try:
                (live_sealing if order.seals else live)(order, say)
            except BaseException as error:  # noqa: BLE001 - the campaign shows it
                if os.getppid() == nursery:
                    say({"failed": repr(error), "where": traceback.format_exc()})
                os._exit(1)
            # Without the nursery's own end: this process is a copy of it.
            os._exit(0)


if __name__ == "__main__":
    main()
